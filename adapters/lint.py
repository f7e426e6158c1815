"""The adapter that looks for legal mistakes: the epoch runs, but not as anybody wants it."""

from __future__ import annotations

import dis
import functools
import random
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

from torch.utils.data import IterDataPipe

from ..core import CallSite
from ..core.call_site import shorten
from ..core.errors import LintWarning
from ..core.validate import as_choice
from ..datapipes.cost import passes_of
from ..datapipes.datapipe import draws
from ..datapipes.epoch import UNSEEN_HINT, Unseen, has_place, held_objects, is_library
from ..datapipes.iter import BatchPatches, Flush, PatchSampler, Realize, SpatialPipe
from ..first_use import consult, extensions, leave_out_name
from ..graph import (
    Cut,
    NoCut,
    Pipe,
    RewriteResult,
    chained_name,
    declares_traits,
    describe,
    origin_of,
    parents_of,
    traits_of,
    walk,
)
from ..graph.cut import split_of
from .adapter import Adapter
from .profile import without_timers

# Bytes that a disk of 2 GB/s reads in half a second: fewer are not reported.
MUCH_BYTES = 10**9
_CACHES = ("in_memory_cache", "on_disk_cache", "end_caching")
# The order gives the codes, which people write into their programs: append new names.
_NAMES = SHARDS, _BATCHES, _FROZEN_VALUE, _REPEATED_DRAWS, _TWICE, _PLANNER, _OWN, _WHOLE, _IDLE = (
    *("unshuffled-shards", "one-volume-batches", "frozen-draws", "repeated-draws"),
    *("twice-interpolated", "planned-functions", "own-state", "whole-volumes", "idle-workers"),
)
_SEVERITIES = HIGH, LOW = "high", "low"
Places: TypeAlias = "Iterable[tuple[Pipe, str, str]]"
"""Pipes with their effect and the fix."""


class _Rule(NamedTuple):
    name: str
    code: str = ""
    severity: str = HIGH
    find: Callable[[Pipe], Iterable[Any]] = lambda pipe: ()  # places of mistakes in a graph


_RULES = {
    name: _Rule(name, f"VX{number}", LOW if name in (_PLANNER, _WHOLE, _IDLE) else HIGH)
    for number, name in enumerate(_NAMES, 101)
}
_WORDS = frozenset(word for rule in _RULES.values() for word in rule[:2])
_OF_USERS: dict[str, _Rule] = {}


def _all_rules() -> dict[str, _Rule]:
    """Return the rules of voxpipe, of users and of installed packages, by name."""
    rules = _RULES | _OF_USERS
    for name, point in extensions("lint_rules").items():
        if name in _WORDS:
            leave_out_name(point, "voxpipe")
        elif name not in rules:
            rules[name] = _Rule(name, find=partial(consult, point, kind=_with_origins))
    return rules


def register_lint_rule(
    name: str, rule: Callable[[Pipe], Places], *, code: str = "", severity: str = HIGH
) -> None:
    """Register a rule of yours for :class:`Lint`, in this process.

    Parameters
    ----------
    name
        Its name in messages and in ``Lint(ignore=...)``. A rule of the same name is replaced.
    rule
        Yields the pipe, the effect and the fix of each mistake, given the last pipe. Its errors
        are raised.
    code
        A second name, for messages and ``ignore``.
    severity
        ``"high"`` if batches are worse than they were meant, ``"low"`` if only time is lost.

    Raises
    ------
    ValueError
        The name or the code is that of a rule of voxpipe, or the code that of another rule.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import from_cases
    >>> register_lint_rule("a-chain", lambda pipe: [(pipe, "it is one", "Take two.")], code="ME1")
    >>> [(one.code, one.do) for one in Lint().mistakes(from_cases([{"image": "a.nii"}]))]
    [('ME1', 'Take two.')]
    >>> unregister_lint_rule("a-chain")
    """
    if not callable(rule) or not all(isinstance(w, str) for w in (name, code)) or not name:
        msg = "register_lint_rule(name, rule, code=) takes a name, a function of a pipe and a code"
        raise TypeError(f"{msg}, got {shorten(name)}, {shorten(rule)} and {shorten(code)}")
    others = {word for one in _all_rules().values() if one.name != name for word in one[:2]}
    for word in {name, code} & (_WORDS | others) - {""}:
        owner = "voxpipe" if word in _WORDS else "another rule"
        raise ValueError(f"{word!r} belongs to a rule of {owner}: choose another word")
    severity = as_choice("severity", severity, _SEVERITIES)
    _OF_USERS[name] = _Rule(name, code, severity, lambda pipe: _with_origins(rule(pipe)))


