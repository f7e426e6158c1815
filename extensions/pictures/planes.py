"""Three planes through a volume, read from a coarse level or within a bound on bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Affine, Region
from ...core.grid import PLAIN, XYZ, numbers_of_axes
from ...core.settings import bytes_text
from ...spatial.ops import axis_op
from ...volumes import Volume
from ...volumes.catalog.whole_pass import at_level, coarser_levels
from ...volumes.formats.chunked_backend import PIXEL
from ...volumes.registry import matching_entry

REPR_SIDE = 256
"""Voxels along the longest side of the level that a notebook's table shows."""
FIGURE_SIDE = 1024
"""The same of a figure."""
REMOTE_BYTES = 32 * 1024**2
"""Largest number of bytes that a table reads of a remote volume, and at most half of it."""
LOCAL_BYTES = 512 * 1024**2
"""The same of a local volume, after decoding."""
# Formats whose files always have a voxel size. Others have it with a unit, or not at all.
_WITH_SPACING = {"dicom", "metaimage", "mgh", "minc", "nifti", "nifti-gz", "nifti-pair", "nrrd"}
_WITH_SPACING |= {"simpleitk"}
_LETTERS = (("L", "R"), ("P", "A"), ("I", "S"))
_NAMES = ("sagittal", "coronal", "axial")
_MICROSCOPIC = 1e-2  # spacing in millimetres below which axes have no anatomical directions


class TooManyBytes(Exception):
    """The planes of a volume need more bytes than a table may read."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the planes need {bytes_text(size)}")
        self.size = size


@dataclass(frozen=True)
class View:
    """How a plane of a volume is shown: its axes, flips, and letters at its sides."""

    axis: int  # normal to the plane
    across: int  # axis from left to right
    down: int  # axis from top to bottom
    flips: tuple[bool, bool]  # of rows and of columns
    name: str
    letters: tuple[str, str, str, str]  # left, right, bottom, top; empty without directions
    index_name: str  # of an index along the axis

    def arrange(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """Return a slice (C, i, j, k) of one voxel along the axis as (C, rows, columns)."""
        plane = np.moveaxis(voxels, (1 + self.down, 1 + self.across), (1, 2))[..., 0]
        rows, columns = (slice(None, None, -1 if flip else 1) for flip in self.flips)
        return plane[:, rows, columns]


@dataclass(frozen=True)
class Plane:
    """One plane of a volume, as it is shown."""

    voxels: NDArray[Any]  # (C, rows, columns)
    view: View
    index: int  # along the axis
    pixel: tuple[float, float]  # height and width of a pixel in millimetres
    level: int = 0  # of the volume, 0 for its own voxels
    is_placed: bool = True  # whether lengths are known

    def length_text(self, length: float) -> str:
        """Return a length in millimetres, or in voxels where there is no affine."""
        return length_text(length) if self.is_placed else f"{length:g} voxels"

    @property
    def caption(self) -> str:
        """The name of the plane and its index."""
        name = f"{self.view.index_name} = {self.index}"
        name = f"{name} of level {self.level}" if self.level else name
        return f"{self.view.name}, {name}" if self.view.name else name


def length_text(length: float) -> str:
    """Return a length in millimetres in a readable unit.

    Examples
    --------
    >>> length_text(50.0), length_text(0.02), length_text(0.0005)
    ('50 mm', '20 µm', '500 nm')
    """
    for size, unit in ((0.1, "mm"), (1e-3, "µm")):
        if length >= size:
            return f"{length / (1.0 if unit == 'mm' else 1e-3):.4g} {unit}"
    return f"{length * 1e6:.4g} nm"


def views_of(
    affine: Affine, *, directions: bool = True, like: Affine | None = None, axes: str = XYZ
) -> tuple[View, View, View]:
    """Return the views along the three axes, in the order of sagittal, coronal and axial.

    With directions, right, anterior and superior are at the right and at the top. Without, x is
    across and y is down; ``axes`` are the names of the axes in their order. Voxels are arranged as
    if their affine was ``like``, so that a flip is seen; the letters are those of their own affine.
    """
    names = axis_names(axes)
    own = axis_op.directions(affine) if directions else []
    order = own if like is None or not directions else axis_op.directions(like)
    world = [axis for axis, _ in order] or numbers_of_axes(axes)
    views = []
    for axis in sorted(range(3), key=world.__getitem__):
        across, down = sorted((a for a in range(3) if a != axis), key=world.__getitem__)
        if not directions:
            name, letters, flips = "", ("", "", "", ""), (False, False)
        else:
            name, flips = _NAMES[world[axis]], (order[down][1] > 0, order[across][1] < 0)
            top, bottom = _sides(*own[down], is_flipped=flips[0])
            letters = (*_sides(*own[across], is_flipped=flips[1]), bottom, top)
        views.append(View(axis, across, down, flips, name, letters, names[axis]))
    return views[0], views[1], views[2]


def axis_names(axes: str) -> str:
    """Return x, y and z in their order; i, j and k for the order of a file."""
    names = PLAIN if axes == XYZ or axes[0] in PLAIN else XYZ
    return "".join(names[number] for number in numbers_of_axes(axes))


def _sides(world: int, sign: int, *, is_flipped: bool) -> tuple[str, str]:
    """Return the letters at the first and at the last voxel of an axis, as it is shown."""
    first, last = _LETTERS[world]
    return (first, last) if (sign > 0) != is_flipped else (last, first)


def has_directions(affine: Affine) -> bool:
    """Whether the axes are those of a body: not without an affine, nor below 10 micrometres."""
    smallest = np.linalg.norm(affine[:3, :3], axis=0).min()
    return bool(smallest >= _MICROSCOPIC) and is_placed(affine)


def is_placed(affine: Affine) -> bool:
    """Whether a stored affine gives lengths: not the identity, which stands for none."""
    return not np.array_equal(affine, np.eye(4))


def has_pixels(volume: Volume) -> bool:
    """Whether the file of a volume gives lengths in pixels, and so no physical size."""
    return volume.lengths.endswith(f" {PIXEL}")


def format_of(volume: Any) -> str:
    """Return the name of the format of a volume's file; empty for voxels in memory."""
    source = volume.located_source
    if source is None:
        return ""
    path = Path(source.path) if source.path else None
    uri = None if source.path else source.location
    remote = uri if ".zarr" in source.name else None
    place = {"path": path, "uri": uri, "remote_zarr_uri": remote, "source": source.location}
    request = source.options.request(**place)
    if isinstance(request.reader, str):
        return str(request.reader)
    entry = matching_entry(request)
    if entry is not None and entry.name == "ome-part":
        from ..microscopy.ome_view import request_of_file

        entry = matching_entry(request_of_file(request))
    return "" if entry is None else entry.name


