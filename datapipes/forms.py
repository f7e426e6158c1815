"""Chained forms: the names in torch's table under which pipes are added to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe, functional_datapipe

from ..core.suggest import closest

C = TypeVar("C", bound=type)
_SHORTEST = 4  # letters of a name that is looked for inside another: ``crop``, but not ``zip``
_MOST = 3  # names that are proposed


def chained(name: str) -> Callable[[C], C]:
    """Register the decorated class as the chained form ``name`` on every torch datapipe."""

    def register(cls: C) -> C:
        cls.chained = name  # type: ignore[attr-defined]
        functional_datapipe(name)(cls)
        return cls

    return register


class FirstUse:
    """A chained form whose class is loaded when it is called, or when its docstring is read."""

    def __init__(self, place: str) -> None:
        self._place = place

    @property
    def pipe(self) -> Any:
        """The class; loading it puts it into torch's table in the place of this."""
        module, _, name = self._place.partition(":")
        return getattr(import_module(module), name)

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        return self.pipe.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the pipe."""
        return self.pipe(*args, **kwargs)


def register_forms(
    package: str, iter_forms: Mapping[str, str], map_forms: Mapping[str, str]
) -> None:
    """Enter chained forms into torch's tables; names that another package has taken stay its."""
    for functions, forms in (
        (IterDataPipe.functions, iter_forms),
        (MapDataPipe.functions, map_forms),
    ):
        for name, place in forms.items():
            functions.setdefault(name, FirstUse(f"{package}.{place}"))


def offered(name: str, to: type | None = None) -> Callable[[C], C]:
    """Register the class as the chained form ``name``, unless another package has taken the name.

    For names that torchdata 0.9 registers too: a program may import both. Whoever is imported
    first keeps the name, as torch refuses to register it twice; the classes work in any case.
    """

    def register(cls: C) -> C:
        own = IterDataPipe if issubclass(cls, IterDataPipe) else MapDataPipe
        table: Any = to or own
        cls.chained = name  # type: ignore[attr-defined]
        if isinstance(table.functions.get(name), FirstUse):
            del table.functions[name]
        if name not in table.functions:
            table.register_datapipe_as_function(name, cls)
        return cls

    return register


class UnknownForm(AttributeError):
    """No pipe has this chained form. What to say is worked out when it is read: many only probe."""

    def __init__(self, pipe: str, asked: str) -> None:
        super().__init__(pipe, asked)

    def __str__(self) -> str:
        pipe, asked = self.args
        return unknown_form(pipe, asked, IterDataPipe.functions)


def unknown_form(pipe: str, asked: str, known: Iterable[str]) -> str:
    """Return a sentence about ``asked``, with the chained forms that are likely meant."""
    names = sorted(known)
    spelt = asked.lower()
    near = closest(spelt, names, 0.75, _MOST)
    # Other libraries say more in a name: gaussian_noise, rand_affine, RandFlipd.
    inside = sorted((n for n in names if len(n) >= _SHORTEST and n in spelt), key=len, reverse=True)
    meant = list(dict.fromkeys([*near, *inside]))[:_MOST]
    hint = f"; did you mean {' or '.join(map(repr, meant))}?" if meant else ""
    return f"{pipe} has no chained form {asked!r}{hint}"
