"""Write the stubs that tell editors and type checkers what is found out when voxpipe is imported.

torch finds a chained form in a table when it is called: ``datapipes/chained_forms.pyi`` is a class
with a method per form, and has the pipes that are made of ops. Forms of torch return its pipes with
our forms, as they have them at run time. The files of ops list what they
offer: ``exported_ops.pyi`` of ``spatial`` and ``intensity`` has their names. A package that imports
at first use has a table of names: ``exported_names.pyi`` has them as imports. Modules that exist
only in the table ``voxpipe.names`` of ``setup.cfg``, such as ``voxpipe.dataloader2.graph``, have a
stub in their place. For the functions of ``datapipes/utils.py`` the names are apart, in
``names_of_utils.pyi``.
``--check`` only says whether the files are what would be written.
"""

from __future__ import annotations

import ast
import builtins
import collections.abc
import inspect
import os
import sys
import types
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

ROOT = Path(__file__).resolve().parent.parent
HEADER = '''"""The chained forms of every pipe, written by tools/write_chained_forms.py."""

'''
# Aliases have no name of their own to be found by.
ALIASES = {
    "Pipe": "voxpipe.graph",
    **dict.fromkeys(("ArrayLike", "DTypeLike", "NDArray"), "numpy.typing"),
    **dict.fromkeys(("IterDataPipe", "MapDataPipe"), "torch.utils.data"),
}
INDENT = "    "
# Aliases of ops, which take lists wherever they take tuples, and None for an axis that stays.
WIDER = {
    "Amount": "float | Sequence[float | Sequence[float]]",
    "ParameterRange": "float | Sequence[float]",
    "Size": "int | Sequence[int | None]",
}
# Types of arguments whose op converts them, and so has the type of the result; by name.
ACCEPTED = {
    "affine": {"matrix": "ArrayLike"},
    "elastic": {"spacing": "float | Sequence[float]"},
    "pin_memory": {"device": "str | int | torch.device | None"},
    "pad": {"amount": "int | Sequence[int | tuple[int, int]] | None"},
    "random_crop": {
        "size": "int | Sequence[int | tuple[int, int]] | None",
        "scale": "float | Sequence[float | tuple[float, float]] | None",
    },
    "resample_to": {"grid": "Grid | str"},
    "spacing": {"spacing": "float | Sequence[float | tuple[float, float] | None]"},
    "": {
        "antialias": "Antialias | Mapping[str, Antialias] | None",
        "cells": "int | Sequence[int]",
        "count": "int | tuple[int, int]",
        "divisible": "int | Sequence[int]",
        "destination": "str | os.PathLike[str] | None",
        "device": "str | int | torch.device",
        "dtype": "DTypeLike | torch.dtype | Mapping[str, DTypeLike | torch.dtype] | None",
        "factors": "Sequence[Sequence[float]] | None",
        "fill": "float | Mapping[str, float] | None",
        "input_col": "int | str | Sequence[int | str] | None",
        "keys": "str | Collection[str] | None",
        "lazy": "bool | None",
        "classes": "int | Collection[int] | None",
        "limit": "float | tuple[float, float]",
        "map_datapipe": "MapDataPipe[Any]",
        "mapping": "Mapping[int, int]",
        "margin": "int | Sequence[int]",
        "mode": "Mode | Mapping[str, Mode] | None",
        "name": "str",
        "on_conflict": 'Literal["error", "flush"] | None',
        "op": "ValueOp",
        "ops": "Sequence[Any] | Mapping[Any, float]",
        "output_col": "int | str | None",
        "padding": "Padding | Mapping[str, Padding] | None",
        "ref_datapipe": "IterDataPipe[Any]",
        "scale": "float | Sequence[float] | None",
        "select_fn": "Callable[[Any], Any] | None",
        "size": "int | Sequence[int | None] | None",
        "slices": "Sequence[slice] | None",
        "spec": "ShuffleSpec | None",
        "transform": "Callable[[Any], Any]",
    },
}


def _everywhere() -> dict[str, Any]:
    """Return the names that ACCEPTED uses."""
    import torch

    import voxpipe
    from voxpipe.intensity.value_op import ValueOp
    from voxpipe.spatial.plans import policy

    own = {"os": os, "ValueOp": ValueOp, "ShuffleSpec": voxpipe.datapipes.shuffle_plans.ShuffleSpec}
    pipes = {"IterDataPipe": torch.utils.data.IterDataPipe, "torch": torch}
    pipes["MapDataPipe"] = torch.utils.data.MapDataPipe
    return {**vars(collections.abc), "Any": Any, **vars(policy), **own, **pipes}


