"""Modules and functions stay short, names say what a thing is, no text names a machine."""

import ast
import re
from pathlib import Path

from checkout import ROOT, modules, package_dir, trees

MODULE_LINES = 600
# The aim is 40; a docstring does not count, because examples should not be saved on.
FUNCTION_LINES = 60
# They say where a thing is kept, not what it is.
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "manager", "handler", "base", "misc"}
# Import paths of torchdata, which scripts that come from there use.
GIVEN_NAMES = {
    "voxpipe.datapipes.utils",
}
# Participles that do not end in "ed", and words that do and are none.
PARTICIPLES = {
    *("begun", "bound", "bought", "broken", "brought", "built", "caught", "chosen", "done"),
    *("drawn", "driven", "fallen", "fed", "forgotten", "found", "frozen", "given", "gone"),
    *("grown", "held", "hidden", "kept", "known", "laid", "left", "lent", "lost"),
    *("made", "meant", "met", "rebuilt", "rewritten", "said", "seen", "sent", "shown"),
    *("sought", "spent", "stuck", "taken", "thought", "thrown", "told", "torn", "unbound"),
    *("undone", "won", "written"),
}
NO_PARTICIPLES = {"bed", "breed", "exceed", "feed", "need", "proceed", "red", "seed", "speed"}
# A word of the design, torch's name for training on many machines, the field's for memory, and an
# attribute by which torch's own pipes and ours say that a shuffle is on.
ALLOWED_PARTICIPLES = {"Refused", "distributed", "strided", "_strided", "_enabled"}
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
    ".github",
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


def test_modules_are_short():
    """A module that grows beyond the limit has a second idea in it."""
    lines = {name: len(file.read_text("utf-8").splitlines()) for name, file in modules().items()}

    assert {name: count for name, count in lines.items() if count > MODULE_LINES} == {}


def test_functions_are_short():
    """No function is longer than a screen."""
    lengths = [
        (name, node.name, length(node))
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert [each for each in lengths if each[2] > FUNCTION_LINES] == []


def test_modules_are_named_by_what_they_hold():
    """Nobody can guess what is in a module called utils."""
    words = {name: set(name.rpartition(".")[2].split("_")) for name in modules()}
    named = {name: parts for name, parts in words.items() if name not in GIVEN_NAMES}

    assert [] == [name for name, parts in named.items() if parts & EMPTY_NAMES]


def is_participle(name):
    """Whether a name is one word, or a class ends with one, that says what was done to it."""
    word = (re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name) or [""])[-1].lower()
    ends = word in PARTICIPLES or (word.endswith("ed") and word not in NO_PARTICIPLES)
    return ends and (name[:1].isupper() or name.lower() == word)


def is_exception(node):
    """Whether a class is an error or a warning by its name or its bases; it says what happened."""
    names = " ".join(map(ast.unparse, node.bases))
    return bool(re.search(r"Error|Exception|Warning|CorruptVolume|OtherVersion", names))


def names_of(node):
    """Return the names that a node of a syntax tree gives, without those that it only uses."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node.name]
    if isinstance(node, ast.ClassDef):
        return [] if is_exception(node) else [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        return [node.id if isinstance(node, ast.Name) else node.attr]
    return [node.name] if isinstance(node, ast.ExceptHandler) and node.name else []


def test_names_are_no_participles():
    """A name is a noun or a verb: ``keys``, not ``found``; ``check``, not ``checked``."""
    wrong = set()
    for module, tree in trees().items():
        names = {each for node in ast.walk(tree) for each in names_of(node)}
        names |= {module.rpartition(".")[2]}
        wrong |= {(module, n) for n in names - ALLOWED_PARTICIPLES if is_participle(n.strip("_"))}

    assert wrong == set()


def test_one_place_handles_forks():
    """Who has something to do at a fork says so to that place."""
    texts_of = {name: path.read_text("utf-8") for name, path in modules().items()}

    assert [n for n, t in texts_of.items() if "os.register_at_fork(" in t] == ["voxpipe.core.locks"]


def test_no_text_names_a_machine_path():
    """Paths of one machine mean nothing on another."""
    own = [str(place) + "/" for place in (ROOT, Path.home()) if place != Path(place.anchor)]
    wrong = []
    for file in texts():
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            if MACHINE_PATH.search(line) or any(place in line for place in own):
                wrong.append(f"{file.relative_to(ROOT)}:{number}: {line.strip()}")

    assert wrong == []