def unregister_lint_rule(name: str) -> None:
    """Remove a rule of :func:`register_lint_rule`; do nothing if there is none of this name."""
    _OF_USERS.pop(name, None)


@dataclass(frozen=True)
class Mistake:
    """One mistake in a graph."""

    name: str
    """Its name in ``Lint(ignore=...)``."""
    message: str
    """Its effect, in one sentence."""
    do: str
    """The fix."""
    origin: CallSite | None
    """Where the user wrote the pipe."""
    code: str = ""
    """The code of its rule, e.g. ``"VX101"``."""
    severity: str = HIGH
    """``"high"`` or ``"low"``: :func:`register_lint_rule`."""

    def __str__(self) -> str:
        place = f"\n  at {self.origin}" if self.origin is not None else ""
        name = f"{self.code} {self.name}".lstrip()
        return f"{name}: {self.message}{place}\n  {self.do}"


@dataclass(frozen=True)
class Upstream:
    """Pipes upstream of a pipe, along one way at least, or along all."""

    is_shuffled: bool = False  # whether every way from a source goes through a shuffle
    shuffled_patches: bool = False
    """Whether patches, once they were cut, were shuffled or interleaved."""
    patches: PatchSampler | None = None  # the last pipe that cut patches
    voxels: bool = False  # whether items hold voxels by now
    draws: bool = False  # whether something was drawn at random for the items

    @classmethod
    def of(cls, parents: list[Upstream]) -> Upstream:
        """Return the upstream of a pipe with these parents."""
        if len(parents) == 1:
            return parents[0]
        return cls(
            is_shuffled=bool(parents) and all(p.is_shuffled for p in parents),
            shuffled_patches=any(p.shuffled_patches for p in parents) or len(parents) > 1,
            patches=next((p.patches for p in parents if p.patches is not None), None),
            voxels=any(p.voxels for p in parents),
            draws=any(p.draws for p in parents),
        )

    def after(self, pipe: Pipe) -> Upstream:
        """Return the upstream of the next pipe."""
        shuffles = isinstance(pipe, IterDataPipe) and hasattr(type(pipe), "set_shuffle")
        mixes = shuffles or chained_name(pipe) in ("interleave", "in_batch_shuffle")
        cuts = isinstance(pipe, PatchSampler)
        return Upstream(
            is_shuffled=self.is_shuffled or shuffles,
            shuffled_patches=not cuts and (self.shuffled_patches or mixes),
            patches=pipe if isinstance(pipe, PatchSampler) else self.patches,
            voxels=self.voxels or isinstance(pipe, (Realize, Flush, BatchPatches)),
            draws=self.draws or draws(pipe),
        )