_EVERYWHERE = _everywhere()


class Imports:
    """What the stub imports, by module."""

    def __init__(self) -> None:
        self.names: defaultdict[str, set[str]] = defaultdict(set)
        self.add("typing", "Any")
        self.add("typing", "TypeAlias")
        self.add("collections.abc", "Iterator")
        self.add("torch.utils.data", "IterDataPipe")
        self.aliases: dict[str, str] = {}

    def add(self, module: str, name: str) -> str:
        """Import a name and return it."""
        self.names[module].add(name)
        return name

    def text(self) -> str:
        """Return the imports: the standard library, then others, then our own; then aliases."""
        lines = []
        for module, names in sorted(self.names.items(), key=lambda kv: _rank(kv[0])):
            if "" in names:
                lines.append(f"import {module}")
            if own := sorted(names - {""}):
                lines.append(f"from {_relative(module)} import {', '.join(own)}")
        lines += ["", *(f"{name}: TypeAlias = {t}" for name, t in sorted(self.aliases.items()))]
        return "\n".join(lines)


def _rank(module: str) -> tuple[int, str]:
    top = module.partition(".")[0]
    if top == "voxpipe":
        return 2, module
    return (0, module) if top in sys.stdlib_module_names else (1, module)


def _relative(module: str) -> str:
    """Return a module of voxpipe as it is imported from ``voxpipe.datapipes``."""
    if module.startswith("voxpipe.datapipes."):
        return module.removeprefix("voxpipe.datapipes")
    return "." + module.removeprefix("voxpipe") if module.startswith("voxpipe.") else module


