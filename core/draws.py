"""Choices between ops, and draws that are replayed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .call_site import CallSite, shorten
from .errors import BadRecord, VoxpipeError
from .stream import is_random
from .validate import entries_of, is_integer

_TINY = 2.0**-60  # below the smallest number that a generator gives but 0

Rule = Literal["one_of", "some_of", "random_order", "random_apply"]


class ItemChoice(NamedTuple):
    """The drawn members of a choice for one item."""

    members: list[int]  # indices, in the order in which they are done
    key: int  # seed of the members' own draws, below 2^53

    def generator(self, member: int, place: int) -> np.random.Generator:
        """Return the random numbers of the ``place``-th op of a member."""
        # Philox keeps key and counter apart: no two of these streams overlap.
        return np.random.Generator(np.random.Philox(key=self.key, counter=[0, 0, place, member]))


@dataclass(frozen=True)
class Choice:
    """Rule that chooses members for an item."""

    rule: Rule
    """``one_of``: one by its weight; ``some_of``: ``count`` different ones, in their order;
    ``random_order``: all, in any order; ``random_apply``: all or none."""
    size: int  # number of members
    weights: tuple[float, ...] = ()  # relative weight of each member; empty for equal ones
    count: tuple[int, int] = (1, 1)  # how many are chosen, least and most
    p: float = 1.0  # probability that anything is done

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"{self.rule}() needs at least one op to choose from")
        if self.weights:
            fits = len(self.weights) == self.size and sum(self.weights) > 0
            if not fits or any(w < 0 or not math.isfinite(w) for w in self.weights):
                raise ValueError(
                    f"weights are {self.size} numbers of at least 0, one per op and not all 0, "
                    f"got {self.weights!r}"
                )
        low, high = self.count
        if not 0 <= low <= high <= self.size:
            msg = f"count is a number or (low, high) from 0 to {self.size}, got {self.count!r}"
            raise ValueError(msg)
        if self.rule == "some_of" and high > sum(w > 0 for w in self.weights or (1,) * self.size):
            msg = f"count is {high}, but fewer ops have a weight above 0: {self.weights!r}"
            raise ValueError(msg)

    def draw(self, generator: np.random.Generator) -> ItemChoice | None:
        """Return the chosen members, or None; always draws ``3 + size`` numbers."""
        acts, key, many = generator.random(3).tolist()
        random = generator.random(self.size).tolist()
        if acts >= self.p:
            return None
        return ItemChoice(self._members(random, many), int(key * 2**53))

    def unlike(self, members: Any) -> str:
        """Return a description of valid members; empty if ``members`` are valid."""
        whole = isinstance(members, (list, tuple)) and all(map(is_integer, members))
        every, last = list(range(self.size)), self.size - 1
        numbers = list(members) if whole else []
        if self.rule == "random_apply":
            return "" if numbers == every else f"all members, 0 to {last}, in turn"
        if self.rule == "random_order":
            return "" if sorted(numbers) == every else f"each of the members 0 to {last} once"
        low, high = (1, 1) if self.rule == "one_of" else self.count
        rising = numbers == sorted(set(numbers)) and all(0 <= n <= last for n in numbers)
        if whole and rising and low <= len(numbers) <= high:
            return ""
        count = "one" if (low, high) == (1, 1) else f"{low} to {high}"
        return f"{count} of the members 0 to {last}{', rising' if high > 1 else ''}"

    def _members(self, random: Sequence[float], many: float) -> list[int]:
        every = range(self.size)
        if self.rule == "random_apply":
            return list(every)
        if self.rule == "random_order":
            return sorted(every, key=random.__getitem__)
        low, high = self.count
        count = 1 if self.rule == "one_of" else low + int(many * (high - low + 1))
        # Weighted sampling without replacement: the largest log(u) / w (Efraimidis and
        # Spirakis 2006).
        weights = self.weights or (1.0,) * self.size
        ranks = [
            math.log(max(u, _TINY)) / w if w else -math.inf
            for u, w in zip(random, weights, strict=True)
        ]
        return sorted(sorted(every, key=lambda n: -ranks[n])[:count])


@dataclass(frozen=True)
class ChosenOps:
    """Common base of the spatial and the value part of a choice."""

    choice: Choice
    members: tuple[tuple[tuple[int, Any], ...], ...]
    """Chains of ops, each with its index among all ops of the member, spatial and value."""

    @property
    def name(self) -> str:
        """The chained form, which is the rule."""
        return self.choice.rule

    def ops(self) -> Iterator[Any]:
        """Yield all ops."""
        return (op for chain in self.members for _, op in chain)

    def acting(self, params: Mapping[str, Any]) -> Iterator[tuple[Any, Any, tuple[int, int]]]:
        """Yield the ops that act, their parameters, and the member and place of each."""
        for member, each in zip(params["chosen"], params["drawn"], strict=True):
            for (place, op), values in zip(self.members[member], each, strict=True):
                if values is not None:
                    yield op, values, (member, place)

    def describe(self) -> str:
        """Return the rule and its members."""
        chains = (", ".join(op.describe() for _, op in chain) or "-" for chain in self.members)
        return f"{self.choice.rule} ({'; '.join(chains)})"


# The largest drawn numbers are keys of per-voxel generators.
_LARGEST = 2**64
# Lists of axes, whose length is drawn too.
_OF_ANY_LENGTH = ("axes", "flip")


@dataclass(frozen=True)
class RecordedDraw:
    """A recorded draw; a step with a record draws nothing itself."""

    params: Mapping[str, Any] | None  # the parameters; None where the op did not act


@dataclass(frozen=True)
class OpStep:
    """One op at its place in a chain."""

    op: Any
    stream_name: str  # name of its random stream: the name of the pipe, unique in the chain
    origin: CallSite | None = None  # the user's line
    depth: int | None = None
    """Leading entries of the item's identity that seed the draw; None means all. An op before
    the patches are cut draws from the case: all patches of the case share the draw."""
    common: bool = False
    """Whether chains of other sources draw alike under this name, because the user gave it."""
    record: RecordedDraw | None = None  # replaces the draw

    def describe(self) -> str:
        """Return the op as the user wrote it."""
        words: str = self.op.describe()
        return words + (", replayed" if self.record is not None else "")

    def is_drawn(self, plan: Any = None) -> bool:
        """Whether parameters, or whether the op acts, differ between items by draws."""
        plans = () if plan is None else (plan,)  # ops on values draw without a plan
        return self.record is None and is_random(lambda generator: self.op.draw(generator, *plans))


def check_record(op: Any, record: Any, draw: Callable[[Any], Any]) -> None:
    """Raise BadRecord for a record that ``op`` could not have drawn; ``draw`` gives a template.

    The record must have the template's names, and finite values of the same form that the op's
    argument of this name allows. For a choice, the message has the path of the bad member.
    """
    if record is None:
        return
    op = getattr(op, "recorded_op", op)  # an op may wrap the op that draws
    if not isinstance(record, Mapping):
        raise _bad(op, f"is {shorten(record)}, not a mapping from name to parameter")
    if isinstance(getattr(op, "choice", None), Choice):
        _refuse_members(op, record, draw)
        return
    if (channels := getattr(op, "recorded_channels", None)) is not None:
        _refuse_channels(op, record, draw, *channels)
        return
    always = dataclasses.replace(op, p=1.0) if getattr(op, "p", 1.0) not in (0, 1) else op
    try:
        template = draw(always)
    except VoxpipeError:  # e.g. no foreground to draw a box from; a recorded box needs none
        return
    if template is None:
        return
    sometimes = getattr(op, "sometimes_drawn", ())
    unlike = (set(record) ^ set(template)) - set(sometimes)
    if unlike:
        names = ", ".join(sorted(map(str, unlike)))
        raise _bad(op, f"differs in {names}: it draws {', '.join(template) or 'nothing'}")
    for name in template:
        if name in record:
            _refuse_value(op, name, record[name], template[name])


def _refuse_members(op: Any, record: Mapping[str, Any], draw: Callable[[Any], Any]) -> None:
    """Refuse a bad record of a choice: first its members, then the draws of each op."""
    if unlike := set(record) ^ {"chosen", "drawn"}:
        raise _bad(op, f"differs in {', '.join(sorted(map(str, unlike)))}: it draws chosen, drawn")
    members, draws = record["chosen"], record["drawn"]
    if words := op.choice.unlike(members):
        raise _bad(op, f"has chosen {shorten(members)}, and {op.choice.rule}() chooses {words}")
    _refuse_length(op, "drawn", draws, len(members))
    for number, (member, each) in enumerate(zip(members, draws, strict=True)):
        chain = op.members[member]
        _refuse_length(op, f"drawn[{number}]", each, len(chain))
        for place, ((_, one), values) in enumerate(zip(chain, each, strict=True)):
            try:
                check_record(one, values, draw)
            except BadRecord as error:
                path = f"drawn[{number}][{place}]"
                joint = "." if error.message.startswith("drawn[") else ": "
                raise BadRecord(f"{path}{joint}{error.message}", do=error.do) from None


def _refuse_channels(op: Any, record: Mapping[str, Any], draw: Any, each: Any, count: int) -> None:
    """Refuse a bad record of draws by channel; a ``count`` of 0 is unknown."""
    if unlike := set(record) ^ {"channels"}:
        raise _bad(op, f"differs in {', '.join(sorted(map(str, unlike)))}: it draws channels")
    channels = record["channels"]
    _refuse_length(op, "channels", channels, count or len(entries_of(channels)))
    for number, values in enumerate(channels):
        try:
            check_record(each, values, draw)
        except BadRecord as error:
            raise BadRecord(f"channels[{number}]: {error.message}", do=error.do) from None


def _refuse_length(op: Any, path: str, value: Any, count: int) -> None:
    if not isinstance(value, (list, tuple)) or len(value) != count:
        raise _bad(op, f"has {path} {shorten(value)}, not a list of {count}")


def _refuse_value(op: Any, name: str, value: Any, params: Any) -> None:
    # A seed must be an integer: a float would be another seed, or none.
    is_no_key = name == "key" and not (is_integer(value) and value >= 0)
    if is_no_key or not _alike(value, params, any_length=name in _OF_ANY_LENGTH):
        raise _bad(op, f"has {name} {shorten(value)}, but it draws values like {shorten(params)}")
    if name not in {field.name for field in dataclasses.fields(op)}:
        return
    if name == "size" and not _fits_size(value, getattr(op, name)):
        raise _bad(op, f"has a size of {shorten(value)}")
    try:
        dataclasses.replace(op, **{name: params})
    except (VoxpipeError, ValueError, TypeError):
        return  # the argument has another meaning than the parameter
    try:
        dataclasses.replace(op, **{name: value})
    except (VoxpipeError, ValueError, TypeError) as error:
        raise _bad(op, f"has an invalid {name}: {error}") from None


def _fits_size(value: Sequence[int], argument: Any) -> bool:
    """Return whether a size has the numbers that an op fixes; a flat axis draws 1."""
    if is_integer(argument):
        return all(one in (argument, 1) for one in value)
    each = argument if isinstance(argument, tuple) and len(argument) == 3 else (None,) * 3
    return all(one == n for one, n in zip(value, each, strict=True) if is_integer(n))


def _alike(value: Any, params: Any, *, any_length: bool = False) -> bool:
    if isinstance(params, (list, tuple)):
        if not isinstance(value, (list, tuple)):
            return False
        if any_length:
            return all(is_integer(one) and one in (0, 1, 2) for one in value)
        fits = len(value) == len(params)
        return fits and all(_alike(a, b) for a, b in zip(value, params, strict=True))
    if isinstance(params, (int, float)) and not isinstance(params, bool):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # False for NaN; Python compares integers of any length without a float.
        return is_number and abs(value) <= _LARGEST
    return isinstance(value, type(params))


def _bad(op: Any, what: str) -> BadRecord:
    do = 'Give replay() the "draws" of a batch\'s "meta" from a chain with the same ops.'
    return BadRecord(f"the record of {op.describe()} {what}", do=do)
