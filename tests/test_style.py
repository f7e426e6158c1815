"""Modules and functions stay short, names say what a thing is, no text names a machine."""

import ast
import re
from pathlib import Path

import pytest
from checkout import ROOT, modules, package_dir

MODULE_LINES = 600
# The aim is 40; a docstring does not count, because examples should not be saved on.
FUNCTION_LINES = 60
# They say where a thing is kept, not what it is.
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "handler", "base", "misc"}
# Import paths of torchdata, which scripts that come from there use.
GIVEN_NAMES = {
    "voxpipe.datapipes.utils",
    "voxpipe.dataloader2.utils",
}
# Folders of text that is published with the project; build folders and environments are not.
TEXT_FOLDERS = [
    "tests",
    "tools",
    "tutorials",
    "examples",
    "benchmarks",
    "docs",
    "changes",
    "native",
    ".ci",
]
# Where people and build machines keep their checkouts.
MACHINE_PATH = re.compile(r"(?<![\w.\-/])/(home|root|Users|work|builds|workspace)/\w")


def length(function):
    """Return the lines of a function without its docstring."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function, clean=False) is not None:
        docstring = function.body[0]
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def texts():
    """Return every file of text in the repository."""
    folders = [ROOT / name for name in (*package_dir().values(), *TEXT_FOLDERS)]
    files = [file for folder in folders for file in folder.rglob("*")]
    files += [file for file in ROOT.iterdir() if not file.name.startswith(".git")]
    binary = {".pyc", ".so", ".png", ".gz", ".nii", ".npz", ".zip"}
    return [
        file
        for file in files
        if file.is_file() and file.suffix not in binary and "__pycache__" not in file.parts
    ]


@pytest.mark.parametrize("name", modules())
def test_modules_are_short(name):
    """A module that grows beyond the limit has a second idea in it."""
    assert len(modules()[name].read_text("utf-8").splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("name", modules())
def test_functions_are_short(name):
    """No function is longer than a screen."""
    tree = ast.parse(modules()[name].read_text("utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]

    assert [] == [f"{f.name}: {length(f)}" for f in functions if length(f) > FUNCTION_LINES]


def test_modules_are_named_by_what_they_hold():
    """Nobody can guess what is in a module called utils."""
    words = {name: set(name.rpartition(".")[2].split("_")) for name in modules()}
    named = {name: parts for name, parts in words.items() if name not in GIVEN_NAMES}

    assert [] == [name for name, parts in named.items() if parts & EMPTY_NAMES]


def test_no_text_names_a_machine_path():
    """Paths of one machine mean nothing on another."""
    own = [str(place) + "/" for place in (ROOT, Path.home()) if place != Path(place.anchor)]
    wrong = []
    for file in texts():
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            if MACHINE_PATH.search(line) or any(place in line for place in own):
                wrong.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()}")

    assert wrong == []
