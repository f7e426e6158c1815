"""Items that differ in their volumes alone: copies of one item, which pipes have made."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from ..core import Sample
from ..intensity import SelectChannels
from ..spatial import LazyPatch, TransformChain
from ..spatial.lazy.lazy_patch import patches_of
from ..volumes import Volume
from ..volumes.source import LocatedSource
from .cases import FromCases
from .item_numbers import NumberedItems

# Items whose identities are found at once: NumPy finds a thousand about as fast as ten, which take
# some kilobytes.
_BLOCK = 2048
# Cases whose volumes are kept, since patches of one volume share it. Objects that live longer cost
# passes of the garbage collector over all objects.
_CASES = 64
# Items of which one may become the first: others may lack a key.
_ATTEMPTS = 16


def alike_items(items: NumberedItems, own: int = 1, step: int = 1) -> NumberedItems:
    """Return items that are made quickly where that is possible.

    ``own`` numbers of each ``step`` are asked for: the part of a rank.
    """
    samples = getattr(items.cases, "samples", None)
    return items if samples is None or _runs_code(samples.source) else AlikeItems(items, own, step)


def _runs_code(source: Any) -> bool:
    """Whether a case may be other, or be read, each time that it is asked for."""
    cases = source.cases if isinstance(source, FromCases) else [{}]
    return not isinstance(cases, (list, tuple)) or {*map(type, cases)} != {dict}


_Case: TypeAlias = tuple[str, dict[str, Any], dict[str, Volume] | None]
"""Name and values of a case, and its volumes; None in their place if it is not like the first."""


class AlikeItems(NumberedItems):
    """Items of which most are copies of one, with the volumes of their own cases.

    Pipes make the first item, and those of cases with other keys or kinds of values.
    """

    def __init__(self, items: NumberedItems, own: int, step: int) -> None:
        self._items, self._cases, self._samples = items, items.cases, items.cases.samples
        # A range asks no pipe of the chain for its length again.
        self.holds = range(len(items)).__contains__  # type: ignore[assignment]
        self.visits = items.visits  # type: ignore[method-assign]
        self._own, self._step, self._batches = own, step, max(1, _BLOCK // own)
        self._start = -_BLOCK * step  # the first number of a block of identities
        self._origins: list[tuple[int, ...]] = []
        self._recent: dict[int, _Case] = {}
        self._keys: list[str] = []
        self._others: list[str] = []  # keys of other values
        self._attempts = _ATTEMPTS
        self._patches: dict[str, LazyPatch] = {}  # those of the first item that can be copied

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Any:
        if not self._patches:
            return self._first(number) if self._attempts else self._items[number]
        origin = self._origin(number)
        name, data, volumes = self._recent.get(origin[0]) or self._look(origin[0])
        if volumes is None:
            return self._items[number]
        seed, epoch, of_source, _ = self._samples.run
        identity = of_source + origin
        chain = TransformChain(volumes, seed, epoch, identity, self._steps)
        things = {k: one.with_pending(chain, volume=volumes[k]) for k, one in self._patches.items()}
        return Sample({**data, **things}, case=name, identity=identity, seed=seed, epoch=epoch)

    def _origin(self, number: int) -> tuple[int, ...]:
        """Return the number of the case of an item, and those of its patches."""
        batch, place = divmod(number - self._start, self._step)
        if not 0 <= batch < self._batches or place >= self._own:
            batches, self._start, batch, place = np.arange(self._batches), number, 0, 0
            numbers = (number + batches[:, None] * self._step + np.arange(self._own)).ravel()
            origins = self._items.origins(numbers[numbers < len(self)])
            self._origins = [*zip(*(entries.tolist() for entries in origins), strict=True)]
        return self._origins[batch * self._own + place]

    def _look(self, number: int) -> _Case:
        """Return a case with its volumes, and keep it."""
        name, data = self._samples.source.case(number)
        volumes: dict[str, Volume] | None = None
        others = map(self._cases.is_no_volume, self._others, map(data.get, self._others))
        if [*data] == self._keys and all(others):
            own: Any = {k: self._volume_like(v, data[k]) for k, v in self._volumes.items()}
            volumes = None if None in own.values() else own
        if len(self._recent) >= _CASES:
            self._recent.clear()
        case = self._recent[number] = name, data, volumes
        return case

    def _volume_like(self, like: Volume, value: Any) -> Volume | None:
        """Return the volume of a value; None unless only its place differs from that of another."""
        source: Any = like._source
        if type(value) is str and isinstance(source, LocatedSource):
            # Labels of OME-Zarr are labels under any key, and credentials are for one server.
            if "/" not in value or "/labels/" in value or not self._cases.has_one_server:
                return None
            volume = like.__copy__()
            volume._source = source.at(value)
            return volume
        is_alike = type(value) is Volume and type(value._source) is type(source)
        is_alike = is_alike and value.kind == like.kind and value.axis_map is None
        return self._cases.anew(value) if is_alike else None

    def _first(self, number: int) -> Any:
        """Return an item made by its pipes; keep the parts that its copies share with it."""
        item, self._attempts = self._items[number], self._attempts - 1
        patches = patches_of(item)
        volumes = {key: patch.volume for key, patch in patches.items()}
        chains = {id(patch.pending): patch.pending for patch in patches.values()}
        if len(chains) == 1 and not item.patches and all(map(_is_plain, patches.values())):
            (chain,) = chains.values()
            is_moved = chain.moving is not None or chain.place is not None
            self._keys, self._others = [*item], [key for key in item if key not in volumes]
            self._volumes = {key: self._cases.anew(volume) for key, volume in volumes.items()}
            _, _, own = self._look(self._origin(number)[0])
            if own is not None and chain.references == volumes and not is_moved:
                self._steps = chain.steps
                self._patches = {key: one.with_pending(chain) for key, one in patches.items()}
            self._recent.clear()
        return item


def _is_plain(patch: LazyPatch) -> bool:
    """Whether a patch is of a file alone, and none of its steps depends on its volume."""
    is_of_file = type(patch.volume) is Volume and patch.volume.located_source is not None
    asks = (step.mask is not None or isinstance(step.op, SelectChannels) for step in patch.values)
    return type(patch) is LazyPatch and is_of_file and not any(asks)
