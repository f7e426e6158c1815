"""Read schemes: the store's layout, the demand, the budget, and the scheme chosen from them.

:func:`~voxpipe.volumes.choose_scheme.choose_scheme` makes the scheme from the other three values. A
scheme decides which bytes are read, when, and which are cached; it never changes a patch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..core.settings import bytes_text
from ..core.validate import validate_int
from ..storage.in_flight import MOST_REQUESTS
from ..storage.ranges import LOCAL_GAP, LOCAL_RUN, NETWORK_GAP, NETWORK_RUN, REMOTE_GAP, REMOTE_RUN
from .header import Access, Header, Triple

Mode = Literal["view", "spool", "resident", "direct", "regional"]
"""How the voxels of one key are read.

- ``view``: resampled out of the mapped file.
- ``spool``: decoded once to the local disk, then mapped.
- ``resident``: a chunk is decoded once per process and kept while it is needed.
- ``direct``: each patch decodes its chunks.
- ``regional``: several patches are drawn in one region, whose chunks are decoded once.
"""

# One core decodes blosc-lz4 chunks of 64^3 int16 at 400 to 900 MB/s (measured, warm).
DECODE_RATE = 600e6
# gzip by isal: 113 MB in 316 ms (measured).
STREAM_DECODE_RATE = 350e6
# A local NVMe with several readers; its first byte comes after 0.1 ms.
LOCAL_BANDWIDTH, LOCAL_LATENCY = 2e9, 1e-4
# One machine's share of a bucket; its first byte comes after some 30 ms.
REMOTE_BANDWIDTH, REMOTE_LATENCY = 800e6, 30e-3
# Requests that a disk, or a connection pool, serves at once.
LOCAL_REQUESTS, REMOTE_REQUESTS = 32, 128
# A file server over 10 Gb/s with other users.
NETWORK_BANDWIDTH, NETWORK_LATENCY = 300e6, 2e-3
# Bytes per second of one connection to a bucket; S3's own advice counts with 85 to 90 MB/s.
STREAM_BANDWIDTH = 60e6
# Bytes that cost as much as one more request. Bare voxels take a run per plane of a patch, as many
# requests as may run at once. Chunks take a request or two per shard, hence the larger REMOTE_GAP.
REMOTE_ROWS_GAP = round(REMOTE_LATENCY * STREAM_BANDWIDTH / MOST_REQUESTS)
# Stored by decoded bytes: 69 MB of 113 MB of CT-like int16 in blosc-lz4 (measured).
STORED_RATIO = 0.6
# Default of patches per second: 10 steps of 2 patches, as an accelerator of 2023 needs of 128^3
# patches in nnU-Net's recipe.
USUAL_RATE = 20.0


@dataclass(frozen=True)
class StoreLayout:
    """Shape, chunks and access of a store, and its assumed speed."""

    shape: Triple  # (I, J, K) of one volume, in voxels
    itemsize: int  # bytes of one voxel as stored, all channels
    chunk: Triple | None = None  # decode unit in voxels; None where every voxel can be read alone
    shard: Triple | None = None  # object of chunks, in voxels; None where each chunk is an object
    access: Access = "view"  # mapped, by byte ranges, or only from its beginning
    volumes: int = 1  # number of such volumes
    decode_rate: float = DECODE_RATE  # decoded bytes per second and core
    bandwidth: float = LOCAL_BANDWIDTH  # stored bytes per second, all readers together
    latency: float = LOCAL_LATENCY  # seconds until the first byte of a request
    requests: int = LOCAL_REQUESTS  # most concurrent requests
    gap: int = LOCAL_GAP  # ranges up to this many bytes apart are read as one
    longest_run: int = LOCAL_RUN  # most bytes that are read as one
    io: str = ""  # how bare voxels are read, and why; empty for chunks and objects
    remote: bool = False  # whether stored bytes of the next patches are prefetched

    @classmethod
    def of(
        cls, header: Header, volumes: int, *, remote: bool = False, shard: Triple | None = None
    ) -> StoreLayout:
        """Return the layout of volumes with this header, at the usual speed of their place."""
        itemsize = header.shape[0] * header.disk_dtype.itemsize
        rate = STREAM_DECODE_RATE if header.access == "stream" else DECODE_RATE
        layout = cls(header.shape[1:], itemsize, header.chunks, shard, header.access, volumes, rate)
        if not remote:
            return layout
        return replace(
            layout,
            bandwidth=REMOTE_BANDWIDTH,
            latency=REMOTE_LATENCY,
            requests=REMOTE_REQUESTS,
            gap=REMOTE_ROWS_GAP if header.chunks is None else REMOTE_GAP,
            longest_run=REMOTE_RUN,
            remote=header.access != "stream",  # streams are spooled once
        )

    def on_network(self, io: str = "") -> StoreLayout:
        """Return the layout at the usual speed of a network file system."""
        return replace(
            self,
            bandwidth=NETWORK_BANDWIDTH,
            latency=NETWORK_LATENCY,
            gap=NETWORK_GAP,
            longest_run=NETWORK_RUN,
            io=io,
        )

    @property
    def unit(self) -> Triple:
        """Decode unit: a chunk, or the whole volume of a stream."""
        return self.shape if self.access == "stream" or self.chunk is None else self.chunk

    @property
    def unit_bytes(self) -> int:
        """Decoded bytes of one unit."""
        return math.prod(self.unit) * self.itemsize

    @property
    def chunks_per_request(self) -> float:
        """Most chunks of one request: those of one shard, up to the longest run."""
        if self.chunk is None or self.shard is None:
            return 1.0
        inside = math.prod(-(-s // c) for s, c in zip(self.shard, self.chunk, strict=True))
        return max(1.0, min(inside, self.longest_run / (self.unit_bytes * STORED_RATIO)))

    @property
    def grid(self) -> Triple:
        """Number of units on each axis."""
        i, j, k = (-(-n // c) for n, c in zip(self.shape, self.unit, strict=True))
        return i, j, k

    @property
    def data_bytes(self) -> int:
        """Bytes of all volumes, decoded, in whole units."""
        return self.volumes * math.prod(self.grid) * self.unit_bytes


@dataclass(frozen=True)
class AccessHint:
    """Preferences of a pipe for the reads upstream; the store and the budget limit them.

    A pipe states it as an attribute ``access_hint``, a function of ``map()`` too. A hint never
    changes a patch. ``ValueError`` for a size or count that is none.

    - ``tile``: Preferred extent (I, J, K) of one request, in voxels; one number for all axes.
    - ``largest``: Longest extent of one request.
    - ``depth``: Patches of a remote store whose bytes each process fetches ahead.
    - ``cache_bytes``: Bytes of decoded chunks that each process keeps, at least.

    Examples
    --------
    >>> AccessHint(tile=(64, 64, 64), largest=(128, 128, 64)).fit((48, 48, 16), (300, 300, 40))
    (96, 96, 48)
    """

    tile: Triple | None = None
    largest: Triple | None = None
    depth: int | None = None
    cache_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("tile", "largest"):
            if (size := getattr(self, name)) is not None:
                three = (size,) * 3 if isinstance(size, int) else size
                i, j, k = (validate_int(name, n, least=1) for n in three)
                vars(self)[name] = i, j, k
        for name in ("depth", "cache_bytes"):
            if (count := getattr(self, name)) is not None:
                validate_int(name, count, least=0)

    def fit(self, unit: Triple, shape: Triple) -> Triple | None:
        """Return the tile in whole units of a store, not above ``largest`` but for one unit."""
        if self.tile is None and self.largest is None:
            return None
        sizes = zip(self.tile or shape, self.largest or shape, unit, shape, strict=True)
        fits = (min(-(-t // u), max(1, w // u), -(-n // u)) * u for t, w, u, n in sizes)
        i, j, k = fits
        return i, j, k

    @classmethod
    def join(cls, hints: Sequence[AccessHint]) -> AccessHint:
        """Return the hint of several pipes: the smallest extents, the largest depth and cache."""
        columns = zip(*(vars(hint).values() for hint in hints), strict=True)
        tiles, limits, *counts = ([n for n in column if n is not None] for column in columns)
        extents: Any = (tuple(map(min, zip(*sizes, strict=True))) for sizes in (tiles, limits))
        tile, largest = (extent or None for extent in extents)
        return cls(tile, largest, *(max(numbers, default=None) for numbers in counts))

    def words(self) -> str:
        """Return the preferences in words."""
        parts = [f"tiles of {'x'.join(map(str, self.tile))}"] if self.tile else []
        parts += [f"at most {'x'.join(map(str, self.largest))}"] if self.largest else []
        parts += [] if self.depth is None else [f"{self.depth} patches ahead"]
        parts += [] if self.cache_bytes is None else [f"{bytes_text(self.cache_bytes)} of chunks"]
        return ", ".join(parts)


@dataclass(frozen=True)
class Demand:
    """Reads that patches need of one key's volumes; measured on plans, without voxels."""

    support: tuple[float, float, float]  # mean extent of a patch's source region, in voxels
    support_p99: tuple[float, float, float]
    """Extent that 99 in 100 source regions do not exceed, per axis."""
    chunks: float  # mean number of chunks of a patch, without those outside a rotated patch
    items: int = 1  # patches in a batch
    batch_bytes: int = 0  # bytes of this key in one batch
    rate: float = USUAL_RATE  # wanted patches per second
    patch: Triple = (1, 1, 1)  # size of the drawn patches, in voxels of their grid
    region: Triple | None = None
    """Region in which ``lazy_patch(region=...)`` draws the patches of a visit; None: anywhere."""
    draws: int = 1  # patches that are drawn on one visit to a volume
    together: int = 1
    """Visits whose batches take turns, each batch of one visit: ``interleave(visits=...)``."""
    is_scattered: bool = True
    """Whether patches of a volume come between those of others, or again while its chunks are
    cached. Otherwise its chunks are not needed after the visit."""
    made_bytes: int = 0  # most bytes of a patch's intermediate arrays, where voxels are resampled
    hint: AccessHint | None = None  # preferences of the pipes
    channel_chunks: float = 1.0
    """Chunks that hold the channels of a unit of the layout."""

    @property
    def units(self) -> float:
        """Mean number of units of the layout, each of all channels, that a patch needs."""
        return self.chunks / self.channel_chunks


