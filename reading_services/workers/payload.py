"""The payload of a worker at its start: its graph or instructions, and registered backends."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import io
import pickle
import sys
import types
from collections.abc import Mapping, Sequence
from importlib import import_module, util
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ...batching.collate import ApplyValue
from ...batching.job import Job
from ...core.call_site import shorten
from ...core.draws import OpStep
from ...core.errors import NotPicklable
from ...datapipes.epoch import held_objects, is_library, modules_in, named_globals
from ...graph import Pipe, describe, is_pipe, origin_of, walk
from ...spatial import MaskedPatch
from ...storage.content import PLAIN
from ...volumes import custom_backends, custom_decoders
from ..replica import Hooks, Replica
from ..work import PlannedWork, Work
from . import by_value
from .script import Adopts, adopt_values, script_of_this_process, settings_of_process

# Names of a script that exist only in the process that was started with it.
#
# Workers import the script, which skips code under ``if __name__ == "__main__":``. A function
# defined there is pickled by its name, and no worker can find it.

_NAME, _MAIN = "__name__", "__main__"


def is_guarded(thing: Any, script: Mapping[str, str]) -> bool:
    """Whether a function or class of the script is defined under its guard alone."""
    path = script.get("init_main_from_path")
    if path is None:
        spec = util.find_spec(script["init_main_from_name"])
        path = None if spec is None else spec.origin
    root = str(thing.__qualname__).partition(".")[0]
    return path is not None and root in _guarded_names(path)


@functools.lru_cache(maxsize=4)
def _guarded_names(path: str) -> frozenset[str]:
    """Return the names that a script defines at its top level only under the guard."""
    try:
        with open(path, "rb") as file:
            nodes: list[tuple[ast.AST, bool]] = [(ast.parse(file.read()), False)]
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for node, inside in nodes:  # the list grows during the loop
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[inside].add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names[inside].add(node.id)
        elif isinstance(node, ast.alias):
            names[inside].add((node.asname or node.name).partition(".")[0])
        else:
            inner = set(node.body) if isinstance(node, ast.If) and _is_guard(node.test) else set()
            nodes += [(child, inside or child in inner) for child in ast.iter_child_nodes(node)]
    return frozenset(names[True] - names[False])


def _is_guard(test: ast.expr) -> bool:
    """Whether a condition compares ``__name__`` to ``"__main__"``, also as part of an ``and``."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(map(_is_guard, test.values))
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return False
    sides = (test.left, test.comparators[0])
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    words = {side.value for side in sides if isinstance(side, ast.Constant)}
    return isinstance(test.ops[0], ast.Eq) and names == {_NAME} and words == {_MAIN}


# Objects of the user that a worker cannot import, because the script has no file.
#
# Functions and classes travel by name, and workers import the script to find them. There is no
# file to import for an interactive session, a notebook cell, ``python -c`` and ``python -``.
# Workers do not find names that the script defines only when it is run, either.

MOVE = (
    "Move it to the top level of a module that you import, or use "
    "ThreadReadingService(num_threads), to which nothing travels, or ⟦num_workers=0⟧."
)
_INSTALL = 'pip install "voxpipe[notebook]" (cloudpickle), with which it travels by value.'
_OPEN_INSIDE = (
    "Open or construct it in the function, when it is called, or use "
    "ThreadReadingService(num_threads), to which nothing travels, or ⟦num_workers=0⟧."
)
# Fixes where there is no file to import, the lasting one first.
_TYPED_HINT = (
    "Move it to the top level of a module that you import (in a notebook begin its cell with "
    "%%writefile functions.py, and write `from functions import {name}` in the next); or give "
    'MultiProcessingReadingService(..., multiprocessing_context="fork"), on Linux and before CUDA '
    "is in use; or use ThreadReadingService(num_threads), to which nothing travels, or "
    f"num_workers=0. Or {_INSTALL}"
)
_GUARD_HINT = (
    'is defined under if __name__ == "__main__":, which runs in no worker',
    "Move it above that line, or use ⟦num_workers=0⟧.",
)
_Part: TypeAlias = tuple[str, Any, Pipe | None]
"""A part of the payload: its name for messages, the object, and its pipe, if any."""


def why_not(thing: Any, script: Mapping[str, str]) -> tuple[str, str] | None:
    """Return why workers cannot import an object of the script, and the fix; None if they can."""
    if script and is_guarded(thing, script):
        return _GUARD_HINT
    # ``python -i script.py``: code typed after the script has run is in no file.
    code = getattr(thing, "__code__", None)
    if script and (code is None or not code.co_filename.startswith("<")):
        return None
    name = getattr(thing, "__qualname__", "it").partition(".")[0]
    return "is in no file (it was typed, or piped in)", _TYPED_HINT.format(name=name)


