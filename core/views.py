"""Views of objects that extensions render: HTML in notebooks, facts in consoles, methods.

Renderers are imported when an object is displayed, so a process that shows none imports none.
"""

from __future__ import annotations

from typing import Any

from ..first_use import consult, extensions


def view(thing: Any, group: str) -> str | None:
    """Return the text of the renderer for the class of a thing; None without a renderer.

    An entry point ``voxpipe.html`` or ``voxpipe.text`` has the name of a class: that of voxpipe
    alone, of another package after its module. Its value ``f(thing)`` returns the text.
    """
    points = extensions(group)
    for kind in type(thing).__mro__:
        is_own = kind.__module__.startswith("voxpipe.")
        name = kind.__name__ if is_own else f"{kind.__module__}.{kind.__name__}"
        if name in points:
            return consult(points[name], thing, str) or None
    return None


def call_extension(name: str, thing: Any, /, *args: Any, **options: Any) -> Any:
    """Return the result of the method ``name`` that an entry point ``voxpipe.methods`` adds."""
    points = extensions("methods")
    if name not in points:
        raise NotImplementedError(f"{name}() is in an extension, and none is installed")
    return points[name].load()(thing, *args, **options)


class Viewable:
    """Base of classes that renderers of installed packages show."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        return view(self, "html")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        # Inside a list or mapping, IPython prints the short text.
        is_inner = len(getattr(printer, "stack", ())) > 1
        printer.text(repr(self) if is_inner else view(self, "text") or str(self))

    def __str__(self) -> str:
        """Return the facts of a renderer, a line each; else the ``repr()``."""
        return view(self, "text") or repr(self)


class ViewableVoxels(Viewable):
    """Base of objects with voxels, which viewers open."""

    __slots__ = ()

    def to_napari(self, **options: Any) -> list[tuple[Any, dict[str, Any], str]]:
        """Return layers of napari, ``(data, arguments, type)``, with lazy voxels.

        Nothing is read before napari shows it. Coarser levels are a pyramid; the scale, the units
        and the affine place the layer in the world. ``options`` are arguments of the layer.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe import Volume
        >>> [(data, arguments, kind)] = Volume(np.zeros((4, 5, 6))).to_napari(opacity=0.5)
        >>> data.shape, arguments["opacity"], kind
        ((6, 5, 4), 0.5, 'image')
        """
        layers: list[Any] = call_extension("to_napari", self, **options)
        return layers


class Report(str):
    """A text that consoles show line by line, and notebooks by a renderer."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str | None:
        return view(self, "html")


def show_in(shell: Any) -> None:
    """Let a shell of IPython show objects of other classes, such as batches, by the renderers."""

    def html(thing: Any) -> str | None:
        own = getattr(thing, "_repr_html_", None)  # of a subclass
        return view(thing, "html") if own is None else own()

    formatter = shell.display_formatter.formatters["text/html"]
    for name in extensions("html"):
        module, _, kind = name.rpartition(".")
        if module:
            formatter.for_type_by_name(module, kind, html)