def stores_spacing(volume: Volume) -> bool:
    """Whether the user gives lengths, or the format of the file always has them."""
    return volume.has_given_affine or format_of(volume) in _WITH_SPACING


def unit_of(volume: Volume) -> str:
    """Return the unit of printed lengths: ``voxels`` where neither user nor file gives lengths."""
    if has_pixels(volume):
        return PIXEL
    is_given = bool(volume.lengths) or is_placed(volume.affine) or stores_spacing(volume)
    return "mm" if is_given else "voxels"


def planes_of_array(
    array: NDArray[Any],
    affine: Affine,
    at: Sequence[int] | None = None,
    *,
    directions: bool,
    like: Affine | None = None,
    axes: str = XYZ,
    has_lengths: bool | None = None,
) -> list[Plane]:
    """Return the planes of voxels (C, I, J, K) through an index, by default the middle.

    ``axes`` are the names of I, J and K, such as ``"zyx"``. ``has_lengths`` says whether pixels
    have a known size. By default they do if the affine is not the identity.
    """
    has_lengths = is_placed(affine) if has_lengths is None else has_lengths
    pairs = _regions(array.shape[1:], affine, at, directions, like, axes)
    return [
        _plane(view, region, array[(slice(None), *region.slices)], affine, has_lengths)
        for view, region in pairs
    ]


def _plane(
    view: View,
    region: Region,
    voxels: NDArray[Any],
    affine: Affine,
    has_lengths: bool,
    level: int = 0,
) -> Plane:
    sizes = np.linalg.norm(affine[:3, :3], axis=0).tolist()
    pixel, index = (sizes[view.down], sizes[view.across]), region.start[view.axis]
    return Plane(view.arrange(voxels), view, index, pixel, level, has_lengths)


