"""Run the tutorials as notebooks, whose outputs and pictures the site shows.

``python tools/run_tutorials.py FOLDER`` writes ``FOLDER/01_first_patches.ipynb`` and so on, two at
a time. A notebook is kept while its program stays the same. One whose program needs a package that
is not installed has no outputs.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from count_tree import ROOT
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

TUTORIALS = ROOT / "tutorials"
_AT_ONCE = 2
_SECONDS = 300  # of one cell, at most
_KEY = "voxpipe_program"
_NEEDS = (
    "To run this page, save `scans.py` of the [list of tutorials](index.md) in the same folder."
)


def programs() -> list[Path]:
    """Return the programs of the tutorials, in their order."""
    return sorted(TUTORIALS.glob("[0-9]*.py"))


def run(program: Path, folder: Path) -> str:
    """Write the notebook of a program with its outputs, and return a line for the terminal."""
    parts = [program.read_bytes(), (TUTORIALS / "scans.py").read_bytes(), _NEEDS.encode()]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()
    file = folder / f"{program.stem}.ipynb"
    if file.exists() and nbformat.read(file, as_version=4).metadata.get(_KEY) == key:
        return f"{program.stem}: kept"
    notebook = jupytext.read(program)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    line = f"{program.stem}: run"
    with tempfile.TemporaryDirectory() as here:
        client = NotebookClient(notebook, timeout=_SECONDS, resources={"metadata": {"path": here}})
        try:
            client.execute(env=_environment(here))
        except CellExecutionError as error:
            if error.ename != "ModuleNotFoundError":
                raise
            _clear(notebook)
            line = f"{program.stem}: not run. {error.evalue}"
    _leave_out_streams(notebook)
    notebook.cells.insert(1, nbformat.v4.new_markdown_cell(_NEEDS))
    notebook.metadata[_KEY] = key
    nbformat.write(notebook, file)
    return line


def _environment(here: str) -> dict[str, str]:
    """Return the environment of a kernel: its cache of volumes is its own."""
    paths = [str(TUTORIALS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "VOXPIPE_CACHE": os.path.join(here, "cache"),
        "OMP_NUM_THREADS": "1",
    }


def _cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _clear(notebook: Any) -> None:
    for cell in _cells(notebook):
        cell.outputs, cell.execution_count = [], None


def _leave_out_streams(notebook: Any) -> None:
    """Remove what libraries write to stderr, such as lines of progress and logs."""
    for cell in _cells(notebook):
        cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]


def main() -> None:
    """Run all tutorials; the first error ends the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.ipynb"):
        if not (TUTORIALS / f"{file.stem}.py").exists():
            file.unlink()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for line in threads.map(lambda program: run(program, folder), programs()):
            print(line, file=sys.stderr)


if __name__ == "__main__":
    main()
