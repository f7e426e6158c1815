"""The nodes of a graph: parents, traits and descriptions of pipes.

Pipes of voxpipe declare their traits. Those of foreign pipes come from the table of
:func:`register_traits`. Parents are found in a pipe's attributes; pickling would copy data and is
exponential in diamonds.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from torch.utils.data import IterDataPipe, MapDataPipe

from ..core import CallSite
from ..core.call_site import shorten

Pipe: TypeAlias = IterDataPipe[Any]
"""Any torch datapipe, iterable or map-style."""


@dataclass(frozen=True)
class Traits:
    """Properties of a pipe that rewrites and cuts need, without running the pipe."""

    per_item: bool = False
    """Yields one item per item, without state between items."""
    voxels: bool = False  # reads or holds voxels
    runs_user_code: bool = False
    """Runs a user's function, which may read voxels or draw from a global generator."""
    group: int = 0  # gathers this many items into one; 0 if it does not gather
    drop_last: bool = False  # with ``group``: leaves out an incomplete last group
    shards: bool = False  # keeps only this worker's share of the items
    watches: bool = False  # yields every item unchanged; drawings omit it
    opens: bool = False
    """Turns paths into volumes: later pipes may read voxels from items."""
    main_process: bool = False
    """Runs in the loader's process; yields one item per item, in order."""
    plain: bool = False
    """Yields only plain values: open files and voxels of its parents end here."""
    dispatches: bool = False
    """Runs once, with all pipes before it; its items are dispatched to the workers."""
    filters: bool = False
    """Yields one item or none per item, without state between items."""
    ahead: bool = False  # prefetches items, in a number that depends on timing
    is_known: bool = True
    """False for an unknown pipe, which may do anything with its items."""


_UNKNOWN = Traits(is_known=False)
_STAYS = Traits(is_known=False, main_process=True)
_FOREIGN: dict[str, Callable[[Any], Traits]] = {}


def register_traits(class_name: str, traits: Callable[[Any], Traits]) -> None:
    """Register the traits of a foreign class of pipes; ``traits(pipe)`` must not run the pipe."""
    _FOREIGN[class_name] = traits


def traits_of(pipe: Pipe) -> Traits:
    """Return the declared traits of ``pipe``, or those registered for its class."""
    traits = getattr(type(pipe), "traits", None)
    if isinstance(traits, property):
        traits = pipe.traits
    if isinstance(traits, Traits):
        return traits
    look_up = _FOREIGN.get(type(pipe).__name__)
    if look_up is not None:
        return look_up(pipe)
    # In torchdata, pipes that are not replicable stay in the loader's process.
    replicable = getattr(pipe, "is_replicable", None)
    return _UNKNOWN if replicable is None or replicable() else _STAYS


def is_own(pipe: Pipe) -> bool:
    """Whether a pipe's class belongs to the user or to another package."""
    return type(pipe).__module__.partition(".")[0] not in ("voxpipe", "torch")


def declares_traits(pipe: Pipe) -> bool:
    """Whether traits are declared; those of voxpipe do not count for functions of the user."""
    if not traits_of(pipe).is_known or not is_own(pipe):
        return traits_of(pipe).is_known
    kinds = type(pipe).__mro__
    theirs = itertools.takewhile(lambda kind: kind.__module__.partition(".")[0] != "voxpipe", kinds)
    members = {name: value for kind in theirs for name, value in vars(kind).items()}
    return "traits" in members or not any(map(inspect.isfunction, members.values()))


_PIPES = frozenset({IterDataPipe, MapDataPipe})


def is_pipe(thing: object) -> bool:
    """Whether ``thing`` is a torch datapipe."""
    # Both have a metaclass, which makes isinstance() slow for all other things.
    return not _PIPES.isdisjoint(type(thing).__mro__)


def parents_of(pipe: Pipe) -> tuple[Pipe, ...]:
    """Return the pipes that ``pipe`` reads from, each once, in the order of its attributes."""
    # A private attribute may name a later pipe, which reads from this one and is no parent.
    parents: dict[int, Pipe] = {}
    for name, value in vars(pipe).items():
        for parent in pipes_in(value):
            if id(parent) not in parents and not _comes_later(pipe, name, parent):
                parents[id(parent)] = parent
    return tuple(parents.values())


