"""Write which public names torchdata 0.9.0 has under which import path, as JSON.

    python -m pip install --no-deps --target FOLDER torchdata==0.9.0
    python tools/torchdata_inventory.py FOLDER > tests/data/torchdata-0.9.0.json

Only names are taken, and nothing is imported: the modules are parsed. A module's public names are
those of its ``__all__``, else the classes and functions that it defines without an underscore.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

VERSION = "0.9.0"
# What scripts import from. Not the folders below datapipes.iter and .map, whose classes are
# offered one level up.
MODULES = [
    "dataloader2",
    "dataloader2.adapter",
    "dataloader2.dataloader2",
    "dataloader2.error",
    "dataloader2.graph",
    "dataloader2.graph.settings",
    "dataloader2.graph.utils",
    "dataloader2.linter",
    "dataloader2.random",
    "dataloader2.reading_service",
    "dataloader2.shuffle_spec",
    "dataloader2.utils",
    "dataloader2.utils.worker",
    "datapipes",
    "datapipes.iter",
    "datapipes.map",
    "datapipes.utils",
]


def inventory(folder: Path) -> dict[str, Any]:
    """Return version and names of the torchdata that lies in ``folder``."""
    found = {name: names_of(_file_of(folder / "torchdata", name)) for name in MODULES}
    return {"version": VERSION, "names": found}


def names_of(file: Path) -> list[str]:
    """Return the public names of one module, sorted."""
    tree = ast.parse(file.read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value))
    kinds = (ast.ClassDef, ast.FunctionDef)
    defined = [node.name for node in tree.body if isinstance(node, kinds)]
    modules = [
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.level and node.module is None
        for alias in node.names
    ]
    return sorted(name for name in defined + modules if not name.startswith("_"))


def _file_of(package: Path, module: str) -> Path:
    place = package.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


if __name__ == "__main__":
    json.dump(inventory(Path(sys.argv[1])), sys.stdout, indent=1)
    print()
