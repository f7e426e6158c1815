"""Seeds and epochs: set the next epoch of a graph's pipes, and plan its first items."""

from __future__ import annotations

import functools
import gc
import io
import random
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import resolve_name
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from ..core import Sample, Stream
from ..core.call_site import WarnOnce, looking_ahead
from ..core.errors import LikelyMistake, VoxpipeError
from ..graph import (
    Pipe,
    chained_name,
    clone,
    describe,
    is_own,
    is_pipe,
    parents_of,
    traits_of,
    walk,
)
from ..spatial import LazyPatch
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.patch_report import asks_voxels
from ..storage.content import ATTRIBUTE, MODULE, PLAIN, links_of, names_in
from .datapipe import MAY_OPEN, DataPipe, Running

D = TypeVar("D", bound="Drawing")
S = TypeVar("S", bound="Shuffling")

# Headers that are read at a time: a bucket answers as many as fast as one.
_AT_ONCE = 16
# Sizes that are drawn differ between these runs.
_SEEDS = (0, 1)


class SeedStamper(DataPipe):
    """A pipe that stamps seed and epoch on every sample that it makes.

    The loader calls :meth:`begin`; torch's own loaders call :meth:`set_seed`. Without such a
    call, each pass draws a seed from torch's global generator, as torch's ``shuffle`` does, so
    that ``torch.manual_seed`` makes it repeatable.
    """

    def __init__(self) -> None:
        super().__init__()
        self._run: tuple[int, int] | None = None
        self._source = 0

    def begin(self, seed: int, epoch: int, source: int = 0) -> None:
        """Set the seed of the run, the epoch of the next pass, and the number of this source."""
        self._run = (seed, epoch)
        self._source = source

    def _identity(self, index: int) -> tuple[int, ...]:
        """Return the identity of the ``index``-th case; no other source of the graph has it."""
        return (-self._source, index) if self._source else (index,)

    def set_seed(self, seed: int) -> SeedStamper:
        """Set the seed of the next pass."""
        self._run = (seed, 0)
        return self

    def coming_run(self) -> tuple[int, int]:
        """Return seed and epoch of the next pass, without a change of them."""
        self._run = self._next_run()
        return self._run

    def skip_run(self) -> None:
        """Begin no pass, and forget its seed and epoch."""
        self._run = None

    def _next_run(self) -> tuple[int, int]:
        run, self._run = self._run, None
        return run or (int(torch.empty((), dtype=torch.int64, device="cpu").random_().item()), 0)


class Drawing(Running, DataPipe):
    """A pipe that draws random numbers, others in each pass, from a seed of the loader or torch."""

    running: ClassVar[tuple[str, ...]] = ("_rng",)

    def __init__(self, parent: Any = None) -> None:
        super().__init__(parent)
        self._seed: int | None = None
        self.fresh()

    def fresh(self) -> None:
        self._rng = random.Random()

    def set_seed(self: D, seed: int) -> D:
        """Set the seed of the next pass."""
        self._seed = seed
        return self

    def reset(self) -> None:
        """Seed the generator for a pass; torch calls it when one begins."""
        seed, self._seed = self._seed, None
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
        self._rng.seed(self.seed_of_pass(seed))

    def seed_of_pass(self, seed: int) -> int:
        """Return the seed of the generator."""
        return seed


class Shuffling(Drawing):
    """A pipe that shuffles, unless torch's loaders or ``Shuffle`` turn it off."""

    def __init__(self, parent: Any = None) -> None:
        super().__init__(parent)
        self._enabled = True

    def set_shuffle(self: S, shuffle: bool = True) -> S:
        """Turn shuffling on or off."""
        self._enabled = shuffle
        return self

    def reset(self) -> None:
        """Seed the generator for a pass; without shuffling nothing is drawn."""
        if self._enabled:
            super().reset()

    def settings(self) -> Any:
        return (super().settings(), self._enabled)


@dataclass(frozen=True)
class SeededCounts:
    """Numbers of the pipes of a part of a graph that ``set_epoch`` numbers."""

    sources: int  # sources of samples
    kinds: Mapping[str, int]  # other random pipes, by the name of their class


