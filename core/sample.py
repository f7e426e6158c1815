"""Samples: one case, or one patch of it, and its provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .call_site import warn
from .errors import LikelyMistake
from .spelling import of_sample
from .views import Viewable

META = "meta"
"""The key under which a batch carries the provenance of its samples."""


class HasProvenance(Protocol):
    """An object with provenance, such as a lazy patch."""

    @property
    def draws(self) -> Mapping[str, Any]:
        """Drawn parameters, by name of the pipe."""

    def provenance(self) -> Mapping[str, Any]:
        """Return file, source region and matrix."""


class Sample(Viewable, dict[str, Any]):
    """A mapping from key (``image``, ``label``, ...) to a value, with provenance.

    The value changes along the chain: a path, then a ``Volume``, then a ``LazyPatch``, then a
    tensor. Every draw is a pure function of the sample's identity, seed and epoch.

    Examples
    --------
    >>> s = Sample({"image": "a.nii"}, case="a", identity=(0,))
    >>> s.with_data(image=1)["image"], s["image"]
    (1, 'a.nii')
    >>> s.child(3).identity
    (0, 3)
    """

    __slots__ = ("case", "epoch", "identity", "patches", "seed")

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        case: str = "",
        identity: tuple[int, ...] = (),
        seed: int = 0,
        epoch: int = 0,
        patches: Mapping[str, HasProvenance] | None = None,
    ) -> None:
        if META in data:
            msg = f"the key {META!r} is taken by the provenance; name the volume otherwise"
            raise ValueError(msg)
        super().__init__(data)
        _set_case(self, case)
        _set_identity(self, identity)
        _set_seed(self, seed)
        _set_epoch(self, epoch)
        _set_patches(self, dict(patches or {}))

    case: str
    """Name of the case."""
    identity: tuple[int, ...]
    """(case index, patch ordinal, ...)."""
    seed: int
    """Seed of the run."""
    epoch: int
    """Number of the pass over the data, from 0."""
    patches: dict[str, HasProvenance]
    """Patches of the realized tensors, by key."""

    def __setattr__(self, name: str, value: object) -> None:
        msg = f"a Sample does not change; use with_data({name}=...) to get a new one"
        raise AttributeError(msg)

    def __missing__(self, key: str) -> Any:
        have = ", ".join(map(repr, self)) or "nothing"
        hint = of_sample(key, self)
        raise KeyError(f"{key!r} is not in this sample, which has {have}{hint and f'; {hint}'}")

    if not TYPE_CHECKING:  # a checker knows dict.get(), and would believe in every attribute

        def get(self, key: str, default: Any = None) -> Any:
            """Return the value of a key, else the default; warn of a name such as ``case``."""
            if key not in self and key in self.__slots__:
                hint = of_sample(key, self)
                warn(f"sample.get({key!r}) returns its default; {hint}", LikelyMistake)
            return dict.get(self, key, default)

        def __getattr__(self, name: str) -> Any:
            hint = "" if name.startswith("_") else of_sample(name, self)
            msg = f"'Sample' object has no attribute {name!r}{hint and f'; {hint}'}"
            raise AttributeError(msg, name=name, obj=self)

    def replace(self, **changes: Any) -> Sample:
        """Return a sample with other attributes (``data=``, ``case=`` ...)."""
        return Sample(changes.pop("data", self), **{**self._attributes(), **changes})

    def _attributes(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def with_data(self, **things: Any) -> Sample:
        """Return a sample with other values of these keys."""
        return self.with_identity(things, self.identity)

    def child(self, ordinal: int) -> Sample:
        """Return the ``ordinal``-th item made from this one; its identity is one entry longer."""
        return self.with_identity({}, (*self.identity, ordinal))

    def with_identity(self, things: Mapping[str, Any], identity: tuple[int, ...]) -> Sample:
        """Return a sample with another identity and other values of some keys."""
        # Bypasses the constructor: a planner calls this once per sample and pipe.
        if META in things:
            Sample(things)  # raises
        sample = dict.__new__(Sample)
        sample.update(self, **things)
        _set_case(sample, self.case)
        _set_identity(sample, identity)
        _set_seed(sample, self.seed)
        _set_epoch(sample, self.epoch)
        _set_patches(sample, self.patches.copy())
        return sample

    def provenance(self) -> dict[str, Any]:
        """Return the provenance as plain data.

        ``sources`` has an entry per volume (file, source region, matrix), ``draws`` one
        per random pipe.
        """
        # Inspect the class: the object would resolve the plan of a lazy patch.
        lazy = {k: v for k, v in self.items() if hasattr(type(v), "provenance")}
        patches = {**self.patches, **lazy}
        draws: dict[str, Any] = {}
        sources: dict[str, Any] = {}
        for key, patch in patches.items():
            # A lazy patch returns plain data, part of which is computed on access.
            source = patch.provenance()
            sources[key] = source if hasattr(type(source), "__missing__") else to_jsonable(source)
        for patch in (*self.patches.values(), *lazy.values()):
            draws.update(patch.draws)
        return {
            "case": self.case,
            "identity": list(self.identity),
            "seed": self.seed,
            "epoch": self.epoch,
            "sources": sources,
            "draws": to_jsonable(draws),
        }

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (dict(self), self._attributes())

    def __repr__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.items())
        return f"Sample({self.case or self.identity}: {inside})"


# Setters that bypass ``__setattr__``, which refuses.
_set_case, _set_epoch, _set_identity, _set_patches, _set_seed = (
    vars(Sample)[name].__set__ for name in Sample.__slots__
)


def _restore(data: dict[str, Any], attributes: dict[str, Any]) -> Sample:
    return Sample(data, **attributes)


_PLAIN = frozenset({str, int, float, bool, type(None)})


def case_of(item: Any) -> str:
    """Return the case name of an item; empty if it has none."""
    return str(getattr(item, "case", ""))


def parse_json(text: str | bytes) -> Any:
    """Return the value of JSON text; ValueError also for lists nested too deeply for Python."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def to_jsonable(value: Any) -> Any:
    """Return ``value`` with NumPy arrays and scalars as lists and numbers, for JSON."""
    if type(value) in _PLAIN:
        return value
    # Most of a provenance is lists of numbers: avoid a call for each number.
    if isinstance(value, (list, tuple)):
        return [*value] if _PLAIN.issuperset(map(type, value)) else [*map(to_jsonable, value)]
    if type(value) is dict or isinstance(value, Mapping):
        return {k: v if type(v) in _PLAIN else to_jsonable(v) for k, v in value.items()}
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value
