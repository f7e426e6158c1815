"""The metadata of OME-Zarr nodes, on a disk or at a URL: images, plates, wells, label groups."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...core.errors import BadHeader, VolumeNotFound
from ...core.lru_cache import cached_property
from ...core.sample import parse_json
from ...core.suggest import closest, few_names
from ...storage.file_reader import LocalRanges
from ...storage.location import is_url, public_name
from ...storage.ranges import RangeStore
from ...storage.remote import open_remote
from ...volumes.formats.chunked_backend import SPATIAL
from ...volumes.formats.zarr_nodes import levels_of
from .zipped_zarr import split_zip, store_at

LABELS = "labels"
_MOST_NAMES = 6


@dataclass(frozen=True, eq=False)
class OmeNode:
    """A node of a zarr hierarchy: its documents are read at their first use.

    Parameters
    ----------
    store
        Store of the root.
    path
        Path of the node below the root; empty for the root.
    """

    store: RangeStore
    path: str = ""

    @classmethod
    def at(cls, place: str, options: Mapping[str, Any] | None = None) -> OmeNode:
        """Return the node at a path or URL; reads nothing but the directory of an archive."""
        if parts := split_zip(place):
            return cls(store_at(parts[0], options or {}, parts[1]))
        return cls(open_remote(place, options or {}) if is_url(place) else LocalRanges(place))

    @property
    def name(self) -> str:
        """Path or URL without credentials."""
        return posixpath.join(public_name(self.store.name), self.path).rstrip("/")

    def below(self, path: str) -> OmeNode:
        """Return a node below this one."""
        return OmeNode(self.store, posixpath.normpath(posixpath.join(self.path, path)))

    def _json(self, key: str) -> dict[str, Any] | None:
        data = self.store.get(posixpath.join(self.path, key))
        try:
            document = None if data is None else parse_json(data)
        except ValueError as error:
            raise BadHeader(f"{key} of {self.name} is no JSON: {error}.") from error
        return document if isinstance(document, dict) else None

    @cached_property
    def _document(self) -> tuple[dict[str, Any], int]:
        """Metadata document and version of the format; version 0 without a node."""
        if (newer := self._json("zarr.json")) is not None:
            return newer, 3
        for key in (".zgroup", ".zarray"):
            if (older := self._json(key)) is not None:
                return older | {"attributes": self._json(".zattrs") or {}}, 2
        return {}, 0

    @property
    def version(self) -> int:
        """Version of zarr, 2 or 3; 0 if there is no node."""
        return self._document[1]

    @property
    def attributes(self) -> dict[str, Any]:
        """All attributes of the node."""
        attributes = self._document[0].get("attributes")
        return attributes if isinstance(attributes, dict) else {}

    @property
    def ome(self) -> Mapping[str, Any]:
        """Attributes of OME-Zarr: below ``ome`` since version 0.5."""
        ome = self.attributes.get("ome", self.attributes)
        return ome if isinstance(ome, Mapping) else {}

    @property
    def is_image(self) -> bool:
        """Whether the node is a multiscale image."""
        return bool(self.ome.get("multiscales"))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an array, or of the finest level of an image."""
        if self.is_image:
            return self.below(self.ome["multiscales"][0]["datasets"][0]["path"]).shape
        return tuple(map(int, self._document[0].get("shape", ())))

    def sizes(self) -> dict[str, int]:
        """Return the lengths of the axes of an image by their letters, as stored."""
        levels = levels_of(self.attributes, self.name)
        return dict(zip(levels[0].axes, self.shape, strict=False)) if levels else {}

    def spatial_shapes(self) -> list[dict[str, int]]:
        """Return the lengths of x, y and z of each level of an image, by letter."""
        result = []
        for level in levels_of(self.attributes, self.name):
            sizes = zip(level.axes, self.below(level.path).shape, strict=False)
            result.append({axis: length for axis, length in sizes if axis in SPATIAL})
        return result

    def label_names(self) -> list[str]:
        """Return the names of the label groups of an image, in the order of their list."""
        names = self.below(LABELS).ome.get(LABELS, ())
        return [str(name) for name in names]

    def label(self, name: str) -> OmeNode:
        """Return a label group; ``VolumeNotFound``, which lists the others, if there is none."""
        node = self.below(f"{LABELS}/{name}")
        if name and "/" not in name and node.version:
            return node
        others = self.label_names()
        msg = f"{self.name} has no label group {name!r}"
        near = closest(name, others, 0.6)
        have = f"It has {few_names(others, _MOST_NAMES)}." if others else "It has no label groups."
        raise VolumeNotFound(msg, do=f"Did you mean {near[0]!r}? {have}" if near else have)

    def images(self) -> Iterator[str]:
        """Yield the paths of the images of a plate, a well or a bioformats2raw group.

        A well without metadata is yielded itself.
        """
        ome = self.ome
        plate = ome.get("plate")
        if isinstance(plate, Mapping):
            for well in plate.get("wells", ()):
                path = str(well["path"])
                below = self.below(path)
                if isinstance(below.ome.get("well"), Mapping):
                    yield from (f"{path}/{field}" for field in below.images())
                else:
                    yield path
        elif isinstance(ome.get("well"), Mapping):
            yield from (str(field["path"]) for field in ome["well"].get("images", ()))
        elif "bioformats2raw.layout" in ome:
            yield from self._series()

    def _series(self) -> Iterator[str]:
        names = self.below("OME").ome.get("series")
        if names:
            yield from map(str, names)
            return
        number = 0
        while self.below(str(number)).version:
            yield str(number)
            number += 1


def join(place: str, path: str) -> str:
    """Return the path or URL of a node below another one."""
    path = path.strip("/")
    return f"{place.rstrip('/')}/{path}" if is_url(place) else os.path.join(place, *path.split("/"))


def node_of(volume: Any) -> OmeNode | None:
    """Return the node of a volume of zarr; None for another."""
    source = volume.located_source
    if source is None or not (".zarr" in source.name or split_zip(source.name)):
        return None
    return OmeNode.at(source.path or source.location, source.options.storage_options)
