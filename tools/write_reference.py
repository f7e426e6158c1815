"""Write the reference of the documentation site out of docstrings, signatures and parsers.

``python tools/write_reference.py FOLDER`` writes a page for each kind of name: public names,
chained forms, adapters, reading services, commands, errors and warnings. Other packages that
register forms are left out.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import write_chained_forms
from count_tree import ROOT, package_files
from parameter_texts import with_parameters

# Titles of the pages of forms, by the module or the folder of their classes.
FORMS: Mapping[str, str] = {
    "voxpipe.datapipes": "Forms of cases, patches and batches",
    "voxpipe.datapipes.spatial": "Spatial forms",
    "voxpipe.datapipes.values": "Forms that change values",
    "voxpipe.extensions.bridges": "Forms of MONAI and TorchIO",
    "voxpipe.extensions.torchdata": "Forms of torchdata",
}
# Packages with names beyond those of ``voxpipe``, for authors of pipes, formats, ops and services.
MODULES: Mapping[str, str] = {
    "voxpipe.recipes": "Whole chains of nnU-Net and MONAI.",
    "voxpipe.volumes": "Volumes, backends, decoders and manifests.",
    "voxpipe.spatial": "Spatial ops, plans and lazy patches.",
    "voxpipe.intensity": "Ops that change values.",
    "voxpipe.datapipes": "The base classes of pipes.",
    "voxpipe.dataloader2": "The loader with its reports.",
    "voxpipe.core": "Regions, grids, samples and streams of random numbers.",
    "voxpipe.graph": "Graphs of pipes: walk, rewrite, verify, explain.",
    "voxpipe.diagnosing": "Measurements and forecasts of a loader.",
    "voxpipe.testing": "Contract tests for parts of your own.",
}
# Pages of one kind: the package whose names they have.
KINDS: Mapping[str, tuple[str, str, str]] = {
    "adapters": ("voxpipe.adapters", "Adapters", "Rewrites of a graph, for ``DataLoader2(...)``."),
    "services": ("voxpipe.reading_services", "Reading services", "Where a graph runs."),
}
# What the names of types in signatures stand for, in a line each.
TYPES: Mapping[str, str] = {
    "Amount": "A number, a range ``(low, high)`` to draw from, or one of these for each axis.",
    "Antialias": "Whether to smooth before downsampling; ``'level'`` may read a coarser level.",
    "Axis": "An axis of the array, 0 to 2 or ``'i'`` to ``'k'``, or one of the world: ``'x'``.",
    "CropSide": "The side at which an odd voxel is cut off or added.",
    "Extent": "``'edges'``: voxels are boxes, up to their faces; ``'centers'``: they are points.",
    "Mode": "The interpolation between voxel centres.",
    "Otherwise": "``'error'``, or the whole volume where a label has no voxel of interest.",
    "Padding": "The value of coordinates outside the volume.",
    "ParameterRange": "A number, or a range ``(low, high)`` to draw from uniformly.",
    "Place": "A path or a URL.",
    "Side": "The side that gets an odd voxel.",
    "Sides": "``'both'``: padding before and after, in equal parts; ``'end'``: after.",
    "Size": "A whole number of voxels for all axes, or one for each axis; None keeps an axis.",
    "Space": "``'world'``: a unit of length along x, y, z; ``'voxel'``: axes of the array.",
}
LINE = 72
"""Characters of a line of the help of a command."""
CURE = re.compile(r"^\| `(\w+)` \| (.+?) \|$", re.MULTILINE)


def title(text: str, mark: str = "=") -> str:
    """Return a heading of reStructuredText."""
    return f"{text}\n{mark * len(text)}\n"


def summary(thing: Any) -> str:
    """Return the first sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", text)[0].rstrip(":")


def is_error(thing: Any) -> bool:
    """Whether a name is an error or a warning."""
    return inspect.isclass(thing) and issubclass(thing, BaseException)


# Chained forms.