def exported_ops(package: str) -> str:
    """Return the text of the stub of the ops that ``spatial`` or ``intensity`` exports."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for op in import_module(f"voxpipe.{package}").OPS:
        homes[op.__module__.removeprefix(f"voxpipe.{package}")].append(op.__name__)
    return exports(f"The ops of voxpipe.{package}", homes)


def exported_names(package: str) -> str:
    """Return the text of the stub of the names that a package imports at their first use."""
    homes = import_module(package)._HOMES
    return exports(f"The names of {package}", {f".{home}": homes[home].split() for home in homes})


def exports(what: str, homes: Mapping[str, Iterable[str]]) -> str:
    """Return the text of a stub that imports names by home and lists them."""
    names = sorted(name for home in homes.values() for name in home)
    # jedi does not read __all__: to it, only "name as name" makes a name of a stub public.
    imports = {home: [f"{name} as {name}" for name in sorted(homes[home])] for home in homes}
    lines = [f"from {home} import {', '.join(imports[home])}" for home in sorted(homes)]
    header = f'"""{what}, written by tools/write_chained_forms.py."""'
    return "\n".join([header, "", *lines, "", f"__all__: list[str] = {names}", ""])


def pipes_of_ops(imports: Imports) -> str:
    """Return the classes that no file writes out, and the list of them."""
    names, classes = [], []
    for kind in sorted(forms().values(), key=lambda kind: kind.__name__):
        source = inspect.getsource(sys.modules[kind.__module__])
        if "op_class" in vars(kind) and f"class {kind.__name__}(" not in source:
            names.append(kind.__name__)
            classes.append(f"class {kind.__name__}({kind.__mro__[1].__name__}): ...\n")
    of_torch = pipes_of_torch(imports)
    names += [*of_torch, *extension_pipes()]
    return "".join([*classes, *of_torch.values()]) + f"\n__all__ = {names}\n"


def extension_pipes() -> dict[str, Any]:
    """Return the entry points of :mod:`voxpipe.datapipes.iter`."""
    points: dict[str, Any] = import_module("voxpipe.datapipes.forms").extension_pipes()
    return points


def forms() -> dict[str, type]:
    """Return the class of each chained form of voxpipe, by name."""
    from torch.utils.data import IterDataPipe

    from voxpipe.datapipes import iter as iterable
    from voxpipe.datapipes import map as by_key

    # The general ones are loaded at their first use.
    for pipes in (iterable, by_key):
        assert all(hasattr(pipes, name) for name in pipes.__all__)
    made = {name: getattr(f, "args", (object,))[0] for name, f in IterDataPipe.functions.items()}
    ours = {name: kind for name, kind in made.items() if kind.__module__.startswith("voxpipe.")}
    return dict(sorted(ours.items()))


def annotation_text(annotation: Any, module: str, imports: Imports) -> str:
    """Return an annotation as the stub can write it; Any if a name in it cannot be imported."""
    if annotation is inspect.Parameter.empty:
        return "Any"
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "Any")
    names = _Names(module)
    tree = names.visit(ast.parse(text, mode="eval"))
    if names.is_unknown:
        return "Any"
    for home, name in names.homes:
        imports.add(home, name)
    imports.aliases |= names.aliases
    return ast.unparse(tree)


class _Names(ast.NodeTransformer):
    """The names of an annotation of a module: where they come from, and the types of aliases."""

    def __init__(self, module: str) -> None:
        self._known = {**_EVERYWHERE, **vars(sys.modules[module])}
        self.homes: list[tuple[str, str]] = []
        self.aliases: dict[str, str] = {}
        self.is_unknown = False

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Import the module of ``np.ndarray``."""
        package = self._known.get(getattr(node.value, "id", ""))
        if not isinstance(package, types.ModuleType) or not hasattr(package, node.attr):
            self.is_unknown = True
        else:
            self.homes.append((package.__name__, ""))
            node.value = ast.Name(package.__name__)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Import a class, and write out an alias."""
        thing = self._known.get(node.id)
        home = ALIASES.get(node.id) or getattr(thing, "__module__", None)
        if hasattr(builtins, node.id):
            return node
        if node.id in ALIASES or (home and getattr(thing, "__name__", "") == node.id):
            self.homes.append((str(home), node.id))
        elif thing is None or thing is Any:
            self.is_unknown = True
        else:
            self.aliases[node.id] = self._text_of(WIDER.get(node.id, thing))
        return node

    def _text_of(self, value: Any) -> str:
        """Return the text of a type that an alias stands for."""
        if isinstance(value, str):
            self.visit(ast.parse(value, mode="eval"))
            return value
        if value is type(None):
            return "None"
        parts = get_args(value)
        origin = get_origin(value)
        if origin is Literal:
            self.homes.append(("typing", "Literal"))
            return f"Literal[{', '.join(map(repr, parts))}]"
        if origin in (Union, types.UnionType):
            return " | ".join(map(self._text_of, parts))
        kind = origin or value
        if kind.__module__ != "builtins":
            self.homes.append((kind.__module__, kind.__name__))
        inner = ", ".join("..." if one is Ellipsis else self._text_of(one) for one in parts)
        return f"{kind.__name__}[{inner}]" if parts else str(kind.__name__)


def default_text(value: Any) -> str:
    """Return a default as code; ``...`` if it is no plain value."""
    is_plain = value is None or type(value) in (bool, int, float, str, tuple)
    text = repr(value) if is_plain else "..."
    try:
        is_same = is_plain and ast.literal_eval(text) == value
    except (ValueError, SyntaxError):
        is_same = False
    return text if is_same else "..."


def docstring(text: str | None, indent: str) -> str:
    """Return the lines of a docstring in a stub."""
    clean = inspect.cleandoc(text or "").replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    lines = f'"""{clean}'.splitlines()
    lines = [*lines, '"""'] if len(lines) > 1 else [f'{lines[0]}"""']
    return "".join(f"{indent}{line}".rstrip() + "\n" for line in lines)


