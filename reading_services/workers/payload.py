"""What a worker is sent at its start: what it runs, and what was registered here."""

from __future__ import annotations

import ast
import functools
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from importlib import util
from typing import Any

from ...batching import ApplyValue, Job
from ...core.call_site import shorten
from ...core.errors import NotPicklable
from ...graph import Pipe, describe, is_pipe, origin_of, walk
from ...intensity import ValueStep
from ...volumes import custom_backends, custom_decoders
from ..replica import Hooks, Replica
from ..work import Planned, Work

# Which names of a script only exist in the process that was started with it.
#
# What stands under ``if __name__ == "__main__":`` does not run where the script is imported, as
# workers do. A function that is defined there is pickled by its name, and found by nobody.

_NAME, _MAIN = "__name__", "__main__"


def is_guarded(thing: Any, script: Mapping[str, str]) -> bool:
    """Whether a function or class of the script is defined under its guard alone."""
    path = script.get("init_main_from_path")
    if path is None:
        found = util.find_spec(script["init_main_from_name"])
        path = None if found is None else found.origin
    root = str(thing.__qualname__).partition(".")[0]
    return path is not None and root in _guarded_names(path)


@functools.lru_cache(maxsize=4)
def _guarded_names(path: str) -> frozenset[str]:
    """Return what is defined under the guard and nowhere else."""
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    defined = list(_definitions(tree.body, is_guarded=False))
    always = {name for name, guarded in defined if not guarded}
    return frozenset(name for name, _ in defined) - always


def _definitions(body: list[ast.stmt], *, is_guarded: bool) -> Iterator[tuple[str, bool]]:
    """Yield the names that statements define at the top level, and whether a guard is above."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, is_guarded
            continue
        if isinstance(node, ast.Assign):
            for target in ast.walk(node):
                if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                    yield target.id, is_guarded
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], is_guarded
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(node, field, [])
            guarded = isinstance(node, ast.If) and field == "body" and _is_guard(node.test)
            yield from _definitions(inner, is_guarded=is_guarded or guarded)
        for handler in getattr(node, "handlers", []):
            yield from _definitions(handler.body, is_guarded=is_guarded)


def _is_guard(test: ast.expr) -> bool:
    """Whether a condition asks for the name of the script, at least among others."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(map(_is_guard, test.values))
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        return False
    sides = (test.left, test.comparators[0])
    names = {side.id for side in sides if isinstance(side, ast.Name)}
    words = {side.value for side in sides if isinstance(side, ast.Constant)}
    return isinstance(test.ops[0], ast.Eq) and names == {_NAME} and words == {_MAIN}


# Which objects of the user's a worker could not import, because its script has no file.
#
# Functions and classes travel by name. A worker finds those of the script by importing it, which
# it cannot where there is nothing to import: in an interactive session, in a cell of a notebook,
# in ``python -c`` and ``python -``. Nor does it find what the script defines only when it is run.

MOVE = "Move it to the top level of a module that you import, or use num_workers=0."
# All that helps where there is no file to import, the lasting way first.
_TYPED = (
    "Move it to the top level of a module that you import (in a notebook begin its cell with "
    "%%writefile functions.py, and write `from functions import {name}` in the next); or give "
    'MultiProcessingReadingService(..., multiprocessing_context="fork"), on Linux and before CUDA '
    "is in use; or use num_workers=0."
)
_GUARDED = (
    'is defined under if __name__ == "__main__":, which runs in no worker',
    "Move it above that line, or use num_workers=0.",
)
# What a pickle holds that refers to the script; a quick look saves the exact one.
SIGN = b"__main__"


def cannot_follow(thing: Any, data: bytes, script: Mapping[str, str]) -> Any:
    """Return what in ``thing`` is defined in a script that workers cannot import; else None."""
    if SIGN not in data:
        return None
    found = _Finder()
    found.dump(thing)
    return next((own for own in found.own if not _is_importable(own, script)), None)


def _is_importable(thing: Any, script: Mapping[str, str]) -> bool:
    if not script:
        return False
    # ``python -i script.py``: what is typed after the script has run is in no file.
    code = getattr(thing, "__code__", None)
    in_a_file = code is None or not code.co_filename.startswith("<")
    return in_a_file and not is_guarded(thing, script)


def why_not(thing: Any, script: Mapping[str, str]) -> tuple[str, str]:
    """Return why workers cannot import what ``cannot_follow`` found, and what to do about it."""
    if script and is_guarded(thing, script):
        return _GUARDED
    name = getattr(thing, "__qualname__", "it").partition(".")[0]
    return "is in no file (it was typed, or piped in)", _TYPED.format(name=name)


