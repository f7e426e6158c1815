"""Batches of one visit go to one worker; which batches there are does not depend on it."""

import os
from collections import Counter, deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.batching.job import Job
from voxpipe.core import Sample
from voxpipe.datapipes.cost import measure_access
from voxpipe.reading_services.workers.pool import Affinity, cases_of
from voxpipe.volumes.choose_scheme import choose_scheme
from voxpipe.volumes.chunks.chunked_array import ChunkedArray
from voxpipe.volumes.scheme import Budget, Demand, StoreLayout

zarr = pytest.importorskip("zarr")


def job(index, *cases):
    return Job(index, tuple(Sample({}, identity=(case, n)) for n, case in enumerate(cases)))


class Sticky:
    """What affinity is compared with: the idlest, the first of them."""

    def choose(self, job, workers, limit, coming, told=None):
        return min(workers, key=lambda worker: len(worker.jobs))

    def remember(self, job, worker):
        pass


def simulated(batches, paces, affinity, limit=2):
    """Return (worker, cases) by batch, and the ticks until all are delivered in order.

    A worker needs as many ticks for a batch as its pace says; the consumer takes what is ready.
    """
    workers = [
        SimpleNamespace(number=n, jobs=deque(), left=0, most_jobs=9) for n in range(len(paces))
    ]
    made, order, done, ticks = {}, deque(), set(), 0
    coming = deque(job(n, *cases) for n, cases in enumerate(batches))
    bound = limit * len(workers)
    while coming or order:
        while order and order[0] in done:
            order.popleft()
        while coming and len(order) < bound and min(len(w.jobs) for w in workers) < limit:
            now = coming.popleft()
            after = min(bound - len(order) - 1, len(coming))
            worker = affinity.choose(now, workers, limit, after)
            affinity.remember(now, worker)
            made[now.index] = (worker.number, cases_of(now))
            worker.jobs.append(now)
            order.append(now.index)
        for worker in workers:
            if worker.jobs:
                worker.left = worker.left or paces[worker.number]
                worker.left -= 1
                if worker.left == 0:
                    done.add(worker.jobs.popleft().index)
        ticks += 1
    return [made[n] for n in sorted(made)], ticks


def decoders(made):
    """Return how many workers each case had, summed over the cases."""
    return len({(worker, case) for worker, cases in made for case in cases})


def in_turns(visits, batches, together):
    """Return the cases of batches as ``interleave(together)`` orders them."""
    lanes, order, following = [[n, batches] for n in range(together)], [], together
    while lanes:
        for lane in list(lanes):
            order.append((lane[0],) * 2)
            lane[1] -= 1
            if lane[1] == 0:
                if following < visits:
                    lane[:] = [following, batches]
                    following += 1
                else:
                    lanes.remove(lane)
    return order


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_visits_in_turns_have_one_worker_each(workers):
    """At one pace, no case is seen by two, and it takes no longer."""
    batches = in_turns(visits=3 * workers, batches=4, together=workers)
    made, ticks = simulated(batches, [3] * workers, Affinity())
    _, plain = simulated(batches, [3] * workers, Sticky())

    assert decoders(made) == 3 * workers
    assert ticks <= plain


def test_volumes_one_after_another_are_decoded_less_often():
    """Without turns too, where the paces of workers differ."""
    batches = [(case,) * 2 for case in range(12) for _ in range(3)]
    paces = [2, 3, 4]

    made, ticks = simulated(batches, paces, Affinity())
    plain, usual = simulated(batches, paces, Sticky())
    assert decoders(made) < decoders(plain)
    assert ticks <= usual + max(paces)


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=40),
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_nobody_waits_for_affinity(batches, paces):
    """Every batch is made; a case never keeps a worker idle that could have had its batch."""

    class Checking(Affinity):
        def choose(self, job, workers, limit, coming, told=None):
            worker = super().choose(job, workers, limit, coming)
            idle = [w for w in workers if not w.jobs]
            assert len(worker.jobs) < limit
            assert not worker.jobs or len(idle) <= coming
            return worker

    made, _ = simulated(batches, paces, Checking())

    assert [cases for _, cases in made] == batches


def test_a_case_that_was_given_away_stays_with_its_first_worker():
    """Who had it first has most of its chunks."""
    affinity = Affinity()
    workers = [SimpleNamespace(number=n, jobs=deque(), most_jobs=9) for n in range(2)]
    affinity.remember(job(0, 7), workers[0])
    workers[0].jobs.extend([1, 2])
    other = affinity.choose(job(1, 7), workers, 2, 5)
    affinity.remember(job(1, 7), other)
    workers[0].jobs.clear()

    assert other is workers[1]
    assert affinity.choose(job(2, 7), workers, 2, 5) is workers[0]


@pytest.fixture
def folder(tmp_path):
    for n in range(2):
        array = np.random.default_rng(n).integers(0, 99, (24, 24, 24), np.int16)
        zarr.create_array(tmp_path / f"{n}.zarr", data=array, chunks=(8, 8, 8))
    return tmp_path


def chain(folder, turns=True):
    """Four batches of each of two regions."""
    cases = [{"case": str(n), "image": str(folder / f"{n}.zarr")} for n in range(2)]
    pipe = vp.from_cases(cases).open_volume()
    pipe = pipe.lazy_patch(8, samples_per_volume=8, region=20, align=8)
    return (pipe.interleave(visits=2, patches_per_turn=2) if turns else pipe).batch_patches(2)


def epoch(pipe, workers, context=None, ahead=2):
    service = vp.MultiProcessingReadingService(workers, context, ahead, threads_per_worker=1)
    with vp.DataLoader2(pipe, reading_service=service, seed=5) as loader:
        return [[meta["case"] for meta in b["meta"]] for b in map(dict, loader)]


