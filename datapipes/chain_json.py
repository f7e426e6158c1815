"""Chains as JSON and back: forms and plain values, for services and records of experiments."""

from __future__ import annotations

import inspect
import math
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from itertools import zip_longest
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import IterDataPipe, MapDataPipe

from .. import core, intensity, spatial
from ..core import draws
from ..core.call_site import CREDENTIALS, shorten
from ..core.errors import BadChain, GraphError
from ..core.redact import has_secrets
from ..core.suggest import closest
from ..graph import Pipe, chained_name, fingerprint_of_pipe, is_branch, is_pipe
from ..graph.explain import arguments_of, shown_pipes
from ..graph.node import describe, is_chained, origin_of, pipes_in
from ..intensity import choice
from ..volumes import axis_map
from . import iter as iter_pipes
from . import map as map_pipes
from . import shuffle_plans
from .op_pipe import refuse_unknown_arguments

CHAIN_VERSION = 1
# Levels of values; branches that one pipe makes at once; likeness of a misspelt form. Names of
# streams take time quadratic in the number of pipes: about a second for 200.
_DEEPEST, _MOST_BRANCHES, _MISSPELT, _MOST_PIPES = 40, 1000, 0.6, 200
_FIELDS = {"branch", "form", "options", "parents", "values"}
_NUMBERS, _PIPES = (np.number, np.bool_, np.str_), (IterDataPipe, MapDataPipe)
_SPAN, _TEXT = attrgetter("start", "stop", "step"), lambda value: [str(value)]
# Values that JSON lacks are ``{"$": [class, *parts]}``. Here are the parts, and the inverse.
_PARTS: dict[str, tuple[Callable[[Any], Iterable[Any]], Callable[..., Any]]] = {
    "tuple": (iter, lambda *parts: parts),
    "set": (partial(sorted, key=repr), lambda *parts: set(parts)),
    "frozenset": (partial(sorted, key=repr), lambda *parts: frozenset(parts)),
    "dict": (lambda value: map(list, value.items()), lambda *pairs: dict(pairs)),
    "dtype": (lambda value: [value.str], np.dtype),
    "range": (_SPAN, range),
    "slice": (_SPAN, slice),
    "float": (_TEXT, float),  # not finite
    **dict.fromkeys(("PosixPath", "WindowsPath"), (_TEXT, Path)),
}


def chain_to_json(pipe: Pipe) -> dict[str, Any]:
    """Return a chain as plain data for ``json.dump``: its forms, their arguments and its edges.

    Numbers, texts, containers, paths, enums, ops, policies and functions of modules can be
    written. ``storage_options=`` leaves a mark, for :func:`chain_from_json`.

    Raises
    ------
    GraphError
        An argument has no data form, such as voxels, a lambda, an open object or credentials. Or
        the chain has more than 200 pipes.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import list_cases
    >>> pipe = list_cases("scans/*/", image="ct.nii").open_volume().lazy_patch((96, 96, 1))
    >>> data = chain_to_json(pipe)
    >>> data["pipes"][2]
    {'form': 'lazy_patch', 'parents': [1], 'values': [{'$': ['tuple', 96, 96, 1]}]}
    >>> str(chain_from_json(data)) == str(pipe)
    True
    """
    pairs = list(shown_pipes(pipe, children=True))
    if len(pairs) > _MOST_PIPES:
        msg = f"data describe at most {_MOST_PIPES} pipes, and the chain has {len(pairs)}"
        raise GraphError(msg, do="Join pipes, as with .augment(); or keep it as code: print(pipe).")
    numbers = {id(one): number for number, (one, _) in enumerate(pairs)}
    nodes, reader = [], _Reader(["*"], {})
    for one, parents in pairs:
        try:
            nodes.append(_node_of(one, parents, numbers))
            with warnings.catch_warnings():  # the pipe warned at its construction
                warnings.simplefilter("ignore")
                # Sources stay: some list a storage when they are made.
                reader.add(nodes[-1], None if parents else one)
        except (BadChain, TypeError) as error:
            raise _no_data_form(one, error) from error
    twins = shown_pipes(reader.earlier(len(nodes) - 1), children=True)
    for (one, parents), (twin, edges) in zip_longest(pairs, twins, fillvalue=(pipe, [])):
        same = edges == parents and describe(one) == describe(twin)
        if not same or fingerprint_of_pipe(one) != fingerprint_of_pipe(twin):
            raise _no_data_form(one, "its arguments do not make the same pipe again")
    return {"version": CHAIN_VERSION, "pipes": nodes}


