"""Negotiating is a pure decision: a table of cases, and what holds for all of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from voxpipe.core.errors import BudgetExceeded, VoxpipeError
from voxpipe.spatial import UniformRegion
from voxpipe.storage.ranges import LOCAL_GAP, REMOTE_GAP
from voxpipe.volumes.choose_scheme import (
    BATCHES,
    BUFFERS,
    KEPT_PART,
    ON_THE_WAY,
    choose_scheme,
    choose_schemes,
    fixed_memory,
)
from voxpipe.volumes.header import IDENTITY, Header
from voxpipe.volumes.scheme import Budget, Demand, StoreLayout

GIB = 2**30
PATCH_BYTES = 128**3 * 4
CT = StoreLayout((400, 512, 512), 2, (64, 64, 64), access="range", volumes=130)
EM = StoreLayout((10000,) * 3, 1, (128,) * 3, access="range", bandwidth=300e6, latency=2e-3)
PLANES = StoreLayout((500, 8192, 8192), 2, (1, 1024, 1024), access="range", bandwidth=1e9)
GZIP = StoreLayout((512,) * 3, 2, access="stream", volumes=100)


def chunks_of(support, chunk):
    """Return how many chunks a region at a random place touches on average."""
    return math.prod((s - 1) / c + 1 for s, c in zip(support, chunk, strict=True))


def demand(layout, support, items=2, rate=20.0, **facts):
    chunks = chunks_of(support, layout.chunk) if layout.chunk else 1
    p99 = tuple(1.4 * s for s in support)
    return Demand(support, p99, chunks, items, items * PATCH_BYTES, rate, **facts)


@pytest.mark.parametrize(
    ("layout", "asked", "budget", "mode"),
    [
        # The cores decode 34 chunks of 512 KiB per patch, 20 times a second, with ease.
        (CT, demand(CT, (145,) * 3), Budget(16 * GIB, 8), "direct"),
        # 8 processes keep 27.4 GiB each: the whole data set.
        (CT, demand(CT, (145,) * 3), Budget(300 * GIB, 8), "resident"),
        # 40 patches of 17 chunks of 2 MiB, 60% of it stored, are more than 300 MB/s.
        (EM, demand(EM, (200,) * 3, 4, 40.0), Budget(16 * GIB, 8), "regional"),
        # Planes hold 68 times the voxels that a patch needs of them.
        (PLANES, demand(PLANES, (64, 140, 140), 4), Budget(16 * GIB, 8), "regional"),
        (GZIP, demand(GZIP, (145,) * 3), Budget(16 * GIB, 8, spool_bytes=32 * GIB), "spool"),
        (GZIP, demand(GZIP, (145,) * 3), Budget(16 * GIB, 8, spool_bytes=GIB), "regional"),
        (replace(CT, chunk=None, access="view"), demand(CT, (145,) * 3), Budget(GIB), "view"),
        (replace(CT, chunk=None), demand(CT, (145,) * 3), Budget(GIB), "direct"),
    ],
)
def test_the_mode(layout, asked, budget, mode):
    """What the store is, and what the machine can afford, decide."""
    assert choose_scheme(layout, asked, budget).mode == mode


def test_by_default_a_visit_is_kept_where_its_patches_share_chunks():
    """8 patches of a volume of 448 chunks share little, 64 much; of a huge one 64 share little.

    A chunk that several of them touch counts once, and not all are kept at a time.
    """
    thrifty = Budget(16 * GIB, 2, thrifty=True)

    def kept(layout, draws):
        asked = replace(demand(layout, (145,) * 3), draws=draws)
        cache = choose_scheme(layout, asked, thrifty).cache_bytes
        return cache / layout.unit_bytes / KEPT_PART

    batch, grid = 2 * chunks_of((145,) * 3, CT.chunk), math.prod(CT.grid)
    assert math.isclose(kept(CT, 8), grid * (1 - math.exp(-batch / grid)), abs_tol=2)
    assert 4 * batch < kept(CT, 64) < grid
    assert math.isclose(kept(EM, 64), 2 * chunks_of((145,) * 3, EM.chunk), abs_tol=2)


def test_a_region_grows_where_it_covers_least():
    """Planes are thin: the region is as deep as a patch, and two chunks wide."""
    scheme = choose_scheme(PLANES, demand(PLANES, (64, 140, 140), 4), Budget(16 * GIB, 8))

    assert scheme.region == (64, 2048, 2048)
    assert scheme.draws == 428  # twice the voxels of the region by those of a patch
    assert scheme.running == "direct"
    assert "lazy_patch(region=(64, 2048, 2048), align=(1, 1024, 1024)" in scheme.explain()


def test_a_chain_that_draws_in_regions_reads_in_regions():
    """Then there is nothing to advise, and two regions are kept."""
    asked = demand(EM, (200,) * 3, 4, 40.0, region=(384,) * 3, draws=14)
    scheme = choose_scheme(EM, asked, Budget(16 * GIB, 8))

    assert (scheme.running, scheme.advice) == ("regional", "")
    assert scheme.cache_bytes == 2 * 3**3 * 128**3
    assert scheme.explain().startswith("regional: 14 patches in each region of 384x384x384")


def test_requests_under_way_follow_from_latency():
    """Little's law: 40 patches/s of 69 chunks that take 30 ms each."""
    bucket = replace(EM, chunk=(64,) * 3, bandwidth=800e6, latency=30e-3, requests=128)
    scheme = choose_scheme(bucket, demand(bucket, (200,) * 3, 4, 40.0), Budget(16 * GIB, 8))

    assert 80 <= scheme.in_flight_requests <= 84


