"""Maps of the sections of an axis: missing, doubled and shifted sections.

A map is a list of rules. For the length of an axis they give a table from virtual indices, which
the user sees, to physical indices, which are stored. The affine stays: virtual index ``i`` has the
place in the world of the stored index ``i``, and only its content moves.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..core.errors import OutOfVolume, SampleError
from ..core.suggest import closest, few_names
from ..core.validate import as_channels, as_choice
from ..storage.content import content_key
from .header import ONE_TIME, Shape, Times

AXES = ("C", "I", "J", "K")
"""Names of the axes of a volume; time is folded into C."""
MISSING = -1
"""Physical index of a missing section."""

AxisPolicy = Literal["nearest", "fill", "mask"]
"""Content of a missing section: the nearest stored one, a value, or a value and a mask."""

Table = NDArray[np.int64]
"""Physical index, or ``MISSING``, by virtual index."""


@dataclass(frozen=True)
class AxisRule:
    """One change along one axis: a table, an offset, or missing sections."""

    axis: int  # index in (C, I, J, K)
    table: tuple[int, ...] | None = None
    """Physical index by virtual index, -1 for a missing one; None for the other two changes."""
    offset: int = 0  # virtual index ``i`` shows the physical index ``i + offset``
    missing: tuple[int, ...] = ()  # virtual indices of hidden or missing sections
    in_file: bool = True  # whether the file has these sections; else they lengthen the axis
    policy: AxisPolicy = "nearest"  # content of a missing section
    fill: float = 0.0  # value of a missing section after slope and intercept; not for "nearest"
    sections: int = 0  # length of the mask from which the table was made; 0 for any length
    channels: tuple[str | int, ...] = ()  # names or numbers of channels, instead of a table

    def apply(self, before: Table, name: str) -> Table:
        """Return the table after this rule; ``before`` is that of the rules before."""
        sections = self._pick(len(before), name)
        after = np.where(sections < 0, MISSING, before[np.maximum(sections, 0)])
        # Only gaps of this rule get the nearest section: those of rules before stay missing.
        gaps = sections < 0
        if self.policy != "nearest" or not gaps.any():
            return after
        present = np.flatnonzero(after >= 0)
        if not len(present):
            msg = f"the axis map of {name} leaves no section on axis {AXES[self.axis]} that could "
            do = 'Use policy="fill" or "mask", or correct the map.'
            raise OutOfVolume(f"{msg}be the nearest one.", do=do)
        return np.where(gaps, after[_nearest(present, len(after))], after)

    def _pick(self, length: int, name: str) -> Table:
        """Return the section of an axis of ``length`` at each virtual index."""
        if self.table is not None and self.sections not in (0, length):
            msg = (
                f"a mask of {self.sections} sections is given for axis {AXES[self.axis]} of {name}"
            )
            raise OutOfVolume(f"{msg}, which has {length}.", do="Give one boolean for each.")
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
            msg = f"the axis map names section {index} on axis {AXES[self.axis]} of {name}, "
            do = "Sections are counted from 0; give each volume a map of its own."
            raise OutOfVolume(f"{msg}which has {length}.", do=do)

    def describe(self) -> str:
        """Return the rule in words."""
        if self.channels:
            return f"channels {', '.join(map(str, self.channels))}"
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
    """Missing, doubled and shifted sections of a volume; picklable.

    ``axis`` is ``"C"`` (which includes time), ``"I"``, ``"J"``, ``"K"``, or 0, 1, 2 for the spatial
    three. ``policy`` decides the content of a missing section:

    - ``"nearest"``: the nearest stored section; of two, the one before;
    - ``"fill"``: the value ``fill``;
    - ``"mask"``: ``fill``, and ``open_volume()`` adds a mask of stored voxels to the sample.

    Examples
    --------
    Section 2 of a stack is damaged, then one was never acquired:

    >>> from voxpipe.volumes import Volume
    >>> stack = Volume(np.arange(5).reshape(1, 1, 5))
    >>> stack.with_axis_map(AxisMap.missing("K", [2])).numpy().ravel().tolist()
    [0, 1, 1, 3, 4]
    >>> lost = AxisMap.missing("K", [2], "fill", fill=9, in_file=False)
    >>> stack.with_axis_map(lost).numpy().ravel().tolist()
    [0, 1, 9, 2, 3, 4]

    All sections are two late, then one is doubled:

    >>> late = AxisMap.shift("K", 2, "fill", fill=-1)
    >>> stack.with_axis_map(late).numpy().ravel().tolist()
    [2, 3, 4, -1, -1]
    >>> stack.with_axis_map(AxisMap.from_table("K", [0, 1, 1, 4])).numpy().ravel().tolist()
    [0, 1, 1, 4]
    """

    rules: tuple[AxisRule, ...]
    """Rules, each applied to the result of the one before."""

    @classmethod
    def shift(
        cls, axis: str | int, offset: int, policy: AxisPolicy = "nearest", *, fill: float = 0.0
    ) -> AxisMap:
        """Return the map by which virtual index ``i`` shows the stored section ``i + offset``.

        The axis keeps its length, so sections from beyond its ends are missing. A positive
        ``offset`` hides the first sections, a negative one the last.
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
        """Return the map of an axis with damaged or missing sections.

        Parameters
        ----------
        axis, policy, fill
            See the class.
        indices
            The sections, from 0, as they are counted in the result.
        in_file
            True: the file has them, they are never read, and the axis keeps its length. False: the
            file lacks them, and the axis becomes longer by as many.
        """
        sections = tuple(sorted({operator.index(index) for index in indices}))
        if sections and sections[0] < 0:
            raise ValueError(f"sections are counted from 0, got {sections[0]}")
        return cls((_rule(axis, policy, fill, missing=sections, in_file=bool(in_file)),))

    @classmethod
    def from_table(
        cls,
        axis: str | int,
        table: Sequence[int] | NDArray[Any],
        policy: AxisPolicy = "nearest",
        *,
        fill: float = 0.0,
    ) -> AxisMap:
        """Return the map of a table: the stored section at each place, -1 for a missing one.

        The axis gets the length of the table. Sections may occur twice, in any order, or not at
        all. A table of booleans, one for each section, keeps the true ones.
        """
        is_mask = len(table) > 0 and all(isinstance(entry, (bool, np.bool_)) for entry in table)
        if is_mask and not any(table):
            raise ValueError(f"a mask of {len(table)} sections keeps none of them")
        sections, table = len(table) * is_mask, np.flatnonzero(table) if is_mask else table
        entries = tuple(operator.index(entry) for entry in table)
        if not entries or min(entries) < MISSING:
            msg = f"a table holds sections from 0, or -1, and at least one entry; got {entries}"
            raise ValueError(msg)
        return cls((_rule(axis, policy, fill, table=entries, sections=sections),))

    @classmethod
    def of_channels(cls, channels: Any) -> AxisMap:
        """Return the map that keeps some channels, by their names in the file or from 0.

        A name or a number keeps its channel of each time.
        """
        return cls((AxisRule(0, channels=as_channels("channels", channels)),))

    def then(self, other: AxisMap) -> AxisMap:
        """Return this map followed by another, whose indices are virtual indices of this map."""
        return AxisMap((*self.rules, *other.rules))

    def with_fill(self, fill: float) -> AxisMap:
        """Return the same map with another fill value."""
        return AxisMap(tuple(replace(rule, fill=float(fill)) for rule in self.rules))

    def __post_init__(self) -> None:
        fills = {rule.fill for rule in self.rules if rule.policy != "nearest"}
        if len(fills) > 1:
            raise ValueError(f"one volume has one fill value, got {sorted(fills)}")

    @property
    def has_numbers(self) -> bool:
        """Whether it chooses or moves channels by their numbers."""
        rules = (rule for rule in self.rules if rule.axis == 0)
        return any(not all(isinstance(n, str) for n in rule.channels or (0,)) for rule in rules)

    @property
    def has_mask(self) -> bool:
        """Whether ``open_volume()`` adds a mask of stored voxels."""
        return any(rule.policy == "mask" for rule in self.rules)

    @property
    def fill(self) -> float:
        """The value of missing sections."""
        return next((rule.fill for rule in self.rules if rule.policy != "nearest"), 0.0)

    def tables(
        self, shape: Shape, name: str, channel_names: Sequence[str] = (), times: Times = ONE_TIME
    ) -> tuple[Table | None, ...]:
        """Return a table per axis (C, I, J, K), None for unchanged axes.

        The stored channels have ``channel_names`` and ``times``.
        """
        tables: list[Table | None] = [None] * len(AXES)
        for rule in self.rules:
            before = tables[rule.axis]
            now = np.arange(shape[rule.axis]) if before is None else before
            if rule.channels:
                names = mapped_names(channel_names, now)
                own = times.after(before, shape[0])
                places = find_channels(rule.channels, names, len(now), name, own)
                rule = replace(rule, table=places)
            tables[rule.axis] = rule.apply(now, name)
        return tuple(
            None if table is None or np.array_equal(table, np.arange(length)) else table
            for table, length in zip(tables, shape, strict=True)
        )

    def fingerprint(self) -> str:
        """Return a short key, equal for equal maps in every process."""
        # Maps without channels keep the keys that they had before there were any.
        usual = ("channels", ())
        rules = [sorted(one for one in asdict(r).items() if one != usual) for r in self.rules]
        return content_key("axis map", tuple(rules))

    def describe(self) -> str:
        """Return the map in words, on one line."""
        return "; ".join(rule.describe() for rule in self.rules) or "nothing moved"

    def __repr__(self) -> str:
        return f"AxisMap({self.describe()})"


