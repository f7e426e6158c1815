"""Imports point one way: a layer may import itself and the layers below it."""

import ast
import functools
import itertools
import re
import sys
from importlib.util import resolve_name

import pytest
from checkout import FOR_OTHERS, modules, packages, trees

# From the bottom to the top. Layers on one line are equal and do not import each other.
LAYERS = [
    {"core"},
    {"graph", "storage", "intensity"},
    {"volumes"},
    {"spatial"},
    {"batching"},
    {"stitching"},
    {"datapipes"},
    {"adapters"},
    {"reading_services"},
    {"diagnosing"},
    {"dataloader2"},
    {"prediction"},
    {"extensions"},
    {"package"},
]
# The same inside some of them; modules beside these folders are what all of them speak of.
FOLDERS = {
    "voxpipe.volumes": [
        {"chunks"},
        {"formats"},
        {"catalog"},
        {"conversion"},
    ],
    "voxpipe.spatial": [
        {"plans"},
        {"resampling", "ops"},
        {"placing", "lazy"},
    ],
    "voxpipe.extensions": [
        {"formats", "torchdata"},
        {"microscopy"},
        {"recipes"},
        {"bridges"},
        {"cluster"},
        {"nnunet_trainers"},
        {"pictures"},
        {"commands"},
    ],
    "voxpipe.reading_services": [
        {"transport"},
        {"workers"},
    ],
}
# Beside the front door, of the standard library only: every layer may import it.
BESIDE = "voxpipe.first_use"
# May import anything; nothing imports it.
ASIDE = "testing"


def layer_of(module):
    """Return the layer of a module of voxpipe; what is not in a sub-package is the top."""
    first = module.partition(".")[2].partition(".")[0]
    if f"voxpipe.{first}" == BESIDE:
        return "core"
    return first if f"voxpipe.{first}" in packages() else "package"


def allowed_from(layer):
    """Return the layers that ``layer`` may import."""
    everything = set().union(*LAYERS)
    if layer == ASIDE:
        return everything | {ASIDE}
    height = next(i for i, names in enumerate(LAYERS) if layer in names)
    return set().union({layer}, *LAYERS[:height])