def set_epoch(graph: Pipe, seed: int, epoch: int) -> None:
    """Set the next epoch of every random pipe of ``graph``; the same on every worker."""
    # - Sources of samples get (seed, epoch) and their number among the sources.
    # - Any other pipe with ``set_seed``, torch's or ours, gets one integer. It is drawn from the
    #   stream of its class and its place among its kind.
    # - A pipe with ``set_epoch`` gets the epoch, as samplers of torch do.
    # - Pipes that only a cache of items reads get the first epoch each time. So the kept items are
    #   those of that epoch, also after a resume in another process.
    first = _only_before_caches(graph)
    for pipe, is_source, number in _number_sources(graph):
        if is_source:
            pipe.begin(seed, epoch, number)
            continue
        own_epoch = 0 if id(pipe) in first else epoch
        if hasattr(type(pipe), "set_epoch"):
            pipe.set_epoch(own_epoch)
        if number is not None:
            pipe.set_seed(Stream(seed, own_epoch, (number,), type(pipe).__name__).integer())


def _number_sources(graph: Pipe) -> Iterator[tuple[Any, bool, int | None]]:
    """Yield each pipe, whether it is a source of samples, and its number among these."""
    # The number of another pipe with a seed counts its kind; otherwise it is None.
    counts: Counter[str] = Counter()
    sources = 0
    every: Any = walk(graph)  # foreign pipes may have any attribute
    for pipe in every:
        kind = type(pipe)
        absent = vars(pipe).get("stands_for")
        if isinstance(absent, SeededCounts):
            # Those after it have the numbers that they have in the whole graph.
            counts.update(absent.kinds)
            sources += absent.sources
        if isinstance(pipe, DataPipe) and hasattr(kind, "begin"):
            yield pipe, True, sources
            sources += 1
        elif hasattr(kind, "set_seed"):
            yield pipe, False, counts[kind.__name__]
            counts[kind.__name__] += 1
        else:
            yield pipe, False, None


def _only_before_caches(graph: Pipe) -> set[int]:
    every: Any = list(walk(graph))
    keeping = {id(pipe) for pipe in every if getattr(type(pipe), "keeps_items", False)}
    if not keeping:
        return set()
    read = {id(graph)}
    for pipe in reversed(every):  # parents come after who reads them
        if id(pipe) in read - keeping:
            read.update(map(id, parents_of(pipe)))
    return {id(pipe) for pipe in every} - read


def count_seeded(graph: Pipe) -> SeededCounts:
    """Count the pipes of a graph that ``set_epoch`` numbers."""
    every = list(_number_sources(graph))
    kinds = Counter(type(p).__name__ for p, source, n in every if not source and n is not None)
    return SeededCounts(sum(is_source for _, is_source, _ in every), kinds)


def seed_again(graph: Pipe, seed: int) -> None:
    """Seed every random pipe of ``graph`` for one more pass within the same epoch."""
    # Sources keep their number, so identities stay those of the cases; the draws are others.
    for pipe, is_source, number in _number_sources(graph):
        if is_source:
            pipe.set_seed(seed)
        elif number is not None:
            pipe.set_seed(Stream(seed, 0, (number,), type(pipe).__name__).integer())


def copy_for_epoch(planner: Pipe, seed: int, epoch: int) -> Pipe:
    """Return a copy with its own epoch: its items can be read during another epoch."""
    copy = clone(planner)
    set_epoch(copy, seed, epoch)
    return copy


def starts_again(graph: Pipe) -> bool:
    """Whether a second pass of an epoch begins with the same items."""
    sources: list[Any] = [pipe for pipe in walk(graph) if not parents_of(pipe)]
    return all(
        isinstance(pipe, SeedStamper)
        or (type(pipe) is IterableWrapper and not hasattr(pipe.iterable, "__next__"))
        for pipe in sources
    )


def may_look_ahead(planner: Pipe) -> bool:
    """Whether planning a few items uses up nothing and runs nothing of the user's."""
    every = list(walk(planner))
    sources = [pipe for pipe in every if not parents_of(pipe)]
    again = all(isinstance(pipe, SeedStamper) for pipe in sources)
    return again and not any(t.runs_user_code or not t.is_known for t in map(traits_of, every))


def functions_in(graph: Pipe) -> list[str]:
    """Return the pipes that run functions of the user's, as ``explain()`` names them."""
    return [describe(pipe) for pipe in walk(graph) if traits_of(pipe).runs_user_code]


