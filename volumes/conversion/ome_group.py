"""Levels of written OME-Zarr images, and groups of labels inside of images."""

from __future__ import annotations

import itertools
import json
import math
import os
import posixpath
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Grid
from ...core.call_site import looking_ahead, warn
from ...core.context import holding
from ...core.convert_dtype import convert_dtype
from ...core.errors import GridMismatch, LikelyMistake, SampleError, VolumeError
from ...core.sample import parse_json
from ...storage.file_reader import LocalRanges
from ...storage.location import file_system, is_url, public_name, remote_errors
from ...storage.remote import open_remote
from ..formats.zarr_nodes import Level, levels_of
from ..header import TIMES_STAY, Header, Triple, affine_matrix
from ..volume import Volume
from .convert_plan import ConvertPlan, ImageLevel, spacing_of

_LABEL_GROUP = re.compile(r"(.+\.zarr(?:/[^/]+)*)/labels/([^/]+)/?", re.IGNORECASE)
_SUFFIX = ".ome.zarr"
RECORD = "voxpipe-record"
"""Attribute of a group of zarr v2. "voxpipe" names a group of v3, with a NIfTI header in it."""
# Voxels along the longest axis at which no further level is written by default.
_SMALL = 256
_MOST_LEVELS = 16
# An axis is halved up to this many times the smallest distance between voxels.
_EVEN = 1.5
# Largest part of a direction along a second axis of the world: half a voxel in 500.
_STRAIGHT = 1e-3
# Largest difference of a voxel size in the metadata of a level from its factor.
_FAR = 0.25


def image_above(place: str) -> tuple[str, str] | None:
    """Return the image and the name of a label group, by its place; None for another place.

    Examples
    --------
    >>> image_above("a/img.zarr/labels/nuclei"), image_above("a/img.zarr")
    (('a/img.zarr', 'nuclei'), None)
    """
    match = _LABEL_GROUP.fullmatch(place.replace(os.sep, "/"))
    return (match[1], match[2]) if match else None


