"""Each package says what is public, sorted, and every public name is explained."""

import ast
import functools
import importlib
import inspect
import itertools
import re
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

import pytest
from checkout import ROOT, modules, packages, trees
from torch.utils.data import IterDataPipe

import voxpipe

GLOSSARY = ROOT / "docs" / "arguments.md"
RIDDLES = {
    *("apart", "one", "each", "least", "most", "over", "otherwise", "other", "others", "what"),
    *("url", "location", "folder", "directory", "file", "workers", "chance", "prob", "probability"),
}


def sort_key(name):
    """Constants, then classes, then the rest: the order that the linter sorts in."""
    rank = 0 if name.isupper() else 1 if name[:1].isupper() else 2
    return rank, name


def foreign_names(package):
    """Return the names that ``__init__.py`` imports from elsewhere, for its own use."""
    tree = ast.parse(Path(package.__file__).read_text("utf-8"))
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level):
            found.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
    return found


def public_names(package):
    """Return what a user may take for public: no underscore, no module, ours."""
    names = {name for name in dir(package) if not name.startswith("_")} - foreign_names(package)
    return {name for name in names if not isinstance(getattr(package, name), ModuleType)}


@functools.cache
def explained_constants():
    """Return the names that a module-level assignment gives and a docstring follows."""
    found = set()
    for tree in trees().values():
        for node, after in itertools.pairwise(tree.body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", 0)]
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                found.update(t.id for t in targets if isinstance(t, ast.Name))
    return found


def has_docstring(value, name):
    """Whether a class or function explains itself; dataclasses' generated text does not count."""
    # A constant may be a class of another package, whose docstring is not ours to write.
    is_own = not name.isupper()
    if is_own and (inspect.isclass(value) or inspect.isroutine(value)):
        text = value.__doc__ or ""
        return bool(text.strip()) and not text.startswith(f"{value.__name__}(")
    return name in explained_constants()


@pytest.fixture(scope="module")
def loaded():
    """Return every package by its name; there is more than one, or no rule is checked."""
    by_name = {name: importlib.import_module(name) for name in packages()}
    assert len(by_name) > 20
    return by_name


def test_all_is_what_is_public(loaded):
    """``__all__`` holds every public name and no other; modules may be offered by name."""
    offenders = {}
    for name, package in loaded.items():
        public = [n for n in getattr(package, "__all__", []) if not n.startswith("_")]
        declared = [n for n in public if not isinstance(getattr(package, n), ModuleType)]
        if sorted(public_names(package)) != sorted(declared):
            offenders[name] = sorted(public_names(package) ^ set(declared)) or declared

    assert offenders == {}


def names_for_checkers(package):
    """Return what type checkers take for public where a file lists nothing, stars followed."""
    file = Path(package.__file__)
    # What voxpipe imports at its first use stands in the same form, for checkers only.
    found = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            found.update(alias.name for alias in node.names if alias.name == alias.asname)
            if node.names[0].name == "*":
                stub = file.with_name(f"{node.module}.pyi").read_text("utf-8")
                found.update(ast.literal_eval(stub.rpartition("__all__: list[str] = ")[2].strip()))
        elif isinstance(node, ast.AnnAssign):
            found.add(ast.unparse(node.target))
    return found


def makes_all(name):
    """Whether the ``__all__`` of a package is made of what its file imports."""
    return "__all__" not in modules()[name].read_text("utf-8")


def test_all_is_what_type_checkers_see(loaded):
    """Where ``__all__`` is made of the imports, each that is meant says its name twice."""
    offenders = []
    for name in filter(makes_all, loaded):
        package = loaded[name]
        seen = {n for n in names_for_checkers(package) if not n.startswith("_")}
        declared = {n for n in getattr(package, "__all__", []) if not n.startswith("_")}
        wrong = [n for n in seen ^ declared if not isinstance(getattr(package, n), ModuleType)]
        offenders += [f"{name}.{n}" for n in wrong]

    assert any(map(makes_all, loaded))
    assert offenders == []


def test_all_is_sorted(loaded):
    """A sorted ``__all__`` has no double entries and few merge conflicts."""
    declared = {name: list(getattr(package, "__all__", [])) for name, package in loaded.items()}

    assert [n for n, names in declared.items() if sorted(set(names), key=sort_key) != names] == []


def test_public_names_are_explained(loaded):
    """Every class, function and constant that is public has a docstring."""
    assert [] == [
        f"{name}.{n}"
        for name, package in loaded.items()
        for n in public_names(package)
        if not has_docstring(getattr(package, n), n)
    ]


def test_modules_are_explained():
    """A module's docstring says why it exists."""
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []


def arguments():
    """Return the forms, classes and functions of voxpipe's own that have each argument."""
    for point in entry_points(group="voxpipe.forms"):
        if ".extensions.bridges" in point.value:
            point.load()  # a form is registered at its first use
    owners = {name: getattr(voxpipe, name) for name in voxpipe.__all__}
    owners |= {name: getattr(voxpipe.recipes, name) for name in dir(voxpipe.recipes)}
    owners |= {f".{name}": form for name, form in IterDataPipe.functions.items() if name[0] != "_"}
    found = {}
    for name, owner in owners.items():
        owner = getattr(owner, "pipe", owner)  # loads the class of a form
        made = owner.args[0] if isinstance(owner, functools.partial) else owner
        module = getattr(made, "__module__", None) or ""
        is_own = module.startswith("voxpipe.") and ".torchdata." not in module
        is_error = inspect.isclass(made) and issubclass(made, BaseException)
        for argument in (
            inspect.signature(made).parameters.values() if is_own and not is_error else ()
        ):
            if argument.kind is not argument.VAR_KEYWORD:
                found.setdefault(argument.name, set()).add(name)
    return found


def test_shared_arguments_are_in_the_glossary():
    """Each word that two or more have, once."""
    rows = [line.split("|")[1] for line in GLOSSARY.read_text().splitlines() if line[:3] == "| `"]
    words = [word for row in rows for word in re.findall(r"`(\w+)`", row)]
    parents = {"self", "parent", "datapipe", "args"}
    shared = {name for name, owners in arguments().items() if len(owners) > 1} - parents

    assert len(words) == len({*words})
    assert {*words} ^ shared == set()


def test_no_argument_is_a_riddle():
    """No word that a reader has to look up, no second word for an idea of the glossary."""
    assert not {name: owners for name, owners in arguments().items() if name in RIDDLES}