def count_planned(parent: Pipe, count: Callable[[Sample], int]) -> int:
    """Return the sum of ``count(sample)`` over a pipe's planned samples; no voxel is read."""
    # Reads the headers of all volumes, many at a time; with a manifest it opens no file.
    if not MAY_OPEN.get() or not may_look_ahead(parent):
        raise TypeError("no len(): planning ahead would use up the source, or run your functions")
    planner = clone(parent)
    counts: list[dict[tuple[int, ...], int]] = []
    try:
        with looking_ahead():
            for seed in _SEEDS:
                set_epoch(planner, seed, 0)
                samples = [item for item in planner if isinstance(item, Sample)]
                if not counts:
                    _open_headers([p for item in samples for p in patches_of(item).values()])
                counts.append({sample.identity: count(sample) for sample in samples})
    except (VoxpipeError, OSError, Warning) as error:
        raise TypeError(f"no len(): {type(error).__name__}: {error}") from error
    if any(each != counts[0] for each in counts):
        raise TypeError("no len(): how large volumes are is drawn, so every epoch has its own")
    return sum(counts[0].values())


def _open_headers(patches: list[LazyPatch]) -> None:
    if any(map(asks_voxels, patches)):
        raise TypeError("no len(): how large volumes are follows from their voxels")
    volumes = {id(patch.volume): patch.volume for patch in patches}
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for _ in threads.map(lambda volume: volume.grid, volumes.values()):
            pass


GENERATORS = (
    *(np.random.RandomState, np.random.Generator, np.random.BitGenerator),
    *(np.random.SeedSequence, torch.Generator, random.Random),
)
"""Classes of random generators that can be seeded."""
# Code of these packages is not searched; objects of their classes are.
_LIBRARIES = frozenset(
    {"numpy", "torch", "scipy", "monai", "torchio", "voxpipe", *sys.stdlib_module_names}
) - {"__main__"}
_DATA = frozenset({*PLAIN, bytearray, np.dtype, torch.dtype, torch.device})
_LEAVES: tuple[type, ...] = (*PLAIN, io.IOBase, types.ModuleType, types.CodeType)
_LEAVES += (types.FrameType, types.TracebackType, IterDataPipe, MapDataPipe)
# Bounds of the search, which takes some microseconds a step.
_MOST_STEPS, _MOST_ITEMS = 5_000, 1_000
_ONCE = WarnOnce()


class Unseen(str):
    """The text about a place in a user's object whose generators may not be seeded."""


UNSEEN_HINT = "Hold generators in attributes of the object itself, or draw from np.random or torch."


def held_objects(
    pipes: Iterable[Pipe], holders: dict[int, Any] | None = None, others: Iterable[Any] = ()
) -> Iterator[Any]:
    """Yield the objects that functions of the user hold, each once, in a fixed order.

    They are attributes, entries of containers, closures, classes, and names of their modules.
    Generators and iterators are not searched. An :class:`Unseen` is yielded for each limit.
    ``holders`` receives the holder of each object; ``others`` are searched after the pipes.
    """
    waiting: list[tuple[Any, Any]] = []  # each with its holder
    for pipe in pipes:
        traits = traits_of(pipe)
        if traits.runs_user_code or (traits.per_item and is_own(pipe)):
            # The pipe seeds its own generator, which a thread of a later pipe may draw from.
            own = ("origin", "_rng") if is_library(type(pipe)) else ("origin",)
            values = [v for name, v in vars(pipe).items() if name not in own and not is_pipe(v)]
            waiting += [(value, pipe) for value in (*values, type(pipe))]
    waiting += [(other, None) for other in others]
    yield from _objects_below(waiting, {} if holders is None else holders)


def _objects_below(waiting: list[tuple[Any, Any]], holders: dict[int, Any]) -> Iterator[Any]:
    for thing, holder in waiting:  # grows meanwhile
        if id(thing) in holders or isinstance(thing, _LEAVES):
            continue
        if len(holders) >= _MOST_STEPS:
            yield _unseen(holder, holders, f"the search ends after {_MOST_STEPS} objects")
            return
        holders[id(thing)] = holder
        yield thing
        is_numpy = isinstance(thing, GENERATORS) and not isinstance(thing, random.Random)
        if not is_numpy and not has_place(type(thing)):
            parts = [part for part in _parts_of(thing) if type(part) not in _DATA]
            if why := _limit_of(thing, parts):
                yield _unseen(thing, holders, why)
            waiting += [(part, thing) for part in (*parts[:_MOST_ITEMS], type(thing))]