def bits(pipe, workers):
    service = vp.MultiProcessingReadingService(workers)
    with vp.DataLoader2(pipe, reading_service=service, seed=5) as loader:
        return [batch["image"].numpy().tobytes() for batch in loader]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="counts in forked workers")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_chunk_is_decoded_by_two_workers(folder, tmp_path, monkeypatch):
    """Two workers, two regions that take turns, batches of one region each.

    All jobs are given at once: later on, a worker that has nothing to do may take one of another.
    """
    log = tmp_path / "decoded"
    real = ChunkedArray.read

    def noted(self, region, **more):
        plan, cache = self._plan(region), self._cache
        here = {key for key, row in cache._rows.items() if cache._arrays[row] is not None}
        with open(log, "a", encoding="utf-8") as file:
            for key, index in zip(self._keys(plan), plan.chunks.tolist(), strict=True):
                if key not in here:
                    file.write(f"{os.getpid()} {self._token} {tuple(index)}\n")
        return real(self, region, **more)

    monkeypatch.setattr(ChunkedArray, "read", noted)
    cases = epoch(chain(folder), 2, "fork", ahead=4)
    lines = [line.split(" ", 1) for line in log.read_text().splitlines()]
    by_chunk = Counter(chunk for _, chunk in set(map(tuple, lines)))

    assert cases == [[case] * 2 for _ in range(4) for case in "01"]
    assert len({pid for pid, _ in lines}) == 2
    assert set(by_chunk.values()) == {1}
    # Kept as well: no chunk is decoded again by the worker that had it.
    assert len(lines) == len(by_chunk)


def test_batches_do_not_depend_on_the_number_of_workers(folder):
    """In turns, in this process and in three."""
    pipe = chain(folder)

    assert bits(pipe, 0) == bits(pipe, 1) == bits(pipe, 3)


def test_turns_change_the_order_alone(folder):
    """The same batches come, those of one visit in their order."""
    apart, together = bits(chain(folder, turns=False), 0), bits(chain(folder), 0)

    assert together == [apart[n] for pair in zip(range(4), range(4, 8), strict=True) for n in pair]


def test_resuming_in_the_middle_of_the_turns(folder):
    """The state is a number; the order is planned again. Other turns are another chain."""
    whole = bits(chain(folder), 0)
    loader = vp.DataLoader2(chain(folder), seed=5)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    loader.shutdown()

    again = vp.DataLoader2(chain(folder))
    again.load_state_dict(state)
    rest = [batch["image"].numpy().tobytes() for batch in again]
    assert rest == whole[3:]
    other = vp.DataLoader2(chain(folder, turns=False))
    with pytest.raises(vp.errors.StateMismatch):
        other.load_state_dict(state)


@given(
    st.lists(st.integers(0, 6), max_size=8),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_interleaving_loses_nothing(counts, visits, each):
    """Every sample once; those of one visit in order; at most ``visits`` at once."""
    samples = [
        Sample({}, identity=(case, n)) for case, count in enumerate(counts) for n in range(count)
    ]
    pipe = vp.from_cases([{"image": "a.nii"}]).interleave(visits=visits, patches_per_turn=each)
    pipe.parent = samples
    found = [sample.identity for sample in pipe]

    assert sorted(found) == [sample.identity for sample in samples]
    for case in range(len(counts)):
        mine = [n for c, n in found if c == case]
        assert mine == sorted(mine)
    begun = {case: min(i for i, (c, _) in enumerate(found) if c == case) for case, _ in found}
    ended = {case: max(i for i, (c, _) in enumerate(found) if c == case) for case, _ in found}
    for at in range(len(found)):
        assert sum(begun[case] <= at <= ended[case] for case in begun) <= visits


def test_one_reader_is_projected_where_visits_take_turns():
    """Then a region is decoded once, and each worker keeps those of its visits and the next."""
    store = StoreLayout((10**4,) * 3, 1, (128,) * 3, access="range", bandwidth=300e6)
    asked = Demand((200.0,) * 3, (200.0,) * 3, 17.0, 4, 10**7, 40.0, region=(384,) * 3, draws=16)
    budget = Budget(16 * 2**30, 4)
    shared = choose_scheme(store, asked, budget)
    apart = choose_scheme(store, replace(asked, together=8), budget)

    assert (shared.running, shared.readers, shared.chunks) == ("regional", 4, 27 * 4 / 16)
    assert (apart.running, apart.readers, apart.chunks) == ("regional", 1, 27 / 16)
    assert apart.cache_bytes == 3 * 27 * 128**3


def test_the_chain_says_how_many_visits_take_turns(folder):
    """Only where a turn is whole batches, and nothing is shuffled afterwards."""
    pipe = chain(folder, turns=False).parent
    asked = [
        measure_access(other, 0, 0).demands["image"]
        for other in (
            pipe.interleave(visits=2, patches_per_turn=4).batch_patches(2),
            pipe.interleave(visits=2, patches_per_turn=1).batch_patches(2),
            pipe.interleave(visits=2, patches_per_turn=2).shuffle().batch_patches(2),
        )
    ]

    assert [(a.together, a.is_scattered) for a in asked] == [(2, False), (1, True), (1, True)]


@pytest.mark.parametrize("wrong", [{"visits": 0}, {"visits": 2, "patches_per_turn": 0}])
def test_turns_of_nothing_are_refused(wrong):
    """Where they are written."""
    with pytest.raises(vp.errors.PatchSizeError, match="at least 1, got 0"):
        vp.from_cases([{"image": "a.nii"}]).interleave(**wrong)