class _Finder(pickle.Pickler):
    """Collects what a pickle refers to by its name in the script."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        self.own: list[Any] = []

    def reducer_override(self, thing: Any) -> Any:
        """Note functions and classes of the script; pickle everything as ever."""
        name = getattr(thing, "__qualname__", None)
        # An instance has the module of its class, and no name of its own.
        if isinstance(name, str) and getattr(thing, "__module__", None) == "__main__":
            self.own.append(thing)
        return NotImplemented


def payload_of(
    work: Work, worker: int, workers: int, script: Mapping[str, str] | None = None
) -> bytes:
    """Return what worker number ``worker`` of ``workers`` runs, pickled."""
    if isinstance(work, Planned):
        thing: Any = work.maker()
        pipes = work.cut.realizing
        planned = {pipe: _value_ops(pipe) for pipe in walk(work.cut.planner)}
    else:
        graph = work.of_worker()
        thing = Replica(graph, work.share(worker, workers), work.hooks)
        pipes = tuple(walk(graph))
        planned = {}
    # Value ops that are planned travel with the samples, of which there are none yet.
    for pipe, ops in planned.items():
        _refuse_ops(pipe, ops, script)
    whole = (custom_backends(), custom_decoders(), thing)
    try:
        data = pickle.dumps(whole)
    except Exception as error:  # whatever a user's object raises from its __reduce__
        hooks = Hooks() if isinstance(work, Planned) else work.hooks
        raise _not_picklable(pipes, hooks, error) from error
    if script is not None:
        own = cannot_follow(whole, data, script)
        if own is not None:
            raise _nowhere_to_import(pipes, own, script)
    return data


def _value_ops(pipe: Pipe) -> list[Any]:
    ops = (getattr(pipe, "step", None), getattr(pipe, "change", None))
    return [op for op in ops if isinstance(op, (ValueStep, ApplyValue))]


def _refuse_ops(pipe: Pipe, ops: Sequence[Any], script: Mapping[str, str] | None) -> None:
    """Raise ``NotPicklable`` where a value op of a pipe cannot travel, or cannot be imported."""
    cause = _refusal(ops) if ops else None
    if cause is not None:
        msg = f"{describe(pipe)} cannot travel to a worker: {cause}"
        raise NotPicklable(msg, do=MOVE).at(origin_of(pipe)) from cause
    if ops and script is not None:
        own = cannot_follow(ops, SIGN, script)
        if own is not None:
            raise _nowhere_to_import((pipe,), own, script)


def pickled(job: Any) -> bytes:
    """Return one job, pickled."""
    try:
        return pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever a user's object raises from its __reduce__
        cases = (job.cases() or job.place()) if isinstance(job, Job) else job
        msg = f"the samples of {cases} cannot travel to a worker: {error}"
        do = "Put only plain data into samples before batch_patches(), or use num_workers=0."
        raise NotPicklable(msg, do=do) from error


def _not_picklable(pipes: tuple[Pipe, ...], hooks: Hooks, error: Exception) -> NotPicklable:
    for which in (Hooks(init=hooks.init), Hooks(reset=hooks.reset)):
        cause = _refusal(which)
        if cause is not None:
            return NotPicklable(f"{which.names()} cannot travel to a worker: {cause}", do=MOVE)
    for name, *functions in custom_backends():
        cause = _refusal(functions)
        if cause is not None:
            return NotPicklable(f"backend {name!r} cannot travel to a worker: {cause}", do=MOVE)
    for name, factory in custom_decoders():
        cause = _refusal(factory)
        if cause is not None:
            return NotPicklable(f"decoder {name!r} cannot travel to a worker: {cause}", do=MOVE)
    for pipe in pipes:
        cause = _refusal({k: v for k, v in vars(pipe).items() if not is_pipe(v)})
        if cause is not None:
            found = NotPicklable(f"{describe(pipe)} cannot travel to a worker: {cause}", do=MOVE)
            found.at(origin_of(pipe))
            return found
    return NotPicklable(f"the graph cannot travel to a worker: {error}", do=MOVE)


def _nowhere_to_import(
    pipes: tuple[Pipe, ...], own: Any, script: Mapping[str, str]
) -> NotPicklable:
    name = getattr(own, "__qualname__", shorten(own))
    for pipe in pipes:
        settings = {k: v for k, v in vars(pipe).items() if not is_pipe(v)}
        if cannot_follow(settings, SIGN, script) is own or type(pipe) is own:
            what = f"{describe(pipe)} cannot travel to a worker"
            break
    else:
        pipe, what = None, f"{name} cannot travel to a worker"
    why, do = why_not(own, script)
    refused = NotPicklable(f"{what}: workers cannot import {name}, which {why}", do=do)
    refused.at(origin_of(pipe) if pipe is not None else None)
    return refused


def _refusal(thing: Any) -> Exception | None:
    """Return why ``thing`` cannot be pickled."""
    try:
        pickle.dumps(thing)
    except Exception as cause:  # as above
        return cause
    return None