def _limit_of(thing: Any, parts: list[Any]) -> str:
    """Return why generators in an object may be missed; empty where none can be."""
    if not all(map(_is_data, parts[_MOST_ITEMS:])):
        return f"the search ends after {_MOST_ITEMS} entries of a {type(thing).__name__}"
    is_set = isinstance(thing, (set, frozenset))
    several = is_set and sum(isinstance(part, GENERATORS) for part in parts) > 1
    return "each process has its own order of a set" if several else ""


def _is_data(part: Any) -> bool:
    """Whether an entry of a long container is a value, or a row of values."""
    if isinstance(part, (np.ndarray, np.generic, torch.Tensor)):
        return not getattr(part.dtype, "hasobject", False)
    rows = part.values() if type(part) is dict else part
    return type(part) in (list, tuple, dict) and _DATA.issuperset(map(type, rows))


def _unseen(thing: Any, holders: Mapping[int, Any], why: str) -> Unseen:
    """Return the text about an object, with the attributes that lead to it from the pipe on."""
    names = []
    while (holder := holders.get(id(thing))) is not None:
        own = getattr(holder, "__dict__", {})
        names.append(next((f".{name}" for name, v in own.items() if v is thing), "[...]"))
        thing = holder
    path = "".join([chained_name(thing) or type(thing).__name__, *reversed(names)])
    return Unseen(f"unseen-generators: generators in {path} may not be seeded: {why}")


def _parts_of(thing: Any) -> list[Any]:
    """Return the objects that a thing refers to, as far as its calls may draw from them."""
    if isinstance(thing, type):
        # Generators that all objects of a class share, as those of MONAI do; methods of the user.
        pairs = ((kind, v) for kind in thing.__mro__ for v in vars(kind).values())
        return [v for kind, v in pairs if isinstance(v, GENERATORS) or not is_library(kind)]
    own = list(getattr(thing, "__dict__", {}).values())
    links = links_of(thing)
    if isinstance(thing, functools._lru_cache_wrapper):
        return [*own, *gc.get_referents(thing)]  # and the results that it keeps
    if isinstance(thing, threading.Thread):
        # Other libraries replace its hook, from which all of their objects follow.
        return [part for name, part in vars(thing).items() if name != "_invoke_excepthook"]
    if isinstance(thing, ContextVar):
        return [thing.get(None), *gc.get_referents(thing)]
    if links is not None:
        is_open = isinstance(thing, types.FunctionType) and not is_library(thing)
        return [*links, *own, *(part for *_, part in (named_globals(thing) if is_open else ()))]
    # For subclasses too, without a call of the user's own __iter__.
    if isinstance(thing, dict):
        return [*dict.values(thing), *dict.keys(thing), *own]
    if isinstance(thing, (list, tuple)):
        kind: Any = list if isinstance(thing, list) else tuple
        return [*kind.__iter__(thing), *own]
    if isinstance(thing, np.ndarray):
        return [*(thing.ravel().tolist() if thing.dtype.hasobject else ()), *own]
    return [*own, *gc.get_referents(thing)]  # slots, and entries of other containers


def named_globals(function: types.FunctionType) -> list[tuple[str, str, Any]]:
    """Return the objects that a function reads from modules: module, name and object."""
    names, space = names_in(function.__code__), function.__globals__
    # Also ``sys.modules[__name__].RNG`` and ``globals()["RNG"]``.
    texts = [text for text in function.__code__.co_consts if isinstance(text, str)]
    every = [*(name for _, name in names), *texts]
    home = space.get("__name__") or ""
    parts = [(home, name, space[name]) for name in every if name in space]
    modules = [part for *_, part in parts if isinstance(part, types.ModuleType)]
    modules += [sys.modules[name] for name in modules_in(function) if name in sys.modules]
    for module in modules:
        members = {} if is_library(module) else vars(module)
        parts += [(module.__name__, name, members[name]) for name in every if name in members]
    return parts


