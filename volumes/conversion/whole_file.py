"""Volumes as whole files, written slab by slab; uploaded at the end for a URL."""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...storage.location import absolute_place, is_url
from ..catalog.whole_pass import slabs
from ..header import Header
from ..volume import Volume
from .destination import (
    LocalDestination,
    check_destination,
    destination_of,
    disk_errors,
    hold,
    upload,
)
from .volume_file import PIECE, VolumeFile, as_stored


def write_file(
    place: str,
    volume: Any,
    header: Header,
    like: Volume | None,
    *,
    overwrite: bool,
    levels: int | None = None,
    options: Mapping[str, Any],
) -> None:
    """Write a volume as the file of a header; ``options`` are those of fsspec for a URL."""
    check_destination(destination_of(place, options), overwrite=overwrite, is_file=True)
    if is_url(place):
        with tempfile.TemporaryDirectory(prefix="voxpipe-save-") as folder:
            local = Path(folder) / posixpath.basename(place)
            _write_file(local, volume, header, like, overwrite=False, levels=levels)
            upload(local, place, options, overwrite=overwrite)
        return
    with disk_errors(f"{volume.name} could not be saved at {place}", place):
        path = Path(absolute_place(place))
        _write_file(path, volume, header, like, overwrite=overwrite, levels=levels)


def _write_file(
    path: Path,
    volume: Any,
    header: Header,
    like: Volume | None,
    *,
    overwrite: bool,
    levels: int | None,
) -> None:
    target = LocalDestination(path)
    with hold(target, str(path)):
        try:
            # Another writer may just have finished.
            check_destination(target, overwrite=overwrite, is_file=True)
            target.clear()
            file = VolumeFile(path, target.folder, header, like, levels=levels)
            channels, i, j, k = header.shape
            most = max(1, PIECE // (channels * header.disk_dtype.itemsize))
            for region in slabs((i, j, k), (i, j, 1), most):
                is_loaded = getattr(volume, "is_loaded", False)
                voxels = volume.numpy() if is_loaded else volume.read(region).values()
                if is_loaded:
                    voxels = voxels[(slice(None), *region.slices)]
                file.write(region, as_stored(voxels, header))
            file.is_label = getattr(volume, "kind", "") == "label"
            file.finish()
        finally:
            target.clear()  # a partial file cannot be resumed
