"""Chained forms: entries in torch's tables, with the parameters and docstrings of their pipes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, TypeVar

from torch.utils.data import IterDataPipe, MapDataPipe

from ..core.suggest import FOREIGN_ARGUMENTS, RECIPES, closest
from ..first_use import extensions, leave_out_name, names_at

if TYPE_CHECKING:
    from .chained_forms import ChainedForms

C = TypeVar("C", bound=type)
_SHORTEST = 4  # letters of a name that is looked for inside another: ``crop``, but not ``zip``
_MOST = 3  # names that are proposed
_ANYTHING = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
# Public methods of our pipes that users call; the others are called by loaders and pipes.
_METHODS = frozenset({"explain", "pause", "resume", "set_seed", "set_shuffle", "shutdown"})
_ROOT, _, _ = __name__.partition(".")


def chained_form(name: str, to: type | None = None, *, if_free: bool = False) -> Callable[[C], C]:
    """Register the decorated class as the chained form ``name`` on every torch datapipe.

    With ``if_free`` a name stays with a package that has it, as torchdata.
    """
    # The first import keeps the name: torch refuses to register it twice.

    def register(cls: C) -> C:
        cls.form_name = name  # type: ignore[attr-defined]
        own = IterDataPipe if issubclass(cls, IterDataPipe) else MapDataPipe
        table: Any = to or own
        earlier = table.functions.get(name)
        if isinstance(earlier, FirstUse):
            is_own = earlier.place == f"{cls.__module__}:{cls.__name__}"
            if not (is_own or if_free):  # another package was first
                return cls
            del table.functions[name]  # loading the class puts it into the table
        if not (if_free and name in table.functions):
            table.register_datapipe_as_function(name, cls)
            table.functions[name] = Form.of(name, table.functions[name])
        return cls

    return register


class Form(functools.partial[Any]):
    """An entry of torch's table of chained forms; the first argument is the class of the pipe."""

    name: str

    @classmethod
    def of(cls, name: str, entry: functools.partial[Any]) -> Form:
        """Return an entry that calls the same function as ``entry``."""
        form = cls(entry.func, *entry.args)
        form.name = name
        return form

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return _text_of(self.name, self.args[0])

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.args[0])


@functools.cache
def _text_of(name: str, kind: type) -> str:
    """Return the parameters and docstring of a chained form."""
    # torch copies nothing but a docstring from its table, and help() of a partial shows no more.
    return f"{name}{signature_of(kind)}\n\n{inspect.getdoc(kind) or ''}".strip()


def entry_of(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return an entry that calls a method, with its parameters without ``self``."""

    @functools.wraps(method)
    def entry(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    signature = inspect.signature(method)
    signature = signature.replace(parameters=[*signature.parameters.values()][1:])
    # torch copies these attributes from its table.
    entry.__doc__ = f"{method.__name__}{signature}\n\n{inspect.getdoc(method)}"
    vars(entry)["__signature__"] = signature
    return entry


class FirstUse:
    """A chained form whose class is loaded when it is called, or when its docstring is read."""

    def __init__(self, place: str) -> None:
        self.place = place

    @property
    def pipe(self) -> Any:
        """The class; loading it puts it into torch's table in the place of this."""
        module, _, name = self.place.partition(":")
        return getattr(import_module(module), name)

    @property
    def __doc__(self) -> Any:  # type: ignore[override]
        kind = self.pipe
        return _text_of(getattr(kind, "form_name", "") or kind.__name__, kind)

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.pipe)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the pipe."""
        return self.pipe(*args, **kwargs)


class _Annotation(str):
    """An annotation that help() shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def maker_of(kind: type) -> Any:
    """Return the constructor, ``__new__`` or ``__init__``, that has the arguments of a pipe."""
    for each in kind.__mro__:
        if "__new__" in vars(each) and not _passes_on(each.__new__):
            return each.__new__
        if "__init__" in vars(each):
            return each.__init__  # type: ignore[misc]
    raise AssertionError(kind)


def _passes_on(maker: Any) -> bool:
    """Whether a constructor passes all its arguments on to another one."""
    signature = inspect.signature(maker)
    kinds = {one.kind for one in list(signature.parameters.values())[1:]}
    return signature.return_annotation != "NoReturn" and kinds == _ANYTHING