class Lint(Adapter):
    """Warn of mistakes in a graph, each by name, with the fix and the line, without any change.

    Each costs quality or speed and raises no error. The page ``docs/lint.md`` lists them by code.
    Users add rules by :func:`register_lint_rule`, packages by entry points ``voxpipe.lint_rules``:
    a name and the function. Give it after adapters of your own: it checks the graph that they
    return.

    Parameters
    ----------
    ignore
        Codes or names that are no mistakes here.
    severity
        ``"high"`` reports only mistakes that make batches worse, and none that cost time.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import from_cases
    >>> chain = from_cases([{"image": [[[0.0]]]}]).open_volume().lazy_patch(1, samples_per_volume=8)
    >>> [mistake.name for mistake in Lint().mistakes(chain.batch_patches(4))]
    ['one-volume-batches']
    """

    def __init__(self, *, ignore: Collection[str] = (), severity: str = LOW) -> None:
        names = {word: rule.name for rule in _all_rules().values() for word in rule[:2] if word}
        if isinstance(ignore, str) or not names.keys() >= set(ignore):
            raise ValueError(f"ignore takes codes or names out of {[*names]}, got {ignore!r}")
        self.ignore = frozenset(names[word] for word in ignore)
        self.severity = as_choice("severity", severity, _SEVERITIES)

    def mistakes(self, pipe: Pipe) -> list[Mistake]:
        """Return the mistakes of a graph: pipe by pipe, sources first, then as a whole."""
        result: list[tuple[str, Any]] = []
        split, rules = split_of(pipe), self._rules()
        upstream: dict[int, Upstream] = {}
        for one in walk(pipe):
            before = Upstream.of([upstream[id(parent)] for parent in parents_of(one)])
            for name, what, do in _mistakes_at(one, before):
                result.append((name, (origin_of(one), what, do)))
            upstream[id(one)] = before.after(one)
        for name in _OF_GRAPHS.keys() & rules.keys():
            result += [(name, place) for place in _with_origins(_OF_GRAPHS[name](pipe, split))]
        for name, rule in rules.items():
            result += [(name, place) for place in rule.find(pipe)]
        return [_mistake(rules[name], *place) for name, place in result if name in rules]

    def _rules(self) -> dict[str, _Rule]:
        """Return the rules that are neither ignored nor of a lower severity, by name."""
        every = {name: rule for name, rule in _all_rules().items() if name not in self.ignore}
        return {n: rule for n, rule in every.items() if self.severity in (LOW, rule.severity)}

    def mistake_of_workers(self, pipe: Pipe, workers: int) -> Mistake | None:
        """Return the mistake of a graph under so many workers, which only a loader knows."""
        split, rule = split_of(pipe), self._rules().get(_IDLE)
        if not workers or rule is None or not isinstance(split, Cut) or split.realizing:
            return None
        what = f"num_workers={workers}, but every pipe plans, so the loader's process runs them all"
        do = "End the chain with .batch_patches() or .batch(), which workers run; or use none."
        if _planned_functions(pipe, split):
            do = "Put .sharding_filter() before the pipes that must run in workers; or use none."
        return _mistake(rule, origin_of(pipe), what, do)

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        """Return the very same graph, after a :class:`LintWarning` for each mistake."""
        for mistake in self.mistakes(pipe):
            warnings.warn(str(mistake), LintWarning, stacklevel=4)
        return RewriteResult(pipe, pipe)


def _with_origins(places: Places = ()) -> list[tuple[CallSite | None, str, str]]:
    return [(origin_of(pipe), what, do) for pipe, what, do in places]


def _mistake(rule: _Rule, origin: CallSite | None, what: str, do: str) -> Mistake:
    return Mistake(rule.name, what, do, origin, rule.code, rule.severity)


def _mistakes_at(pipe: Any, before: Upstream) -> Iterator[tuple[str, str, str]]:
    traits, form, patches = traits_of(pipe), chained_name(pipe), before.patches
    if traits.shards and not before.is_shuffled:
        what = "each worker and rank sees the same share of the items in every epoch"
        yield SHARDS, what, "Put .shuffle() before .sharding_filter()."
    if traits.group and patches is not None and not before.shuffled_patches:
        # On a grid their number depends on the shape of the volume.
        count: Any = "several" if patches.samples_source else patches.samples_per_volume
        count = "all" if patches.sampling == "grid" else count
        if count != 1:
            what = f"{count} patches of a volume follow each other into the same batches"
            do = "Put .shuffle() after .lazy_patch(), or .interleave() for fewer reads."
            yield _BATCHES, what, do
    if form in _CACHES and before.draws:
        what = f"{describe(pipe)} keeps patches and augmentations of the first epoch for all others"
        yield _FROZEN_VALUE, what, "Put the cache before .lazy_patch() and before whatever draws."
    if form in ("repeat", "cycle") and before.draws:
        what = f"{describe(pipe)} gives each patch again as it is: draws belong to the epoch"
        do = "Leave it out and iterate more epochs, or give samples_per_volume= more."
        yield _REPEATED_DRAWS, what, do
    if isinstance(pipe, SpatialPipe) and before.voxels:
        what = f"{describe(pipe)} interpolates voxels that were interpolated before"
        do = "Put it before .flush() or .realize(): then all moves are made at once."
        yield _TWICE, what, do