def arguments(form: str, signature: inspect.Signature, module: str, imports: Imports) -> str:
    """Return the arguments of a form, without the parent."""
    kinds = inspect.Parameter
    texts = ["self"]
    starred = False
    for parameter in list(signature.parameters.values()):
        if parameter.kind is kinds.VAR_POSITIONAL:
            starred = True
        if parameter.kind is kinds.KEYWORD_ONLY and not starred:
            texts.append("*")
            starred = True
        mark = {kinds.VAR_POSITIONAL: "*", kinds.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = (
            "" if parameter.default is kinds.empty else f" = {default_text(parameter.default)}"
        )
        kind = annotation_text(parameter.annotation, module, imports)
        own = ACCEPTED.get(form, {}).get(parameter.name)
        if own or (kind == "Any" and not mark):
            wanted = own or ACCEPTED[""].get(parameter.name, "Any")
            kind = annotation_text(wanted, module, imports)
        texts.append(f"{mark}{parameter.name}: {kind}{default}")
    return ", ".join(texts)


def method(name: str, kind: type, imports: Imports) -> str:
    """Return one method of the stub."""
    made_by_form = vars(kind).get("__signature__")
    if made_by_form is not None:
        signature, module = made_by_form, vars(kind)["op_class"].__module__
        returned = kind.__mro__[1]
    else:
        maker = import_module("voxpipe.datapipes.forms").maker_of(kind)
        signature, module = inspect.signature(maker), maker.__module__
        # ``__init__(self, parent, ...)``, and ``__new__(cls, parent, ...)``.
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        returned = kind
    parameters = list(signature.parameters.values())
    if parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        parameters = parameters[1:]
    text = arguments(name, signature.replace(parameters=parameters), module, imports)
    if made_by_form is None and maker.__name__ == "__new__":
        result = annotation_text(signature.return_annotation, module, imports)
    else:
        result = imports.add(returned.__module__, returned.__name__)
    # A pipe that a function makes of others has all forms.
    result = "ChainedForms" if result == "Any" else result
    return f"{INDENT}def {name}({text}) -> {result}:\n{docstring(kind.__doc__, INDENT * 2)}"


# torch's own chained forms. Its stub has their arguments, and only torch's forms for their results.

_OF_TORCH = "torch.utils.data.datapipes.iter"
_GENERIC = {"Callable": "Callable[..., Any]", "DataChunk": "DataChunk[Any]", "_T_co": "Any"}


class _TypesOfTorch(ast.NodeTransformer):
    """Completes types of torch's stub: parameters of generic types, and the pipe of a form."""

    def __init__(self, result: str) -> None:
        self._result = result

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Keep the parameters of a type, and complete these."""
        node.slice = self.visit(node.slice)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace a name."""
        name = self._result if node.id == "IterDataPipe" else _GENERIC.get(node.id, node.id)
        return ast.Name(name)


def class_of_torch(kind: type) -> str:
    """Return the public name of a class of torch."""
    module = import_module(_OF_TORCH)
    return next(name for name in module.__all__ if getattr(module, name) is kind)


def methods_of_torch(imports: Imports) -> list[str]:
    """Return the methods for torch's own forms."""
    from torch.utils.data import IterDataPipe

    source = inspect.getsourcefile(sys.modules[IterDataPipe.__module__])
    tree = ast.parse(Path(str(source)).with_suffix(".pyi").read_text("utf-8"))
    own = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "IterDataPipe")
    texts = []
    for node in own.body:
        function: Any = IterDataPipe.functions.get(getattr(node, "name", ""))
        kind = getattr(function, "args", (object,))[0]
        if not (isinstance(node, ast.FunctionDef) and kind.__module__.startswith(_OF_TORCH)):
            continue
        for one in ast.walk(node.args):
            if isinstance(one, ast.arg) and one.arg != "self":
                given = one.annotation or ast.Name("Any")
                one.annotation = _TypesOfTorch("IterDataPipe[Any]").visit(given)
        # The branches of a fork are pipes of a private class.
        returned = class_of_torch(kind) if isinstance(node.returns, ast.Name) else "ChainedForms"
        result = _TypesOfTorch(returned).visit(node.returns)
        head = f"{INDENT}def {node.name}({ast.unparse(node.args)}) -> {ast.unparse(result)}:"
        # A list of torch's pipes is no list of ours.
        head += "\n" if isinstance(node.returns, ast.Name) else "  # type: ignore[override]\n"
        texts.append(head + docstring(ast.get_docstring(node), INDENT * 2))
    imports.add("torch.utils.data", "DataChunk")
    imports.add("torch.utils.data", "default_collate")
    return texts


def pipes_of_torch(imports: Imports) -> dict[str, str]:
    """Return by name the classes of torch's pipes, with all chained forms."""
    module = import_module(_OF_TORCH)
    texts = {}
    for name in module.__all__:
        kind = getattr(module, name)
        generic = "[Any]" if getattr(kind, "__parameters__", ()) else ""
        head = f"class {name}(ChainedForms, {_OF_TORCH}.{name}{generic}):"
        # torch writes no type of their results, and strict checkers refuse a call of them.
        setters = [one for one in vars(kind) if one.startswith("set_")]
        body = "".join(_setter(getattr(kind, one), imports) for one in setters)
        texts[name] = f"{head}\n{body}" if body else f"{head} ...\n"
    return texts


