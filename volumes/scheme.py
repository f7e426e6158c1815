"""Read schemes: what a store offers, what patches ask, what may be spent, what follows.

Four frozen values. :func:`~voxpipe.volumes.choose_scheme.choose_scheme` makes the fourth of the
other three. A scheme says which bytes are read, when, and what is kept of them; it never says what
a patch contains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ..storage.in_flight import MOST_REQUESTS
from ..storage.ranges import LOCAL_GAP, LOCAL_RUN, NETWORK_GAP, NETWORK_RUN, REMOTE_GAP, REMOTE_RUN
from .header import Access, Header, Triple

Mode = Literal["view", "spool", "resident", "direct", "regional"]
"""How the voxels of one key are read.

``view``: resampled out of the mapped file. ``spool``: decoded once to the local disk, then
mapped. ``resident``: a chunk is decoded once per process and kept while it is needed.
``direct``: the chunks of each patch are decoded for it. ``regional``: several patches are drawn
in one region, whose chunks are decoded once for all of them.
"""

# One core decodes blosc-lz4 chunks of 64^3 int16 at 400 to 900 MB/s (measured, warm).
DECODE_RATE = 600e6
# gzip by isal: 113 MB in 316 ms (measured).
STREAM_DECODE_RATE = 350e6
# What a local NVMe gives to several readers at once; its first byte comes after 0.1 ms.
LOCAL_BANDWIDTH, LOCAL_LATENCY = 2e9, 1e-4
# One machine's share of a bucket; its first byte comes after some 30 ms.
REMOTE_BANDWIDTH, REMOTE_LATENCY = 800e6, 30e-3
# Requests that a disk, or a connection pool, serves at once.
LOCAL_REQUESTS, REMOTE_REQUESTS = 32, 128
# A file server over 10 Gb/s with other users.
NETWORK_BANDWIDTH, NETWORK_LATENCY = 300e6, 2e-3
# What one connection to a bucket brings; S3's own advice counts with 85 to 90 MB/s.
STREAM_BANDWIDTH = 60e6
# Bare voxels are a run for each plane of a patch: as many requests as may be under way at once.
# Chunks are a request or two for each shard, hence the larger gap above. As many bytes cost as much
# as one more request.
REMOTE_ROWS_GAP = round(REMOTE_LATENCY * STREAM_BANDWIDTH / MOST_REQUESTS)
# Stored by decoded bytes: 69 MB of 113 MB of CT-like int16 in blosc-lz4 (measured).
STORED_RATIO = 0.6
# Patches per second where nobody says how many are wanted: 10 steps of 2 patches, what an
# accelerator of 2023 takes of 128^3 patches in nnU-Net's recipe.
USUAL_RATE = 20.0


@dataclass(frozen=True)
class StoreLayout:
    """What a store says of itself, and how fast it is taken to be."""

    shape: Triple  # (I, J, K) of one volume, in voxels
    itemsize: int  # bytes of one voxel as stored, all channels
    chunk: Triple | None = None  # decode unit in voxels; None where every voxel can be read alone
    shard: Triple | None = None
    """Object that holds chunks, in voxels; None where each chunk is an object."""
    access: Access = "view"  # mapped, by byte ranges, or only from its beginning
    volumes: int = 1  # how many volumes of this kind there are
    decode_rate: float = DECODE_RATE  # decoded bytes per second and core
    bandwidth: float = LOCAL_BANDWIDTH  # stored bytes per second, all readers together
    latency: float = LOCAL_LATENCY  # seconds until the first byte of a request
    requests: int = LOCAL_REQUESTS  # requests that may be under way at once
    gap: int = LOCAL_GAP  # bytes between two ranges up to which they are read as one
    longest_run: int = LOCAL_RUN  # most bytes that are read as one
    io: str = ""  # how bare voxels are read, and why; empty for chunks and objects
    remote: bool = False  # whether what the next patches need is fetched while others are made

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
            remote=header.access != "stream",  # which is spooled once
        )

    def read_by(self, io: str) -> StoreLayout:
        """Return the layout of voxels that are read in this way from a disk of this machine."""
        return replace(self, io=io)

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
        """What is decoded at once: a chunk, or a whole volume that is one stream."""
        return self.shape if self.access == "stream" or self.chunk is None else self.chunk

    @property
    def unit_bytes(self) -> int:
        """Decoded bytes of one unit."""
        return math.prod(self.unit) * self.itemsize

    @property
    def chunks_per_request(self) -> float:
        """Chunks that one request brings in at best: those of one shard, up to the longest run."""
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
class Demand:
    """What the patches of a chain ask of one key's volumes; measured on plans, without voxels."""

    support: tuple[float, float, float]  # mean extent of a patch's source region, in voxels
    support_p99: tuple[float, float, float]
    """Extent that 99 in 100 source regions do not exceed, per axis."""
    chunks: float  # mean number of chunks that a patch reads, those beside a turned patch left out
    items: int = 1  # patches in a batch
    batch_bytes: int = 0  # bytes of this key in one batch
    rate: float = USUAL_RATE  # patches per second that are wanted
    patch: Triple = (1, 1, 1)
    """Size of the patches that are drawn, in voxels of the grid in which they are drawn."""
    region: Triple | None = None
    """Region in which ``lazy_patch(region=...)`` draws the patches of a visit; None: anywhere."""
    draws: int = 1  # patches that are drawn on one visit to a volume
    together: int = 1
    """Visits whose batches take turns, each batch of one visit: ``interleave(visits=...)``."""
    is_scattered: bool = True
    """Whether a volume's patches come between those of others, or again while its chunks are kept;
    else nothing of it is needed any more once its visit is over."""
    made_bytes: int = 0
    """Most bytes that a patch is made of in between, where voxels are sampled anew."""


