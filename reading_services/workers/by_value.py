"""Functions and classes of a notebook or session, which workers get by value."""

from __future__ import annotations

import functools
import io
import sys
from importlib.util import find_spec
from typing import Any

from ...core.call_site import shorten, warn

# Plain pickles hold the name of a function. Workers find it in no file, if it was typed into a
# notebook or a session. The optional package cloudpickle copies its code, globals and closure.

LIBRARY = "cloudpickle"
_MAIN = "__main__"
_MOST = 3  # names in the notice
_PARTS = 6  # of the reduction of a class by value; the last one completes it
_notices: set[str] = set()


def is_available() -> bool:
    """Whether cloudpickle is installed."""
    return sys.modules.get(LIBRARY, ...) is not None and find_spec(LIBRARY) is not None


@functools.cache
def _pickler() -> type:
    """Return the class of the pickler; imports cloudpickle."""
    import cloudpickle

    table = dict(cloudpickle.Pickler.dispatch_table)
    del table[io.TextIOWrapper]  # it would read an open file to its end, and copy the text

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        dispatch_table = table

        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file)
            self.own: list[Any] = []
            self.modules: set[str] = set()

        def reducer_override(self, thing: Any) -> Any:
            module = getattr(thing, "__module__", None)
            if isinstance(module, str) and module != _MAIN:
                self.modules.add(module)
            elif module == _MAIN and isinstance(getattr(thing, "__qualname__", None), str):
                self.own.append(thing)
            reduction = super().reducer_override(thing)
            if not (isinstance(thing, type) and module == _MAIN and len(reduction) == _PARTS):
                return reduction
            *parts, change = reduction
            return (*parts, functools.partial(define_class, change))

    return Pickler


def define_class(change: Any, kind: type, state: Any) -> None:
    """Complete a class that came by value, and define it in the script of this process."""
    # Workers answer with its instances, whose pickles hold its name.
    change(kind, state)
    if kind.__qualname__ == kind.__name__:
        setattr(sys.modules[_MAIN], kind.__name__, kind)


def dump(thing: Any) -> Any:
    """Return the pickler that has pickled an object by value: ``data``, ``own`` and ``modules``."""
    file = io.BytesIO()
    pickler = _pickler()(file)
    pickler.dump(thing)
    pickler.data = file.getvalue()
    return pickler


def give_notice(things: Any) -> None:
    """Warn once in this process of objects that workers get by value."""
    if LIBRARY in _notices or not things:
        return
    _notices.add(LIBRARY)
    names = list(dict.fromkeys(getattr(one, "__qualname__", shorten(one)) for one in things))
    names = [name for name in names if "." not in name] or names  # without methods
    text = ", ".join(names[:_MOST]) + (", ..." if len(names) > _MOST else "")
    warn(
        f"workers get copies of {text}, which are in no file, with all globals that they read "
        f"({LIBRARY} pickles them anew for each epoch). Move them to a module that you import "
        "if these globals are large.",
        UserWarning,
    )
