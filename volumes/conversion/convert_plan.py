"""Plans of sharded zarr v3 arrays: chunks, shards and metadata.

Patches decode inner chunks; shards are the objects that are written and copied. The NIfTI-2 header
(64-bit floats) keeps affine, slope and intercept exactly. OME-Zarr 0.5 metadata give axes and
spacing to viewers without NIfTI support.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.errors import VolumeError
from ...core.grid import unit_for
from ...core.validate import MILLIMETRES, unit_word
from ..formats.chunked_backend import PIXEL
from ..header import Header, Triple, affine_matrix

# In smaller chunks requests and chunk headers cost more than voxels; of larger ones a patch decodes
# more than it uses. Blosc decodes this size within a level-2 cache.
CHUNK_BYTES = 128 * 1024
# A patch at any offset touches one chunk more per axis than its length. With chunks of a quarter
# patch these are 5 instead of 4, twice the voxels of the patch.
CHUNKS_PER_PATCH = 4
# Chunk sizes are multiples of this, so that shards of many volumes are alike.
_STEP = 8
# All channels are read together; more of them would make the chunk flat.
MOST_CHANNELS = 4
# One shard is in memory three times during its write: as read, transposed and compressed.
SHARD_BYTES = 32 * 1024**2

CODECS = ("lz4hc", "lz4", "zstd", "none")
"""Codecs of ``convert``: lz4hc decodes fastest, lz4 encodes fastest, zstd compresses best."""


class ImageLevel(NamedTuple):
    """A level of the image of a label group, relative to that of the labels' finest level."""

    shape: Triple
    ratio: tuple[float, float, float]  # of its voxel size to that of the finest level
    shift: tuple[float, float, float]  # of its first voxel, in millimetres


