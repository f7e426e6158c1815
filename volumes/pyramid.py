"""The coarser levels of a volume: where they lie, and how they are opened."""

from __future__ import annotations

from dataclasses import replace

from ..core import Affine
from .source import LocatedSource
from .volume import Volume


def coarser_levels(volume: Volume) -> tuple[Affine, ...]:
    """Return where coarser levels of the same image lie; none where there are none.

    Those of files whose metadata say so: OME-Zarr and NIfTI-Zarr by path or URL. May read the
    header.

    Parameters
    ----------
    volume
        Any volume; one with an axis map has no levels, as the map speaks of its own sections.

    Returns
    -------
    For each, the next level first, 4x4 float64: voxel index there to voxel index here.
    """
    if volume.located is None or volume.axis_map is not None:
        return ()
    return volume.probe().levels


def at_level(volume: Volume, number: int) -> Volume:
    """Return the level that is ``number`` steps coarser, 0 for the volume itself.

    Its places in the world follow from the affine that the volume has, overridden or not.

    Raises
    ------
    IndexError
        There is no such level.
    """
    if number == 0:
        return volume
    levels = coarser_levels(volume)
    located = volume.located
    if located is None or not 0 < number <= len(levels):
        msg = f"{volume.name} has {len(levels)} coarser levels, so 0 to that; got {number!r}"
        raise IndexError(msg)
    given = located.options.reader_kwargs
    chosen = {**given, "level": given.get("level", 0) + number}
    options = replace(located.options, affine=None, reader_kwargs=chosen)
    # Not as the user wrote it: another process may run in another directory.
    source = LocatedSource(located.path or located.location, options)
    return Volume.of_source(source, volume.kind, volume.affine @ levels[number - 1])
