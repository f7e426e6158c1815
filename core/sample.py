"""What flows along a chain: one case, or one patch of it, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

META = "meta"
"""The key under which a batch carries the provenance of its samples."""


class Sample(Mapping[str, Any]):
    """An immutable mapping from key (``image``, ``label``, ...) to a thing, with provenance.

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

    __slots__ = ("_data", "case", "draws", "epoch", "files", "identity", "seed")

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        case: str = "",
        identity: tuple[int, ...] = (),
        seed: int = 0,
        epoch: int = 0,
        files: Mapping[str, str] | None = None,
        draws: Mapping[str, Any] | None = None,
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
        set_(self, "files", dict(files or {}))
        set_(self, "draws", dict(draws or {}))

    _data: dict[str, Any]
    case: str
    """Name of the case."""
    identity: tuple[int, ...]
    """(case index, patch ordinal, ...)."""
    seed: int
    """Seed of the run."""
    epoch: int
    """Which pass over the data, from 0."""
    files: dict[str, str]
    """Where each volume is stored, by key; no credentials."""
    draws: dict[str, Any]
    """What was drawn for this sample, by name of the pipe."""

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

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def replace(self, **changes: Any) -> Sample:
        """Return a sample in which the named attributes are others (``data=``, ``case=`` ...)."""
        state: dict[str, Any] = {
            "data": self._data,
            "case": self.case,
            "identity": self.identity,
            "seed": self.seed,
            "epoch": self.epoch,
            "files": self.files,
            "draws": self.draws,
        }
        state.update(changes)
        return Sample(state.pop("data"), **state)

    def with_data(self, **things: Any) -> Sample:
        """Return a sample in which the named keys hold other things."""
        return self.replace(data={**self._data, **things})

    def child(self, ordinal: int) -> Sample:
        """Return the ``ordinal``-th item made from this one; its identity is one longer."""
        return self.replace(identity=(*self.identity, ordinal))

    def provenance(self) -> dict[str, Any]:
        """Return where this sample comes from, as plain data."""
        return {
            "case": self.case,
            "identity": list(self.identity),
            "seed": self.seed,
            "epoch": self.epoch,
            "files": dict(self.files),
            "draws": {name: _plain(drawn) for name, drawn in self.draws.items()},
        }

    def __reduce__(self) -> tuple[Any, ...]:
        state = (
            self._data,
            self.case,
            self.identity,
            self.seed,
            self.epoch,
            self.files,
            self.draws,
        )
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
    files: dict[str, str],
    draws: dict[str, Any],
) -> Sample:
    return Sample(
        data, case=case, identity=identity, seed=seed, epoch=epoch, files=files, draws=draws
    )


def _plain(value: Any) -> Any:
    """Turn NumPy values into JSON ones."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
