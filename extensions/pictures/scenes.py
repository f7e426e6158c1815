"""Scenes: the planes of all volumes of one case, from anything that has voxels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import META, Affine, Grid, Sample
from ...core.grid import XYZ
from ...core.suggest import looks_like_label
from ...spatial import LazyPatch
from ...spatial.lazy.patch_facts import channel_names
from ...volumes import Volume
from .facts import draws_of, is_batch, pass_needed, streams_in_plane, streams_of_batch
from .pixels import is_colour
from .planes import (
    LOCAL_BYTES,
    REMOTE_BYTES,
    Plane,
    TooManyBytes,
    bytes_needed,
    has_directions,
    has_pixels,
    is_placed,
    is_remote,
    planes_of_array,
    read_planes,
)

MOST_ITEMS = 8
"""Items of a batch that are drawn."""
_MOST_CLASSES = 32  # distinct numbers of an integer array that are taken for classes
_AT_ONCE = "vp.show(x) reads and shows them"
_NO_OUTLINES = "no outlines: it has another place than the image, another shape, or other axes"


@dataclass(frozen=True)
class Layer:
    """The planes of one volume of a case, or why there are none."""

    key: str
    kind: str  # "intensity" or "label"
    planes: Sequence[Plane] = ()
    note: str = ""  # why there are no planes
    channels: Sequence[str] = ()  # names, if there are any

    @property
    def heading(self) -> str:
        """The key, and the channel that is drawn if there are several."""
        count = len(self.planes[0].voxels) if self.planes else 1
        if self.kind == "label" or not self.planes or is_colour(self.planes[0].voxels):
            return self.key
        name = next(iter(self.channels), "")
        if count > 1:
            name = f"channel {name or 0} of {count}"
        return " · ".join(filter(None, [self.key, name]))


@dataclass(frozen=True)
class Scene:
    """The volumes of one case on one grid, and the draws of the case."""

    title: str
    layers: Sequence[Layer]
    draws: Sequence[tuple[str, str]] = ()
    labels: Sequence[Layer] = field(default=())
    """Labels whose outlines are drawn on the images."""

    @property
    def images(self) -> Sequence[Layer]:
        """The layers to draw: images, or labels where there is no image."""
        return [layer for layer in self.layers if layer.kind != "label"] or self.layers


@dataclass(frozen=True)
class Voxels:
    """Voxels in memory (C, I, J, K), and their place."""

    array: NDArray[Any]
    affine: Affine
    kind: str
    base: Affine  # Affine of their volume; the identity if it has none.
    axes: str = XYZ  # Names of I, J and K in their order.
    is_plain: bool = False  # True for an array without a place.
    channels: Sequence[str] = ()  # names, if there are any

    def in_place_of(self, others: Sequence[Voxels | Volume]) -> Voxels:
        """Return an array in the place of the first of others that has its shape."""
        flat = self.array[0][..., None]  # (C, I, J) was taken for (I, J, K)
        for other in others if self.is_plain else ():
            if isinstance(other, Volume):
                shape, base, axes = other.spatial_shape, other.affine, XYZ
            else:
                shape, base, axes = other.array.shape[1:], other.base, other.axes
            for array in (self.array, flat):
                if array.shape[1:] == shape:
                    return Voxels(array, other.affine, self.kind, base, axes)
        return self


@dataclass(frozen=True)
class Look:
    """How a thing is looked at: the side of a level, the index, and whether reads are bounded."""

    side: int
    at: Sequence[int] | None = None
    is_bounded: bool = False
    like: Affine | None = None  # voxels in memory are arranged as if this was their affine


def scenes_of(thing: Any, look: Look, name: str = "") -> list[Scene]:
    """Return the scenes of a volume, patch, sample, batch, mapping or array.

    Raises
    ------
    TypeError
        The thing has no voxels.
    """
    if is_batch(thing):
        return list(_scenes_of_batch(thing, look))
    if isinstance(thing, Sample):
        return [_scene_of_sample(thing, look)]
    if isinstance(thing, Mapping):
        return [_scene(name, dict(thing), look)]
    if isinstance(thing, (Volume, LazyPatch)):
        draws = list[tuple[str, str]]()
        if isinstance(thing, LazyPatch) and not _needs_pass(thing, look):
            draws = draws_of(thing.draws, streams_in_plane(thing))
        title = name or str((thing.volume if isinstance(thing, LazyPatch) else thing).name)
        return [_scene(title, {"": thing}, look, draws)]
    array = as_numpy(thing)
    if array.ndim == 5:
        titles = (f"{name or 'item'} {number}" for number in range(MOST_ITEMS))
        return [_scene(title, {"": one}, look) for title, one in zip(titles, array, strict=False)]
    return [_scene(name, {"": array}, look)]


def as_numpy(thing: Any) -> NDArray[Any]:
    """Return a tensor or array of 2 to 5 axes as an array; TypeError for anything else."""
    if hasattr(thing, "detach"):
        thing = thing.detach().cpu()
        thing = thing.float() if "bfloat16" in str(thing.dtype) else thing
    array = np.asarray(thing)
    if array.dtype.kind not in "biufc" or not 2 <= array.ndim <= 5:
        kind = f"{type(thing).__name__} of shape {array.shape}"
        msg = (
            f"show() draws volumes, patches, samples, batches, pipes, paths and arrays, got {kind}"
        )
        raise TypeError(msg)
    return np.abs(array) if array.dtype.kind == "c" else array


def _scene_of_sample(sample: Sample, look: Look) -> Scene:
    things: dict[str, Any] = {}
    draws, in_plane = dict[str, Any](), set[str]()
    for key, value in sample.items():
        patch: Any = value if isinstance(value, LazyPatch) else sample.patches.get(key)
        things[key] = value
        if isinstance(patch, LazyPatch):
            if not _needs_pass(patch, look):
                draws.update(patch.draws)
                in_plane |= streams_in_plane(patch)
            if patch is not value and hasattr(value, "shape"):
                array = with_three_axes(as_numpy(value), patch)
                place = (patch.affine, patch.kind, stored_affine(patch), patch.plan.axes)
                things[key] = Voxels(array, *place, channels=channel_names(patch))
    title = sample.case if sample.case else ", ".join(map(str, sample.identity))
    return _scene(title, things, look, draws_of(draws, in_plane))


def with_three_axes(array: NDArray[Any], patch: LazyPatch) -> NDArray[Any]:
    """Return the voxels of a patch as (C, I, J, K): K is 1 of 2-D patches."""
    return array[..., None] if patch.plan.is_flat and array.ndim == 3 else array


def stored_affine(patch: LazyPatch) -> Affine:
    """Return the affine of the volume that a patch begins with."""
    affine: Affine = first_volume(patch).affine
    return affine


def first_volume(patch: LazyPatch) -> Any:
    """Return the volume whose grid a patch begins with."""
    first = next(iter(patch.pending.references.values()), patch.volume)
    return getattr(first, "stored_volume", first)


def _scenes_of_batch(batch: Mapping[str, Any], look: Look) -> Iterator[Scene]:
    # Items of 2-D batches are (C, I, J).
    ndims = {getattr(value, "ndim", 0) for key, value in batch.items() if key != META}
    ndim = 5 if 5 in ndims else 4
    for number, meta in enumerate(batch[META][:MOST_ITEMS]):
        sources = meta.get("sources", {})
        things: dict[str, Any] = {}
        for key, value in batch.items():
            if key == META or getattr(value, "ndim", 0) != ndim:
                continue
            array, source = as_numpy(value[number]), sources.get(key)
            array = array[..., None] if ndim == 4 else array
            if source is None:
                things[key] = array
                continue
            base = np.array(source["plan"]["source"]["affine"])
            affine = np.array(source["affine"])
            axes = source["plan"].get("axes", XYZ)
            kind, names = _kind_of(key, array), source.get("channel_names", ())
            names = names if len(names) == len(array) else ()  # a function has changed them
            things[key] = Voxels(array, affine, kind, base, axes, channels=names)
        own = meta.get("draws", {})
        draws = draws_of(own, streams_of_batch(batch, own))
        yield _scene(f"{number}: {meta['case']}", things, look, draws)


def _scene(
    title: str, things: Mapping[str, Any], look: Look, draws: Sequence[tuple[str, str]] = ()
) -> Scene:
    items: dict[str, Voxels | Volume] = {}
    notes: dict[str, str] = {}
    for key, thing in things.items():
        try:
            if (one := _voxels_of(key, thing, look)) is not None:
                items[key] = one
        except TooManyBytes as error:
            notes[key] = f"{error}: {_AT_ONCE}"
    others = [one for one in items.values() if isinstance(one, Volume) or not one.is_plain]
    for key, one in items.items():
        if isinstance(one, Voxels):
            items[key] = one.in_place_of(others)
    images = [one for one in items.values() if one.kind != "label"]
    for key in [key for key, one in items.items() if one.kind == "label"]:
        if images and not any(_is_alike(items[key], image) for image in images):
            del items[key]
            notes[key] = _NO_OUTLINES
    at, its = look.at, next(iter(items.values()), None)  # an index of the first
    if at is None:
        at, its = _most_labelled(items.values())
    layers = []
    for key, one in items.items():
        index = None if at is None or its is None else _index_in(one, its, at)
        if isinstance(one, Volume):
            try:
                planes = read_planes(one, side=look.side, at=index, has_limit=look.is_bounded)
                layers.append(Layer(key, one.kind, planes, channels=one.channel_names))
            except TooManyBytes as error:
                layers.append(Layer(key, one.kind, (), f"{error}: {_AT_ONCE}"))
            continue
        how: dict[str, Any] = {"like": look.like, "axes": one.axes}
        how |= {"directions": has_directions(one.base), "has_lengths": is_placed(one.base)}
        planes = planes_of_array(one.array, one.affine, index, **how)
        layers.append(Layer(key, one.kind, planes, channels=one.channels))
    layers += [Layer(key, "intensity", (), note) for key, note in notes.items()]
    labels = [layer for layer in layers if layer.kind == "label" and layer.planes]
    return Scene(title, layers, draws, labels)


def _grid_of(one: Voxels | Volume) -> Grid:
    return one.grid if isinstance(one, Volume) else Grid(one.array.shape[1:], one.affine)


def _is_alike(label: Voxels | Volume, image: Voxels | Volume) -> bool:
    """Whether a label covers an image, and its planes are arranged as those of the image."""
    grid, its = _grid_of(label), _grid_of(image)
    plain = [isinstance(one, Voxels) and one.is_plain for one in (label, image)]
    if any(plain):  # an array without a place
        return all(plain) and grid.shape == its.shape
    directions = {
        has_directions(getattr(one, "base", one.affine))
        and not (isinstance(one, Volume) and has_pixels(one))
        for one in (label, image)
    }
    if len(directions) > 1 or not grid.covers(its):
        return False
    steps = (np.linalg.inv(its.affine) @ grid.affine)[:3, :3]
    in_order = (abs(steps).argmax(axis=0) == range(3)).all() and (np.diag(steps) > 0).all()
    return directions == {True} or bool(in_order)


def _index_in(
    one: Voxels | Volume, other: Voxels | Volume, at: Sequence[int]
) -> Sequence[int] | None:
    """Return the index of one grid where another has an index; None if that is outside."""
    if not np.array_equal(one.affine, other.affine):
        index = np.linalg.pinv(one.affine) @ other.affine @ (*at, 1)
        at = np.rint(index[:3]).astype(int).tolist()
    inside = all(0 <= index < length for index, length in zip(at, _grid_of(one).shape, strict=True))
    return at if inside else None


def _voxels_of(key: str, thing: Any, look: Look) -> Voxels | Volume | None:
    """Return voxels in memory or a volume; None for an entry that has none."""
    if isinstance(thing, (Volume, Voxels)):
        return thing
    if isinstance(thing, LazyPatch):
        whole = thing.volume
        if isinstance(whole, Volume) and not (thing.pending.steps or thing.values or thing.members):
            return whole
        if look.is_bounded:
            _refuse_large(thing)
        array = with_three_axes(thing.realize(), thing)
        place = (thing.affine, thing.kind, stored_affine(thing), thing.plan.axes)
        return Voxels(array, *place, channels=channel_names(thing))
    if not hasattr(thing, "__array__") or not 2 <= getattr(thing, "ndim", 0) <= 4:
        return None
    array = as_numpy(thing)
    array = array[..., None] if array.ndim == 2 else array
    array = array[None] if array.ndim == 3 else array
    return Voxels(array, np.eye(4), _kind_of(key, array), np.eye(4), is_plain=True)


def _kind_of(key: str, array: NDArray[Any]) -> str:
    if looks_like_label(key) or array.dtype.kind == "b":
        return "label"
    is_small = array.dtype.kind in "iu" and array.size and array.min() >= 0
    return "label" if is_small and len(np.unique(array)) <= _MOST_CLASSES else "intensity"


def _most_labelled(things: Iterable[Any]) -> tuple[list[int] | None, Any]:
    """Return the index with most foreground on each axis, of the first label in memory, and it."""
    for one in things:
        if isinstance(one, Voxels) and one.kind == "label" and one.array.any():
            inside = one.array.any(axis=0)
            sums = (inside.sum(axis=tuple(a for a in range(3) if a != axis)) for axis in range(3))
            return [int(np.argmax(each)) for each in sums], one
    return None, None


def _needs_pass(patch: LazyPatch, look: Look) -> bool:
    return look.is_bounded and bool(pass_needed(patch))


def _refuse_large(patch: LazyPatch) -> None:
    """Raise TooManyBytes for a patch whose voxels a table must not read."""
    whole = sum(_whole_bytes(leaf) for leaf in patch.leaves)
    if pass_needed(patch):
        raise TooManyBytes(whole)
    reads = [read for read in patch.reads(through=True) if isinstance(read.volume, Volume)]
    size = sum(bytes_needed(read.volume, [read.region]) for read in reads)
    remote = any(is_remote(read.volume) for read in reads)
    size_here = int(np.prod(patch.shape)) * patch.dtype.itemsize
    if size > (min(REMOTE_BYTES, whole // 2) if remote else LOCAL_BYTES) or size_here > LOCAL_BYTES:
        raise TooManyBytes(max(size, size_here))


def _whole_bytes(patch: LazyPatch) -> int:
    volume = getattr(patch.volume, "stored_volume", patch.volume)
    return int(np.prod(volume.shape)) * int(volume.dtype.itemsize)


def hint_of(layer: Layer) -> str:
    """Return the line for a layer without planes."""
    return f"{layer.key}: {layer.note}" if layer.key else layer.note
