"""Options of ``open_volume()`` that differ by key."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ..core.errors import GridMismatch, SampleError
from ..volumes import Volume
from ..volumes.backend import as_array
from ..volumes.header import affine_matrix, given_affine
from ..volumes.stack_source import letters_of
from .op_pipe import unknown_key

BY_KEY = ("affine", "axes", "dataset", "follow", "io", "level", "reader", "series")
"""Options of which a mapping is one value per key: none of them is a mapping itself."""
# That of one volume is a mapping already; of options by key, each value is one.
_STORAGE = "storage_options"


def named_by_key(
    options: Mapping[str, Any], keys: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return the keys that each option given by key names."""
    return {name: tuple(value) for name, value in options.items() if _is_by_key(name, value, keys)}


def options_of(key: str, options: Mapping[str, Any], keys: Collection[str] = ()) -> dict[str, Any]:
    """Return the options for one volume: those for all, and its own."""
    if not any(isinstance(value, Mapping) for value in options.values()):
        return dict(options)
    by_key = named_by_key(options, keys)
    common = {name: value for name, value in options.items() if name not in by_key}
    own = {name: options[name][key] for name in by_key if key in options[name]}
    return {**common, **own}


def _is_by_key(name: str, value: Any, keys: Collection[str]) -> bool:
    if not isinstance(value, Mapping):
        return False
    if name == _STORAGE and not all(v is None or isinstance(v, Mapping) for v in value.values()):
        return False
    return name in BY_KEY or any(key in keys for key in value)


def keys_of_places(affine: Any) -> dict[str, str]:
    """Return the keys of ``affine={key: other key}``, whose volumes take another's place."""
    if isinstance(affine, str):
        msg = f"affine= is a matrix, or a mapping by key, got {affine!r}"
        raise ValueError(f'{msg}; write affine={{"label": {affine!r}}}')
    values = affine.items() if isinstance(affine, Mapping) else ()
    others = {key: value for key, value in values if isinstance(value, str)}
    for key, other in others.items():
        if other in others:
            msg = f"affine={{{key!r}: {other!r}}} names a volume without a place of its own"
            raise ValueError(f"{msg}; name the volume whose file has the voxel size")
    return others


def placed_as(key: str, other: str, volumes: Mapping[str, Volume]) -> Volume:
    """Return the volume of a key, with the affine of another; reads both headers."""
    if other not in volumes:
        raise unknown_key("affine", other, tuple(volumes))
    volume, like = volumes[key], volumes[other]
    if volume.spatial_shape != like.spatial_shape:
        shapes = f"{volume.spatial_shape} and {like.spatial_shape}"
        msg = f"affine={{{key!r}: {other!r}}} is for volumes of one shape, and they have {shapes}"
        do = f"Give the place of {key!r} as a matrix, or open_volume(axes=) for other axes."
        i, j, k = like.spatial_shape
        if not volume.names_axes and volume.spatial_shape == ((j, i, 1) if k == 1 else (k, j, i)):
            letters = letters_of(volume)
            do = f"The other is transposed: add ⟦open_volume(axes={{{key!r}: {letters!r}}})⟧."
        raise GridMismatch(f"{msg}: {volume.name} and {like.name}", do=do)
    return volume.placed_at(like.affine)


def placed_by(key: str, affine: Any, volume: Volume) -> Volume:
    """Return a Volume of a sample with the place of ``affine=``; it must have no other."""
    if volume.has_given_affine:
        if isinstance(affine, str) or not np.array_equal(volume.affine, affine):
            msg = f"affine= is for {key!r}, which is a Volume already, with an affine of its own"
            raise SampleError(msg, do="Give ⟦affine=⟧ to one of them: Volume() or open_volume().")
        return volume
    if isinstance(affine, str):  # known once both are open
        return volume
    return volume.placed_at(affine_matrix(given_affine(as_array(affine), volume.name)))
