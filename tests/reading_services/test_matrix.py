"""Bit-identical epochs: workers, threads, ranks, prefetch and fusion change nothing."""

from itertools import combinations, product

import pytest
from ranks import plain, run_ranks
from sampled import sampled
from scenes import full_chain, write_cases
from test_distributed import equal, joined

import voxpipe as vp
from voxpipe.reading_services import DistributedReadingService, SequentialReadingService

pytestmark = pytest.mark.usefixtures("started_store")
WORKERS = (0, 1, 2, 4)
METHODS = ("forkserver", "fork", "spawn", "threads")
WORLDS = (1, 2, 4)
PREFETCH = (0, 8)
FUSED = (False, True)
EVERY = tuple(product(WORKERS, METHODS, WORLDS, PREFETCH, FUSED))


def pairs(row):
    """Return every pair of settings in a row, each with its place."""
    return set(combinations(enumerate(row), 2))


def cost(row):
    """Return how long a row takes, roughly, in forks of a process: spawned ones import numpy."""
    workers, method, world, _prefetch, _fused = row
    return 40 + world * workers * {"spawn": 10, "threads": 0}.get(method, 1)


def covering(rows):
    """Return cheap rows that together have every pair of settings that any row has."""
    left = set().union(*map(pairs, rows))
    chosen = []
    while left:
        best = max(rows, key=lambda row: len(pairs(row) & left) / cost(row))
        chosen.append(best)
        left -= pairs(best)
    return chosen


SAMPLE = covering(EVERY)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


@pytest.fixture(scope="module")
def expected(cases):
    with vp.DataLoader2(full_chain(cases), seed=7, fuse=False) as it:
        return [plain(it) for _ in range(2)]


def epochs(rank, cases, rows, stay):
    """Return two epochs of this rank under each row of settings, by the same workers or others."""
    found = []
    for workers, method, _world, prefetch, fused in rows:
        if method == "threads" and workers:
            inner = vp.ThreadReadingService(workers, prefetch)
        else:
            start = None if method == "threads" else method
            options = {"persistent_workers": stay}
            inner = vp.MultiProcessingReadingService(workers, start, prefetch, prefetch, **options)
        service = SequentialReadingService(DistributedReadingService(120.0), inner)
        with vp.DataLoader2(full_chain(cases), None, service, seed=7, fuse=fused) as it:
            found.append([plain(it) for _ in range(2)])
    return found


def check(world, rows, cases, expected, *, stay):
    of_ranks = run_ranks(world, epochs, cases, rows, stay)
    for number, row in enumerate(rows):
        for epoch, whole in enumerate(expected):
            parts = [found[number][epoch] for found in of_ranks]
            assert equal(joined(parts), whole), f"{row}, epoch {epoch}"


def test_the_sample_has_every_pair_of_settings():
    """Each value of each setting meets each value of every other one."""
    wanted = set().union(*map(pairs, EVERY))

    assert wanted == set().union(*map(pairs, SAMPLE))
    assert len(SAMPLE) < len(EVERY) / 8


@pytest.mark.parametrize("world", sampled(WORLDS[::-1], 2))
def test_a_sample_of_settings_is_bit_identical(cases, expected, world):
    """Two epochs under every pair of settings are those of one process."""
    check(world, [row for row in SAMPLE if row[2] == world], cases, expected, stay=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("world", WORLDS)
def test_all_settings_are_bit_identical(cases, expected, world, method):
    """Two epochs under all of them."""
    rows = [row for row in EVERY if row[2] == world and row[1] == method]
    check(world, rows, cases, expected, stay=False)
