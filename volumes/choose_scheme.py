"""Choice of read schemes: a pure function of a store, a demand and a budget.

The first scheme that applies is chosen:

1. a mapped file is a view, and a stream is spooled;
2. all chunks are kept if they fit;
3. each patch decodes its chunks if the cores can;
4. several patches are drawn in a region, whose chunks are decoded once.

Memory that every scheme needs is checked before: a budget below it is an error here and not an hour
later.

One scheme per source, on which store and consumer agree, is LiberTEM's idea. Regions grow along the
axis that they cover least, as nnU-Net's patches do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..core.errors import BudgetExceeded
from ..storage.in_flight import MOST_BYTES as MOST_IN_FLIGHT
from ..storage.read_ahead import MOST_BYTES as MOST_AHEAD
from .header import Triple
from .scheme import STORED_RATIO, AccessHint, Budget, Demand, ReadScheme, StoreLayout

# Part of the time of all cores for decoding: resampling takes about as long.
DECODING_SHARE = 0.5
KEPT_REGIONS = 2  # regions that each process must be able to cache: the present and the next one
# Volumes whose chunks each process caches where patches of a volume come together. The volume
# before the present one is cached too, as its last patches may be in the same batch.
KEPT_VISITS = 2
# How often the patches of one visit cover their region: more would repeat the same voxels.
COVERAGE = 2.0
# Part of the data below which a cache rarely hits draws from all volumes. A smaller cache only
# holds the chunks that the patches of one batch may share.
WORTHWHILE = 0.1
# Part of a visit's chunks that must be read again for all of them to be cached by default. The 64
# patches of a volume of 4 GB share a sixth of their chunks, and caching them took 250 MB.
SHARED_PART = 1 / 3
# Many chunks are read once, and no other chunk is in use all the time. A larger cache, up to four
# times, decoded as much: measured with chunks of 32 and 64 cubed, int16 and float32
# (docs/decisions/0033-workers-share-no-decoded-chunks.md).
KEPT_PART = 0.6

# Divisor of the spare memory for prefetched bytes: they save only waiting, cached chunks work.
AHEAD_PART = 2

BATCHES, BUFFERS, ON_THE_WAY, CHUNK_CACHE = "batches", "read buffers", "on their way", "kept chunks"
INTERMEDIATE = "made between"
"""Terms of projected memory."""


def choose_scheme(layout: StoreLayout, demand: Demand, budget: Budget) -> ReadScheme:
    """Return the read scheme of a key.

    Examples
    --------
    >>> ct = StoreLayout((400, 512, 512), 2, (64, 64, 64), access="range", volumes=130)
    >>> demand = Demand((145, 145, 145), (205, 205, 205), chunks=34.3, items=2)
    >>> choose_scheme(ct, demand, Budget(16 * 2**30, workers=8)).mode
    'direct'
    >>> choose_scheme(ct, demand, Budget(300 * 2**30, workers=8)).mode
    'resident'
    """
    scheme = _without_hint(layout, demand, budget)
    every = demand.channel_chunks
    scheme = replace(scheme, chunks=scheme.chunks * every, chunks_then=scheme.chunks_then * every)
    return scheme if demand.hint is None else _agree(scheme, layout, demand.hint, demand, budget)


def _agree(
    scheme: ReadScheme, layout: StoreLayout, hint: AccessHint, demand: Demand, budget: Budget
) -> ReadScheme:
    """Return the scheme with the preferences of pipes, as far as store and memory allow."""
    unit = layout.unit if layout.chunk is not None else (1, 1, 1)
    of_store = f"the store's unit is {'x'.join(map(str, unit))}"
    if layout.access != "range":
        kind = "mapped" if layout.access == "view" else "read from its beginning"
        return replace(
            scheme, agreement=f"asked: {hint.words()}; it is {kind}, so nothing is joined"
        )
    room = max(0, budget.memory_bytes - scheme.projected_bytes) // budget.processes
    tile, memory = hint.fit(unit, layout.shape), dict(scheme.memory)
    result = AccessHint(tile)
    if tile is not None:
        run = math.prod(tile) * layout.itemsize
        scheme = replace(scheme, longest_run=max(1, run), gap=min(scheme.gap, run))
    if hint.depth is not None and layout.remote:
        ahead = min(MOST_AHEAD // budget.sharing, hint.depth * _patch_bytes(layout, demand))
        more = min(ahead - scheme.ahead_bytes, room)
        room -= max(0, more)
        memory[ON_THE_WAY] = memory.get(ON_THE_WAY, 0) + budget.processes * more
        scheme = replace(scheme, ahead_bytes=scheme.ahead_bytes + more)
        depth = scheme.ahead_bytes // max(1, _patch_bytes(layout, demand))
        result = replace(result, depth=depth)
    if hint.cache_bytes is not None and layout.chunk is not None:
        more = max(0, min(min(hint.cache_bytes, layout.data_bytes) - scheme.cache_bytes, room))
        memory[CHUNK_CACHE] = memory.get(CHUNK_CACHE, 0) + budget.processes * more
        scheme = replace(scheme, cache_bytes=scheme.cache_bytes + more)
        result = replace(result, cache_bytes=scheme.cache_bytes)
    text = f"asked: {hint.words()}; {of_store}; agreed: {result.words() or 'as without it'}"
    return replace(scheme, memory=memory, agreement=text)


def _without_hint(layout: StoreLayout, demand: Demand, budget: Budget) -> ReadScheme:
    memory = fixed_memory(layout, demand, budget)
    room = budget.memory_bytes - sum(memory.values())
    if room < 0:
        raise budget_error(memory, budget)
    ahead = min(wanted_ahead(layout, demand, budget), room // (AHEAD_PART * budget.processes))
    room -= budget.processes * ahead
    if ahead:
        memory = {**memory, ON_THE_WAY: memory[ON_THE_WAY] + budget.processes * ahead}
    base = ReadScheme(
        "direct",
        memory=memory,
        ahead_bytes=ahead,
        gap=layout.gap,
        longest_run=layout.longest_run,
        io=layout.io,
    )
    if layout.access == "stream":
        return _stream(layout, demand, budget, base)
    if layout.chunk is None:
        # Bare voxels need no decoding and no cache of decoded chunks.
        return replace(base, mode="view" if layout.access == "view" else "direct")
    return _chunk_scheme(layout, demand, budget, base, room // budget.processes)


def fixed_memory(layout: StoreLayout, demand: Demand, budget: Budget) -> Mapping[str, int]:
    """Return the bytes that every scheme needs, by term."""
    terms = {BATCHES: budget.batches_ahead * demand.batch_bytes}
    if demand.made_bytes:
        terms[INTERMEDIATE] = budget.processes * budget.threads * demand.made_bytes
    if layout.access == "range":
        source = math.ceil(math.prod(demand.support_p99)) * layout.itemsize
        scratch = layout.unit_bytes if layout.chunk is not None else 0
        terms[BUFFERS] = budget.processes * budget.threads * (source + scratch)
        # For a bucket the bytes that reads may wait for, as prefetched bytes have their own bound.
        # For a disk the average bytes of concurrent requests.
        waiting = budget.threads * _patch_bytes(layout, demand)
        most = budget.processes * min(MOST_IN_FLIGHT // budget.sharing, waiting)
        terms[ON_THE_WAY] = most if layout.remote else _in_flight(layout, demand, demand.units)[1]
    return terms


def wanted_ahead(layout: StoreLayout, demand: Demand, budget: Budget) -> int:
    """Return the bytes that each process would prefetch without a budget."""
    if not layout.remote:
        return 0
    # All patches of the waiting jobs of one process.
    jobs = -(-budget.batches_ahead // budget.processes)
    return min(MOST_AHEAD // budget.sharing, jobs * demand.items * _patch_bytes(layout, demand))


def _patch_bytes(layout: StoreLayout, demand: Demand) -> int:
    """Return the bytes that one patch reads; chunks count uncompressed, as in bounds of waits."""
    if layout.chunk is None:
        return math.ceil(math.prod(demand.support_p99)) * layout.itemsize
    return math.ceil(demand.units) * layout.unit_bytes


def budget_error(terms: Mapping[str, int], budget: Budget) -> BudgetExceeded:
    """Return the error for terms above a budget, with a cure for the largest term."""
    largest = max(terms, key=lambda term: terms[term])
    every = ", ".join(f"{term} {size}" for term, size in terms.items())
    # The names of settings depend on the service: workers, threads, or neither.
    if budget.workers:
        ahead, makers = "worker_prefetch_cnt or num_workers", "num_workers or threads_per_worker, "
    elif budget.threads > 1:
        ahead, makers = "prefetch_cnt or num_threads", "num_threads, "
    else:
        ahead, makers = "prefetch_cnt", ""
    remedy = _REMEDIES[largest].format(ahead=ahead, makers=makers)
    return BudgetExceeded(
        f"reading would take {sum(terms.values())} bytes of memory and may take "
        f"{budget.memory_bytes}; most of it are {largest}: {terms[largest]} bytes (all: {every}).",
        do=f"{remedy}, or raise memory_bytes= of the reading service.",
    )


_REMEDIES = {
    BATCHES: "Make batches smaller, lower {ahead}",
    BUFFERS: "Lower {makers}the size of patches or of chunks",
    INTERMEDIATE: "Lower {makers}the size of patches, put spatial pipes before flush() or cache()",
    ON_THE_WAY: "Store the volumes in smaller chunks",
}


def _stream(layout: StoreLayout, demand: Demand, budget: Budget, base: ReadScheme) -> ReadScheme:
    """Return the scheme of streams: spooled, or with long visits where the disk is too small."""
    if budget.spool_bytes is None or layout.data_bytes <= budget.spool_bytes:
        return replace(base, mode="spool")
    draws = max(_draws(layout.shape, demand), demand.draws)
    return replace(
        base,
        mode="regional",
        draws=draws,
        meanwhile=None if draws == demand.draws else "spool",
        chunks=1 / demand.draws,
        chunks_then=1 / draws,
        amplification=_amplification(layout, demand, 1 / demand.draws),
    )


def _chunk_scheme(
    layout: StoreLayout, demand: Demand, budget: Budget, base: ReadScheme, room: int
) -> ReadScheme:
    worth = _worth_keeping(layout, demand)
    if layout.data_bytes <= room:
        scheme = _with(base, layout, demand, budget, 0.0, mode="resident", cache=worth)
        amplification = _amplification(layout, demand, demand.units)
        return replace(scheme, chunks=demand.units, amplification=amplification)
    thrifty = budget.thrifty or room < WORTHWHILE * worth
    cache = min(room, worth, _shared_bytes(layout, demand, budget)) if thrifty else min(room, worth)
    misses = demand.units * (1 - (cache / layout.data_bytes if demand.is_scattered else 0.0))
    direct = _with(base, layout, demand, budget, misses, mode="direct", cache=cache)
    if direct.keeps_up and demand.region is None:
        return direct
    regional = _regional(layout, demand, budget, base, room)
    # Compared with direct reads without a cache, so that more memory never returns to direct.
    if regional is None or regional.chunks >= demand.units:
        return direct
    if demand.region is not None:
        return regional
    return replace(
        direct,
        mode="regional",
        meanwhile="direct",
        region=regional.region,
        align=regional.align,
        draws=regional.draws,
        readers=regional.readers,
        items=regional.items,
        chunks_then=regional.chunks,
    )


def _shared_bytes(layout: StoreLayout, demand: Demand, budget: Budget) -> int:
    """Return the bytes of chunks that concurrent patches of a process may share."""
    reads = demand.units * demand.draws
    # The batches of a visit go to one process where possible.
    together = max(-(-demand.together // budget.processes) * demand.draws, demand.items)
    if reads - _different(layout, reads) < SHARED_PART * reads:
        together = demand.items
    # Patches of a visit are of one volume, so a shared chunk is cached once.
    visits, rest = divmod(together, demand.draws)
    chunks = visits * _different(layout, reads) + _different(layout, rest * demand.units)
    return math.ceil(KEPT_PART * chunks) * layout.unit_bytes


def _different(layout: StoreLayout, reads: float) -> float:
    """Return the expected number of different chunks among random reads of a volume."""
    grid = math.prod(layout.grid)
    return grid * -math.expm1(-reads / grid)


def _worth_keeping(layout: StoreLayout, demand: Demand) -> int:
    """Return the bytes of chunks that may be read again."""
    if demand.is_scattered:
        return layout.data_bytes
    visit = min(math.prod(layout.grid), math.ceil(demand.draws * demand.units))
    visits = max(KEPT_VISITS, demand.together + 1)
    return min(layout.data_bytes, visits * visit * layout.unit_bytes)


def _regional(
    layout: StoreLayout, demand: Demand, budget: Budget, base: ReadScheme, room: int
) -> ReadScheme | None:
    """Return the scheme of the smallest region that keeps up, or of fewest chunks per patch.

    None if no region fits into ``room``.
    """
    grid = layout.grid
    # Long enough for a patch that begins anywhere in the first chunk of the region.
    sizes = zip(demand.support, demand.patch, layout.unit, strict=True)
    extent = demand.region or [max(s, p) + c - 1 for s, p, c in sizes]
    counts = _counts(extent, layout.unit, grid)
    best: ReadScheme | None = None
    # With enough visits that take turns, each worker has its own, and decodes no other's region.
    apart = demand.together >= budget.processes
    regions = max(KEPT_REGIONS, math.ceil(demand.together / budget.processes) + 1)
    while regions * math.prod(counts) * layout.unit_bytes <= room:
        i, j, k = (n * c for n, c in zip(counts, layout.unit, strict=True))
        draws = demand.draws if demand.region else _draws((i, j, k), demand)
        # At least as long as such a patch. Only a region that covers a whole axis may be shorter,
        # and there a longer one makes no difference.
        lengths = zip((i, j, k), layout.unit, demand.patch, strict=True)
        i, j, k = (max(r, -(-(p + c - 1) // c) * c) for r, c, p in lengths)
        # Otherwise any free worker takes a batch, so several workers decode one region.
        readers = 1 if apart else min(budget.processes, math.ceil(draws / demand.items))
        cache = regions * math.prod(counts) * layout.unit_bytes
        chunks = math.prod(counts) * readers / draws
        scheme = replace(
            _with(base, layout, demand, budget, chunks, mode="regional", cache=cache),
            region=demand.region or (i, j, k),
            align=layout.unit,
            draws=draws,
            readers=readers,
            items=demand.items,
            chunks_then=chunks,
        )
        if best is None or scheme.keeps_up or scheme.chunks < best.chunks:
            best = scheme
        open_axes = [axis for axis in range(3) if counts[axis] < grid[axis]]
        if best.keeps_up or demand.region is not None or not open_axes:
            break
        # Grow along the axis on which the region covers least patches.
        least = min(open_axes, key=lambda a: counts[a] * layout.unit[a] / demand.support[a])
        counts[least] += 1
    return best


def _with(
    base: ReadScheme,
    layout: StoreLayout,
    demand: Demand,
    budget: Budget,
    chunks: float,
    *,
    mode: str,
    cache: int,
) -> ReadScheme:
    """Return a scheme of ``mode`` with this number of decoded chunks per patch and this cache."""
    size = chunks * layout.unit_bytes
    cores = budget.processes * budget.threads
    decoding = demand.rate * size / layout.decode_rate
    transfer = demand.rate * size * STORED_RATIO / layout.bandwidth
    count = chunks * demand.channel_chunks
    waiting = demand.rate * count / layout.chunks_per_request * layout.latency / layout.requests
    requests, on_the_way = _in_flight(layout, demand, chunks)
    return replace(
        base,
        mode=mode,  # type: ignore[arg-type]  # one of Mode, from the callers above
        memory={**base.memory, CHUNK_CACHE: budget.processes * cache},
        cache_bytes=cache,
        in_flight_requests=requests,
        in_flight_bytes=on_the_way,
        keeps_up=decoding <= DECODING_SHARE * cores and max(transfer, waiting) <= 1,
        amplification=_amplification(layout, demand, chunks),
        chunks=chunks,
    )


def _in_flight(layout: StoreLayout, demand: Demand, chunks: float) -> tuple[int, int]:
    """Return the average number of concurrent requests and their stored bytes (Little's law)."""
    per_request = layout.chunks_per_request
    every = demand.channel_chunks
    concurrency = math.ceil(demand.rate * chunks * every / per_request * layout.latency)
    requests = min(layout.requests, max(1, concurrency))
    if layout.chunk is None:
        return requests, requests * layout.longest_run
    return requests, math.ceil(requests * per_request * layout.unit_bytes / every * STORED_RATIO)


def _amplification(layout: StoreLayout, demand: Demand, chunks: float) -> float:
    return chunks * math.prod(layout.unit) / max(1.0, math.prod(demand.support))


def _draws(region: Triple, demand: Demand) -> int:
    return max(1, round(COVERAGE * math.prod(region) / max(1.0, math.prod(demand.support))))


def _counts(extent: Sequence[float], unit: Triple, grid: Triple) -> list[int]:
    """Return the chunks per axis that cover an extent, at most all chunks."""
    return [min(n, max(1, math.ceil(e / c))) for e, c, n in zip(extent, unit, grid, strict=True)]


def choose_schemes(
    layouts: Mapping[str, StoreLayout], demands: Mapping[str, Demand], budget: Budget
) -> dict[str, ReadScheme]:
    """Return the schemes of all keys, which share one budget.

    Each key gets its fixed memory, and a share of the rest in proportion to the bytes of its data.
    """
    sharing = sum(layout.remote for layout in layouts.values())
    budget = replace(budget, sharing=max(1, sharing))
    memory = {key: fixed_memory(layouts[key], demands[key], budget) for key in layouts}
    terms = Counter[str]()
    for own in memory.values():
        terms.update(own)
    rest = budget.memory_bytes - sum(terms.values())
    if rest < 0:
        raise budget_error(terms, budget)
    cache_keys = [
        key
        for key, layout in layouts.items()
        if layout.remote or (layout.access == "range" and layout.chunk is not None)
    ]
    total = max(1, sum(layouts[key].data_bytes for key in cache_keys))
    schemes = {}
    for key, layout in layouts.items():
        share = rest * layout.data_bytes // total if key in cache_keys else 0
        part = replace(budget, memory_bytes=sum(memory[key].values()) + share)
        schemes[key] = choose_scheme(layout, demands[key], part)
    return schemes
