"""Which lazy volume of a sample its boxes and points move with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ...core import Origin, Sample
from ...core.errors import SampleError
from ...spatial import LazyPatch


def moving_with(sample: Any, of: str | None, what: str, origin: Origin | None) -> LazyPatch:
    """Return the patch whose plan moves places: the one of key ``of``, or the first lazy one.

    Raises
    ------
    SampleError
        There is none.
    """
    lazy = {key: thing for key, thing in sample.items() if isinstance(thing, LazyPatch)}
    key = next(iter(lazy), None) if of is None else of
    if key not in lazy:
        told = f"the lazy volumes are {', '.join(lazy)}" if lazy else "no volume is lazy"
        msg = f"{what} move with {'one' if key is None else repr(key)}, but {told}"
        do = f"Put move_{what}() after open_volume()."
        if sample.patches:
            do = f"Put move_{what}() before realize(): it asks plans, not voxels."
        raise SampleError(msg, do=do).at(origin, sample.case)
    return lazy[key]


def entry(sample: Sample, key: str, pipe: str, origin: Origin | None) -> Any:
    """Return what a sample has under ``key``.

    Raises
    ------
    SampleError
        Nothing.
    """
    if key not in sample:
        msg = f"{pipe}() is to move {key!r}, but the sample has {', '.join(sample)}"
        raise SampleError(msg, do="Name entries of the case.").at(origin, sample.case)
    return sample[key]


def kept_beside(
    sample: Sample, keys: Collection[str], kept: Sequence[bool], pipe: str, origin: Origin | None
) -> dict[str, list[Any]]:
    """Return the entries that go with boxes or points, without the rows that these have lost.

    Raises
    ------
    SampleError
        One is missing, or has another number of rows.
    """
    found = {}
    for key in keys:
        try:
            rows = list(entry(sample, key, pipe, origin))
        except TypeError:
            rows = None
        if rows is None or len(rows) != len(kept):
            has = "no rows" if rows is None else f"{len(rows)} rows"
            msg = f"{key!r} goes with {len(kept)} rows that {pipe}() moves, and has {has}"
            do = "Give with_= entries of one row for each."
            raise SampleError(msg, do=do).at(origin, sample.case)
        found[key] = [row for row, is_kept in zip(rows, kept, strict=True) if is_kept]
    return found


def names_of(keys: str | Collection[str]) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    return (keys,) if isinstance(keys, str) else tuple(keys)