def _setter(function: Any, imports: Imports) -> str:
    """Return a method that changes a pipe of torch and returns it."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    own = signature.replace(parameters=parameters)
    text = arguments(function.__name__, own, function.__module__, imports)
    return f"{INDENT}def {function.__name__}({text}) -> {imports.add('typing', 'Self')}: ...\n"


def stub() -> str:
    """Return the text of the stub."""
    imports = Imports()
    for name, point in extension_pipes().items():
        imports.add(point.module, name)
    imports.add(_OF_TORCH, "")
    methods = [method(name, kind, imports) for name, kind in forms().items()]
    methods += methods_of_torch(imports)
    own = (
        "class ChainedForms(IterDataPipe[Any]):\n"
        f'{INDENT}"""What can be chained on a pipe."""\n\n'
        # torch's own returns Any for each name, and so hides misspelt ones.
        f"{INDENT}__getattr__: None  # type: ignore[assignment,misc]\n\n"
        f"{INDENT}def __iter__(self) -> Iterator[Any]:\n"
        f'{INDENT}{INDENT}"""Yield the items."""\n\n'
        f"{INDENT}def preview(self, count: int = 8, **options: Any) -> Any:\n"
        f'{INDENT}{INDENT}"""Return a figure of patches, before and after augmentation."""\n\n'
    )
    body = "\n".join([*methods, pipes_of_ops(imports)])
    return f"{HEADER}{imports.text()}\n\n{own}{body}"


def stubs_of_paths() -> dict[Path, str]:
    """Return the text of the stub of each module with names in the table ``voxpipe.names``."""
    table: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for key, point in import_module("voxpipe.first_use").extensions("names").items():
        path, _, name = key.rpartition(".")
        # Other packages have stubs of their own.
        if point.value.startswith("voxpipe."):
            table[path][point.module].append(name)
    texts = {}
    for path, homes in table.items():
        place = ROOT / path.replace(".", "/")
        if (place / "__init__.py").exists() or path == "datapipes.iter":
            continue  # stubs() and stub() write these
        if modules := sorted(p.rpartition(".")[2] for p in table if p.rpartition(".")[0] == path):
            homes["."] = modules
            place /= "__init__"
        elif path == "datapipes.map":  # this stub hides the file, which only imports
            own = {name for names in homes.values() for name in names}
            names = import_module(f"voxpipe.{path}").__all__
            torch_names = [name for name in names if name not in {*own, "MapDataPipe"}]
            homes["torch.utils.data.datapipes.map"] = torch_names
            homes["torch.utils.data"] = ["MapDataPipe"]
        elif place.with_suffix(".py").exists():
            place = place.with_name(f"names_of_{place.name}")
        texts[place.with_suffix(".pyi")] = exports(f"The names of voxpipe.{path} by table", homes)
    return texts


def stubs() -> dict[Path, str]:
    """Return the text of each stub."""
    texts = stubs_of_paths()
    own_modules = {p.parent if p.stem == "__init__" else p for p in texts}
    texts |= {ROOT / p / "exported_ops.pyi": exported_ops(p) for p in ("intensity", "spatial")}
    first_use = import_module("voxpipe.first_use")
    points = {"adapters": first_use.extensions("adapters")}
    points["dataloader2"] = first_use.names_at("dataloader2")
    for folder, names in points.items():
        homes: defaultdict[str, list[str]] = defaultdict(list)
        for name, point in names.items():
            homes[_relative(point.module)].append(name)
        for home, own in getattr(import_module(f"voxpipe.{folder}"), "_HOMES", {}).items():
            homes[f".{home}"] += own.split()
        if modules := sorted(p.stem for p in own_modules if p.parent == ROOT / folder):
            homes["."] = modules
        text = exports(f"The names of extensions in voxpipe.{folder}", homes)
        texts[ROOT / folder / "exported_names.pyi"] = text
    names = ("reading_services", "testing", "volumes")
    lazy = {"package": "voxpipe"} | {p: f"voxpipe.{p}" for p in names}
    texts |= {ROOT / p / "exported_names.pyi": exported_names(name) for p, name in lazy.items()}
    return {ROOT / "datapipes" / "chained_forms.pyi": stub(), **texts}


def main() -> int:
    """Write the stubs, or check them."""
    texts = stubs().items()
    if "--check" in sys.argv[1:]:
        return int(any(not at.exists() or at.read_text("utf-8") != text for at, text in texts))
    for at, text in texts:
        at.parent.mkdir(exist_ok=True)
        at.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