def signature_of(kind: type) -> inspect.Signature:
    """Return the parameters of a chained form, which are those of its pipe without the parent."""
    signature: inspect.Signature | None = vars(kind).get("__signature__")
    # Pipes of ops are made with a signature, and returned under the name of their base.
    result, first = kind.__mro__[1].__name__, 0
    if signature is None:
        maker = maker_of(kind)
        signature, result, first = inspect.signature(maker), kind.__name__, 1
        if maker.__name__ == "__new__" and signature.return_annotation is not signature.empty:
            result = str(signature.return_annotation)
    parameters = list(signature.parameters.values())[first:]
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    for number, one in enumerate(parameters):
        if isinstance(one.annotation, str):
            parameters[number] = one.replace(annotation=_Annotation(one.annotation))
    return inspect.Signature(parameters, return_annotation=_Annotation(result))


class ChainedForm:
    """A chained form of one pipe, with the parameters and docstring of the pipe that it makes."""

    # Not a method: jedi looks for those in the files of the pipe's class, where no form is.

    def __init__(self, pipe: Any, name: str) -> None:
        entry: Any = IterDataPipe.functions[name]
        if isinstance(entry, FirstUse) and entry.pipe:
            entry = IterDataPipe.functions[name]  # loading the class replaced the entry
        self._entry, self.__self__, self.__name__ = entry, pipe, name
        self._kind: Any = (getattr(entry, "args", None) or (entry,))[0]
        self.__module__ = getattr(self._kind, "__module__", None) or __name__

    def __call__(self, *args: Any, **kwargs: Any) -> ChainedForms:
        """Return the pipe."""
        pipe: ChainedForms = self._entry(self.__self__, *args, **kwargs)
        return pipe

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return inspect.getdoc(self._kind)

    @property
    def __signature__(self) -> inspect.Signature | None:
        return signature_of(self._kind) if isinstance(self._kind, type) else None

    def __get__(self, *_: Any) -> ChainedForm:
        """Return itself: help() shows the parameters of objects that have this method."""
        return self

    def __reduce__(self) -> Any:
        return getattr, (self.__self__, self.__name__)

    def __repr__(self) -> str:
        return f"<chained form {self.__name__} of {self.__self__!r}>"


def names_to_show(kind: type) -> list[str]:
    """Return the names that ``dir()`` lists for pipes of a class: chained forms and methods."""
    names = {name for name in IterDataPipe.functions if not name.startswith("_")}
    for each in kind.__mro__:
        is_of_user = each.__module__.partition(".")[0] not in (_ROOT, "torch", "typing")
        for name in vars(each):
            is_special = name.startswith("__") and name.endswith("__")
            is_public = is_of_user and not name.startswith("_")
            if is_special or is_public or name in _METHODS:
                names.add(name)
    return sorted(names)


def register_extensions() -> None:
    """Enter the chained forms of installed packages into torch's tables; keep the forms in them.

    An entry point ``voxpipe.forms`` maps the name of a form to the place of its class. Forms of
    map-style pipes have the prefix ``map.``.
    """
    for name, point in extensions("forms").items():
        table: Any = MapDataPipe if name.startswith("map.") else IterDataPipe
        first = table.functions.setdefault(name.removeprefix("map."), FirstUse(point.value))
        if isinstance(first, functools.partial):  # torch's table has the class as its argument
            leave_out_name(point, first.args[0].__module__.partition(".")[0])


def extension_pipes() -> dict[str, EntryPoint]:
    """Return the entry points of :mod:`voxpipe.datapipes.iter` by the names that it offers."""
    forms = {p.attr: p for name, p in extensions("forms").items() if not name.startswith("map.")}
    return forms | names_at("datapipes.iter")


class UnknownForm(AttributeError):
    """No pipe has this chained form. The text is made when it is read: many callers only probe."""

    def __init__(self, pipe: str, form: str) -> None:
        super().__init__(pipe, form)

    def __str__(self) -> str:
        pipe, form = self.args
        names, spelt = sorted(IterDataPipe.functions), form.lower()
        if form in RECIPES:
            hint = f"it is a function, vp.recipes.{form}(...), which takes or makes a chain"
            return f"{pipe} has no chained form {form!r}: {hint}"
        near = [one for one in FOREIGN_ARGUMENTS.get(spelt, ()) if one in names]
        near += closest(spelt, names, 0.75, _MOST)
        # Other libraries say more in a name: gaussian_noise, rand_affine, RandFlipd.
        inside = [name for name in names if len(name) >= _SHORTEST and name in spelt]
        guesses = list(dict.fromkeys([*near, *sorted(inside, key=len, reverse=True)]))[:_MOST]
        hint = f"; did you mean {' or '.join(map(repr, guesses))}?" if guesses else ""
        return f"{pipe} has no chained form {form!r}{hint}"
