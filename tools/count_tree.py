"""Count the modules, lines, folders and circles of the package.

``python tools/count_tree.py`` prints the table; ``--list`` adds the modules behind it.
``tests/test_tree_size.py`` keeps the counts from growing unnoticed.
"""

from __future__ import annotations

import argparse
import ast
import configparser
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Below this a module with one importer is a part of that importer.
SMALL_LINES = 60


class Module(NamedTuple):
    """A file of the package: its lines, and the modules of the package that it imports."""

    lines: int
    imports: frozenset[str]
    is_package: bool


class Counts(NamedTuple):
    """What the tree is made of.

    Attributes
    ----------
    modules
        Python files.
    lines
        Of all of them, docstrings and empty lines included.
    folders
        That hold Python files.
    small
        Modules of less than `SMALL_LINES` lines that one other module imports.
    circles
        Groups of modules that import each other, in functions and for type checkers too.
    """

    modules: int
    lines: int
    folders: int
    small: tuple[str, ...]
    circles: tuple[tuple[str, ...], ...]


def package_folders() -> dict[str, Path]:
    """Return the folder of each package that `setup.cfg` maps, `voxpipe` included."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = config["options"]["package_dir"].split("\n")
    pairs = (line.split("=") for line in lines if line.strip())
    return {package.strip(): ROOT / folder.strip() for package, folder in pairs}


def package_files() -> dict[str, Path]:
    """Return the file of each module by its name."""
    files = {}
    for package, folder in package_folders().items():
        for file in sorted(folder.rglob("*.py")):
            parts = file.relative_to(folder).with_suffix("").parts
            files[".".join((package, *parts)).removesuffix(".__init__")] = file
    return files


def imports_in(name: str, source: str, is_package: bool, known: Iterable[str]) -> Iterator[str]:
    """Yield the modules of the package that a source imports, wherever the line stands."""
    known = set(known)
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                child = f"{origin}.{alias.name}"
                if child in known:
                    yield child
                elif origin in known:
                    yield origin


def read_modules() -> dict[str, Module]:
    """Return every module of the package by its name."""
    files = package_files()
    modules = {}
    for name, file in files.items():
        source, is_package = file.read_text("utf-8"), file.name == "__init__.py"
        found = frozenset(imports_in(name, source, is_package, files)) - {name}
        modules[name] = Module(len(source.splitlines()), found, is_package)
    return modules


def circles_of(imports: Mapping[str, Iterable[str]]) -> list[tuple[str, ...]]:
    """Return the groups of nodes that reach each other (Tarjan 1972), without single nodes.

    >>> circles_of({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})
    [('a', 'b', 'c')]
    """
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    circles = []
    for root in imports:
        if root in order:
            continue
        # A call stack of our own: chains of imports are longer than Python's recursion.
        calls: list[tuple[str, Iterator[str]]] = []
        entered: str | None = root
        while True:
            if entered is not None:
                order[entered] = lowest[entered] = len(order)
                stack.append(entered)
                calls.append((entered, iter(imports[entered])))
                entered = None
            node, children = calls[-1]
            for child in children:
                if child not in order:
                    entered = child
                    break
                if child in stack:
                    lowest[node] = min(lowest[node], order[child])
            if entered is not None:
                continue
            calls.pop()
            if lowest[node] == order[node]:
                cut = stack.index(node)
                if len(stack) - cut > 1:
                    circles.append(tuple(sorted(stack[cut:])))
                del stack[cut:]
            if not calls:
                break
            lowest[calls[-1][0]] = min(lowest[calls[-1][0]], lowest[node])
    return sorted(circles)


def count(modules: Mapping[str, Module]) -> Counts:
    """Return the counts of these modules."""
    importers = defaultdict(set)
    for name, module in modules.items():
        for imported in module.imports:
            importers[imported].add(name)
    small = tuple(
        name
        for name, module in modules.items()
        if not module.is_package and module.lines < SMALL_LINES and len(importers[name]) == 1
    )
    # A package's own file re-exports what lies in it; that is no dependence of one on the other.
    files = {
        name: [other for other in module.imports if not modules[other].is_package]
        for name, module in modules.items()
        if not module.is_package
    }
    return Counts(
        modules=len(modules),
        lines=sum(module.lines for module in modules.values()),
        folders=len({file.parent for file in package_files().values()}),
        small=small,
        circles=tuple(circles_of(files)),
    )


def parts(modules: Mapping[str, Module]) -> dict[str, list[Module]]:
    """Return the modules of the engine, and those of the extensions."""
    is_extension = {name: name.startswith("voxpipe.extensions") for name in modules}
    return {
        part: [module for name, module in modules.items() if is_extension[name] is value]
        for part, value in (("engine", False), ("extensions", True))
    }


def main() -> None:
    """Print the counts of this checkout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name small modules and circles")
    modules = read_modules()
    counts = count(modules)
    for part, own in parts(modules).items():
        print(f"{part + ': modules':31}  {len(own):6}")
        print(f"{part + ': lines':31}  {sum(module.lines for module in own):6}")
    print(f"folders                          {counts.folders:6}")
    print(f"small modules with one importer  {len(counts.small):6}")
    print(f"circles                          {len(counts.circles):6}")
    if parser.parse_args().list:
        print("\nsmall:", *counts.small, sep="\n  ")
        print("\ncircles:", *map(" ".join, counts.circles), sep="\n  ")


if __name__ == "__main__":
    main()