def _planned_functions(sink: Pipe, split: Cut | NoCut) -> Places:
    """Find functions and own pipes that no worker runs, though they may do a worker's work."""
    if isinstance(split, NoCut):
        return ()
    open_ids: set[int] = set()
    places = []
    volumes = any(traits_of(pipe).opens for pipe in walk(sink))
    for pipe in walk(split.planner):
        traits = traits_of(pipe)
        behind = any(id(parent) in open_ids for parent in parents_of(pipe))
        mute = bool(parents_of(pipe)) and not (declares_traits(pipe) or traits.main_process)
        works = traits.runs_user_code or mute
        # Before volumes are opened, and to choose among them, it has names and headers to look at.
        if works and (not volumes or (traits.per_item and behind)):
            what = f"{describe(pipe)} runs in the process of the loader, and in no worker"
            places.append((pipe, what, _TO_WORKERS))
        if behind or traits.opens:
            open_ids.add(id(pipe))
    return tuple(places)


_TO_WORKERS = (
    "Put what shuffles, filters or gathers for the first time before it, so that it runs with the "
    "batch; or put .sharding_filter() before it: then each worker runs the chain on its share."
)


def _whole_volumes(sink: Pipe, split: Cut | NoCut) -> Places:
    return tuple(
        (
            each.pipe,
            f"before the first patch of each case it reads all of {each.key!r}: "
            f"{each.volumes} x {each.bytes_each / 1e6:.3g} MB, {each.bytes / 1e6:.3g} MB in the "
            "first epoch on this machine",
            "Write a manifest once (voxpipe index) and begin with from_manifest(), which has these "
            "numbers; or give them to the pipe. Later epochs and runs find them in the cache.",
        )
        for each in passes_of(without_timers(sink), 0, 0)
        if each.remote or each.bytes >= MUCH_BYTES
    )


def _own_state(sink: Pipe, split: Cut | NoCut) -> Places:
    """Return the pipes whose functions have state that no seed sets, as counters and iterators."""
    places = []
    for pipe in walk(sink):
        things = list(held_objects([pipe]))
        places += [(pipe, str(each), UNSEEN_HINT) for each in things if isinstance(each, Unseen)]
        kind = next((kind for kind in map(type, things) if _has_own_state(kind)), None)
        if kind is not None:
            what = f"{kind.__name__} in {describe(pipe)} has state that no seed sets: it depends "
            what += "on the number of workers, and is lost after a resume. Each worker begins an "
            what += "epoch with a copy; without workers it goes on from epoch to epoch"
            do = "Draw from np.random, torch or a generator of these: each is seeded for each item."
            places.append((pipe, what, do))
    return tuple(places)


@functools.lru_cache(maxsize=1024)
def _has_own_state(kind: type) -> bool:
    """Whether objects of a class are iterators or quasi-random engines, or count in an attribute.

    A method that counts does ``self.x += ...``.
    """
    if has_place(kind) or issubclass(kind, random.SystemRandom):
        return True
    kinds = [one for one in kind.__mro__ if not is_library(one)]
    methods = [m for one in kinds for m in vars(one).values() if isinstance(m, FunctionType)]
    for method in methods:
        steps = [*dis.get_instructions(method)] if method.__name__ != "__init__" else []
        for this, *after in zip(steps, steps[1:], steps[2:], strict=False):
            adds = this.opname == "BINARY_OP" and this.argrepr.endswith("=")
            if adds and any(step.opname == "STORE_ATTR" for step in after):
                return True
    return False


_OF_GRAPHS: dict[str, Callable[[Pipe, Cut | NoCut], Places]] = {
    _PLANNER: _planned_functions,
    _OWN: _own_state,
    _WHOLE: _whole_volumes,
}


def _check_shuffle_before_sharding(datapipe: Pipe) -> bool:
    """Whether every path to a ``sharding_filter`` has a ``shuffle``; torchdata's check."""
    return not Lint(ignore=_all_rules().keys() - {SHARDS}).mistakes(datapipe)