def later_pipes(pipe: Pipe) -> tuple[Pipe, ...]:
    """Return the pipes in private attributes of ``pipe`` that read from it."""
    parents = {id(parent) for parent in parents_of(pipe)}
    pipes = {id(other): other for value in vars(pipe).values() for other in pipes_in(value)}
    return tuple(other for number, other in pipes.items() if number not in parents)


def with_parents(pipe: Pipe, parents: Sequence[Pipe]) -> Pipe:
    """Return a copy of ``pipe`` on other parents; ``pipe`` itself if they are its own."""
    old = parents_of(pipe)
    if len(old) == len(parents) and all(a is b for a, b in zip(old, parents, strict=True)):
        return pipe
    twin = copy_pipe(pipe)
    swap_parents(twin, {id(a): b for a, b in zip(old, parents, strict=True)})
    return twin


def copy_pipe(pipe: Pipe) -> Pipe:
    """Return a copy of ``pipe`` alone, on the same parents."""
    # Some copies of torch's pipes lose the origin. The copy needs its own buffer: torch's shuffle
    # empties its buffer when it is deleted.
    twin = copy.copy(pipe)
    origin = origin_of(pipe)
    if origin is not None and "origin" not in vars(twin):
        vars(twin)["origin"] = origin
    if isinstance(vars(twin).get("_buffer"), list):
        vars(twin)["_buffer"] = list(vars(twin)["_buffer"])
    return twin


def swap_parents(pipe: Pipe, swap: Mapping[int, Pipe]) -> None:
    """Replace parents of ``pipe`` in place, by the ``id`` of the old parents."""
    for name, value in list(vars(pipe).items()):
        new_value = _swap(value, swap)
        if new_value is not value:
            vars(pipe)[name] = new_value


def origin_of(pipe: Pipe) -> CallSite | None:
    """Return the user's line of ``pipe``; None for most foreign pipes."""
    origin = vars(pipe).get("origin")
    return origin if isinstance(origin, CallSite) else None


def describe(pipe: Pipe) -> str:
    """Return ``pipe`` as the user wrote it, in one line."""
    own = getattr(type(pipe), "describe", None)
    if own is not None:
        return str(own(pipe))
    if "main_datapipe" in vars(pipe) and "instance_id" in vars(pipe):  # of fork(), demux()
        return f"{chained_name(vars(pipe)['main_datapipe'])}(…)[{vars(pipe)['instance_id']}]"
    function = vars(pipe).get("fn") or vars(pipe).get("filter_fn")
    pairs = settings_of_torch(pipe, function)
    settings = [f"{key}={_text(value)}" if key else _text(value) for key, value in pairs]
    # A function of torch is a default, not the user's.
    if function is not None and not str(getattr(function, "__module__", "")).startswith(_TORCH):
        code = getattr(function, "__code__", None)
        place = code and f" {code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"
        settings.insert(0, shorten(function) + (place or ""))
    return f"{chained_name(pipe)}({', '.join(settings)})"


def chained_name(pipe: Any) -> str:
    """Return the chained form of ``pipe``, or the name of its class."""
    if not is_pipe(pipe):
        raise TypeError(f"a pipe expected, got {shorten(pipe)}")
    kind = type(pipe)
    tables: list[dict[str, Any]] = [IterDataPipe.functions, MapDataPipe.functions]
    # A map-style shuffle is an iterable pipe that is chained on a map-style one.
    own, other = tables if isinstance(pipe, IterDataPipe) else tables[::-1]
    # torch puts private pipes of fork() and demux() into the graph.
    class_name = kind.__name__.removeprefix("_")
    for name, function in itertools.chain(own.items(), other.items()):
        owner: Any = getattr(function, "args", (None,))[0]
        is_named = owner is not None and owner.__name__ == class_name
        if owner is kind or (is_named and (class_name != kind.__name__ or issubclass(kind, owner))):
            return name
    # torch's pipes are imported without this suffix.
    return kind.__name__.removesuffix("IterDataPipe").removesuffix("MapDataPipe") or kind.__name__