def mapped_names(names: Sequence[str], table: Table | None) -> tuple[str, ...]:
    """Return the names of channels seen through a table; none if there are none."""
    if table is None or not names:
        return tuple(names)
    return tuple(names[n] if n >= 0 else "" for n in table.tolist())


def find_channels(
    channels: Sequence[str | int],
    names: Sequence[str],
    count: int,
    where: str,
    times: Times = ONE_TIME,
) -> tuple[int, ...]:
    """Return the places of channels; ``OutOfVolume`` lists the names if one is missing.

    A number counts the channels of each time.

    Examples
    --------
    >>> find_channels(("GFP", 0), ("DAPI", "GFP"), 2, "a.ome.zarr")
    (1, 0)
    >>> find_channels((1,), (), 6, "a.ome.zarr", Times(3, stride=2))
    (1, 3, 5)
    """
    numbers: list[int] = []
    by_number = times.first(range(count)).T.tolist()
    for channel in channels:
        own = [n for n, name in enumerate(names) if name == channel]
        if not isinstance(channel, str):
            own = by_number[channel] if channel < len(by_number) else []
        numbers += own
        if own:
            continue
        labels = [name for name in dict.fromkeys(names) if name]
        have = f"it has {', '.join(map(repr, labels))}" if labels else "its channels have no names"
        by_word = {name.casefold(): name for name in labels}
        near = closest(str(channel).casefold(), by_word, 0.5)
        do = (
            f"Did you mean {by_word[near[0]]!r}?"
            if near
            else f"Give numbers from 0 to {len(by_number) - 1}"
        )
        do += "" if near else ", or one of the names." if labels else "."
        raise OutOfVolume(f"{where} has no channel {channel!r}; {have}.", do=do)
    return tuple(numbers)