class Payload(NamedTuple):
    """A pickle for workers, and its modules without the script and the standard library."""

    data: bytes
    modules: frozenset[str]


class _Pickler(pickle.Pickler):
    """Pickles an object, and collects its references by name to modules and to the script."""

    def __init__(self, thing: Any) -> None:
        file = io.BytesIO()
        super().__init__(file)
        self.own: list[Any] = []
        self.modules: set[str] = set()
        self.dump(thing)
        self.data = file.getvalue()

    def reducer_override(self, thing: Any) -> Any:
        """Note the module of an object, and pickle the object as usual."""
        module = getattr(thing, "__module__", None)
        if isinstance(module, str) and module != _MAIN:
            self.modules.add(module)
        # An instance has the module of its class, and no name of its own.
        elif module == _MAIN and isinstance(getattr(thing, "__qualname__", None), str):
            self.own.append(thing)
        return NotImplemented


def payload_of(
    work: Work,
    workers: int,
    script: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Payload:
    """Return the pickle that each of ``workers`` runs; a worker adds its own number.

    It has the variables of ``environment``, by default those of this process.

    Raises
    ------
    NotPicklable
        An object cannot be pickled, or not be imported from ``script``; names the pipe.
    """
    if isinstance(work, PlannedWork):
        thing: Any = work.maker()
        pipes, hooks = work.cut.realizing, Hooks()
        # Planned ops travel with the samples, which do not exist yet.
        for pipe in walk(work.cut.planner):
            steps = [getattr(pipe, "step", None), getattr(pipe, "change", None)]
            several = vars(pipe).get("steps")
            steps += several if isinstance(several, tuple) else [vars(pipe).get("_template")]
            ops = [op for op in steps if isinstance(op, (OpStep, ApplyValue, MaskedPatch))]
            if ops:
                _pack(ops, [(describe(pipe), ops, pipe)], script)
    else:
        graph = work.of_worker()
        thing = Replica(graph, work.share(0, workers), work.hooks)
        pipes, hooks = tuple(walk(graph)), work.hooks
    parts: list[_Part] = [
        *((hook.names(), hook, None) for hook in (Hooks(hooks.init), Hooks(reset=hooks.reset))),
        *((f"backend {name!r}", entry, None) for name, *entry in custom_backends()),
        *((f"decoder {name!r}", entry, None) for name, entry in custom_decoders()),
    ]
    for pipe in pipes:
        settings = {k: v for k, v in vars(pipe).items() if not is_pipe(v)}
        parts.append((describe(pipe), settings, pipe))
    values, modules = _values_of(pipes, hooks)
    backends, decoders = custom_backends(), custom_decoders()
    last = Adopts(adopt_values, values)
    pack = _pack((settings_of_process(environment), backends, decoders, thing, last), parts, script)
    return Payload(pack.data, pack.modules | modules)


_MOST_BYTES, _MOST_PARTS, _MOST_DEPTH = 64 * 1024, 1_000, 4
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)


def _values_of(
    pipes: Sequence[Pipe], hooks: Hooks
) -> tuple[dict[tuple[str, ...], bytes], frozenset[str]]:
    """Return the plain values that functions read, by path, and the modules of their code."""
    values: dict[tuple[str, ...], bytes] = {}
    modules: set[str] = set()
    waiting: list[tuple[tuple[str, ...], Any]] = []
    sends_values = _is_session() and by_value.is_available()
    for thing in held_objects(pipes, others=(hooks.init, hooks.reset)):
        if getattr(thing, "__module__", None) == _MAIN and sends_values:
            continue  # it travels with its globals and attributes
        if isinstance(thing, types.FunctionType):
            if _is_of_user(thing.__module__):
                modules.update(filter(_imported_for_all, modules_in(thing)))
            waiting += [((module, name), part) for module, name, part in named_globals(thing)]
        if isinstance(thing, (type, types.FunctionType)) and _is_of_user(thing.__module__):
            modules.add(thing.__module__)
        if isinstance(thing, (type, types.FunctionType)) and "<" not in thing.__qualname__:
            home = thing.__module__, *thing.__qualname__.split(".")
            waiting += [((*home, name), part) for name, part in vars(thing).items()]
    for path, value in waiting:  # grows meanwhile
        if path in values or path[-1].startswith("__") or not _is_of_user(path[0]):
            continue
        if (data := _plain_pickle(value)) is not None:
            values[path] = data
        elif len(path) < _MOST_DEPTH and not isinstance(value, (type, types.ModuleType)):
            own = {} if is_library(type(value)) else getattr(value, "__dict__", {})
            waiting += [((*path, name), part) for name, part in own.items()]
    return values, frozenset(modules & sys.modules.keys() - {_MAIN})


def _imported_for_all(name: str) -> bool:
    """Import a module of the user, so that all workers have one version; False for others."""
    with contextlib.suppress(Exception, SystemExit):  # the function raises it, if it is called
        return _is_of_user(name) and bool(import_module(name))
    return False


