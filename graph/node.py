"""The node of a graph: what a pipe says of itself, and how to see through one that says nothing.

voxpipe's pipes declare their parents and traits. A foreign torch pipe declares
neither: its parents are found by looking through its attributes (never by
pickling, which copies data and is exponential in diamonds), and its traits are
looked up in a table that :func:`register_traits` fills.
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
"""Any torch datapipe, ours or not; map-style ones are walked too."""


@dataclass(frozen=True)
class Traits:
    """What a rewrite or a cut needs to know of a pipe without running it."""

    per_item: bool = False
    """Yields one item for each item taken, and remembers nothing between two of them."""
    voxels: bool = False  # reads or holds voxels
    runs_user_code: bool = False
    """Runs a function of the user's: it may read voxels, or draw from a global generator."""
    group: int = 0  # gathers this many items into one; 0 if it does not gather
    drop_last: bool = False  # with ``group``: leaves out an incomplete last group
    shards: bool = False  # keeps only this worker's share of the items
    watches: bool = False  # passes every item on as it is; drawings leave it out
    opens: bool = False
    """Makes volumes of paths: from here on an item may give voxels to whoever asks."""
    main_process: bool = False
    """Stays in the process of the loader; yields one item for each item taken, in order."""
    plain: bool = False
    """Yields plain values whatever it takes: open files and voxels upstream go no further."""
    dispatches: bool = False
    """What comes before runs once, and its items are dealt out to the workers."""
    filters: bool = False
    """Yields one item or none for each item taken, and remembers nothing between two of them."""
    ahead: bool = False  # takes items before it is asked for them, how many depends on timing
    is_known: bool = True
    """False for a pipe of which nothing is known: it may do anything with its items."""


_UNKNOWN = Traits(is_known=False)
_STAYS = Traits(is_known=False, main_process=True)
_FOREIGN: dict[str, Callable[[Any], Traits]] = {}


def register_traits(class_name: str, traits: Callable[[Any], Traits]) -> None:
    """Say what a foreign class of pipes does; ``traits(pipe)`` must not run the pipe."""
    _FOREIGN[class_name] = traits


def traits_of(pipe: Pipe) -> Traits:
    """Return the traits that ``pipe`` declares, or that were registered for its class."""
    traits = getattr(type(pipe), "traits", None)
    if isinstance(traits, property):
        traits = pipe.traits
    if isinstance(traits, Traits):
        return traits
    look_up = _FOREIGN.get(type(pipe).__name__)
    if look_up is not None:
        return look_up(pipe)
    # torchdata's way to say that a pipe stays in the process of the loader.
    replicable = getattr(pipe, "is_replicable", None)
    return _UNKNOWN if replicable is None or replicable() else _STAYS


def is_own(pipe: Pipe) -> bool:
    """Whether the class of a pipe is the user's, or another package's."""
    return type(pipe).__module__.partition(".")[0] not in ("voxpipe", "torch")


def declares_traits(pipe: Pipe) -> bool:
    """Whether somebody says what a pipe does; what a class of the user's inherits is a default."""
    if not traits_of(pipe).is_known or not is_own(pipe):
        return traits_of(pipe).is_known
    says = next((kind for kind in type(pipe).__mro__ if "traits" in vars(kind)), None)
    return says is None or says.__module__.partition(".")[0] != "voxpipe"


def is_pipe(thing: object) -> bool:
    """Whether ``thing`` is a torch datapipe."""
    return isinstance(thing, (IterDataPipe, MapDataPipe))


def parents_of(pipe: Pipe) -> tuple[Pipe, ...]:
    """Return the pipes that ``pipe`` reads from, each once, in the order of its attributes."""
    # A pipe that is named in private, and itself reads from this one, comes later: it is none.
    parents: dict[int, Pipe] = {}
    for name, value in vars(pipe).items():
        for parent in pipes_in(value):
            if id(parent) not in parents and not _comes_later(pipe, name, parent):
                parents[id(parent)] = parent
    return tuple(parents.values())


def later_pipes(pipe: Pipe) -> tuple[Pipe, ...]:
    """Return the pipes that ``pipe`` names in private and that read from it."""
    parents = {id(parent) for parent in parents_of(pipe)}
    pipes = {id(one): one for value in vars(pipe).values() for one in pipes_in(value)}
    return tuple(one for number, one in pipes.items() if number not in parents)


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
    # Some of torch's copy only what they need to run, and no line. And the copy has a buffer of its
    # own: torch's shuffle empties the one it has when it goes.
    twin = copy.copy(pipe)
    origin = origin_of(pipe)
    if origin is not None and "origin" not in vars(twin):
        vars(twin)["origin"] = origin
    if isinstance(vars(twin).get("_buffer"), list):
        vars(twin)["_buffer"] = list(vars(twin)["_buffer"])
    return twin


def swap_parents(pipe: Pipe, swap: Mapping[int, Pipe]) -> None:
    """Put other pipes in the place of parents of ``pipe`` itself, by the ``id`` of the old."""
    for name, value in list(vars(pipe).items()):
        new_value = _swap(value, swap)
        if new_value is not value:
            vars(pipe)[name] = new_value