def imports(module, tree, is_package):
    """Yield ``(line, absolute name)`` for every import in ``tree``, nested ones included."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            # ``from .. import core`` names a layer after the word import.
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


@functools.cache
def imports_by_module():
    """Return the imports of every module of the package, as `imports` yields them."""
    return {
        name: list(imports(name, tree, modules()[name].name == "__init__.py"))
        for name, tree in trees().items()
    }


def wrong_imports(module, pairs):
    """Return a sentence for each import that points up or sideways."""
    layer = layer_of(module)
    return [
        f"{module}:{line} ({layer}) imports {name}"
        for line, name in pairs
        if name.partition(".")[0] == "voxpipe" and layer_of(name) not in allowed_from(layer)
    ]


def test_every_folder_has_a_layer():
    """A new root folder has to say where it stands."""
    assert {layer_of(name) for name in packages()} == set().union(*LAYERS, {ASIDE})


def test_imports_point_down():
    """No module imports a layer above its own, or another of the same height."""
    wrong = [wrong_imports(*item) for item in imports_by_module().items()]

    assert list(itertools.chain(*wrong)) == []


def folder_of(module):
    """Return package and folder of a module that lies in one with a height, or None."""
    package = ".".join(module.split(".")[:2])
    folder = module.removeprefix(f"{package}.").partition(".")[0]
    known = set().union(*FOLDERS.get(package, [set()]))
    return (package, folder) if folder in known else None


def height_of(package, folder):
    """Return how high a folder stands among those of its package."""
    return next(i for i, folders in enumerate(FOLDERS[package]) if folder in folders)


@pytest.mark.parametrize("package", FOLDERS)
def test_every_folder_inside_has_a_height(package):
    """A new folder has to say where it stands."""
    found = {name.split(".")[2] for name in packages() if name.startswith(f"{package}.")}

    assert found == set().union(*FOLDERS[package])


def test_imports_between_folders_point_down():
    """Stores know nothing of chunks, chunks nothing of formats, plans nothing of ops."""
    pairs = [
        (folder_of(module), folder_of(name))
        for module, found in imports_by_module().items()
        for _, name in found
        if folder_of(module) and folder_of(name)
    ]
    wrong = {
        (package, own, folder)
        for (package, own), (where, folder) in pairs
        if where == package and folder != own
        if height_of(package, folder) >= height_of(package, own)
    }

    assert wrong == set()


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("voxpipe.core.region", "from ..graph import walk"),
        ("voxpipe.core.region", "from .. import volumes"),
        ("voxpipe.storage.ranges", "from ..intensity.gamma import gamma"),
        ("voxpipe.graph.walk", "def f():\n    import voxpipe.datapipes"),
        ("voxpipe.datapipes.iter.patch", "from ...testing import LatencyStore"),
        ("voxpipe.spatial.plans.plan", "from ..._version import __version__"),
    ],
)
def test_the_check_sees_every_way_to_import(module, source):
    """Upward, sideways, nested and absolute imports are all found."""
    pairs = imports(module, ast.parse(source), is_package=False)

    assert len(wrong_imports(module, pairs)) == 1


def test_saving_is_for_users():
    """No module imports it; the table of names in ``voxpipe.volumes`` makes it public."""
    save = "voxpipe.volumes.conversion.save"
    found = {
        module
        for module, pairs in imports_by_module().items()
        for _, name in pairs
        if layer_of(module) != ASIDE and name.startswith(f"{save}.")
    }

    assert found == set()


def test_core_needs_only_numpy():
    """Core values can be used, tested and pickled where nothing else is installed."""
    tops = {
        (module, name.partition(".")[0])
        for module, pairs in imports_by_module().items()
        for _, name in pairs
        if layer_of(module) == "core"
    }

    allowed = sys.stdlib_module_names | {"numpy", "voxpipe"}
    assert {pair for pair in tops if pair[1] not in allowed} == set()


def test_imports_inside_the_package_are_relative():
    """The package's own name is for those who use it."""
    absolute = [
        f"{module}:{node.lineno}"
        for module, tree in trees().items()
        if module not in FOR_OTHERS
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and not node.level and _is_ours(node.module or ""))
        or (isinstance(node, ast.Import) and any(_is_ours(a.name) for a in node.names))
    ]

    assert absolute == []


def _is_ours(name):
    return name.partition(".")[0] == "voxpipe"


def test_the_engine_names_no_extension():
    """Extensions register by entry points; only the front door, and themselves, name them."""
    names = [
        module
        for module, file in modules().items()
        if layer_of(module) not in {"extensions", "package", ASIDE}
        if re.search(r"\bextensions\.[a-z]", file.read_text("utf-8"))
    ]

    assert names == []


def test_the_package_has_one_context_variable():
    """Values of a thread or task have keys of `core.context`, so that a block sets them at once."""
    counts = {
        name: len(re.findall(r"\bContextVar[\[(]", file.read_text("utf-8")))
        for name, file in modules().items()
    }

    assert {name: count for name, count in counts.items() if count} == {"voxpipe.core.context": 1}


def blocks_with_yield(tree, blocks):
    """Return names of functions with a ``yield`` inside a ``with`` block of one of ``blocks``."""
    return {
        function.name
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for block in ast.walk(function)
        if isinstance(block, ast.With)
        if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(block))
        if {
            node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            for item in block.items
            for node in ast.walk(item.context_expr)
            if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
        }
        & blocks
    }


def test_no_generator_yields_inside_a_block_of_context_values():
    """Its consumer would get the values, and the end of the block would restore older ones."""
    blocks = {"holding", "reading", "free_seconds", "using_threads"} | {
        node.name
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.returns is not None
        if ast.unparse(node.returns).startswith("holding[")
    }
    found = set().union(*(blocks_with_yield(tree, blocks) for tree in trees().values()))

    assert {"looking_ahead", "batches_in", "stop_limit", "count_apart"} <= blocks
    # A context manager, whose blocks this test checks as well.
    assert found == {"using_threads"}