def form_classes() -> dict[str, type]:
    """Return the class of each chained form of voxpipe, with those of map pipes."""
    from torch.utils.data import MapDataPipe

    found = dict(write_chained_forms.forms())
    for name, function in sorted(MapDataPipe.functions.items()):
        kind = getattr(function, "args", (object,))[0]
        if kind.__module__.startswith("voxpipe."):
            found[f"map.{name}"] = kind
    return found


def forms_by_page() -> dict[str, dict[str, type]]:
    """Return the forms of each page, by the module or folder that the page is about."""
    pages: defaultdict[str, dict[str, type]] = defaultdict(dict)
    for name, kind in form_classes().items():
        home = kind.__module__
        if home not in FORMS:
            home = ".".join(home.split(".")[: 3 if ".extensions." in home else 2])
        pages[home][name] = kind
    return {home: pages[home] for home in sorted(pages)}


def stub_types() -> dict[str, dict[str, str]]:
    """Return the annotations of the arguments of each form, as type checkers see them."""
    text = (ROOT / "datapipes" / "chained_forms.pyi").read_text("utf-8")
    return {
        node.name: {
            one.arg: ast.unparse(one.annotation).replace("typing.", "")
            for one in ast.walk(node.args)
            if isinstance(one, ast.arg) and one.annotation is not None
        }
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
    }


def aliases() -> dict[str, str]:
    """Return the types that the names in annotations of forms stand for."""
    text = (ROOT / "datapipes" / "chained_forms.pyi").read_text("utf-8")
    return {
        ast.unparse(node.target): ast.unparse(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign) and node.value is not None
    }


def default_text(value: Any) -> str:
    """Return a default as a reader can write it."""
    if inspect.isroutine(value) or inspect.isclass(value):
        return str(value.__name__)
    text = repr(value)
    return "..." if text.startswith("<") or " at 0x" in text else text


def signature_text(name: str, kind: type, types: Mapping[str, str]) -> str:
    """Return ``name(argument: type = default)``."""
    from voxpipe.datapipes.forms import signature_of

    texts, starred = [], False
    for one in signature_of(kind).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not starred:
            texts.append("*")
        starred |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        known = types.get(one.name, "Any")
        annotation = "" if known == "Any" else f": {known}"
        has_default = one.default is not one.empty
        texts.append(
            f"{mark}{one.name}{annotation}{f' = {default_text(one.default)}' * has_default}"
        )
    return f"{name}({', '.join(texts)})"


def napoleon(text: str) -> str:
    """Return a docstring of NumPy's style as reStructuredText."""
    from sphinx.ext.napoleon import Config, NumpyDocstring

    config = Config(napoleon_use_rtype=False, napoleon_use_ivar=True)
    return str(NumpyDocstring(text, config))


def form_page(home: str, forms: Mapping[str, type], convert: Callable[[str], str]) -> str:
    """Return the page of the forms of a module or folder."""
    types = stub_types()
    heading = FORMS.get(home, f"Forms of {home.rpartition('.')[2]}")
    lines = [title(heading)]
    lines += [f"- :py:meth:`~.DataPipe.{name}`: {summary(kind)}" for name, kind in forms.items()]
    signatures = {
        name: signature_text(name.removeprefix("map."), kind, types.get(name, {}))
        for name, kind in forms.items()
    }
    words = set(re.findall(r"\w+", " ".join(signatures.values())))
    known = {name: kind for name, kind in aliases().items() if name in words}
    lines += ["", *(["In the signatures:", ""] if known else [])]
    lines += [f"- :py:type:`{name}` is ``{kind}``" for name, kind in known.items()]
    for name, kind in forms.items():
        place = "MapDataPipe" if name.startswith("map.") else "DataPipe"
        lines += ["", f".. py:method:: {place}.{signatures[name]}"]
        body = convert(with_parameters(kind))
        lines += ["", *(f"   {line}".rstrip() for line in body.splitlines())]
    text = "\n".join(lines).replace("~.DataPipe.map.", "~.MapDataPipe.")
    return f"{text}\n"