def origin_of(pipe: Pipe) -> CallSite | None:
    """Return where the user wrote ``pipe``; a foreign pipe does not know."""
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
    settings = list(settings_of_torch(pipe, function, _text))
    # Nobody wrote the function that is torch's own.
    if function is not None and not str(getattr(function, "__module__", "")).startswith(_TORCH):
        code = getattr(function, "__code__", None)
        place = code and f" {code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno}"
        settings.insert(0, shorten(function) + (place or ""))
    return f"{chained_name(pipe)}({', '.join(settings)})"


def chained_name(pipe: Any) -> str:
    """Return the name under which ``pipe`` is chained, or that of its class."""
    if not is_pipe(pipe):
        raise TypeError(f"a pipe expected, got {shorten(pipe)}")
    kind = type(pipe)
    tables: list[dict[str, Any]] = [IterDataPipe.functions, MapDataPipe.functions]
    # A map-style shuffle yields items in their order: it is iterable, and chained on the other.
    own, other = tables if isinstance(pipe, IterDataPipe) else tables[::-1]
    # Of fork() and demux() torch keeps a hidden pipe in the graph, and what children of it share.
    class_name = kind.__name__.removeprefix("_")
    for name, function in itertools.chain(own.items(), other.items()):
        owner = getattr(function, "args", (None,))[0]
        if owner is kind or (owner is not None and owner.__name__ == class_name != kind.__name__):
            return name
    # torch's own are told by the name under which they are imported.
    return kind.__name__.removesuffix("IterDataPipe").removesuffix("MapDataPipe") or kind.__name__


def is_chained(pipe: Pipe) -> bool:
    """Whether ``pipe`` is written behind what it reads, ``.name()``."""
    name = chained_name(pipe)
    return name in IterDataPipe.functions or name in MapDataPipe.functions


# How surely an attribute names what a pipe reads from: by a public name, by a private one under
# which its constructor was given it, by another private name.
_PUBLIC, _SETTING, _NOTE = 2, 1, 0


def _sureness(pipe: Pipe, name: str) -> int:
    if not name.startswith("_"):
        return _PUBLIC
    code = getattr(type(pipe).__init__, "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return _SETTING if name.lstrip("_") in names else _NOTE


def _comes_later(pipe: Pipe, name: str, other: Pipe) -> bool:
    """Whether ``other`` reads from ``pipe``, as surely as no private name of the latter tells."""
    least = _sureness(pipe, name) + 1
    if least > _PUBLIC:
        return False
    ids: set[int] = set()
    stack = [other]
    while stack:
        one = stack.pop()
        if one is pipe:
            return True
        if id(one) not in ids:
            ids.add(id(one))
            for attribute, value in vars(one).items():
                pipes = list(pipes_in(value))
                if pipes and _sureness(one, attribute) >= least:
                    stack += pipes
    return False


def pipes_in(value: Any) -> Iterator[Pipe]:
    """Yield a pipe, or those that a list or a mapping holds."""
    if is_pipe(value):
        yield value
    elif isinstance(value, (list, tuple, set, frozenset)):
        # One level is what torch's own pipes use; deeper would walk the user's data.
        yield from (item for item in value if is_pipe(item))
    elif isinstance(value, dict):
        for pair in value.items():
            yield from (item for item in pair if is_pipe(item))


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


def settings_of_torch(pipe: Any, function: Any, write: Callable[[Any], str]) -> Iterator[str]:
    """Yield what one of torch's pipes was given, as it would be written, beside its parents."""
    # Settings that are the default are left out, and of data only the kind and number are told.
    kind, own = type(pipe), vars(pipe)
    if not kind.__module__.startswith(_TORCH):
        return
    # Behind branches stands a pipe that torch makes in place of what the user called.
    public: Any = getattr(sys.modules[kind.__module__], kind.__name__.removeprefix("_"), kind)
    constructor = vars(public).get("__new__", public.__init__)
    for name, parameter in inspect.signature(constructor).parameters.items():
        value, default = own.get(name), parameter.default
        holds_pipes = any(True for _ in pipes_in(value))
        if name not in own or holds_pipes or (function is not None and value is function):
            continue
        if default is inspect.Parameter.empty:
            yield write(value)
        elif not (value is default or value == default or _follows(name, own)):
            yield f"{name}={write(value)}"


def _follows(name: str, own: dict[str, Any]) -> bool:
    """Whether torch has put a value in the place of one that was not given."""
    if name == "guaranteed_group_size":
        return bool(own[name] == own.get("group_size"))
    # The indices of a map-style shuffle: all there are, in their order.
    return name == "indices" and own[name] == list(range(len(own[name])))


def _text(value: Any) -> str:
    """Return a setting in words; data may be long, and hold what is not to be shown."""
    if isinstance(value, Enum):
        return str(value)
    alone = isinstance(value, (list, tuple)) and len(value) == 1
    is_short = alone and isinstance(value[0], _PLAIN) and _LOOKS_LIKE_URL not in str(value[0])
    if isinstance(value, _PLAIN) or is_short or (callable(value) and hasattr(value, "__name__")):
        return shorten(value)
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, Sized) else kind
