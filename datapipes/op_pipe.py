"""Pipes that are made of an op, whose arguments are theirs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from types import new_class
from typing import Any, ClassVar, TypeVar, cast

from ..core.call_site import warn
from ..core.errors import LikelyMistake
from ..core.suggest import FOREIGN_ARGUMENTS, NO_COUNTERPART, closest
from ..graph import Pipe
from ..intensity.filters import INVERSE, Anisotropy, LowResolution
from .datapipe import PerItem, chained_form, locate_errors, stream_name

F = TypeVar("F", bound=Callable[..., Any])
# Arguments of any op that are given by keyword alone.
KEYWORD_ONLY = frozenset(
    {
        *("p", "space", "hard", "keep_size", "extent", "longest", "exactly_one", "sides"),
        *("end", "center", "slices", "scale"),
        *("fallback", "unknown", "overhang", "divisible"),
        *("statistics_over", "keep_statistics", "invert", "weights"),
    }
)

# Forms whose factor enlarges voxels, and the names of its inverse in other libraries.
_COARSER = (LowResolution.name, Anisotropy.name)
_SCALES = ("scale", "scales", "scale_range", "zoom", "zoom_range")
# So near that nothing else can be meant; spatial_size is not antialias.
_MISSPELT = 0.6
# The same if an argument may be meant for another function: "labls".
_NEARLY = 0.75


class OpPipe(PerItem):
    """A pipe that takes the arguments of an op, and makes it.

    A subclass names the op, whose arguments and docstring it has, and the form that it is chained
    by: ``class RotatePipe(SpatialPipe, form="rotate", op=Rotate): ...``. Without a form it is not
    registered.
    """

    op_class: ClassVar[Any] = None  # the op, a frozen dataclass, or a function that returns it
    keywords: ClassVar[Mapping[str, Any]] = {"name": ""}  # besides those of the op
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(
        cls, *, form: str = "", op: Any = None, keywords_only: bool = False, **options: Any
    ) -> None:
        super().__init_subclass__(**options)
        if op is None:
            return
        cls.op_class = op
        cls.form_name = form or op.name
        cls.__signature__ = _signature(op, cls.keywords, keywords_only)
        if cls.__doc__ is None:  # without the examples, which are those of the op
            cls.__doc__ = (op.__doc__ or "").partition("    Examples\n")[0].rstrip()
        if form:
            chained_form(form)(cls)

    def __init__(self, parent: Pipe, *args: Any, **kwargs: Any) -> None:
        super().__init__(parent)
        arguments = bind_arguments(self.form_name, self.__signature__, args, kwargs)
        own = {name: value for name, value in arguments.items() if name not in self.keywords}
        with locate_errors(self):
            op = type(self).op_class(**own)
        self.stream_names = (stream_name(parent, arguments.get("name", ""), self.form_name),)
        self.hold(op, arguments, is_shared=bool(arguments.get("name")))
        # Pipes warn and ops do not, because ops are also made again without a line of the user.
        for mistake in getattr(op, "likely_mistakes", ()):
            warn(mistake, LikelyMistake, self.origin)

    def hold(self, op: Any, arguments: Mapping[str, Any], *, is_shared: bool) -> None:
        """Hold the op and all its arguments; ``is_shared`` if the user has named its stream."""
        raise NotImplementedError


def add_forms(module: dict[str, Any], ops: Iterable[Any], base: type) -> None:
    """Make the pipe of each op that a module has not written out: ``RotatePipe``, of ``Rotate``."""
    home = {"__module__": module["__name__"]}
    for op in ops:
        if (name := f"{op.__name__}Pipe") not in module:
            options = {"form": op.name, "op": op}
            module[name] = new_class(name, (base,), options, lambda body: body.update(home))


def _signature(op: Any, more: Mapping[str, Any], keywords_only: bool) -> inspect.Signature:
    """Return the signature of a pipe: parent, the arguments of ``op``, then ``more`` keywords."""
    kinds = inspect.Parameter
    plain = [kinds("parent", kinds.POSITIONAL_OR_KEYWORD)]
    keywords: list[inspect.Parameter] = []
    for one in inspect.signature(op).parameters.values():
        if keywords_only or one.name in KEYWORD_ONLY:
            keywords.append(one.replace(kind=kinds.KEYWORD_ONLY))
        else:
            plain.append(one)
    keywords += [kinds(name, kinds.KEYWORD_ONLY, default=value) for name, value in more.items()]
    return inspect.Signature([*plain, *keywords])


def bind_arguments(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the given arguments by name, without the parent and without defaults."""
    names = [parameter for parameter in signature.parameters if parameter != "parent"]
    they_are = f"; it has {', '.join(names)}"
    for argument in kwargs:
        if argument not in names:
            inverse = name in _COARSER and argument in _SCALES
            hint = INVERSE if inverse else _instead(argument, names) or they_are
            raise TypeError(f"{name}() has no argument {argument!r}{hint}")
    try:
        arguments = dict(signature.bind(None, *args, **kwargs).arguments)
    except TypeError as error:
        by_name = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        # Users often give weights and p by position.
        if len(by_name) < len(names):
            by_name = [one for one in ("weights", "p") if one in by_name] or by_name
        usage = " and ".join(f"{one}=" for one in by_name[:2])
        hint = f"; write {usage} by keyword" if by_name and "too many" in str(error) else ""
        raise TypeError(f"{name}(): {error}{hint}") from None
    del arguments["parent"]
    return arguments


def _instead(argument: str, names: Collection[str], cutoff: float = _MISSPELT) -> str:
    """Return the replacement of an unknown argument; empty if there is none."""
    near = [one for one in FOREIGN_ARGUMENTS.get(argument, ()) if one in names]
    if not near and argument in NO_COUNTERPART:
        return NO_COUNTERPART[argument]
    if not near and argument not in FOREIGN_ARGUMENTS:
        near = closest(argument, names, cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


def suggest_arguments(function: F) -> F:
    """Let a function refuse an argument that it lacks as pipes do: with the one that is meant."""
    names = [*inspect.signature(function).parameters]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        refuse_unknown_arguments(function.__name__, kwargs, names)
        return function(*args, **kwargs)

    return cast(F, call)


def refuse_unknown_arguments(
    name: str, arguments: Iterable[str], names: Collection[str], *, only_misspelt: bool = False
) -> None:
    """Raise TypeError where an argument is none of a pipe's, and say which one is meant."""
    for one in arguments:
        hint = "" if one in names else _instead(one, names, _NEARLY)
        if one not in names and (hint or not only_misspelt):
            they_are = f"; it has {', '.join(names)}"
            raise TypeError(f"{name}() has no argument {one!r}{hint or they_are}")
