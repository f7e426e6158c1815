"""Public names without a list, imported at first use or found in the files of a folder."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, TypeVar
from warnings import warn

T = TypeVar("T")
_ROOT, _, _ = __name__.partition(".")


def import_at_once(name: str, package: str) -> ModuleType:
    """Import a module with all modules that it needs, while the garbage collector pauses.

    A collection visits all objects of torch, which takes a third of the import time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return import_module(name, package)
    finally:
        if was_on:
            gc.enable()


def at_first_use(
    namespace: dict[str, Any],
    homes: Mapping[str, str | Sequence[str]],
    modules: Sequence[str] = (),
    points: Mapping[str, EntryPoint] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package (PEP 562), or of a module in it.

    - ``namespace`` is its ``globals()``, and gets an ``__all__`` if it has none, as by `export`.
    - ``homes`` has names, as a list or in one text, by the module below the package.
    - ``modules`` become attributes.
    - ``points`` are entry points by public name.
    """
    module, package = namespace["__name__"], namespace["__package__"]
    home_of = {
        name: home
        for home, names in homes.items()
        for name in (names.split() if isinstance(names, str) else names)
    }
    module_of = {path.rpartition(".")[2]: path for path in modules}
    for name in points.keys() & namespace.keys():
        if points[name].name == name:
            leave_out_name(points[name], _ROOT)
    if "__all__" not in namespace:
        _list_public(namespace, [*home_of, *points, *namespace.keys() & {"__version__"}])

    def first_use(name: str) -> Any:
        if name in module_of:
            return import_at_once(f".{module_of[name]}", package)
        if name in points:
            value = points[name].load()
        elif name in home_of:
            value = getattr(import_at_once(f".{home_of[name]}", package), name)
        else:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        namespace[name] = value
        return value

    def names() -> list[str]:
        special = (name for name in namespace if name.startswith("__"))
        return sorted({*special, *namespace["__all__"], *module_of})

    return first_use, names


@cache
def _every_point() -> Any:
    """Return the entry points of all installed packages, reading their metadata once.

    Warns if those of voxpipe, such as the group ``voxpipe.names``, are missing.
    """
    every = entry_points()
    if not every.select(group="voxpipe.names"):
        msg = "the metadata of voxpipe's installation are missing or old, so formats, chained "
        msg += "forms and names of its extensions are unavailable. Install it again: pip install"
        warn(msg, UserWarning, stacklevel=2)
    return every


@cache
def extensions(group: str, *, are_modules: bool = False) -> Mapping[str, EntryPoint]:
    """Return the entry points ``voxpipe.GROUP`` of installed packages by name; imports none.

    Names of voxpipe cannot be replaced. If two other packages use one name, the first on
    ``sys.path`` counts. Warns of the other, and of entry points without an object.
    """
    points: dict[str, EntryPoint] = {}
    for point in sorted(_every_point().select(group=f"voxpipe.{group}"), key=_is_of_another):
        if (":" in point.value) == are_modules:
            leave_out(point, "is no module" if are_modules else "has no object")
        elif (first := points.setdefault(point.name, point)).value != point.value:
            leave_out_name(point, distribution_of(first))
    return MappingProxyType(points)


def _is_of_another(point: EntryPoint) -> bool:
    return not point.value.startswith(f"{_ROOT}.")


def leave_out_name(point: EntryPoint, owner: str) -> None:
    """Warn that a name is the owner's, if another package than voxpipe has the entry point."""
    if _is_of_another(point):
        leave_out(point, f"has a name of {owner}")


def distribution_of(point: EntryPoint) -> str:
    """Return the name of the package that has an entry point."""
    return getattr(getattr(point, "dist", None), "name", None) or "an installed package"


@cache
def load(point: EntryPoint) -> Any:
    """Return the object of an entry point; None, with one warning, if it cannot be imported."""
    try:
        return point.load()
    except Exception:
        return leave_out(point, "cannot be imported", has_cause=True)


def consult(point: EntryPoint, subject: Any, kind: Callable[..., T]) -> T:
    """Return ``kind`` of the advice of an entry point on a subject; else ``kind()``.

    A function that fails, or whose result is of another kind, gives one warning.
    """
    function = load(point)
    try:
        return kind(function(subject)) if function else kind()
    except Exception:
        leave_out(point, "failed", has_cause=True)
        return kind()


@cache
def leave_out(point: EntryPoint, event: str, *, has_cause: bool = False) -> None:
    """Warn once that an entry point is left out, and why."""
    where = f"{point.group}: {point.name} = {point.value} of {distribution_of(point)}"
    cause = f": {sys.exception()!r}" if has_cause else ""
    warn(f"{where} {event}, and is left out{cause}", UserWarning, stacklevel=4)


def names_at(place: str) -> dict[str, EntryPoint]:
    """Return the entry points ``voxpipe.names`` of a module below ``voxpipe``, by public name."""
    pairs = ((key.rpartition("."), point) for key, point in extensions("names").items())
    return {name: point for (module, _, name), point in pairs if module == place}


def alias_modules(package: str) -> list[str]:
    """Make the modules below ``package`` that exist only in entry points; return their names.

    ``dataloader2.graph.find_dps`` of ``voxpipe.names`` is a name of ``voxpipe.dataloader2.graph``.
    """
    _, _, place = package.partition(".")
    # Other packages add names to modules that exist, and no modules.
    own = (key for key, point in extensions("names").items() if not _is_of_another(point))
    paths = sorted({path for path, _, _ in (key.rpartition(".") for key in own)})
    paths = [path for path in paths if path.startswith(f"{place}.")]
    for path in paths:
        module = ModuleType(f"{_ROOT}.{path}", f"Names of other modules under {path}.")
        is_package = any(each.startswith(f"{path}.") for each in paths)
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=is_package)
        module.__package__ = module.__spec__.parent
        namespace = vars(module)
        first_use, names = at_first_use(namespace, {}, points=names_at(path))
        namespace.update(__getattr__=first_use, __dir__=names)
        sys.modules[module.__name__] = module
        above, _, name = module.__name__.rpartition(".")
        setattr(sys.modules[above], name, module)
    return [path for path in (path.removeprefix(f"{place}.") for path in paths) if "." not in path]


def list_names(package: str, folder: Iterable[str], name: str) -> Iterator[Any]:
    """Yield the entries of one list, such as ``FORMATS`` or ``OPS``, in each file of a folder.

    Files with a leading underscore import large packages, and are skipped.
    """
    for module in iter_modules(folder, f"{package}."):
        if "._" not in module.name:
            yield from getattr(import_module(module.name), name, ())


def export(namespace: dict[str, Any], things: Iterable[Any] = ()) -> None:
    """Set ``__all__`` of a package: its imports from voxpipe, and these classes or modules."""
    exports = {thing.__name__.rpartition(".")[2]: thing for thing in things}
    namespace.update(exports)
    _list_public(namespace, exports)


def _list_public(namespace: dict[str, Any], more: Iterable[str] = ()) -> None:
    def is_public(name: str, value: Any) -> bool:
        # Constants and type aliases do not record their module.
        home = value.__module__ if isinstance(value, (type, FunctionType)) else _ROOT
        is_ours = home.startswith(_ROOT) and home != __name__ and not isinstance(value, ModuleType)
        return is_ours and name != "TYPE_CHECKING" and not name.startswith("_")

    # Constants, then classes, then functions.
    names = {*(name for name, value in namespace.items() if is_public(name, value)), *more}
    namespace["__all__"] = sorted(names, key=lambda n: (not n.isupper(), not n[:1].isupper(), n))
