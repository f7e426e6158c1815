"""Children forked off a consumer in mid-epoch, while threads of it are at something."""

import faulthandler
import os
import random
import signal
import threading

import pytest
from loaders import adapters, cases, chain, service
from scenes import same

import voxpipe as vp
from voxpipe.core.errors import IteratorInvalidated

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
MOST_CHILDREN = 3
# Each child that iterates anew starts workers of its own, with torch: a minute on a busy machine.
WAIT = 80


def fork(seed):
    """Fork children that hold batches, go on, iterate anew or leave; the parent has its epoch."""
    rng = random.Random(seed)
    of = cases()
    pipe, settings = chain(rng, of), adapters(rng)
    expected = list(vp.DataLoader2(pipe, settings, seed=seed))
    busy = rng.random() < 0.5
    end = threading.Event()
    other = threading.Thread(target=_plan, args=(chain(rng, of), end))
    loader = vp.DataLoader2(pipe, settings, service(rng), seed=seed)
    whens = [rng.randrange(len(expected)) for _ in range(rng.randint(1, MOST_CHILDREN))]
    acts = [rng.choice(ACTS) for _ in whens]
    children, seen = [], []
    gone, going = os.pipe()
    if busy:
        other.start()
    batches = iter(loader)
    for number, batch in enumerate(batches):
        seen.append({k: v if k == "meta" else v.clone() for k, v in batch.items()})
        for when, act in zip(whens, acts, strict=True):
            if when == number:
                pid = os.fork()
                if not pid:
                    # The timer of faulthandler is a thread, which a child lacks: setting it again
                    # would wait for that for ever.
                    faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)
                    signal.alarm(WAIT)
                    os._exit(act(loader, batches, batch, (expected, number, gone)))
                children.append((pid, act))
        del batch
    os.write(going, bytes(len(children)))
    for pid, act in children:
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"{act.__name__}: {os.waitstatus_to_exitcode(status)}"
    end.set()
    if busy:
        other.join(WAIT)
    loader.shutdown()
    assert same(seen, expected)


def _plan(pipe, end):
    while not end.is_set():
        for batch in vp.DataLoader2(pipe, seed=1):
            if end.is_set():
                return
            del batch


def _drop(loader, batches, batch, _):
    del loader, batches, batch
    return 0


def _shut_down(loader, *_):
    loader.shutdown()
    return 0


def _hold(loader, batches, batch, known):
    """Look at the batch when the parent has had its epoch, and says so."""
    expected, number, gone = known
    os.read(gone, 1)
    return 0 if same([batch], [expected[number]]) else 3


def _go_on(loader, batches, *_):
    try:
        next(batches)
    except IteratorInvalidated:
        return 0
    return 4


def _begin_anew(loader, batches, batch, known):
    loader.set_epoch(0)
    anew = list(loader)
    loader.shutdown()
    return 0 if same(anew, known[0]) else 5


ACTS = [_drop, _shut_down, _hold, _go_on, _begin_anew]


@pytest.mark.slow
def test_children_and_parent_do_not_disturb_each_other(attacks, isolated):
    """Every batch of the parent, and what a child does is over at once."""
    attacks.each(lambda seed: isolated("fork", seed).refuse(), quick=2, whole=200)