def is_chained(pipe: Pipe) -> bool:
    """Whether ``pipe`` is written as a chained form, ``.name()``."""
    name = chained_name(pipe)
    return name in IterDataPipe.functions or name in MapDataPipe.functions


# How surely an attribute holds a parent: a public name, a private name of an argument of the
# constructor, another private name.
_PUBLIC, _SETTING, _NOTE = 2, 1, 0


def _sureness(pipe: Pipe, name: str) -> int:
    if not name.startswith("_"):
        return _PUBLIC
    code = getattr(type(pipe).__init__, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return _SETTING if name.lstrip("_") in names else _NOTE


def _comes_later(pipe: Pipe, name: str, other: Pipe) -> bool:
    """Whether ``other`` reads from ``pipe``, by surer attributes than ``name``."""
    least = _sureness(pipe, name) + 1
    if least > _PUBLIC:
        return False
    ids: set[int] = set()
    stack = [other]
    while stack:
        reader = stack.pop()
        if reader is pipe:
            return True
        if id(reader) not in ids:
            ids.add(id(reader))
            for attribute, value in vars(reader).items():
                pipes = list(pipes_in(value))
                if pipes and _sureness(reader, attribute) >= least:
                    stack += pipes
    return False


# A longer list that begins with something else than a pipe is data, which is not looked through.
_MOST_ENTRIES = 64


def pipes_in(value: Any) -> Iterator[Pipe]:
    """Yield ``value`` if it is a pipe, or the pipes of a list or mapping."""
    if is_pipe(value):
        yield value
    elif isinstance(value, (list, tuple, set, frozenset, dict)):
        # torch's pipes use one level; deeper lists are the user's data.
        first = next(iter(value), None)
        is_data = not (is_pipe(first) or (isinstance(value, dict) and is_pipe(value.get(first))))
        if is_data and len(value) > _MOST_ENTRIES:
            return
        entries = itertools.chain.from_iterable(value.items()) if isinstance(value, dict) else value
        yield from filter(is_pipe, entries)


def _swap(value: Any, swap: Mapping[int, Pipe]) -> Any:
    if is_pipe(value):
        return swap.get(id(value), value)
    if not any(True for _ in pipes_in(value)):
        return value
    if isinstance(value, dict):
        return {swap.get(id(k), k): swap.get(id(v), v) for k, v in value.items()}
    return type(value)(swap.get(id(item), item) for item in value)


_TORCH = "torch.utils.data."
_LOOKS_LIKE_URL = "://"
_PLAIN = (str, bytes, int, float, bool, type(None), range)


def settings_of_torch(pipe: Any, function: Any = None) -> Iterator[tuple[str, Any]]:
    """Yield name and value of a torch pipe's arguments, without parents and defaults.

    The name is empty for arguments without a default.
    """
    kind, own = type(pipe), vars(pipe)
    if not kind.__module__.startswith(_TORCH):
        return
    # fork() and demux() put a private pipe in the place of the public class.
    public: Any = getattr(sys.modules[kind.__module__], kind.__name__.removeprefix("_"), kind)
    constructor = vars(public).get("__new__", public.__init__)
    for name, parameter in inspect.signature(constructor).parameters.items():
        value, default = own.get(name), parameter.default
        holds_pipes = any(True for _ in pipes_in(value))
        if name not in own or holds_pipes or (function is not None and value is function):
            continue
        if default is inspect.Parameter.empty:
            yield "", value
        elif not (value is default or value == default or _follows(name, own)):
            yield name, value


def _follows(name: str, own: dict[str, Any]) -> bool:
    """Whether torch computed the value of an omitted argument."""
    if name == "guaranteed_group_size":
        return bool(own[name] == own.get("group_size"))
    return name == "indices" and own[name] == list(range(len(own[name])))


def _text(value: Any) -> str:
    """Return a setting as text; data, which may be long or secret, by type and length."""
    if isinstance(value, Enum):
        return str(value)
    alone = isinstance(value, (list, tuple)) and len(value) == 1
    is_short = alone and isinstance(value[0], _PLAIN) and _LOOKS_LIKE_URL not in str(value[0])
    if isinstance(value, _PLAIN) or is_short or (callable(value) and hasattr(value, "__name__")):
        return shorten(value)
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, Sized) else kind