def _with_levels(plan: ConvertPlan, place: str, header: Header, levels: int | None) -> ConvertPlan:
    """Return a plan with the factors of the coarser levels of an image at a place.

    Without a number: those of ``.ome.zarr`` and of label groups end at 256 voxels; other names
    have one level. Labels of a local image with levels get these, from the one of their shape on.
    A rotated or sheared image causes a warning, because viewers ignore its directions.
    """
    _check_directions(place, header)
    if levels is not None and not (
        isinstance(levels, int) and not isinstance(levels, bool) and 1 <= levels <= _MOST_LEVELS
    ):
        msg = f"levels= is {levels!r}"
        raise SampleError(msg, do=f"Give the number of resolutions, from 1 to {_MOST_LEVELS}.")
    is_pyramid = place.rstrip("/").lower().endswith(_SUFFIX) or image_above(place) is not None
    most = levels or (_MOST_LEVELS if is_pyramid else 1)
    above = None if levels else _levels_above(place, header)
    if above is not None:
        return replace(plan, levels=above[0], image_levels=above[1])
    i, j, k = header.shape[1:]
    spacing, factors = np.array(spacing_of(header)), np.ones(3, np.int64)
    result = list[Triple]()
    while len(result) < most - 1:
        shape = -(-np.array((i, j, k)) // factors)
        if max(shape) <= (1 if levels else _SMALL):
            break
        steps = np.where(shape > 1, spacing * factors, np.inf)
        factors = np.where(steps <= _EVEN * steps.min(), factors * 2, factors)
        result.append((int(factors[0]), int(factors[1]), int(factors[2])))
    return replace(plan, levels=tuple(result))


def is_oblique(header: Header) -> bool:
    """Whether an axis of voxels has the direction of no axis of the world.

    Examples
    --------
    >>> turned = [[0.0, 2.0, 0.5], [-1.0, 0.0, 0.0], [0.0, 0.0, 3.0]]
    >>> affine = np.eye(4)
    >>> affine[:3, :3] = turned
    >>> is_oblique(Header.of((1, 2, 2, 2), np.dtype("u1"), affine))
    True
    """
    matrix = np.abs(affine_matrix(header.affine)[:3, :3])
    _, others, largest = np.sort(matrix, axis=0)
    return bool((others > _STRAIGHT * largest).any())


def _check_directions(place: str, header: Header) -> None:
    """Warn that OME-Zarr has no rotation; refuse it where voxpipe stores no affine either."""
    is_ome = place.rstrip("/").lower().endswith(_SUFFIX) or image_above(place) is not None
    if not is_ome or not is_oblique(header):
        return
    what = f"{public_name(place)} has rotated or sheared axes, and OME-Zarr stores none"
    if is_zarr2(place):
        do = "Give the labels the affine of their image, or write .nii.gz."
        raise VolumeError(f"{what} for labels of version 0.4.", do=do)
    text = (
        f"rotation: {what}\n  voxpipe reads the affine from the NIfTI header in the group. Other "
        "programs show the voxels without rotation and origin.\n  Write .nii.gz for these programs."
    )
    warn(text, LikelyMistake)


def _levels_above(
    place: str, header: Header
) -> tuple[tuple[Triple, ...], tuple[ImageLevel, ...]] | None:
    """Return the factors and levels of a local image, for a label group; None without any."""
    import zarr

    above = image_above(place)
    if above is None or is_url(place) or not Path(above[0]).exists():
        return None
    group = zarr.open_group(above[0], mode="r")
    shapes = list[NDArray[np.int64]]()
    levels = levels_of(dict(group.attrs), above[0])
    for level in levels:
        array: Any = group[level.path]
        lengths = dict(zip(level.axes, array.shape, strict=True))
        shapes.append(np.array([lengths.get(axis, 1) for axis in "xyz"]))
    own = before = np.array(header.shape[1:])
    first = next((n for n, shape in enumerate(shapes) if (shape == own).all()), len(shapes))
    result, images = list[Triple](), list[ImageLevel]()
    for shape, level in zip(shapes[first + 1 :], levels[first + 1 :], strict=True):
        factors = np.rint(own / shape).astype(np.int64)
        # Writers round lengths up or down.
        is_near = (abs(-(-own // factors) - shape) <= 1).all()
        if not is_near or (result and (factors % result[-1]).any()):
            break
        ratio = factors // (result[-1] if result else 1)
        if ((shape - 1) * ratio >= before).any():  # the level before ends earlier
            break
        images.append(_image_level(level, levels[first], shape, factors))
        result.append((int(factors[0]), int(factors[1]), int(factors[2])))
        before = shape
    return (tuple(result), tuple(images)) if first < len(shapes) > 1 else None


def _image_level(
    level: Level, finest: Level, shape: NDArray[np.int64], factors: NDArray[np.int64]
) -> ImageLevel:
    """Return the shape of a level, and its place; that of whole blocks if its metadata differ."""
    sizes = np.abs(np.array(finest.scale))
    with np.errstate(all="ignore"):
        ratio = np.abs(level.scale) / sizes
    shift = np.subtract(level.translation, finest.translation)
    if not (level.has_place and (abs(ratio - factors) < _FAR * factors).all()):
        ratio, shift = factors.astype(np.float64), sizes * (factors - 1) / 2
    one: Any = (shape.tolist(), ratio.tolist(), shift.tolist())
    return ImageLevel(*map(tuple, one))


def write_levels(array: Any, plan: ConvertPlan, store: Any, create: Any, *, is_label: bool) -> None:
    """Write the coarser levels of a written array of zarr-python, shard by shard.

    ``store(path)`` returns the store of an array of the group. ``create(store, shape)`` returns
    the array of a level. With ``is_label`` blocks of voxels are sampled, else averaged.
    """
    before = (1, 1, 1)
    for number, factors in enumerate(plan.levels, 1):
        ratio = tuple(b // a for a, b in zip(before, factors, strict=True))[::-1]
        ratio = ratio[plan.is_flat :]  # without z for a plane
        lead, spatial = array.shape[: -len(ratio)], array.shape[-len(ratio) :]
        shape = tuple(-(-n // f) for n, f in zip(spatial, ratio, strict=True))
        if plan.image_levels:
            shape = plan.image_levels[number - 1].shape[::-1][-len(ratio) :]
        coarse = create(store(str(number)), (*lead, *shape))
        for block in _shards(coarse, len(ratio)):
            coarse[(..., *block)] = _coarser(array, block, ratio, is_label)
        array, before = coarse, factors


def _shards(array: Any, count: int = 3) -> Iterator[tuple[slice, ...]]:
    """Yield the shards of the last axes; one written in parts is read for each."""
    sizes, lengths = (array.shards or array.chunks)[-count:], array.shape[-count:]
    counts = [range(0, n, s) for n, s in zip(lengths, sizes, strict=True)]
    for start in itertools.product(*counts):
        ends = zip(start, sizes, lengths, strict=True)
        yield tuple(slice(a, min(a + s, n)) for a, s, n in ends)


def _coarser(
    array: Any, block: tuple[slice, ...], ratio: tuple[int, ...], is_label: bool
) -> NDArray[Any]:
    """Return a block of the next level, from whole layers of chunks of an array in turn."""
    lengths, rest = array.shape[-len(ratio) :], (slice(None),) * (len(ratio) - 1)
    depth = math.lcm(array.chunks[-len(ratio)], ratio[0]) // ratio[0]
    shape = (*array.shape[: -len(ratio)], *(s.stop - s.start for s in block))
    result = np.empty(shape, array.dtype)
    for start in range(block[0].start, block[0].stop, depth):
        layer = (slice(start, min(start + depth, block[0].stop)), *block[1:])
        fine = tuple(
            slice(s.start * f, min(s.stop * f, n))
            for s, f, n in zip(layer, ratio, lengths, strict=True)
        )
        own = slice(start - block[0].start, layer[0].stop - block[0].start)
        voxels = np.asarray(array[(..., *fine)])
        part: Any = (..., own, *rest)
        result[part] = reduce_blocks(voxels, ratio, is_label=is_label)
    return result


def reduce_blocks(voxels: NDArray[Any], ratio: tuple[int, ...], *, is_label: bool) -> NDArray[Any]:
    """Return voxels (..., Z, Y, X) or (Y, X) of a level: the first of each block, or their mean.

    A block at the end may be smaller. Means of integers are rounded.

    Examples
    --------
    >>> row = np.array([[[1, 2, 5, 8, 9]]], np.uint8)
    >>> [reduce_blocks(row, (1, 1, 2), is_label=label).ravel().tolist() for label in (True, False)]
    [[1, 5, 9], [2, 6, 9]]
    """
    if is_label:
        every: Any = (..., *(slice(None, None, factor) for factor in ratio))
        return np.asarray(voxels[every])
    sums: Any = voxels.astype(np.float64 if voxels.dtype.itemsize > 2 else np.float32)
    for axis, factor in enumerate(ratio, -len(ratio)):
        if factor > 1:
            length = sums.shape[axis]
            starts = np.arange(0, length, factor)
            counts = np.minimum(starts + factor, length) - starts
            sums = np.add.reduceat(sums, starts, axis=axis)
            sums /= counts.reshape(-1, *(1,) * (-axis - 1)).astype(sums.dtype)
    return convert_dtype(sums, voxels.dtype)


def _image_of(place: str, options: Mapping[str, Any]) -> tuple[Volume, tuple[Level, ...]] | None:
    """Return the image of a label group and its levels; None for other places and groups."""
    above = image_above(place)
    if above is None:
        return None
    is_remote = is_url(place)
    store: Any = open_remote(above[0], options) if is_remote else LocalRanges(above[0])
    volume = Volume(above[0], storage_options=options if is_remote else None)
    # Its warnings belong to a read of the image.
    with suppress(VolumeError), looking_ahead(), holding(TIMES_STAY, True):
        document = parse_json(store.get("zarr.json") or b"{}")
        attributes = document.get("attributes") or parse_json(store.get(".zattrs") or b"{}")
        levels = levels_of(attributes, above[0])
        volume.header  # noqa: B018  reads it
        return (volume, levels) if levels else None
    return None


def plan_at(
    plan: ConvertPlan, place: str, levels: int | None, options: Mapping[str, Any]
) -> ConvertPlan:
    """Return a plan with the levels for a place; labels get the unit and axes of their image."""
    header = plan.header
    plan = _with_levels(plan, place, header, levels)
    above = _image_of(place, options)
    if above is None:
        return plan
    if plan.dtype.kind not in "iub":
        msg = f"the labels {public_name(place)} would be {plan.dtype}, and labels are whole numbers"
        do = 'Save whole numbers with ⟦dtype="uint16"⟧, and shares as an image, prob.ome.zarr.'
        raise VolumeError(msg, do=do)
    image, own = above
    if not header.file_unit and (affine_matrix(header.affine) != np.eye(4)).any():
        header = replace(header, file_unit=image.header.file_unit)
    return replace(plan, header=header, is_flat="z" not in own[0].axes and header.shape[3] == 1)


def refuse_other_image(place: str, grid: Grid, options: Mapping[str, Any]) -> None:
    """Raise ``GridMismatch`` for labels that do not cover the image above them, within a voxel.

    Labels without a place need the shape of one of its levels.
    """
    above = _image_of(place, options)
    if above is None:
        return
    if is_zarr2(place):  # which refuses rotations
        _check_directions(place, Header.of((1, *grid.shape), "u1", grid.affine))
    image, levels = above
    if grid.covers(image.grid):
        return
    lacks_place = any((each == np.eye(4)).all() for each in (image.affine, grid.affine))
    if lacks_place and grid.shape in _shapes_of(place, levels, options):
        return
    shapes = ["x".join(map(str, shape)) for shape in (grid.shape, image.spatial_shape)]
    msg = f"the labels {public_name(place)} have {shapes[0]} voxels and do not cover their image, "
    do = "Resample them to the image, or give it as ⟦like=⟧ of save() if they are of its voxels. "
    do += "Write labels of another image into that image, or give them a place of their own."
    raise GridMismatch(f"{msg}{image.name} of {shapes[1]} voxels", do=do)


def _shapes_of(place: str, levels: Sequence[Level], options: Mapping[str, Any]) -> list[Triple]:
    """Return the spatial shapes of the levels of the image of a label group."""
    above = image_above(place)
    assert above is not None
    how: Any = {"storage_options": options} if is_url(place) else {}
    with looking_ahead(), holding(TIMES_STAY, True):
        each = (Volume(above[0], level=number, **how) for number in range(len(levels)))
        return [volume.spatial_shape for volume in each]


def refuse_no_image(place: str, options: Mapping[str, Any]) -> None:
    """Raise ``VolumeError`` for a label group without an image of zarr v3 above it."""
    above = image_above(place)
    if above is None:
        return
    store: Any = open_remote(above[0], options) if is_url(place) else LocalRanges(above[0])
    if store.get("zarr.json") is not None:
        return
    what = f"{public_name(above[0])}, in which the labels {above[1]!r} are to be written, "
    if store.get(".zgroup") is not None:
        if not is_url(place):
            return
        do = "Write to a local disk, or convert the image: vp.convert(image, 'new.ome.zarr')."
        raise VolumeError(f"{what}is OME-Zarr 0.4, and 0.5 is written to a URL.", do=do)
    do = "Write the image first, or give the labels a place of their own."
    raise VolumeError(f"{what}is no zarr group.", do=do)


def is_zarr2(place: str) -> bool:
    """Whether a label group at a place belongs to a local image of zarr v2, as in OME-Zarr 0.4."""
    above = image_above(place)
    if above is None or is_url(place):
        return False
    return Path(above[0], ".zgroup").exists() and not Path(above[0], "zarr.json").exists()


def rewrite_as_zarr2(group: Path, attributes: Mapping[str, Any]) -> None:
    """Replace a local group of zarr v3 by one of zarr v2, with the metadata of OME-Zarr 0.4.

    ``attributes`` are those of zarr v3. The key of voxpipe's record stays, for a later call. Chunks
    are copied shard by shard; zarr v2 has no shards.
    """
    import zarr

    new = group.with_name("zarr2")
    shutil.rmtree(new, ignore_errors=True)  # of a killed writer
    target = zarr.open_group(new, mode="w", zarr_format=2)
    ome = attributes["ome"]
    (image,) = ome["multiscales"]
    for dataset in image["datasets"]:
        source: Any = zarr.open_array(group / dataset["path"], mode="r")
        layout: Any = {"chunks": source.chunks, "dtype": source.dtype, "fill_value": 0}
        layout |= {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
        copy: Any = target.create_array(dataset["path"], shape=source.shape, **layout)
        for block in _shards(source):
            copy[(..., *block)] = source[(..., *block)]
    label = {"version": "0.4", **ome.get("image-label", {})}
    own: Any = {"multiscales": [{**image, "version": "0.4"}], "image-label": label}
    target.attrs.update({**own, RECORD: attributes["voxpipe"]})
    shutil.rmtree(group)
    os.rename(new, group)


def _list_in_zarr2(folder: Path, name: str) -> None:
    import zarr

    group = zarr.open_group(folder, mode="a", zarr_format=2)
    own: Any = group.attrs.get("labels", ())
    group.attrs["labels"] = list(dict.fromkeys([*own, name]))


def list_label(place: str, options: Mapping[str, Any]) -> None:
    """Add a label group that was written to the list of its image."""
    above = image_above(place)
    if above is None:
        return
    folder, name = f"{above[0]}/labels", above[1]
    if is_zarr2(place):
        _list_in_zarr2(Path(folder), name)
        return
    store: Any = open_remote(folder, options) if is_url(place) else LocalRanges(folder)
    document: dict[str, Any] = {}
    with suppress(ValueError, TypeError):
        document = dict(parse_json(store.get("zarr.json") or b"{}"))
    attributes = dict(document.get("attributes") or {})
    ome = {"version": "0.5", **attributes.get("ome", {})}
    ome["labels"] = list(dict.fromkeys([*ome.get("labels", ()), name]))
    document = {"zarr_format": 3, "node_type": "group", **document}
    document["attributes"] = {**attributes, "ome": ome}
    content = json.dumps(document, indent=2).encode()
    if is_url(place):
        system, path = file_system(folder, options)
        with remote_errors(folder, options):
            system.pipe_file(posixpath.join(path, "zarr.json"), content)
        return
    part = Path(folder, f".zarr.json.{os.getpid()}.part")
    part.write_bytes(content)
    os.replace(part, Path(folder, "zarr.json"))
