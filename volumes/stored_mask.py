"""Where a volume shows what is stored, and where its axis map only fills a gap: 1 and 0."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Region
from ..storage.content import content_key
from .axis_map import Table
from .axis_mapped import AxisMappedSource
from .backend import Backend, Channels
from .handles import HANDLES
from .header import Header
from .voxels import Voxels

_MASK_TYPE = np.dtype(np.uint8)


class StoredMaskSource:
    """A mask that is worked out from tables alone: no voxel is read for it."""

    def __init__(self, mapped: AxisMappedSource) -> None:
        self.mapped = mapped
        self.name = f"{mapped.name} (what is stored)"
        self.token = content_key(mapped.token, ("stored mask",))
        self._backend: Backend | None = None

    def known_header(self) -> Header:
        """Return the header; asks for that of the volume."""
        return self._facts()[0]

    def opened_anew(self, by: str) -> StoredMaskSource:
        """Return the source for a pass: of a volume that is opened anew."""
        mapped = self.mapped.opened_anew(by)
        return self if mapped is self.mapped else StoredMaskSource(mapped)

    @property
    def backend(self) -> Backend:
        """The mask: never among the handles, where one of another version of the file may be."""
        if self._backend is None:
            self._backend = StoredMask(*self._facts(), self.name)
        return self._backend

    def open(self) -> Backend:
        """Return the mask; opens nothing but, perhaps, the header of the volume."""
        return self.backend

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_backend": None}

    def _facts(self) -> tuple[Header, tuple[NDArray[np.bool_], ...]]:
        source: Any = self.mapped.source
        known = getattr(source, "known_header", None)
        held = getattr(source, "backend", None)
        if known is not None:
            header = known()
        else:
            header = (held or HANDLES.acquire(source, verify=True)).header
        tables = self.mapped.axis_map.tables(header.shape, self.mapped.name)
        stored = tuple(
            _stored(table, length) for table, length in zip(tables, header.shape, strict=True)
        )
        # One channel says it for all, unless channels are missing themselves.
        whole = stored if not stored[0].all() else (np.ones(1, bool), *stored[1:])
        shape = tuple(len(flags) for flags in whole)
        mask: Any = {"shape": shape, "disk_dtype": _MASK_TYPE, "value_type": None, "chunks": None}
        plain = {"access": "view", "slope": 1.0, "intercept": 0.0}
        return replace(header, **mask, **plain), whole


class StoredMask(Backend):
    """1 where all four indices of a voxel show something stored, else 0."""

    def __init__(self, header: Header, stored: tuple[NDArray[np.bool_], ...], name: str) -> None:
        super().__init__(header, name)
        self._stored = stored

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return the mask of a region."""
        parts = [slice(*(channels or (0, self.shape[0]))), *region.slices]
        flags = [stored[part] for stored, part in zip(self._stored, parts, strict=True)]
        c, i, j, k = flags
        shown = c[:, None, None, None] & i[:, None, None] & j[:, None] & k
        return Voxels(shown.view(np.uint8))

    def touched_bytes(self, region: Region, channels: Channels | None = None) -> int:
        """Return 0: no stored voxel is touched."""
        return 0

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Return 0: there is nothing to bring in."""
        return 0


def _stored(table: Table | None, length: int) -> NDArray[np.bool_]:
    return np.ones(length, bool) if table is None else table >= 0
