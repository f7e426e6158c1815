"""kill -9 of workers and of their consumer, at moments that are drawn."""

import os
import random
import signal
import sys
import threading
import warnings
from multiprocessing import active_children

import pytest
from loaders import adapters, cases, chain, workers
from scenes import same

import voxpipe as vp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
LONGEST_DELAY = 0.05
MOST_KILLS = 3


def kill_workers(seed):
    """Kill some workers in an epoch: every batch comes once, in order, with the same bits."""
    rng = random.Random(seed)
    pipe, settings = chain(rng, cases()), adapters(rng)
    expected = list(vp.DataLoader2(pipe, settings, seed=seed))
    kills = rng.randint(1, MOST_KILLS)
    service = workers(rng, max_restarts=kills)
    after = sorted(rng.randrange(len(expected)) for _ in range(kills))
    timers, seen = [], []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with vp.DataLoader2(pipe, settings, service, seed=seed) as loader:
            for number, batch in enumerate(loader):
                seen.append(batch)
                for _ in range(after.count(number)):
                    timer = threading.Timer(rng.random() * LONGEST_DELAY, _kill, [rng.random()])
                    timer.start()
                    timers.append(timer)
            for timer in timers:
                timer.join()
    assert same(seen, expected)
    assert len(told) <= kills
    assert {w.category for w in told} <= {vp.errors.WorkerReplaced}


def _kill(which):
    children = sorted(child.pid for child in active_children())
    if children:
        os.kill(children[int(which * len(children))], signal.SIGKILL)


def kill_consumer(seed):
    """End the consumer in mid-epoch, by a signal or by ``os._exit``."""
    rng = random.Random(seed)
    loader = vp.DataLoader2(chain(rng, cases(), 40), adapters(rng), workers(rng), seed=seed)
    end = _end_of(seed)
    timer = threading.Timer(rng.random() * LONGEST_DELAY, end)
    batches = iter(loader)
    for _ in range(rng.randint(0, 2)):
        next(batches)
    timer.start()
    for _ in batches:
        pass
    timer.join()


def _end_of(seed):
    return _exit if seed % 3 == 0 else _kill_self


def _kill_self():
    os.kill(os.getpid(), signal.SIGKILL)


def _exit():
    os._exit(3)


def test_killed_workers_are_replaced(attacks, isolated):
    """Whichever, and whenever."""
    attacks.each(lambda seed: isolated("kill_workers", seed).refuse(), quick=2, whole=300)


def test_a_killed_consumer_leaves_nothing(attacks, isolated):
    """No process, no folder of sockets; what workers print has nobody to read it."""

    def attempt(seed):
        isolated("kill_consumer", seed).refuse(3 if _end_of(seed) is _exit else -signal.SIGKILL)

    attacks.each(attempt, quick=2, whole=60)
