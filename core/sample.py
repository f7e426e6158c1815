"""What flows along a chain: one case, or one patch of it, and where it comes from."""

from __future__ import annotations

import json
from collections.abc import ItemsView, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import Any, Protocol

import numpy as np

META = "meta"
"""The key under which a batch carries the provenance of its samples."""


class Described(Protocol):
    """What knows where its voxels come from: a lazy patch."""

    @property
    def draws(self) -> Mapping[str, Any]:
        """What was drawn for it, by name of the pipe."""

    def provenance(self) -> Mapping[str, Any]:
        """Return file, source region and matrix."""


class Sample(MutableMapping[str, Any]):
    """A mapping from key (``image``, ``label``, ...) to a thing, with provenance.

    What the thing is changes along the chain: a path, then a ``Volume``, then a
    ``LazyPatch``, then a tensor. The identity, the seed and the epoch stay with the
    sample, so that every draw made for it is a pure function of them.

    Examples
    --------
    >>> s = Sample({"image": "a.nii"}, case="a", identity=(0,))
    >>> s.with_data(image=1)["image"], s["image"]
    (1, 'a.nii')
    >>> s.child(3).identity
    (0, 3)
    """

    __slots__ = ("_data", "case", "epoch", "identity", "patches", "seed")

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        case: str = "",
        identity: tuple[int, ...] = (),
        seed: int = 0,
        epoch: int = 0,
        patches: Mapping[str, Described] | None = None,
    ) -> None:
        if META in data:
            msg = f"the key {META!r} is taken by the provenance; name the volume otherwise"
            raise ValueError(msg)
        set_ = object.__setattr__
        set_(self, "_data", dict(data))
        set_(self, "case", case)
        set_(self, "identity", identity)
        set_(self, "seed", seed)
        set_(self, "epoch", epoch)
        set_(self, "patches", dict(patches or {}))

    _data: dict[str, Any]
    case: str
    """Name of the case."""
    identity: tuple[int, ...]
    """(case index, patch ordinal, ...)."""
    seed: int
    """Seed of the run."""
    epoch: int
    """Which pass over the data, from 0."""
    patches: dict[str, Described]
    """What each realized tensor was made from, by key."""

    def __setattr__(self, name: str, value: object) -> None:
        msg = f"a Sample does not change; use with_data({name}=...) to get a new one"
        raise AttributeError(msg)

    def __getitem__(self, key: str) -> Any:
        try:
            return self._data[key]
        except KeyError:
            have = ", ".join(map(repr, self._data)) or "nothing"
            msg = f"{key!r} is not in this sample, which has {have}"
            raise KeyError(msg) from None

    def __setitem__(self, key: str, thing: Any) -> None:
        # For torch's own ``map(fn, input_col=...)``, which writes into the item it was
        # given. No pipe of voxpipe does; the provenance cannot be changed at all.
        self._data[key] = thing

    def __delitem__(self, key: str) -> None:
        del self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    # Those of the dictionary are what the ones of MutableMapping imitate.
    def keys(self) -> KeysView[str]:
        """Return a view of the keys."""
        return self._data.keys()

    def values(self) -> ValuesView[Any]:
        """Return a view of the things."""
        return self._data.values()

    def items(self) -> ItemsView[str, Any]:
        """Return a view of the pairs."""
        return self._data.items()

    def replace(self, **changes: Any) -> Sample:
        """Return a sample in which the named attributes are others (``data=``, ``case=`` ...)."""
        state: dict[str, Any] = {
            "data": self._data,
            "case": self.case,
            "identity": self.identity,
            "seed": self.seed,
            "epoch": self.epoch,
            "patches": self.patches,
        }
        state.update(changes)
        return Sample(state.pop("data"), **state)

    def with_data(self, **things: Any) -> Sample:
        """Return a sample in which the named keys hold other things."""
        return self.moved(things, self.identity)

    def child(self, ordinal: int) -> Sample:
        """Return the ``ordinal``-th item made from this one; its identity is one longer."""
        return self.moved({}, (*self.identity, ordinal))

    def moved(self, things: Mapping[str, Any], identity: tuple[int, ...]) -> Sample:
        """Return the sample of another identity in which some keys hold other things."""
        return Sample(
            {**self._data, **things},
            case=self.case,
            identity=identity,
            seed=self.seed,
            epoch=self.epoch,
            patches=self.patches,
        )

    def provenance(self) -> dict[str, Any]:
        """Return where this sample comes from, as plain data.

        ``sources`` has an entry per volume (file, source region, matrix), ``draws`` one
        per random pipe.
        """
        # Asking the class: asking the object would resolve the plan of a lazy patch.
        lazy = {k: v for k, v in self._data.items() if hasattr(type(v), "provenance")}
        described = {**self.patches, **lazy}
        draws: dict[str, Any] = {}
        for patch in (*self.patches.values(), *lazy.values()):
            draws.update(patch.draws)
        return {
            "case": self.case,
            "identity": list(self.identity),
            "seed": self.seed,
            "epoch": self.epoch,
            "sources": {key: _as_data(patch.provenance()) for key, patch in described.items()},
            "draws": to_jsonable(draws),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        state = (self._data, self.case, self.identity, self.seed, self.epoch, self.patches)
        return (_restore, state)

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self._data.items())
        return f"Sample({self.case or self.identity}: {inside})"


def _restore(
    data: dict[str, Any],
    case: str,
    identity: tuple[int, ...],
    seed: int,
    epoch: int,
    patches: dict[str, Described],
) -> Sample:
    return Sample(data, case=case, identity=identity, seed=seed, epoch=epoch, patches=patches)


def _as_data(provenance: Mapping[str, Any]) -> Any:
    """Return plain data; what a lazy patch tells is that already, and part of it not made yet."""
    return provenance if hasattr(type(provenance), "__missing__") else to_jsonable(provenance)


_PLAIN = frozenset({str, int, float, bool, type(None)})


def case_of(item: Any) -> str:
    """Return the name of the case of an item; empty if it has none.

    Examples
    --------
    >>> case_of(Sample({}, case="a")), case_of(0)
    ('a', '')
    """
    return str(getattr(item, "case", ""))


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says, whoever wrote it.

    Examples
    --------
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        msg = "it is nested too deeply"
        raise ValueError(msg) from None


def to_jsonable(value: Any) -> Any:
    """Return ``value`` with NumPy arrays and scalars turned into what JSON knows.

    Examples
    --------
    >>> to_jsonable({"a": np.float64(1.5), "b": (np.int64(2), np.eye(1))})
    {'a': 1.5, 'b': [2, [[1.0]]]}
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        # Most of a provenance are numbers in lists: not worth a call each.
        return [v if type(v) in _PLAIN else to_jsonable(v) for v in value]
    if kind is dict:
        return {k: v if type(v) in _PLAIN else to_jsonable(v) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {k: to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    return value