def refuse_other_order(
    name: str, names: Sequence[str], first_name: str, first: Sequence[str]
) -> None:
    """Raise ``SampleError`` if a volume has the channels of the first in another order.

    Examples
    --------
    >>> refuse_other_order("b.tif", ("GFP", "DAPI"), "a.tif", ("DAPI", "Cy5"))
    >>> refuse_other_order("b.tif", ("GFP", "DAPI"), "a.tif", ("DAPI", "GFP"))
    Traceback (most recent call last):
    voxpipe.core.errors.SampleError: channel-order: b.tif has GFP, DAPI, and ...
    """
    if names == first or sorted(names) != sorted(first):
        return
    lists = [few_names(dict.fromkeys(one)) for one in (names, first)]
    msg = f"channel-order: {name} has {lists[0]}, and {first_name} has {lists[1]}"
    do = "Open each file with its channels in one order: Volume(path, channels=[1, 0])."
    if all(first):
        in_order = json.dumps([*dict.fromkeys(first)], ensure_ascii=False)
        do = f"Choose one order by ⟦open_volume(channels={in_order})⟧."
    raise SampleError(msg, do=do)


def _rule(axis: str | int, policy: Any, fill: float, **rest: Any) -> AxisRule:
    as_choice("policy", policy, get_args(AxisPolicy))
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
    middles = (present[1:] + present[:-1]) / 2
    nearest: Table = present[np.searchsorted(middles, np.arange(length))]
    return nearest
