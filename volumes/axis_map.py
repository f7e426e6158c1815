"""Maps of the sections of an axis: missing, doubled and shifted ones.

A map is a few rules, which become tables from the index that a user sees (virtual) to the stored
one (physical) once the length of the axis is known. The affine stays what it was: virtual index
``i`` lies where the stored index ``i`` would. It is what is shown there that moves.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..core.errors import BadPlan, OutOfVolume
from ..core.validate import is_number
from ..storage.content import content_key
from .header import Shape

AXES = ("C", "I", "J", "K")
"""Names of the axes of a volume; time is folded into C."""
MISSING = -1
"""What a table says where nothing is stored."""

AxisPolicy = Literal["nearest", "fill", "mask"]
"""What a missing section shows: the nearest one that is there, a value, or a value and a mask."""

Table = NDArray[np.int64]
"""Physical index, or ``MISSING``, by virtual index."""


@dataclass(frozen=True)
class AxisRule:
    """What happens along one axis."""

    axis: int  # index in (C, I, J, K)
    table: tuple[int, ...] | None = None
    """Physical index by virtual index, -1 for a missing one; None: the others say it."""
    offset: int = 0  # virtual index ``i`` shows the physical index ``i + offset``
    missing: tuple[int, ...] = ()  # virtual indices of sections that are not to be shown
    in_file: bool = True
    """Whether those are in the file nevertheless; else they make the axis longer."""
    policy: AxisPolicy = "nearest"  # what is shown in place of a missing section
    fill: float = 0.0
    """The value of a missing section, after slope and intercept; not used by ``"nearest"``."""

    def apply(self, before: Table, name: str) -> Table:
        """Return the table of an axis to which this is done after ``before``."""
        sections = self._pick(len(before), name)
        after = np.where(sections < 0, MISSING, before[np.maximum(sections, 0)])
        # What was missing before this rule stays what it was: a filled section is shown as one.
        gaps = sections < 0
        if self.policy != "nearest" or not gaps.any():
            return after
        present = np.flatnonzero(after >= 0)
        if not len(present):
            raise OutOfVolume(
                f"the axis map of {name} leaves no section on axis {AXES[self.axis]} that could "
                "be the nearest one.",
                do='Use policy="fill" or "mask", or correct the map.',
            )
        return np.where(gaps, after[_nearest(present, len(after))], after)

    def _pick(self, length: int, name: str) -> Table:
        """Return which section of an axis of ``length`` stands at each virtual index."""
        if self.table is not None:
            self._refuse_beyond(max(self.table), length, name)
            return np.array(self.table, np.int64)
        grows = 0 if self.in_file else len(self.missing)
        self._refuse_beyond(max(self.missing, default=0), length + grows, name)
        places = np.arange(length + grows)
        if grows:
            sections = np.full(length + grows, MISSING, np.int64)
            sections[np.delete(places, self.missing)] = np.arange(length)
            return sections
        sections = places + self.offset
        sections[(sections < 0) | (sections >= length)] = MISSING
        sections[list(self.missing)] = MISSING
        return sections

    def _refuse_beyond(self, index: int, length: int, name: str) -> None:
        if index >= length:
            raise OutOfVolume(
                f"the axis map speaks of section {index} on axis {AXES[self.axis]} of {name}, "
                f"which has {length}.",
                do="Sections are counted from 0; give each volume a map of its own.",
            )

    def describe(self) -> str:
        """Return the rule in words."""
        if self.table is not None:
            holes = sum(entry < 0 for entry in self.table)
            what = f"{len(self.table)} sections from a table, {holes} of them missing"
        elif self.missing:
            kind = "not shown" if self.in_file else "never stored"
            what = f"{len(self.missing)} sections {kind}"
        else:
            what = f"shifted by {self.offset}"
        shows = self.policy if self.policy == "nearest" else f"{self.policy} {self.fill:g}"
        return f"{AXES[self.axis]}: {what}, {shows}"


@dataclass(frozen=True, repr=False)
class AxisMap:
    """Missing, doubled and shifted sections of a volume; a value that travels.

    Axes are ``"C"`` (where time is folded in), ``"I"``, ``"J"``, ``"K"``, or 0, 1, 2 for the
    spatial three. What a missing section shows is the ``policy``:

    - ``"nearest"``: the nearest section that is there; of two, the one before;
    - ``"fill"``: the value ``fill``;
    - ``"mask"``: ``fill``, and ``open_volume()`` adds a mask of what is stored to the sample.

    Examples
    --------
    Section 2 of a stack is ruined, and another was never taken:

    >>> from voxpipe.volumes import Volume
    >>> stack = Volume(np.arange(5).reshape(1, 1, 5))
    >>> stack.with_axis_map(AxisMap.missing("K", [2])).numpy().ravel().tolist()
    [0, 1, 1, 3, 4]
    >>> lost = AxisMap.missing("K", [2], "fill", fill=9, in_file=False)
    >>> stack.with_axis_map(lost).numpy().ravel().tolist()
    [0, 1, 9, 2, 3, 4]

    Everything is two late, then one section is twice there:

    >>> late = AxisMap.shift("K", 2, "fill", fill=-1)
    >>> stack.with_axis_map(late).numpy().ravel().tolist()
    [2, 3, 4, -1, -1]
    >>> stack.with_axis_map(AxisMap.from_table("K", [0, 1, 1, 4])).numpy().ravel().tolist()
    [0, 1, 1, 4]
    """

    rules: tuple[AxisRule, ...]
    """The first is applied to what is stored, the next to what that shows."""

    @classmethod
    def shift(
        cls, axis: str | int, offset: int, policy: AxisPolicy = "nearest", *, fill: float = 0.0
    ) -> AxisMap:
        """Return the map by which virtual index ``i`` shows the stored section ``i + offset``.

        The axis keeps its length; what is shifted in from beyond its ends is missing.

        Parameters
        ----------
        axis
            Which.
        offset
            Sections, of either sign: positive leaves out the first ones.
        policy, fill
            What a missing section shows.
        """
        return cls((_rule(axis, policy, fill, offset=operator.index(offset)),))

    @classmethod
    def missing(
        cls,
        axis: str | int,
        indices: Iterable[int],
        policy: AxisPolicy = "nearest",
        *,
        in_file: bool = True,
        fill: float = 0.0,
    ) -> AxisMap:
        """Return the map of an axis some of whose sections are bad, or were never stored.

        Parameters
        ----------
        axis
            Which.
        indices
            The sections, from 0, as they are counted in the result.
        policy, fill
            What a missing section shows.
        in_file
            True: they are in the file, but are never read, and the axis keeps its length. False:
            they are not there, and the axis becomes longer by as many.
        """
        sections = tuple(sorted({operator.index(index) for index in indices}))
        if sections and sections[0] < 0:
            raise ValueError(f"sections are counted from 0, got {sections[0]}")
        return cls((_rule(axis, policy, fill, missing=sections, in_file=bool(in_file)),))

    @classmethod
    def from_table(
        cls,
        axis: str | int,
        table: Sequence[int],
        policy: AxisPolicy = "nearest",
        *,
        fill: float = 0.0,
    ) -> AxisMap:
        """Return the map that a table says, whose length is that of the axis from then on.

        Parameters
        ----------
        axis
            Which.
        table
            The stored section at each place, -1 for a missing one. Sections may come twice, in
            any order, or not at all.
        policy, fill
            What a missing section shows.
        """
        entries = tuple(operator.index(entry) for entry in table)
        if not entries or min(entries) < MISSING:
            msg = f"a table holds sections from 0, or -1, and at least one entry; got {entries}"
            raise ValueError(msg)
        return cls((_rule(axis, policy, fill, table=entries),))

    def then(self, other: AxisMap) -> AxisMap:
        """Return this map followed by another, which speaks of the sections that this one shows."""
        return AxisMap((*self.rules, *other.rules))

    def with_fill(self, fill: float) -> AxisMap:
        """Return the same map with another fill value."""
        return AxisMap(tuple(replace(rule, fill=float(fill)) for rule in self.rules))

    def __post_init__(self) -> None:
        fills = {rule.fill for rule in self.rules if rule.policy != "nearest"}
        if len(fills) > 1:
            raise ValueError(f"one volume has one fill value, got {sorted(fills)}")

    @property
    def has_mask(self) -> bool:
        """Whether a mask of what is stored belongs to it."""
        return any(rule.policy == "mask" for rule in self.rules)

    @property
    def fill(self) -> float:
        """The value of missing sections."""
        return next((rule.fill for rule in self.rules if rule.policy != "nearest"), 0.0)

    def tables(self, shape: Shape, name: str) -> tuple[Table | None, ...]:
        """Return a table per axis (C, I, J, K), None for those that stay as they are."""
        tables: list[Table | None] = [None] * len(AXES)
        for rule in self.rules:
            before = tables[rule.axis]
            now = np.arange(shape[rule.axis]) if before is None else before
            tables[rule.axis] = rule.apply(now, name)
        return tuple(
            None if table is None or np.array_equal(table, np.arange(length)) else table
            for table, length in zip(tables, shape, strict=True)
        )

    def fingerprint(self) -> str:
        """Return a short key, equal for equal maps in every process."""
        return content_key("axis map", tuple(sorted(asdict(r).items()) for r in self.rules))

    def to_json(self) -> dict[str, Any]:
        """Return the map as plain data."""
        rules = [{**asdict(rule), "axis": AXES[rule.axis]} for rule in self.rules]
        for rule in rules:
            rule["table"] = None if rule["table"] is None else list(rule["table"])
            rule["missing"] = list(rule["missing"])
        return {"rules": rules}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> AxisMap:
        """Return the map that :meth:`to_json` described; BadPlan for any other document."""
        try:
            axis_map = cls(())
            for rule in data["rules"]:
                axis_map = axis_map.then(cls._from_rule(rule))
            return axis_map
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            msg = f"this is no axis map: {type(error).__name__}: {error}"
            raise BadPlan(msg, do="Give what AxisMap.to_json() returned.") from error

    @classmethod
    def _from_rule(cls, rule: Mapping[str, Any]) -> AxisMap:
        axis, how = rule["axis"], {"policy": rule["policy"], "fill": rule["fill"]}
        kinds = [rule["table"] is not None, bool(rule["offset"]), bool(rule["missing"])]
        if sum(kinds) > 1 or not isinstance(rule["in_file"], bool) or not is_number(rule["fill"]):
            raise ValueError(f"the rule of axis {axis!r} names several kinds of change, or none")
        if rule["table"] is not None:
            return cls.from_table(axis, rule["table"], **how)
        if rule["offset"]:
            return cls.shift(axis, rule["offset"], **how)
        return cls.missing(axis, rule["missing"], in_file=rule["in_file"], **how)

    def describe(self) -> str:
        """Return the map in words, on one line."""
        return "; ".join(rule.describe() for rule in self.rules) or "nothing moved"

    def __repr__(self) -> str:
        return f"AxisMap({self.describe()})"


def _rule(axis: str | int, policy: Any, fill: float, **rest: Any) -> AxisRule:
    if policy not in get_args(AxisPolicy):
        msg = f"policy is one of {', '.join(map(repr, get_args(AxisPolicy)))}, got {policy!r}"
        raise ValueError(msg)
    return AxisRule(_axis(axis), policy=policy, fill=float(fill), **rest)


def _axis(axis: str | int) -> int:
    if isinstance(axis, str) and axis in AXES:
        return AXES.index(axis)
    if isinstance(axis, int) and not isinstance(axis, bool) and 0 <= axis < 3:
        return axis + 1
    msg = f"an axis is one of {', '.join(map(repr, AXES))}, or 0, 1, 2 (I, J, K); got {axis!r}"
    raise ValueError(msg)


def _nearest(present: Table, length: int) -> Table:
    """Return the nearest of the ``present`` indices at each of ``length``; of two the lower."""
    # The one after is nearer from behind the middle on.
    middles = (present[1:] + present[:-1]) / 2
    nearest: Table = present[np.searchsorted(middles, np.arange(length))]
    return nearest
