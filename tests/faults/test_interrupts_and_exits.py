"""Ctrl-C, and every way to leave a program, in mid-epoch, at moments that are drawn."""

import os
import random
import re
import signal
import sys
import threading

import pytest
from loaders import adapters, cases, chain, service

import voxpipe as vp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
LONGEST_DELAY = 0.3
STATUS = 5
CTRL_C = "Ctrl-C"


class Lost(Exception):
    """What a loop may raise."""


def leave(seed):
    """Leave in mid-epoch: by a signal, an exit, an error, or with a daemon thread at it."""
    rng = random.Random(seed)
    way = _way_of(seed)
    loader = vp.DataLoader2(chain(rng, cases(), 40), adapters(rng), service(rng), seed=seed)
    main = sys.modules["__main__"]
    # As names of the script they are there until its modules go.
    main.loader, main.batches = loader, iter(loader)
    for _ in range(rng.randint(0, 3)):
        main.batch = next(main.batches)
    delay = rng.random() * LONGEST_DELAY
    if way == CTRL_C:
        threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT)).start()
        while True:
            for batch in loader:
                main.batch = batch
    del loader
    WAYS[way](main, delay)


def _way_of(seed):
    return [*WAYS, CTRL_C][seed % (len(WAYS) + 1)]


def _consume(main, begun):
    while True:
        for batch in main.batches:
            main.batch = batch
            begun.set()
        main.batches = iter(main.loader)


def _leave_a_daemon(main, delay):
    begun = threading.Event()
    threading.Thread(target=_consume, args=(main, begun), daemon=True).start()
    begun.wait()
    begun.clear()
    begun.wait(delay)
    sys.exit(STATUS)


def _exit_in_a_loop(main, delay):
    for batch in main.batches:
        main.batch = batch
        sys.exit(STATUS)


def _fail(main, delay):
    for batch in main.batches:
        raise Lost(len(batch))


def _exit(main, delay):
    sys.exit(STATUS)


def _end(main, delay):
    main.loader = None


def _exit_at_once(main, delay):
    os._exit(STATUS)


WAYS = {
    "sys.exit": _exit,
    "sys.exit in a loop": _exit_in_a_loop,
    "error": _fail,
    "end": _end,
    "daemon": _leave_a_daemon,
    "os._exit": _exit_at_once,
}
EXPECTED = {"error": (1, ["Lost"]), "end": (0, []), CTRL_C: (-signal.SIGINT, ["KeyboardInterrupt"])}


def test_leaving_is_silent_and_has_its_status(attacks, isolated):
    """One traceback where something was raised, else nothing; and nothing is left."""

    def attempt(seed):
        ended = isolated("leave", seed)
        said = re.findall(r"^(?:\w+\.)*(\w+)(?::.*)?$", ended.said.strip(), re.MULTILINE)
        status, errors = EXPECTED.get(_way_of(seed), (STATUS, []))
        assert ended.said.count("Traceback (most recent call last)") == len(errors), ended.said
        assert (ended.status, said[-1:], ended.left) == (status, errors, []), (seed, ended)

    attacks.each(attempt, quick=7, whole=210)