@dataclass(frozen=True)
class Budget:
    """Memory, disk, processes and threads that reading may use."""

    memory_bytes: int  # of batches, buffers and cached chunks together, in all processes
    workers: int = 0  # worker processes; 0 for reads in the main process
    batches_ahead: int = 1  # batches at once: in preparation, waiting, and in use
    threads: int = 1  # patches that each process realizes at once
    spool_bytes: int | None = None  # disk for decoded copies; None where it is not limited
    thrifty: bool = False  # whether to cache only the chunks of one visit, unless all chunks fit
    sharing: int = 1  # keys that share the limit of bytes in flight to remote stores

    @property
    def processes(self) -> int:
        """Number of reading processes."""
        return max(1, self.workers)


@dataclass(frozen=True)
class ReadScheme:
    """How the voxels of one key are read, and the projected cost."""

    mode: Mode
    memory: Mapping[str, int] = field(default_factory=dict)
    """Projected bytes of all processes together, by term."""
    cache_bytes: int = 0  # bytes of decoded chunks that each process caches
    in_flight_requests: int = 1  # concurrent requests that the rate needs
    in_flight_bytes: int = 0  # stored bytes of these requests
    ahead_bytes: int = 0  # most bytes that each process prefetches for this key
    gap: int = LOCAL_GAP  # ranges up to this many bytes apart are read as one
    longest_run: int = LOCAL_RUN  # most bytes that are read as one
    region: Triple | None = None  # with ``regional``: size of the region of one visit, in voxels
    align: Triple | None = None  # with ``regional``: regions begin at multiples of this, the chunk
    draws: int = 1  # with ``regional``: patches that are drawn on each visit
    meanwhile: Mode | None = None
    """With ``regional``: mode of the reads until the chain draws patches in regions; the figures
    of this scheme are for that mode. None where the scheme is in effect."""
    readers: int = 1  # with ``regional``: processes that decode the same region
    items: int = 1  # patches in a batch
    chunks_then: float = 0.0  # with ``regional``: decoded chunks per patch once it is in effect
    keeps_up: bool = True  # whether half of the cores are expected to reach the wanted rate
    amplification: float = 1.0  # decoded voxels per voxel that patches need
    chunks: float = 0.0  # decoded chunks per patch; with ``resident`` the chunks that it touches
    vetoes: tuple[str, ...] = ()  # reasons of the store against other schemes
    agreement: str = ""  # preferences of the pipes, the store's unit, and the result
    io: str = ""  # how bare voxels of local files are read, and why; empty for chunks and objects

    @property
    def projected_bytes(self) -> int:
        """Projected bytes of all terms."""
        return sum(self.memory.values())

    @property
    def running(self) -> Mode:
        """Mode of the reads of the present chain."""
        return self.meanwhile or self.mode

    @property
    def advice(self) -> str:
        """Change of the chain that puts the scheme into effect; empty if none is needed."""
        if self.meanwhile is None:
            return ""
        place = f"region={self.region}, align={self.align}, " if self.region else ""
        hint = ""
        if self.readers > 1:
            hint = (
                f"; .interleave(visits={self.readers}, patches_per_turn={self.items}) after it "
                f"lets one worker decode a region instead of {self.readers}"
            )
        return (
            f"lazy_patch({place}samples_per_volume={self.draws}) decodes about "
            f"{self.chunks_then:.3g} chunks per patch instead of {self.chunks:.3g}{hint}"
        )

    def without_cache(self, veto: str) -> ReadScheme:
        """Return the scheme without cached chunks, for a store's reason ``veto``."""
        memory = {term: size for term, size in self.memory.items() if term != "kept chunks"}
        mode: Mode = "direct" if self.running in ("resident", "regional") else self.running
        return replace(
            self,
            mode=mode,
            memory=memory,
            cache_bytes=0,
            region=None,
            align=None,
            meanwhile=None,
            vetoes=(*self.vetoes, veto),
        )

    def explain(self) -> str:
        """Return the scheme in words: the mode, the reads, the projected memory."""
        lines = [_WORDS.get(self.running, "")]
        if self.running == "regional":
            size = "x".join(map(str, self.region or ()))
            lines = [f"regional: {self.draws} patches in each region of {size}"]
        if self.running not in ("view", "spool"):
            once = ", each chunk once" if self.mode == "resident" else ""
            lines.append(
                f"  reads {self.chunks:.3g} chunks per patch, {self.amplification:.3g} times the "
                f"voxels needed{once}; ranges up to {bytes_text(self.gap)} apart are one, of at "
                f"most {bytes_text(self.longest_run)}"
            )
            lines.append(
                f"  needs {self.in_flight_requests} request(s) under way, "
                f"{bytes_text(self.in_flight_bytes)}; keeps {bytes_text(self.cache_bytes)} of "
                "chunks in each process"
            )
        if self.ahead_bytes:
            lines.append(
                f"  fetches up to {bytes_text(self.ahead_bytes)} in each process for patches to "
                "come"
            )
        if self.io:
            lines.append(f"  file access {self.io}")
        terms = ", ".join(f"{term} {bytes_text(n)}" for term, n in self.memory.items() if n)
        total = bytes_text(self.projected_bytes)
        lines.append(f"  memory {total}" + (f": {terms}" if terms else ""))
        if not self.keeps_up:
            lines.append("  slower than wanted: decoding or fetching is expected to limit")
        if self.advice:
            lines.append(f"  better: {self.advice}")
            lines.append(
                "  not automatic: these would be other patches, and a scheme changes no patch; "
                "arguments of the chain are part of its state"
            )
        lines += [f"  {self.agreement}"] if self.agreement else []
        lines += [f"  refused by the store: {veto}" for veto in self.vetoes]
        return "\n".join(lines)


@dataclass(frozen=True)
class SchemeRefusal:
    """Veto of a store against a scheme."""

    reason: str  # one sentence


_WORDS: Mapping[str, str] = {
    "view": "view: resampled straight out of the mapped file, or the array in memory",
    "spool": "spool: decoded once to the local disk, then mapped",
    "resident": "resident: each process decodes a chunk once and keeps it while it is needed",
    "direct": "direct: the chunks of each patch are decoded for it",
}