def _no_data_form(pipe: Pipe, why: Any) -> GraphError:
    do = "Use plain values and functions of modules, or keep it as code: print(pipe)."
    return GraphError(f"{describe(pipe)} has no data form: {why}", do=do).at(origin_of(pipe))


def chain_from_json(
    data: Mapping[str, Any], *, functions: Collection[str] = (), storage_options: Any = None
) -> Any:
    """Return the chain of data from :func:`chain_to_json`; refuse code that they name.

    Iterating it reads and writes the files that the data name.

    Parameters
    ----------
    data
        As ``json.load`` returns it.
    functions
        Functions and classes that the data may name: ``"mypkg.transforms:f"``, ``"mypkg.*"``. A
        name counts only in the module that defines it. Other patterns, such as ``"my*"``, import
        no module, and nothing imports a ``__main__``.
    storage_options
        For each pipe that had some. They go to every location that the data name for it: check
        the locations in data of strangers first.

    Raises
    ------
    BadChain
        The data describe no chain, or name code that ``functions`` does not allow.
    """
    if isinstance(functions, str):
        raise TypeError(f"functions= takes a list of import paths, got {functions!r}")
    reader = _Reader(functions, storage_options)
    version, nodes = _plain(data).get("version"), _plain(data).get("pipes")
    is_known = type(version) is int and version == CHAIN_VERSION and len(data) == 2
    _require(is_known, f"'version': {CHAIN_VERSION} and 'pipes'", version)
    _require(type(nodes) is list and nodes != [], "a list of pipes", nodes)
    _require(len(nodes) <= _MOST_PIPES, f"at most {_MOST_PIPES} pipes", len(nodes))
    for node in nodes:
        reader.add(node)
    return reader.earlier(len(nodes) - 1)


def _require(condition: bool, rule: str, value: Any) -> None:
    if not condition:
        text = shorten(value) if type(value) in (int, str) else type(value).__name__
        raise BadChain(f"{rule} expected, got {text}")


def _plain(value: Any) -> Any:
    is_plain = type(value) is dict and all(type(key) is str for key in value)
    _require(is_plain, "a mapping of JSON", value)
    return value


def _public(name: str) -> Any:
    """Return the class of pipes or plain values with a public name; None if there is none."""
    places = spatial, intensity, core, draws, choice, axis_map, iter_pipes, map_pipes, shuffle_plans
    things = [getattr(place, name, None) for place in places if not name.startswith("_")]
    things += [kind for kind in np.sctypeDict.values() if kind.__name__ == name]
    kinds, plain = [one for one in things if isinstance(one, type)], (*_PIPES, *_NUMBERS, Enum)
    return next((k for k in kinds if issubclass(k, plain) or is_dataclass(k)), None)


def _at(path: str) -> Any:
    """Return the function or class of an import path in a loaded module that defines it."""
    module, _, name = path.partition(":")
    thing: Any = sys.modules.get(module)
    for part in name.split("."):
        thing = getattr(thing, part, None)
    home = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return thing if home == (module, name) else None


def _path_of(thing: Any) -> str:
    """Return the public name, or the import path, of a function or class."""
    name, path = str(thing.__qualname__), f"{thing.__module__}:{thing.__qualname__}"
    if _public(name) is thing:
        return name
    is_private = thing.__module__ == "__main__" or (path[:8] == "voxpipe." and name[0] == "_")
    if is_private or _at(path) is not thing:
        raise TypeError(f"{shorten(thing)}, which is no function or class of a module")
    return path