def modules_in(function: types.FunctionType) -> list[str]:
    """Return the names of modules that a function imports, and of its attributes as submodules."""
    names, package = names_in(function.__code__), function.__globals__.get("__package__") or ""
    modules = [resolve_name(name, package) for kind, name in names if kind == MODULE]
    return modules + [f"{m}.{name}" for m in modules for kind, name in names if kind == ATTRIBUTE]


def has_place(kind: type) -> bool:
    """Whether objects of a class are iterators, or quasi-random engines of torch or SciPy."""
    return hasattr(kind, "__next__") or hasattr(kind, "fast_forward")


def is_library(thing: Any) -> bool:
    """Whether a class, function or module is that of a library that is not searched."""
    home = thing.__name__ if isinstance(thing, types.ModuleType) else thing.__module__
    return str(home).partition(".")[0] in _LIBRARIES


def _generators_of(pipes: Iterable[Pipe]) -> Iterator[tuple[Any, Mapping[int, Any]]]:
    """Yield each generator, in a fixed order, with the holders of objects; warn of each limit."""
    keys: set[int] = set()
    holders: dict[int, Any] = {}
    for thing in held_objects(pipes, holders):
        if isinstance(thing, Unseen):
            _ONCE.warn(thing, f"{thing}. {UNSEEN_HINT}", LikelyMistake)
        elif not isinstance(thing, GENERATORS) or isinstance(thing, random.SystemRandom):
            continue
        elif (key := _key_of(thing)) not in keys:
            keys.add(key)
            yield thing, holders


def _key_of(generator: Any) -> int:
    return id(getattr(generator, "bit_generator", generator))


def warn_of_generators(pipe: Pipe, reader: Any) -> None:
    """Warn of generators in a reader of files: each process keeps the voxels that it returned."""
    holders: dict[int, Any] = {}
    for thing in _objects_below([(reader, pipe)], holders):
        if isinstance(thing, GENERATORS):
            text = _unseen(thing, holders, "each process reads a volume once, and keeps its voxels")
            hint = "Draw in a function after open_volume(), .map(f) for instance."
            _ONCE.warn(text, f"{text}. {hint}", LikelyMistake)


class OwnGenerators:
    """The generators that functions hold, and those that they create while they make items."""

    def __init__(self, pipes: Iterable[Pipe]) -> None:
        self._pipes = tuple(pipes)
        self._count = 0
        self.generators = tuple(thing for thing, _ in _generators_of(self._pipes))

    def repeats(self, *, may_repeat: bool) -> bool:
        """Return whether an item has to be made again, after items 1, 2, 4, 8, ...

        The first item that creates a generator has drawn from it before it was seeded. Warns where
        that item cannot be made again.
        """
        self._count += 1
        if self._count & (self._count - 1):  # a search takes longer than an item may
            return False
        now = list(_generators_of(self._pipes))
        repeats = len(now) > len(self.generators) and may_repeat and self._count == 1
        if repeats or len(now) <= len(self.generators):
            self.generators = tuple(thing for thing, _ in now)
            return repeats
        keys = set(map(_key_of, self.generators))
        new = [(thing, holders) for thing, holders in now if _key_of(thing) not in keys]
        for thing, holders in new:
            text = _unseen(thing, holders, "it was created while items were made")
            _ONCE.warn(text, f"{text}. {UNSEEN_HINT}", LikelyMistake)
        self.generators += tuple(thing for thing, _ in new)  # after those whose numbers were drawn
        return False


def set_seed_of(generator: Any, seed: int) -> None:
    """Seed a generator of ``random``, NumPy or torch."""
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif not isinstance(generator, np.random.RandomState):
        # The state for pickle has the seed sequence too, from which ``spawn()`` makes children.
        inner = getattr(generator, "bit_generator", generator)
        restore_generator(inner, state_of_generator(type(inner)(seed)))
    elif isinstance(generator._bit_generator, np.random.MT19937):  # the usual kind
        generator.seed([seed & 0xFFFFFFFF, seed >> 32])
    else:
        kind = type(generator._bit_generator)
        generator.set_state({**kind(seed).state, "has_gauss": 0, "gauss": 0.0})


def state_of_generator(generator: Any) -> Any:
    """Return the state of such a generator."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return getattr(generator, "bit_generator", generator).__reduce__()[2]


def restore_generator(generator: Any, state: Any) -> None:
    """Set the state of such a generator."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    else:
        getattr(generator, "bit_generator", generator).__setstate__(state)
