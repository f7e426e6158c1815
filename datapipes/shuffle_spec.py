"""How patches are shuffled, as a value: not at all, all of them, a window, or what memory holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..core.errors import SampleError
from ..core.origin import here, shorten
from ..core.whole import whole

NONE, GLOBAL, WINDOWED, CHUNK_LOCAL = "none", "global", "windowed", "chunk_local"
OWN = "own"
"""An order that a subclass says."""
WINDOW = 1024
MEMORY_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class ShuffleSpec:
    """What ``shuffle_plans()`` does; make one by the names below, or a subclass with :meth:`order`.

    ==================================  ==========================================================
    ``ShuffleSpec.none()``              the order of the plan: volume after volume
    ``ShuffleSpec.windowed(size)``      a buffer of that many plans, of which a random one goes out
    ``ShuffleSpec.chunk_local(bytes)``  visits to volumes are shuffled, then the patches of as many
                                        as fit into that much memory together (the idea of
                                        CorgiPile): every chunk is decoded about once
    ``ShuffleSpec.all_patches()``       every patch of the epoch, equally likely everywhere
    ==================================  ==========================================================

    Raises
    ------
    SampleError
        At construction: for another ``kind``, or a subclass that does not say its order.

    Examples
    --------
    >>> ShuffleSpec.chunk_local(2**30)
    ShuffleSpec.chunk_local(1073741824)

    An order of one's own, here every case backwards:

    >>> class Backwards(ShuffleSpec):
    ...     def order(self, counts, cases, generator):
    ...         ends = np.cumsum(counts)
    ...         return [end - 1 - n for end, count in zip(ends, counts) for n in range(count)]
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}] * 2).open_volume()
    >>> pipe = pipe.lazy_patch(4, samples_per_volume=3).shuffle_plans(Backwards())
    >>> [patch.identity for patch in pipe]
    [(0, 2), (0, 1), (0, 0), (1, 2), (1, 1), (1, 0)]
    """

    kind: str = GLOBAL
    """``"none"``, ``"global"``, ``"windowed"`` or ``"chunk_local"``; ``"own"`` of a subclass."""
    size: int = 0
    """Plans of the window, or bytes of decoded chunks."""

    def __post_init__(self) -> None:
        if type(self) is not ShuffleSpec:
            if type(self).order is ShuffleSpec.order:
                name = type(self).__name__
                msg = f"{name} is a subclass of ShuffleSpec that does not say its order"
                do = f"Give {name} a method order(self, counts, cases, generator)."
                raise SampleError(msg, do=do).at(here(f"{name}()"))
            object.__setattr__(self, "kind", OWN)
        elif self.kind not in (NONE, GLOBAL, WINDOWED, CHUNK_LOCAL):
            msg = f"no order is called {shorten(self.kind)}"
            do = "Write ShuffleSpec.none(), all_patches(), windowed(size) or chunk_local(bytes)."
            raise SampleError(msg, do=do)
        elif self.kind in (WINDOWED, CHUNK_LOCAL):
            whole("size", self.size, least=1)

    def order(
        self, counts: Sequence[int], cases: Sequence[str], generator: np.random.Generator
    ) -> Iterable[int]:
        """Return in which order patches come: a subclass says it here.

        It is asked once per epoch, by whoever plans, and must be a function of its arguments and
        of the fields of the subclass alone: so the order is the same under any number of workers,
        and after a resume.

        Parameters
        ----------
        counts
            How many patches each visit to a volume has, in the order of the chain. The patches of
            a visit have numbers one after another: those of the first begin at 0.
        cases
            Name of the case of each visit.
        generator
            Random numbers of this seed and epoch.

        Returns
        -------
        Every number below ``sum(counts)``, each once. They may come one by one.
        """
        raise NotImplementedError

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
        if self.kind == OWN:
            return f"{type(self).__name__}()"
        name = "all_patches" if self.kind == GLOBAL else self.kind
        return f"ShuffleSpec.{name}({self.size or ''})"