def types_page() -> str:
    """Return the page of the types in signatures, which these link to."""
    kinds = {**aliases(), "Place": "str | os.PathLike[str]"}
    lines = [title("Types of arguments"), "Names of types in signatures are short forms of others."]
    for name, text in TYPES.items():
        lines += ["", f".. py:type:: {name}", f"   :canonical: {kinds[name]}", "", f"   {text}"]
    return "\n".join([*lines, ""])


# Names of packages.


def directive(place: str, thing: Any) -> list[str]:
    """Return the lines by which Sphinx reads the docstring of a name."""
    if inspect.isclass(thing) and is_own(thing):
        return [f".. autoclass:: {place}", "   :members:", ""]
    if inspect.isroutine(thing):
        return [f".. autofunction:: {place}", ""]
    text = constants().get(place.rpartition(".")[2], "")
    lines = (f"   {line}".rstrip() for line in text.splitlines())
    return [f".. py:data:: {place}", "", *lines, ""]


def is_own(thing: Any) -> bool:
    """Whether a name is one of voxpipe, and no alias of a class of another package."""
    return str(getattr(thing, "__module__", "")).startswith("voxpipe")


@cache
def constants() -> dict[str, str]:
    """Return the text below each constant of a module."""
    found = {}
    for file in package_files().values():
        for node, after in itertools.pairwise(ast.parse(file.read_text("utf-8")).body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", 0)]
            value = getattr(after, "value", None) if isinstance(after, ast.Expr) else None
            if isinstance(value, ast.Constant):
                text = inspect.cleandoc(str(value.value))
                found |= {one.id: text for one in targets if isinstance(one, ast.Name)}
    return found


def names_of(package: ModuleType) -> dict[str, Any]:
    """Return the public names of a package, without modules and version."""
    declared = getattr(package, "__all__", ())
    things = {name: getattr(package, name) for name in declared if not name.startswith("_")}
    return {name: thing for name, thing in things.items() if not isinstance(thing, ModuleType)}


def name_page(
    heading: str, intro: str, listed: Mapping[str, Any], places: Mapping[str, Any]
) -> str:
    """Return a page with a list of names, and those of ``places`` with their docstrings."""
    lines = [title(heading), intro, ""]
    for place, thing in listed.items():
        has_text = inspect.isroutine(thing) or (inspect.isclass(thing) and is_own(thing))
        lines.append(f"- :py:obj:`{place}`{f': {summary(thing)}' if has_text else ''}")
    lines.append("")
    for place, thing in places.items():
        lines += directive(place, thing)
    return "\n".join(lines)


class Pages:
    """The pages by name; each object is described once, where it comes first."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self._described: set[int] = set()

    def add(self, page: str, heading: str, intro: str, names: Mapping[str, Any]) -> None:
        """Add a page of those names that no earlier page describes."""
        new = {
            place: thing
            for place, thing in names.items()
            if id(thing) not in self._described and not is_error(thing)  # errors have a page
        }
        self._described |= {id(thing) for thing in new.values()}
        listed = {place: thing for place, thing in names.items() if not is_error(thing)}
        if new:
            self.texts[page] = name_page(heading, intro, listed if page == "names" else new, new)


def package_pages() -> dict[str, str]:
    """Return the pages of adapters, services, public names and modules."""
    import voxpipe

    pages, public = Pages(), names_of(voxpipe)
    for page, (name, heading, intro) in KINDS.items():
        own = {n: t for n, t in public.items() if _is_of_kind(t, name)}
        places = {f"voxpipe.{n}": thing for n, thing in own.items()}
        rest = names_of(import_module(name))
        places |= {f"{name}.{n}": thing for n, thing in rest.items() if n not in own}
        pages.add(page, heading, intro, places)
    names = {f"voxpipe.{n}": thing for n, thing in public.items()}
    intro = "After ``import voxpipe as vp``, each is an attribute of ``vp``. :doc:`adapters` and "
    pages.add("names", "Public names", f"{intro}:doc:`services` have pages of their own.", names)
    for name, intro in MODULES.items():
        package = import_module(name) if name != "voxpipe.recipes" else voxpipe.recipes
        places = {f"{package.__name__}.{n}": thing for n, thing in names_of(package).items()}
        pages.add(f"modules/{name.rpartition('.')[2]}", name, intro, places)
    return pages.texts


def _is_of_kind(thing: Any, package: str) -> bool:
    if package == "voxpipe.adapters":
        return str(getattr(thing, "__module__", "")).startswith(package)
    return getattr(thing, "__name__", "").endswith("ReadingService")


# Errors.


def error_classes() -> dict[str, type]:
    """Return the errors and warnings that a user may catch, in the order of their file."""
    from voxpipe.core import errors
    from voxpipe.spatial import PatchLargerThanVolume

    own = {n: k for n, k in vars(errors).items() if is_error(k) and k.__module__ == errors.__name__}
    return own | {"PatchLargerThanVolume": PatchLargerThanVolume}


def cures() -> dict[str, str]:
    """Return the cure of each error and warning, from the tables of ``docs/reference/cures.md``."""
    text = (ROOT / "docs" / "reference" / "cures.md").read_text("utf-8")
    return dict(CURE.findall(text))


def error_page() -> str:
    """Return the page of errors and warnings with their docstrings and cures."""
    known = cures()
    lines = [title("Errors and warnings")]
    lines += ["``voxpipe.errors`` has all of them. :doc:`cures` has them as a table.", ""]
    for name, kind in error_classes().items():
        home = "voxpipe.errors" if kind.__module__.endswith(".errors") else "voxpipe.spatial"
        bases = ", ".join(f"``{base.__name__}``" for base in kind.__bases__)
        cure = re.sub(r"`([^`]+)`", r"``\1``", known.get(name, ""))
        lines += [f".. py:exception:: {home}.{name}", "", f"   Bases: {bases}", ""]
        lines += [f"   {summary(kind)}", "", *([f"   **Cure**: {cure}", ""] if cure else [])]
    return "\n".join(lines)


# Commands.


def command_page() -> str:
    """Return the page of the command line: the help of each command."""
    parser = import_module("voxpipe.__main__").parser()
    lines = [title("Commands"), "``voxpipe`` and ``python -m voxpipe`` are the same.", ""]
    lines += _help_block(parser)
    for name, command in commands_of(parser).items():
        lines += [title(f"voxpipe {name}", "-"), *_help_block(command)]
    return "\n".join(lines)


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands, by name, with the arguments of their modules."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                command.add_own_arguments()
            return dict(action.choices)
    raise AssertionError("the command line has no commands")


def _help_block(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser.formatter_class
    parser.formatter_class = lambda prog: formatter(prog, width=LINE)
    with redirect_stdout(io.StringIO()) as printed:
        parser.print_help()
    parser.formatter_class = formatter
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed.getvalue())
    yield from [".. code-block:: text", "", *(f"   {line}" for line in text.splitlines()), ""]


def toctree(pages: Iterable[str], caption: str) -> str:
    """Return a list of pages."""
    return "\n".join([title(caption), ".. toctree::", "   :maxdepth: 1", "", *pages, ""])


def reference(convert: Callable[[str], str] = napoleon) -> dict[str, str]:
    """Return the text of each page by its name; ``convert`` renders the docstrings of forms."""
    pages = package_pages()
    modules = [page for page in pages if page.startswith("modules/")]
    own = [f"   {page.partition('/')[2]}" for page in modules]
    pages["modules/index"] = toctree(own, "Modules for authors of parts")
    forms = forms_by_page()
    for home, kinds in forms.items():
        pages[f"forms/{home.rpartition('.')[2]}"] = form_page(home, kinds, convert)
    own = [f"   {home.rpartition('.')[2]}" for home in forms]
    pages["forms/index"] = toctree(own, "Chained forms")
    pages["errors"] = error_page()
    pages["types"] = types_page()
    pages["commands"] = command_page()
    return pages


def write(folder: Path) -> None:
    """Write the pages; those that have not changed keep their time."""
    for name, text in reference().items():
        file = folder / f"{name}.rst"
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_text("utf-8") != text:
            file.write_text(text, "utf-8")


def main() -> None:
    """Write the pages into the folder of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