def test_shards_spare_requests():
    """Chunks of one shard come in one request."""
    bucket = replace(EM, chunk=(32,) * 3, latency=30e-3, requests=1000)
    shards = replace(bucket, shard=(128,) * 3)
    asked = demand(bucket, (200,) * 3)
    alone, together = (choose_scheme(s, asked, Budget(16 * GIB)) for s in (bucket, shards))

    assert together.in_flight_requests < alone.in_flight_requests / 10


def test_what_a_bucket_brings_is_projected():
    """What a patch waits for and bytes for later ones, each worker its own; a disk has neither."""
    bucket = replace(EM, chunk=(64,) * 3, latency=30e-3, requests=128, remote=True)
    asked = demand(bucket, (200,) * 3, 4, 40.0)
    budget = Budget(16 * GIB, workers=8, batches_ahead=33)
    there, here = (choose_scheme(s, asked, budget) for s in (bucket, replace(bucket, remote=False)))

    assert there.ahead_bytes == 64 * 1024**2
    patch = math.ceil(asked.chunks) * bucket.unit_bytes
    assert patch < 96 * 1024**2
    assert there.memory[ON_THE_WAY] == 8 * (patch + 64 * 1024**2)
    assert "fetches up to 64 MiB in each process" in there.explain()
    assert here.ahead_bytes == 0
    assert "for patches to come" not in here.explain()


def test_little_memory_bounds_what_is_fetched_for_later():
    """Half of what a user grants beyond what is needed; and at most what the jobs ask for."""
    bucket = replace(EM, chunk=(64,) * 3, latency=30e-3, remote=True)
    asked = demand(bucket, (200,) * 3, 4, 40.0)
    needed = sum(fixed_memory(bucket, asked, Budget(GIB, workers=2)).values())
    little = choose_scheme(bucket, asked, Budget(needed + 40 * 1024**2, workers=2))
    single = choose_scheme(bucket, replace(asked, chunks=1.0, items=1), Budget(16 * GIB))

    assert little.ahead_bytes == 10 * 1024**2
    assert little.projected_bytes <= needed + 40 * 1024**2
    assert single.ahead_bytes == bucket.unit_bytes
    assert choose_scheme(bucket, asked, Budget(needed, workers=2)).ahead_bytes == 0


