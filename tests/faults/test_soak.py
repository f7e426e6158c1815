"""Epoch after epoch in one process, with workers that are killed: nothing grows.

An hour with ``--whole-faults``; ``--soak-seconds`` says another length.
"""

import contextlib
import gc
import os
import random
import signal
import sys
import time
import warnings
from collections import Counter
from multiprocessing import active_children, forkserver
from pathlib import Path

import pytest
from loaders import adapters, chain, workers
from scenes import same, write_cases

import voxpipe as vp

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
]
FEW, WHOLE_SECONDS = 8, 3600.0
# Of epochs, after which what is kept on purpose is there.
WARM = 4
# The allocator's own unevenness: measured between 0 and 6 MB over 2 000 epochs.
MOST_GROWTH = 24 * 1024**2
PROCESS = Path("/proc/self")


def held():
    """Return private memory in bytes, open files by name, and threads of this process."""
    gc.collect()
    lines = (PROCESS / "smaps_rollup").read_text().splitlines()
    private = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return private * 1024, open_files(), len(os.listdir(PROCESS / "task"))


def open_files():
    """Return what the descriptors of this process stand for: the files, or `pipe`, `socket`."""
    names = []
    for entry in (PROCESS / "fd").iterdir():
        # The listing's own is closed by now.
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(entry).partition(":")[0])
    return Counter(names)


def epochs(pipe, rng, expected):
    """Run epochs for ever, and yield after each; some lose a worker, some are left early."""
    while True:
        service = rng.choice([None, workers(rng, max_restarts=2)])
        loader = vp.DataLoader2(pipe, adapters(rng), service, seed=7)
        kill, leave = (rng.randrange(2 * len(expected)) for _ in range(2))
        seen = []
        for number, batch in enumerate(loader):
            seen.append(batch)
            children = active_children()
            if number == kill and children:
                os.kill(rng.choice(children).pid, signal.SIGKILL)
            if number == leave:
                break
        assert same(seen, expected[: len(seen)])
        del seen, batch
        loader.shutdown()
        yield


@pytest.mark.slow
def test_nothing_grows(request, tmp_path):
    """Memory, descriptors and threads are at the end what they were after the first epochs."""
    config = request.config
    seconds = config.getoption("soak_seconds")
    if seconds is None:
        seconds = WHOLE_SECONDS if config.getoption("whole_faults") else 0.0
    rng = random.Random(config.getoption("fault_seed") or 0)
    pipe = chain(rng, write_cases(tmp_path, 2))
    expected = list(vp.DataLoader2(pipe, seed=7))
    dogs = (getattr(plugin, "WATCHDOG", None) for plugin in config.pluginmanager.get_plugins())
    watchdog = next(dog for dog in dogs if dog is not None)
    # One for the life of the process, whenever the first loader that wants it comes.
    forkserver.ensure_running()
    end = time.monotonic() + seconds
    warm = 10 * WARM if seconds else WARM
    first = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vp.errors.WorkerReplaced)
        for number, _ in enumerate(epochs(pipe, rng, expected), 1):
            watchdog.at(request.node.nodeid)
            if number == warm:
                first = held()
            if number >= FEW and number > warm and time.monotonic() >= end:
                break
    memory, files, threads = held()

    assert first is not None
    grown, more = memory - first[0], files - first[1]
    told = (
        f"{number} epochs, {grown / 1024**2:.1f} MB more, {files.total()} files, {threads} threads"
    )
    request.node.add_report_section("call", "soak", told)
    assert not more, told
    assert threads <= first[2], told
    assert grown < MOST_GROWTH, told