def _plain_pickle(value: Any) -> bytes | None:
    """Return the pickle of a value without objects of the user, unless it is long."""
    parts = [value]
    for part in parts:  # grows meanwhile
        if type(part) is dict:
            parts += [*part.keys(), *part.values()]
        elif type(part) in (list, tuple, set, frozenset):
            parts += part
        elif type(part) in _NAMESPACES:
            parts.append(vars(part))
        elif isinstance(part, (np.ndarray, torch.Tensor)):
            if part.nbytes > _MOST_BYTES or getattr(part.dtype, "hasobject", False):
                return None
        elif not isinstance(part, (*PLAIN, bytearray, PurePath, np.generic, np.dtype)):
            return None
        if len(parts) > _MOST_PARTS:
            return None
    data = pickle.dumps(value)
    return data if len(data) <= _MOST_BYTES else None


def _is_of_user(name: Any) -> bool:
    """Whether a module is no part of Python, of voxpipe or of an installed package."""
    if not isinstance(name, str):  # some compiled classes have a descriptor as __module__
        return False
    top = name.partition(".")[0]
    home: Any = sys.modules.get(name) or sys.modules.get(top) or (top and util.find_spec(top))
    file = getattr(home, "__file__", None) or getattr(home, "origin", None) or ""
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)
    is_python = top in sys.stdlib_module_names and top != _MAIN
    return not (is_installed or is_python or top == __name__.partition(".")[0])


def _is_session() -> bool:
    """Whether this process runs no script: a notebook, an interactive session, ``python -c``."""
    file = getattr(sys.modules[_MAIN], "__file__", None) or "<"
    return str(file).startswith("<") and not script_of_this_process()


def _pickle(thing: Any, script: Mapping[str, str] | None) -> Any:
    """Return the pickler of ``thing``; by value where its functions are in no file."""
    try:
        whole = _Pickler(thing)
    except Exception:  # the __reduce__ of a user's object may raise any error
        if not (_is_session() and by_value.is_available()):
            raise
    else:
        lacks = script is not None and any(why_not(one, script) for one in whole.own)
        if not (lacks and _is_session() and by_value.is_available()):
            return whole
    return by_value.dump(thing)


def _pack(thing: Any, parts: Sequence[_Part], script: Mapping[str, str] | None) -> Payload:
    """Return a pickle of ``thing``; raise ``NotPicklable`` with the part that cannot travel."""
    try:
        whole = _pickle(thing, script)
    except Exception as error:  # as in _pickle
        do = MOVE
        if _is_session():
            do = _OPEN_INSIDE if by_value.is_available() else f"{MOVE} Or {_INSTALL}"
        for text, part, pipe in parts:
            try:
                _pickle(part, script)
            except Exception as cause:  # as above
                refusal = NotPicklable(f"{text} cannot travel to a worker: {cause}", do=do)
                raise refusal.at(None if pipe is None else origin_of(pipe)) from error
        raise NotPicklable(f"the graph cannot travel to a worker: {error}", do=do) from error
    names, builtin = whole.modules & sys.modules.keys(), sys.stdlib_module_names
    modules = frozenset(name for name in names if name.partition(".")[0] not in builtin)
    if not isinstance(whole, _Pickler):
        by_value.give_notice(whole.own)
    elif script is not None:
        _refuse_absent(whole, parts, script)
    return Payload(whole.data, modules)


def _refuse_absent(whole: _Pickler, parts: Sequence[_Part], script: Mapping[str, str]) -> None:
    """Raise ``NotPicklable`` for the first object that workers cannot import from the script."""
    reasons = ((item, why_not(item, script)) for item in whole.own)
    own, reason = next((pair for pair in reasons if pair[1] is not None), (None, None))
    if reason is None:
        return
    part_name = name = getattr(own, "__qualname__", shorten(own))
    at = None
    for text, part, pipe in parts:
        if pipe is not None and any(item is own for item in (type(pipe), *_Pickler(part).own)):
            part_name, at = text, origin_of(pipe)
            break
    why, do = reason
    msg = f"{part_name} cannot travel to a worker: workers cannot import {name}, which {why}"
    refusal = NotPicklable(msg, do=do)
    raise refusal.at(at)


def pickle_job(job: Any) -> bytes:
    """Return one job, pickled."""
    try:
        if _is_session():
            data: bytes = _pickle(job, {}).data
            return data
        return pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # the __reduce__ of a user's object may raise any error
        cases = (job.cases() or job.place()) if isinstance(job, Job) else job
        msg = f"the samples of {cases} cannot travel to a worker: {error}"
        do = "Put only plain data into samples before batch_patches(), or use "
        do += "ThreadReadingService(num_threads), to which nothing travels."
        raise NotPicklable(msg, do=do) from error
