"""How patches are shuffled, as a value: not at all, all of them, a window, or what memory holds."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.whole import whole

NONE, GLOBAL, WINDOWED, CHUNK_LOCAL = "none", "global", "windowed", "chunk_local"
WINDOW = 1024
MEMORY_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class ShuffleSpec:
    """What ``shuffle_plans()`` does; make one by the names below.

    ==================================  ==========================================================
    ``ShuffleSpec.none()``              the order of the plan: volume after volume
    ``ShuffleSpec.windowed(size)``      a buffer of that many plans, of which a random one goes out
    ``ShuffleSpec.chunk_local(bytes)``  visits to volumes are shuffled, then the patches of as many
                                        as fit into that much memory together (the idea of
                                        CorgiPile): every chunk is decoded about once
    ``ShuffleSpec.all_patches()``       every patch of the epoch, equally likely everywhere
    ==================================  ==========================================================

    Examples
    --------
    >>> ShuffleSpec.chunk_local(2**30)
    ShuffleSpec.chunk_local(1073741824)
    """

    kind: str = GLOBAL
    """``"none"``, ``"global"``, ``"windowed"`` or ``"chunk_local"``."""
    size: int = 0
    """Plans of the window, or bytes of decoded chunks."""

    @classmethod
    def none(cls) -> ShuffleSpec:
        """Leave the order as it is."""
        return cls(NONE)

    @classmethod
    def all_patches(cls) -> ShuffleSpec:
        """Shuffle all patches of an epoch."""
        return cls(GLOBAL)

    @classmethod
    def windowed(cls, size: int = WINDOW) -> ShuffleSpec:
        """Shuffle within a window that slides over the plans."""
        return cls(WINDOWED, whole("size", size, least=1))

    @classmethod
    def chunk_local(cls, memory_bytes: int = MEMORY_BYTES) -> ShuffleSpec:
        """Shuffle what a cache of so many bytes of decoded chunks serves."""
        return cls(CHUNK_LOCAL, whole("memory_bytes", memory_bytes, least=1, unit="bytes"))

    def __repr__(self) -> str:
        name = "all_patches" if self.kind == GLOBAL else self.kind
        return f"ShuffleSpec.{name}({self.size or ''})"
