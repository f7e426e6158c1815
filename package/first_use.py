"""Public names that are imported at their first use: a package costs what is used of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def at_first_use(
    namespace: dict[str, Any], homes: Mapping[str, str | Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package (PEP 562), or of a module in it.

    ``namespace`` is its ``globals()``, with ``__all__``; ``homes`` has names, as a list or in one
    text, by the module below the package that has them; ``modules`` are reached as attributes.
    """
    module, package = namespace["__name__"], namespace["__package__"]
    home_of = {
        name: home
        for home, names in homes.items()
        for name in (names.split() if isinstance(names, str) else names)
    }

    def first_use(name: str) -> Any:
        if name in modules:
            return import_module(f".{name}", package)
        home = home_of.get(name)
        if home is None:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(f".{home}", package), name)
        namespace[name] = value
        return value

    def names() -> list[str]:
        return sorted({*(n for n in namespace if n.startswith("__")), *namespace["__all__"]})

    return first_use, names