@dataclass(frozen=True)
class Budget:
    """What may be spent."""

    memory_bytes: int
    """Memory that batches, buffers and kept chunks may take together, in all processes."""
    workers: int = 0  # worker processes; 0 if everything happens in one
    batches_ahead: int = 1
    """Batches that exist at once: those being made, those waiting, the one in use."""
    threads: int = 1  # patches that each process realizes at once
    spool_bytes: int | None = None  # disk for decoded copies; None where it is not limited
    thrifty: bool = False
    """Whether to keep no more than the chunks of one visit to a volume, unless all fit."""
    sharing: int = 1  # keys that share what a process may have under way to remote stores

    @property
    def processes(self) -> int:
        """Processes that read."""
        return max(1, self.workers)


@dataclass(frozen=True)
class ReadScheme:
    """How the voxels of one key are read, and what that takes."""

    mode: Mode  # how they are read
    memory: Mapping[str, int] = field(default_factory=dict)
    """Projected bytes of all processes together, by term."""
    cache_bytes: int = 0  # decoded chunks that each process keeps, in bytes
    in_flight_requests: int = 1  # requests that must be under way at once to keep the rate
    in_flight_bytes: int = 0  # stored bytes of these requests
    ahead_bytes: int = 0
    """Most bytes that each process fetches for later patches of this key, and keeps for them."""
    gap: int = LOCAL_GAP  # bytes between two ranges up to which they are read as one
    longest_run: int = LOCAL_RUN  # most bytes that are read as one
    region: Triple | None = None
    """With ``regional``: where the patches of one visit are drawn, in voxels."""
    align: Triple | None = None  # with ``regional``: regions begin at multiples of this, the chunk
    draws: int = 1  # with ``regional``: patches that are drawn on each visit
    meanwhile: Mode | None = None
    """With ``regional``: how reads are while the chain draws its patches anywhere; the figures of
    this scheme are then those of these reads. None where the scheme is in effect as it is."""
    readers: int = 1  # with ``regional``: processes that decode the same region
    items: int = 1  # patches in a batch
    chunks_then: float = 0.0
    """With ``regional``: chunks that are decoded per patch once it is in effect."""
    keeps_up: bool = True  # whether the wanted rate is expected to be reached on half of the cores
    amplification: float = 1.0  # voxels that are decoded by voxels that the patches need
    chunks: float = 0.0
    """Chunks that are decoded per patch; with ``resident`` those that it touches."""
    vetoes: tuple[str, ...] = ()  # why the store refused another scheme
    io: str = ""  # how bare voxels of local files are read, and why; empty for chunks and objects

    @property
    def projected_bytes(self) -> int:
        """Projected bytes of all terms."""
        return sum(self.memory.values())

    @property
    def running(self) -> Mode:
        """How reads are with the chain as it is."""
        return self.meanwhile or self.mode

    @property
    def advice(self) -> str:
        """What to write into the chain; empty where it is in effect, or nothing is gained."""
        if self.meanwhile is None:
            return ""
        place = f"region={self.region}, align={self.align}, " if self.region else ""
        hint = ""
        if self.readers > 1:
            hint = (
                f"; .interleave(visits={self.readers}, each={self.items}) after it lets one "
                f"worker decode a region instead of {self.readers}"
            )
        return (
            f"lazy_patch({place}samples_per_volume={self.draws}) decodes about "
            f"{self.chunks_then:.3g} chunks per patch instead of {self.chunks:.3g}{hint}"
        )

    def without_cache(self, veto: str) -> ReadScheme:
        """Return the scheme of a store that keeps no chunks, for the reason that it gave."""
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
        """Return the scheme in words: the mode, what is read, what memory is projected."""
        lines = [_WORDS.get(self.running, "")]
        if self.running == "regional":
            size = "x".join(map(str, self.region or ()))
            lines = [f"regional: {self.draws} patches in each region of {size}"]
        if self.running not in ("view", "spool"):
            once = ", each chunk once" if self.mode == "resident" else ""
            lines.append(
                f"  reads {self.chunks:.3g} chunks per patch, {self.amplification:.3g} times the "
                f"voxels needed{once}; ranges up to {_size(self.gap)} apart are one, of at most "
                f"{_size(self.longest_run)}"
            )
            lines.append(
                f"  needs {self.in_flight_requests} request(s) under way, "
                f"{_size(self.in_flight_bytes)}; keeps {_size(self.cache_bytes)} of chunks in "
                "each process"
            )
        if self.ahead_bytes:
            lines.append(
                f"  fetches up to {_size(self.ahead_bytes)} in each process for patches to come"
            )
        if self.io:
            lines.append(f"  file access {self.io}")
        terms = ", ".join(f"{term} {_size(size)}" for term, size in self.memory.items() if size)
        lines.append(f"  memory {_size(self.projected_bytes)}" + (f": {terms}" if terms else ""))
        if not self.keeps_up:
            lines.append("  slower than wanted: decoding or fetching is expected to limit")
        if self.advice:
            lines.append(f"  better: {self.advice}")
            lines.append(
                "  not done by itself: these would be other patches, and a scheme changes none; "
                "what you write is part of the chain and of its state"
            )
        lines += [f"  refused by the store: {veto}" for veto in self.vetoes]
        return "\n".join(lines)


@dataclass(frozen=True)
class SchemeRefusal:
    """A store's veto against a scheme."""

    reason: str  # why, as one sentence


_WORDS: Mapping[str, str] = {
    "view": "view: resampled straight out of the mapped file, or the array in memory",
    "spool": "spool: decoded once to the local disk, then mapped",
    "resident": "resident: each process decodes a chunk once and keeps it while it is needed",
    "direct": "direct: the chunks of each patch are decoded for it",
}


def _size(count: int) -> str:
    """Return bytes in a unit that fits."""
    number, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1000 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{number:.3g} {units[0]}"