def _node_of(pipe: Any, parents: list[int], numbers: Mapping[int, int]) -> dict[str, Any]:
    own, kind, pairs, form = vars(pipe), type(pipe), arguments_of(pipe), chained_name(pipe)
    if is_branch(pipe):
        return {"branch": own.get("instance_id", own.get("number")), "parents": parents}
    inside = {numbers.get(id(one)) for _, value in pairs for one in pipes_in(value)}
    if not (parents and is_chained(pipe)):
        names = (getattr(kind, "form_name", ""), form)
        form = next((name for name in names if _public(name) is kind), "") or _path_of(kind)
    data = []
    for name, value in pairs:
        try:
            is_mark = value is ... and name in CREDENTIALS
            data.append((name, {"$": [name]} if is_mark else _encode(value, numbers)))
        except TypeError as error:
            raise TypeError(f"{name or 'an argument'} holds {error}") from None
    if own.get("_hides_arguments") or has_secrets([value for _, value in pairs]):
        raise TypeError("an argument holds credentials, which only storage_options= may")
    node: dict[str, Any] = {"form": form}
    node["parents"] = [number for number in parents if number not in inside]
    node["values"] = [value for name, value in data if not name]
    node["options"] = {name: value for name, value in data if name}
    return {key: value for key, value in node.items() if value}


def _encode(value: Any, numbers: Mapping[int, int], levels: int = _DEEPEST) -> Any:
    kind, deeper = type(value), partial(_encode, numbers=numbers, levels=levels - 1)
    name, parts = "dtype" if isinstance(value, np.dtype) else kind.__name__, [value]
    if not levels:
        raise TypeError(f"more than {_DEEPEST} levels")
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return list(map(deeper, value))
    if kind is dict and "$" not in value and all(type(key) is str for key in value):
        return {key: deeper(one) for key, one in value.items()}
    if name in _PARTS and kind.__module__.partition(".")[0] in ("builtins", "numpy", "pathlib"):
        parts = list(_PARTS[name][0](value))
    elif id(value) in numbers:
        return {"$": ["pipe", numbers[id(value)]]}
    elif isinstance(value, (Enum, *_NUMBERS)):
        name, parts = _path_of(kind), [value.name if isinstance(value, Enum) else value.item()]
    elif is_dataclass(value) and not isinstance(value, type):
        own = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
        name, parts = _path_of(kind), [own]
    elif hasattr(value, "__qualname__"):
        name, parts = _path_of(value), []
    else:
        raise TypeError(f"a {name}" if value is not ... else "a value that only a DataPipe keeps")
    return {"$": [name, *map(deeper, parts)]}


