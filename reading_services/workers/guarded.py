"""Which names of a script only exist in the process that was started with it.

What stands under ``if __name__ == "__main__":`` does not run where the script is imported, as
workers do. A function that is defined there is pickled by its name, and found by nobody.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from importlib import util
from typing import Any

_NAME, _MAIN = "__name__", "__main__"


def is_guarded(thing: Any, script: Mapping[str, str]) -> bool:
    """Whether a function or class of the script is defined under its guard alone.

    Parameters
    ----------
    thing
        What is found by its name.
    script
        What a worker is told of the script: ``script_of_this_process()``.
    """
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