@dataclass(frozen=True)
class ConvertPlan:
    """Chunks, shards and codec of one written volume."""

    header: Header  # of the source volume
    chunk: Triple  # voxels per inner chunk along I, J, K
    shard: Triple  # voxels per shard along I, J, K: whole chunks
    channels: int  # channels per inner chunk; a shard holds all channels
    codec: str  # one of :data:`CODECS`.
    levels: tuple[Triple, ...] = ()  # Factors of the coarser levels along I, J, K.
    image_levels: tuple[ImageLevel, ...] = ()  # Levels of the image of a label group.
    is_flat: bool = False  # Whether the single plane has no axis z.

    @property
    def dtype(self) -> np.dtype[Any]:
        """Written type: the stored one in little-endian order."""
        value_type = self.header.value_type or self.header.disk_dtype
        return value_type.newbyteorder("<")

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the stored axes: (t), (c), (z), y, x."""
        return (*self.lead, *"zyx"[self.is_flat :])

    @property
    def lead(self) -> tuple[str, ...]:
        """Names of the stored axes before the spatial ones: (t), (c)."""
        return (*"t" * (self.header.times.number > 1), *"c" * (self.per_time > 1))

    @property
    def per_time(self) -> int:
        """Channels of one time point."""
        return self.header.shape[0] // self.header.times.number

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Shape of the zarr array."""
        return self._stored_shape(self.header.times.number, self.per_time, self.header.shape[1:])

    @property
    def stored_chunks(self) -> tuple[int, ...]:
        """Inner chunk per stored axis."""
        return self._stored_shape(1, self.channels, self.chunk)

    @property
    def stored_shards(self) -> tuple[int, ...]:
        """Shard per stored axis."""
        whole = -(-self.per_time // self.channels) * self.channels
        return self._stored_shape(1, whole, self.shard)

    @property
    def result(self) -> Header:
        """Header of the written volume."""
        native = self.dtype.newbyteorder("=")
        return replace(
            self.header,
            disk_dtype=native,
            chunks=self.chunk,
            access="range",
            value_type=None,
            stamp=(),
        )

    def regions(self) -> Iterator[tuple[Triple, Region]]:
        """Yield index and region of every shard, in the order of writing."""
        extent = self.header.shape[1:]
        counts = [range(-(-n // s)) for n, s in zip(extent, self.shard, strict=True)]
        whole = Region.of_shape(extent)
        # With K outermost, a NIfTI file is read sequentially.
        for k, j, i in itertools.product(*reversed(counts)):
            start = (i * self.shard[0], j * self.shard[1], k * self.shard[2])
            stop = tuple(a + s for a, s in zip(start, self.shard, strict=True))
            yield (i, j, k), Region(start, stop).intersect(whole)

    def index(self, region: Region) -> tuple[slice, ...]:
        """Return a region as an index of the stored array."""
        return (*(slice(None) for _ in self.lead), *region.slices[::-1][self.is_flat :])

    def in_order(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """Return voxels (C, I, J, K) in the order of the stored axes."""
        array = self.header.times.first(voxels.transpose(0, 3, 2, 1))
        lengths = {"t": array.shape[0], "c": array.shape[1]}
        shape = (*(lengths[axis] for axis in self.lead), *array.shape[2 + self.is_flat :])
        return np.ascontiguousarray(array.reshape(shape), dtype=self.dtype)

    def fingerprint(self) -> tuple[object, ...]:
        """Return the facts in which two written volumes of one source may differ."""
        levels: tuple[object, ...] = (self.levels,) if self.levels else ()
        shapes = tuple(level.shape for level in self.image_levels)
        extent = self.header.shape[1:]
        usual = (tuple(-(-n // f) for n, f in zip(extent, own, strict=True)) for own in self.levels)
        levels += (shapes,) if shapes and shapes != tuple(usual) else ()
        flat = ("yx",) if self.is_flat else ()
        return (self.chunk, self.shard, self.channels, self.codec, "crc32c", *levels, *flat)

    def _stored_shape(self, times: int, channels: int, spatial: Triple) -> tuple[int, ...]:
        lead = {"t": times, "c": channels}
        return (*(lead[axis] for axis in self.lead), *spatial[::-1][self.is_flat :])


def plan_conversion(
    header: Header,
    *,
    chunk: int | None = None,
    shard: int | None = None,
    patch: int = 96,
    codec: str = "lz4hc",
) -> ConvertPlan:
    """Choose chunks and shards for a volume.

    Examples
    --------
    >>> plan = plan_conversion(Header((1, 512, 512, 300), (1.0,) * 16, np.dtype("int16")))
    >>> plan.chunk, plan.shard
    ((32, 32, 32), (256, 256, 256))
    """
    if codec not in CODECS:
        what = f"codec is one of {', '.join(map(repr, CODECS))}, got {codec!r}."
        raise VolumeError(what, do="lz4hc decodes fastest, zstd stores least.")
    channels = min(header.shape[0] // header.times.number, MOST_CHANNELS)
    voxel = (header.value_type or header.disk_dtype).itemsize
    side = chunk_side(patch, voxel * channels) if chunk is None else _size("chunk", chunk)
    i, j, k = (min(side, n) for n in header.shape[1:])
    inner = (i, j, k)
    if shard is None:
        size = _shard_near(header.shape[1:], inner, voxel * header.shape[0])
    elif _size("shard", shard) % side:
        what = f"a shard of {shard} voxels does not hold whole chunks of {side}."
        raise VolumeError(what, do=f"Give a multiple of {side}.")
    else:
        size = [int(shard) // side * c for c in inner]
    # No larger than the whole chunks that cover the volume.
    axes = zip(size, inner, header.shape[1:], strict=True)
    i, j, k = (min(s, -(-n // c) * c) for s, c, n in axes)
    return ConvertPlan(header, inner, (i, j, k), channels, codec)


def chunk_side(patch: int, voxel_bytes: int) -> int:
    """Return the voxels along each axis of a chunk: between a quarter patch and 128 KiB.

    Examples
    --------
    >>> [chunk_side(96, size) for size in (1, 2, 4)], chunk_side(192, 2)
    ([32, 32, 24], 40)
    """
    quarter = _size("patch", patch) / CHUNKS_PER_PATCH
    full = (CHUNK_BYTES / voxel_bytes) ** (1 / 3)
    return max(_STEP, round(math.sqrt(quarter * full) / _STEP) * _STEP)


def _shard_near(extent: Triple, chunk: Triple, voxel_bytes: int) -> list[int]:
    """Return a chunk doubled along all axes in turn while it fits the volume and SHARD_BYTES."""
    size = list(chunk)
    is_growing = True
    while is_growing:
        is_growing = False
        for axis in range(3):
            double = size[axis] * 2
            fits = math.prod(size) * 2 * voxel_bytes <= SHARD_BYTES
            if fits and size[axis] < extent[axis]:
                size[axis], is_growing = double, True
    return size


def _size(argument: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        msg = f"{argument} is a whole number of voxels of at least 1, got {value!r}."
        raise VolumeError(msg, do="It holds for all three axes.")
    return int(value)


# NIfTI's code for coordinates of the scanner that made the image.
SCANNER = 1


def nifti_bytes(header: Header) -> bytes:
    """Return ``header`` as the 540 bytes of a NIfTI-2 header."""
    from nibabel.nifti2 import Nifti2Header

    fields: Any = Nifti2Header(endianness="<")
    set_voxels(fields, header, spacing_of(header))
    fields.set_sform(affine_matrix(header.affine), code=SCANNER)
    fields.set_xyzt_units("mm")
    raw: bytes = fields.binaryblock
    return raw


def set_voxels(fields: Any, header: Header, spacing: Iterable[float]) -> None:
    """Set type, shape, spacing and scaling of nibabel's NIfTI header ``fields``."""
    channels, *spatial = header.shape
    fields.set_data_dtype(file_dtype(header.value_type or header.disk_dtype))
    # NIfTI's dimensions are (x, y, z, t, c); time folded into C is written as channels.
    fields.set_data_shape(spatial if channels == 1 else (*spatial, 1, channels))
    fields.set_zooms([*map(float, spacing), 1.0, 1.0][: 3 if channels == 1 else 5])
    fields["scl_slope"], fields["scl_inter"] = header.slope, header.intercept


def file_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that files store for values: no format has booleans or float16."""
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype == np.float16:
        return np.dtype(np.float32)
    return dtype.newbyteorder("<")


def spacing_of(header: Header) -> tuple[float, float, float]:
    """Return the distance between voxel centres; 1 along an axis that the affine collapses."""
    matrix = affine_matrix(header.affine)
    x, y, z = (math.hypot(*matrix[:3, axis]) or 1.0 for axis in range(3))
    return x, y, z


def unit_to_write(header: Header) -> str:
    """Return the unit of the source, else one that suits the size of a voxel.

    Voxels of an array without an affine have no size: their unit is ``px``.
    """
    is_placed = bool((affine_matrix(header.affine) != np.eye(4)).any())
    spacing = spacing_of(header)
    # A plane without a z axis has one voxel of the default length along K.
    sizes = spacing[:2] if header.shape[3] == 1 and spacing[2] == 1.0 else spacing
    return unit_word(header.file_unit) or (unit_for(sizes) if is_placed else PIXEL)


def group_document(plan: ConvertPlan, name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the ``zarr.json`` of an image's group, with voxpipe's own ``record``.

    Lengths have the unit that :func:`unit_to_write` returns.
    """
    unit = unit_to_write(plan.header)
    names = {"um": "micrometer", "nm": "nanometer", "angstrom": "angstrom"}
    size = MILLIMETRES[unit] if unit in names else 1.0
    spatial = {"type": "space", "unit": names.get(unit, "millimeter")}
    spatial = {"type": "space"} if unit == PIXEL else spatial
    kinds = {"c": {"type": "channel"}, "z": spatial, "y": spatial, "x": spatial}
    times = plan.header.times
    kinds |= {"t": {"type": "time", **({"unit": times.unit} if times.unit else {})}}
    matrix = affine_matrix(plan.header.affine)
    diagonal, origin = np.diag(matrix)[:3], matrix[:3, 3]
    # OME-Zarr has no rotation, so a translation of a rotated image would be wrong.
    is_world = (diagonal > 0).all() and not (matrix[:3, :3] - np.diag(diagonal)).any()
    spacing = np.array(spacing_of(plan.header)) / size
    lead = {"t": (times.step, times.start), "c": (1.0, 0.0)}
    lead_steps, starts = ([lead[axis][n] for axis in plan.lead] for n in (0, 1))
    image: dict[str, Any] = {
        "name": name,
        "axes": [{"name": axis, **kinds[axis]} for axis in plan.axes],
        "datasets": [],
    }
    for number, factors in enumerate(((1, 1, 1), *plan.levels)):
        scale = spacing * factors
        # Voxels of all levels cover the same box.
        start = (scale - spacing) / 2
        if number and plan.image_levels:
            level = plan.image_levels[number - 1]
            scale, start = spacing * level.ratio, np.array(level.shift) / size
        start = start + (origin / size if is_world else 0.0)
        scale, start = (numbers[::-1][plan.is_flat :] for numbers in (scale, start))
        steps = [{"type": "scale", "scale": [*lead_steps, *scale.tolist()]}]
        if start.any() or any(starts):
            translation = [*starts, *start.tolist()]
            steps.append({"type": "translation", "translation": translation})
        image["datasets"].append({"path": str(number), "coordinateTransformations": steps})
    ome: dict[str, Any] = {"version": "0.5", "multiscales": [image]}
    if labels := plan.header.channel_names:
        channels = times.first(labels)[0].tolist()
        ome["omero"] = {"channels": [{"label": label} for label in channels]}
    return {"zarr_format": 3, "node_type": "group", "attributes": {"ome": ome, "voxpipe": record}}
