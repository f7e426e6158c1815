"""Volumes in the widget of ipyniivue, for notebooks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...spatial import LazyPatch
from ...volumes import Volume, save
from ...volumes.catalog.whole_pass import at_level, coarser_levels

MOST_VOXELS = 256**3
"""Voxels of the level that is sent to the browser; a volume without levels is sent whole."""
_READ_BY_NIIVUE = (".nii", ".nii.gz", ".nrrd", ".mha", ".mgz")


def widget_of(things: Sequence[Volume | LazyPatch]) -> Any:
    """Return a widget with the volumes, labels above images.

    Files that NiiVue reads are sent as they are. Others are written as NIfTI to a temporary
    folder, of the finest level with at most `MOST_VOXELS` voxels.
    """
    from ipyniivue import NiiVue

    widget = NiiVue()
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for number, thing in enumerate(sorted(things, key=lambda one: one.kind == "label")):
            entry: dict[str, Any] = {"path": _file_of(thing, Path(folder), number)}
            if thing.kind == "label":
                entry |= {"colormap": "actc", "opacity": 0.5}
            entries.append(entry)
        widget.load_volumes(entries)  # reads the files
    return widget


def _file_of(thing: Volume | LazyPatch, folder: Path, number: int) -> Path:
    place = thing.located_source if isinstance(thing, Volume) else None
    path = place.path if place is not None else ""
    if path and path.lower().endswith(_READ_BY_NIIVUE):
        return Path(path)
    target = folder / f"{number}.nii"
    if isinstance(thing, LazyPatch):
        save(target, thing.realize(), affine=thing.affine)
    else:
        save(target, _level_of(thing))
    return target


def _level_of(volume: Volume) -> Volume:
    levels = range(1 + len(coarser_levels(volume)))
    for number in levels:
        level = at_level(volume, number)
        i, j, k = level.spatial_shape
        if i * j * k <= MOST_VOXELS:
            return level
    return at_level(volume, levels[-1])