def test_keys_share_what_is_under_way():
    """A process has one bound for all of its keys."""
    bucket = replace(EM, chunk=(64,) * 3, latency=30e-3, remote=True)
    asked = demand(bucket, (200,) * 3, 4, 40.0)
    budget = Budget(16 * GIB, workers=8, batches_ahead=33)
    both = choose_schemes({"a": bucket, "b": bucket}, {"a": asked, "b": asked}, budget)

    assert sum(scheme.ahead_bytes for scheme in both.values()) == 64 * 1024**2
    on_the_way = sum(scheme.memory[ON_THE_WAY] for scheme in both.values())
    patch = math.ceil(asked.chunks) * bucket.unit_bytes
    assert on_the_way == 8 * (2 * min(patch, 48 * 1024**2) + 64 * 1024**2)


MANY, LARGE = demand(CT, (145,) * 3, items=1000), demand(CT, (400,) * 3, items=1)


@pytest.mark.parametrize(
    ("asked", "budget", "term", "said"),
    [
        (MANY, Budget(GIB), BATCHES, "lower prefetch_cnt, or"),
        (MANY, Budget(GIB, 8), BATCHES, "lower worker_prefetch_cnt or num_workers, or"),
        (MANY, Budget(GIB, threads=2), BATCHES, "lower prefetch_cnt or num_threads, or"),
        (LARGE, Budget(GIB // 4, 8), BUFFERS, "Lower num_workers or threads_per_worker, the size"),
        (LARGE, Budget(GIB // 4, threads=2), BUFFERS, "Lower num_threads, the size"),
    ],
)
def test_too_little_memory_names_the_term(asked, budget, term, said):
    """Before anything is read, with the number and what to do; as a MemoryError."""
    with pytest.raises(MemoryError, match=rf"most of it are {term}: [0-9]+ bytes") as caught:
        choose_scheme(CT, asked, budget)

    assert isinstance(caught.value, BudgetExceeded)
    assert isinstance(caught.value, VoxpipeError)
    assert all(words in str(caught.value) for words in (said, "memory_bytes="))


def test_keys_share_one_budget():
    """Together they take no more than there is, by the size of their data."""
    label = replace(CT, itemsize=1)
    asked = demand(CT, (145,) * 3)
    layouts, demands = {"image": CT, "label": label}, {"image": asked, "label": asked}
    schemes = choose_schemes(layouts, demands, Budget(60 * GIB))

    assert sum(s.projected_bytes for s in schemes.values()) <= 60 * GIB
    assert [s.mode for s in schemes.values()] == ["resident", "resident"]
    with pytest.raises(BudgetExceeded):
        choose_schemes(layouts, demands, Budget(PATCH_BYTES * 3))


def test_the_layout_of_a_header():
    """Channels count, and a bucket is slower than a disk."""
    header = Header((3, 8, 9, 10), IDENTITY, np.dtype(np.int16), chunks=(4, 4, 4), access="range")
    near, far = (StoreLayout.of(header, 5, remote=r) for r in (False, True))

    assert (near.shape, near.itemsize, near.chunk, near.volumes) == ((8, 9, 10), 6, (4, 4, 4), 5)
    assert near.data_bytes == 5 * 8 * 12 * 12 * 6
    assert (near.gap, far.gap) == (LOCAL_GAP, REMOTE_GAP)
    assert far.latency > 100 * near.latency


extents = st.tuples(*[st.integers(1, 300)] * 3)
layouts = st.builds(
    StoreLayout,
    shape=extents,
    itemsize=st.sampled_from([1, 2, 4, 12]),
    chunk=st.none() | st.tuples(*[st.integers(1, 128)] * 3),
    access=st.sampled_from(["view", "range", "stream"]),
    volumes=st.integers(1, 500),
    bandwidth=st.sampled_from([1e7, 3e8, 2e9]),
    latency=st.sampled_from([1e-4, 2e-3, 30e-3]),
).filter(lambda s: s.access == "range" or s.chunk is None)


@st.composite
def asked(draw, layout):
    support = tuple(float(draw(st.integers(1, n))) for n in layout.shape)
    chunks = chunks_of(support, layout.chunk) if layout.chunk else 1.0
    items = draw(st.integers(1, 16))
    return Demand(
        support,
        support,
        chunks,
        items=items,
        batch_bytes=items * draw(st.integers(1, 10**7)),
        rate=draw(st.sampled_from([1.0, 20.0, 500.0])),
        patch=tuple(draw(st.integers(1, 64)) for _ in range(3)),
        draws=draw(st.integers(1, 500)),
        is_scattered=draw(st.booleans()),
    )


situations = layouts.flatmap(lambda layout: st.tuples(st.just(layout), asked(layout)))
budgets = st.builds(
    Budget,
    memory_bytes=st.integers(0, 40).map(lambda power: int(2.0**power)),
    workers=st.integers(0, 16),
    batches_ahead=st.integers(1, 33),
    threads=st.integers(1, 4),
    spool_bytes=st.none() | st.sampled_from([10**6, 10**9]),
)


def rank(scheme):
    """Return how much work is left to do per patch, by mode: the less the better."""
    order = ["view", "spool", "resident", "direct", "regional"]
    return order.index(scheme.mode) if scheme.mode != "direct" or scheme.keeps_up else 5


def outcome(layout, demand, budget):
    try:
        return choose_scheme(layout, demand, budget)
    except BudgetExceeded:
        return None


@given(situations, budgets)
def test_projected_memory_stays_within_the_budget(situation, budget):
    """And no term is negative; or else it is refused."""
    scheme = outcome(*situation, budget)
    assume(scheme is not None)

    assert scheme.projected_bytes <= budget.memory_bytes
    assert min(scheme.memory.values()) >= 0
    assert scheme.memory.get("kept chunks", 0) == budget.processes * scheme.cache_bytes


@given(situations, budgets, st.integers(0, 2**41))
def test_more_memory_is_never_worse(situation, budget, more):
    """Not refused where less was not, and no mode that decodes more."""
    less = outcome(*situation, budget)
    assume(less is not None)
    richer = outcome(*situation, replace(budget, memory_bytes=budget.memory_bytes + more))

    assert richer is not None
    assert rank(richer) <= rank(less)


@given(situations, budgets)
def test_access_settles_the_mode(situation, budget):
    """A view is a view and nothing else is; a stream is spooled, or visited for long."""
    layout, _ = situation
    scheme = outcome(*situation, budget)
    assume(scheme is not None)

    assert (scheme.mode == "view") is (layout.access == "view" and layout.chunk is None)
    if layout.access == "stream":
        assert scheme.mode in ("spool", "regional", "resident")
    assert scheme.cache_bytes == 0 or layout.chunk is not None


@given(situations.filter(lambda situation: situation[0].chunk is not None))
def test_recommended_regions_can_be_written(situation):
    """A region and alignment that are advised are accepted by the op that draws them."""
    layout, wanted = situation
    # More patches than anybody can decode, of more volumes than anybody can keep.
    wanted = replace(wanted, rate=1e9, chunks=max(8.0, wanted.chunks))
    scheme = choose_scheme(replace(layout, volumes=10**7), wanted, Budget(2**36))
    assume(scheme.region is not None)

    UniformRegion(scheme.region, wanted.patch, scheme.align)
    assert scheme.advice
    assert scheme.draws >= 1


@given(situations, budgets)
def test_every_scheme_explains_itself(situation, budget):
    """The running mode comes first, memory is told, nothing ends in an exception."""
    scheme = outcome(*situation, budget)
    assume(scheme is not None)

    assert scheme.explain().startswith(scheme.running)
    assert "memory" in scheme.explain()