@dataclass
class _Reader:
    functions: Collection[str]  # allowed import paths
    credentials: Mapping[str, Any] | None = None
    pipes: list[Any] = field(default_factory=list)

    def add(self, node: Any, source: Any = None) -> Any:
        try:
            self.pipes.append(self._make(node) if source is None else source)
        except Exception as error:  # also of constructors
            raise BadChain(f"pipe {len(self.pipes)}: {error}") from error
        return self.pipes[-1]

    def earlier(self, number: Any, kind: str = "pipe without branches") -> Any:
        is_known = type(number) is int and 0 <= number < len(self.pipes)
        is_known = is_known and is_pipe(self.pipes[number]) is kind.endswith("out branches")
        _require(is_known, f"the number of an earlier {kind}", number)
        return self.pipes[number]

    def _make(self, node: Any) -> Any:
        unknown = min(_plain(node).keys() - _FIELDS, default="")
        _require(not unknown, f"a field out of {', '.join(sorted(_FIELDS))}", unknown)
        parents, values, name = node.get("parents", []), node.get("values", []), node.get("form")
        _require(type(parents) is type(values) is list, "lists of parents and values", values)
        if "branch" in node:
            (number,), branch = parents, node["branch"]
            branches = self.earlier(number, "pipe with branches")
            is_known = type(branch) is int and 0 <= branch < len(branches)
            _require(is_known, f"a number below {len(branches)}", branch)
            return branches[branch]
        parents, thing = list(map(self.earlier, parents)), self._lookup(name)
        is_map = bool(parents) and isinstance(parents[0], MapDataPipe)
        table = (MapDataPipe if is_map else IterDataPipe).functions if parents else {}
        form = table.get(name, thing)
        if name not in table and not (isinstance(thing, type) and issubclass(thing, _PIPES)):
            if ":" in name:
                raise BadChain(f"{shorten(name)}, allowed by functions=, is no class of datapipes")
            names = [one for one in (*table, *dir(iter_pipes)) if not one.startswith("_")]
            near = closest(name, names, _MISSPELT, 3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise BadChain(f"{shorten(name)} is no form{'' if parents else ' of a source'}{hint}")
        kind = getattr(form, "args", (getattr(form, "pipe", form),))[0]
        signature = getattr(kind, "__signature__", None)
        signature = signature or inspect.signature(vars(kind).get("__new__", kind.__init__))
        parameters, options = signature.parameters, _plain(node.get("options", {}))
        options = {k: self.decode(v, mark=k if k in parameters else "") for k, v in options.items()}
        values = self.decode(values)
        if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
            refuse_unknown_arguments(name, options, [*parameters])
        if kind.__module__.startswith("torch."):  # its unfinished shuffle fails when it is deleted
            signature.bind(None, *parents, *values, **options)
        for count in parameters.keys() & {"num_instances", "sequence_length"}:
            value = [*values, options.get(count)][0]  # all branches are made at once
            few = type(value) is int and value <= _MOST_BRANCHES
            _require(few, f"at most {_MOST_BRANCHES} branches", value)
        return form(*parents, *values, **options)

    def _lookup(self, name: Any) -> Any:
        """Return the class of a public name, or the object of an allowed import path."""
        _require(type(name) is str, "a name", name)
        if ":" not in name:
            return _public(name)
        module, path = name.partition(":")[0], name.replace(":", ".")
        every = (pattern.replace(":", ".") for pattern in self.functions)
        patterns = [pattern for pattern in every if fnmatchcase(path, pattern)]
        # A wildcard may not choose the module that is imported, except in a package.
        is_named = any(
            pattern.rpartition(".")[0] == module or not {*"*?["} & {*pattern.removesuffix(".*")}
            for pattern in patterns
        )
        _require("__main__" not in module.split("."), "code of a module, not a program,", name)
        if not (is_named or (patterns and module in sys.modules)):
            raise BadChain(f"it names code; allow it by functions=[{shorten(name)}]")
        if module not in sys.modules:
            import_module(module)
        _require(_at(name) is not None, "a function or class where it is defined", name)
        return _at(name)

    def decode(self, value: Any, levels: int = _DEEPEST, mark: str = "") -> Any:
        kind, deeper = type(value), partial(self.decode, levels=levels - 1)
        _require(levels > 0, f"{_DEEPEST} levels at most", value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is list:
            return list(map(deeper, value))
        if "$" not in _plain(value):
            return {key: deeper(one) for key, one in value.items()}
        _require(type(value["$"]) is list and len(value) == 1, "one list under '$'", value["$"])
        name, *parts = map(deeper, value["$"])
        if type(name) is str and name in _PARTS:
            return _PARTS[name][1](*parts)
        if name == "pipe":
            return self.earlier(*parts)
        if name in CREDENTIALS:
            _require(name == mark, f"{name} only in an argument {name}= of the form", value)
            _require(self.credentials is not None, "chain_from_json(storage_options=)", None)
            return self.credentials
        thing: Any = self._lookup(name)
        if not parts and callable(thing):
            return thing
        _require(isinstance(thing, type), "a known value", name)
        if issubclass(thing, Enum):
            return thing[parts[0]]
        _require(is_dataclass(thing) or issubclass(thing, _NUMBERS), "a known value", name)
        return thing(*parts) if issubclass(thing, _NUMBERS) else thing(**parts[0])