def _regions(
    shape: Sequence[int],
    affine: Affine,
    at: Sequence[int] | None,
    directions: bool,
    like: Affine | None = None,
    axes: str = XYZ,
) -> list[tuple[View, Region]]:
    point = [n // 2 for n in shape] if at is None else list(at)
    pairs = []
    for view in views_of(affine, directions=directions, like=like, axes=axes):
        others = [n for a, n in enumerate(shape) if a != view.axis]
        if min(others) == 1 and max(shape) > 1 and shape[view.axis] > 1:
            continue  # of a slice: this plane would be a line
        start, stop = [0, 0, 0], list(shape)
        start[view.axis], stop[view.axis] = point[view.axis], point[view.axis] + 1
        pairs.append((view, Region((start[0], start[1], start[2]), (stop[0], stop[1], stop[2]))))
    return pairs


def read_planes(
    volume: Volume, *, side: int, at: Sequence[int] | None = None, has_limit: bool = False
) -> list[Plane]:
    """Return planes of a volume, of the coarsest level with ``side`` voxels on its longest side.

    ``at`` is an index of the volume, by default its middle. With ``has_limit``, planes of too many
    bytes raise `TooManyBytes`, unless a coarser level needs fewer.
    """
    is_physical = not has_pixels(volume)
    directions, costs = is_physical and has_directions(volume.affine), list[int]()
    for number in _levels(volume, side):
        level = at_level(volume, number)
        point, affine = None if at is None else _at_level(at, volume, level), level.affine
        pairs = _regions(level.spatial_shape, affine, point, directions)
        costs.append(bytes_needed(level, [region for _, region in pairs]))
        if not has_limit or costs[-1] <= _limit_of(volume):
            has_lengths = is_physical and is_placed(affine)
            return [
                _plane(view, region, _values(level, region), affine, has_lengths, number)
                for view, region in pairs
            ]
    raise TooManyBytes(min(costs))


def _values(volume: Volume, region: Region) -> NDArray[Any]:
    values = volume.read(region).values()
    return np.abs(values) if values.dtype.kind == "c" else values


def _levels(volume: Volume, side: int) -> list[int]:
    """Return the levels to try, the best first: then coarser ones, which need fewer bytes."""
    matrices = coarser_levels(volume)
    lengths = [max(volume.spatial_shape)]
    lengths += [max(volume.spatial_shape) / abs(m[:3, :3]).max() for m in matrices]
    fine = [number for number, length in enumerate(lengths) if length >= side]
    return list(range(fine[-1] if fine else 0, len(lengths)))


def _at_level(at: Sequence[int], volume: Volume, level: Volume) -> list[int]:
    world = volume.affine @ (*at, 1)
    index = np.rint(np.linalg.solve(level.affine, world)[:3]).astype(int)
    inside: list[int] = np.clip(index, 0, np.array(level.spatial_shape) - 1).tolist()
    return inside


def _limit_of(volume: Volume) -> float:
    whole = math.prod(volume.shape) * volume.disk_dtype.itemsize
    return min(REMOTE_BYTES, whole // 2) if is_remote(volume) else LOCAL_BYTES


def is_remote(volume: Volume) -> bool:
    """Whether a part of a volume is read over a network; opens the volume."""
    return any(part.probe().remote for part in volume.parts)


def bytes_needed(volume: Volume, regions: Sequence[Region]) -> int:
    """Return an upper bound of the bytes that a read of regions decodes or maps."""
    header = volume.header
    size = header.disk_dtype.itemsize
    whole = math.prod(header.shape) * size
    if volume.located_source is None and header.access == "view":
        return 0  # in memory
    needs = [volume.needed_chunks(region) for region in regions]
    if header.access == "stream" or (is_remote(volume) and None in needs):
        return whole  # rows of a plane are spread over the file
    voxels = (region.size * header.shape[0] for region in regions)
    # Pages of a mapped file are read as a whole.
    pages = sum(min(whole, count * 4096) for count in voxels)
    if all(need is None for need in needs):
        return min(whole, pages)
    return sum(need.voxels * size for need in needs if need is not None)
