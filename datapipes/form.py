"""Chained forms of ops, and what is said of an argument that no form has."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ..core import CallSite
from ..core.call_site import warn
from ..core.errors import LikelyMistake
from ..core.suggest import FOREIGN_ARGUMENTS, NO_COUNTERPART, closest
from ..intensity.low_resolution import INVERSE, Anisotropy, LowResolution

# The fields that are never told apart by their place, whatever else an op has.
KEYWORD_ONLY = frozenset(
    {
        *("p", "space", "hard", "keep_size", "extent", "longest", "one", "where"),
        *("end", "center", "slices", "scale"),
        *("otherwise", "others", "overhang", "divisible"),
        *("over", "keep_statistics", "invert"),
    }
)


# Forms whose factor is how much larger voxels get, and what others call its inverse.
_COARSER = (LowResolution.name, Anisotropy.name)
_SCALES = ("scale", "scales", "scale_range", "zoom", "zoom_range")
# So near that nothing else can be meant; spatial_size is not antialias.
_MISSPELT = 0.6


def signature_of(
    op: type, more: Sequence[tuple[str, Any]], *, keywords_only: bool = False
) -> inspect.Signature:
    """Return the signature of a pipe: parent, the fields of ``op``, then further keywords.

    Parameters
    ----------
    op
        A dataclass.
    more
        Name and default of the keywords that all pipes of this kind have.
    keywords_only
        Whether no field is told by its place.
    """
    kinds = inspect.Parameter
    plain = [kinds("parent", kinds.POSITIONAL_OR_KEYWORD)]
    keywords: list[inspect.Parameter] = []
    for field in dataclasses.fields(op):
        is_keyword = keywords_only or field.name in KEYWORD_ONLY
        kind = kinds.KEYWORD_ONLY if is_keyword else kinds.POSITIONAL_OR_KEYWORD
        default = kinds.empty if field.default is dataclasses.MISSING else field.default
        one = kinds(field.name, kind, default=default, annotation=field.type)
        (keywords if is_keyword else plain).append(one)
    keywords += [kinds(name, kinds.KEYWORD_ONLY, default=default) for name, default in more]
    return inspect.Signature([*plain, *keywords])


def bound(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments by name, without the parent; what was left out is left out.

    Raises
    ------
    TypeError
        An argument is unknown, missing or given twice; a misspelt one is guessed.
    """
    known = [parameter for parameter in signature.parameters if parameter != "parent"]
    for given in kwargs:
        if given not in known:
            inverse = name in _COARSER and given in _SCALES
            hint = INVERSE if inverse else _instead(given, known)
            raise TypeError(f"{name}() has no argument {given!r}{hint}")
    try:
        arguments = dict(signature.bind(None, *args, **kwargs).arguments)
    except TypeError as error:
        by_name = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        # Of these weights and p are what people write by their place.
        if len(by_name) < len(known):
            by_name = [one for one in ("weights", "p") if one in by_name] or by_name
        asked = " and ".join(f"{one}=" for one in by_name[:2])
        hint = f"; write {asked} by keyword" if by_name and "too many" in str(error) else ""
        msg = f"{name}(): {error}{hint}"
        raise TypeError(msg) from None
    del arguments["parent"]
    return arguments


def _instead(given: str, known: Sequence[str]) -> str:
    """Return what to write in place of an argument that there is not."""
    near = [one for one in FOREIGN_ARGUMENTS.get(given, ()) if one in known]
    if not near and given in NO_COUNTERPART:
        return NO_COUNTERPART[given]
    if not near and given not in FOREIGN_ARGUMENTS:
        near = closest(given, known, _MISSPELT)
    return f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}"


def form(kind: type, op: type, module: str, signature: inspect.Signature) -> Any:
    """Return the pipe class of an op: a ``kind`` that is found in ``module`` as ``<Op>Pipe``."""
    name = f"{op.__name__}Pipe"
    members = {
        "__doc__": (op.__doc__ or "").partition("    Examples\n")[0].rstrip(),  # those of the op
        "__module__": module,
        "__qualname__": name,
        "__signature__": signature,
        "makes": op,
    }
    return type(name, (kind,), members)


# So near that nothing else can be meant, where an argument may be for somebody else: "labls".
_NEARLY = 0.75


def refuse_unknown_arguments(
    name: str,
    given: Iterable[str],
    known: Collection[str],
    words: Mapping[str, str],
    *,
    only_misspelt: bool = False,
) -> None:
    """Raise where an argument is none of a pipe's, and say which one is.

    Parameters
    ----------
    name
        The chained form.
    given
        The names that were given.
    known
        The names that there are.
    words
        Words of other libraries, and ours for each of them.
    only_misspelt
        Whether names that resemble none of ``known`` are let through, for somebody else.

    Raises
    ------
    TypeError
        As Python would, with the argument that was meant.
    """
    for one in given:
        if one in known:
            continue
        near = closest(one, known, _NEARLY)
        meant = words.get(one) or next(iter(near), None)
        if meant is None and only_misspelt:
            continue
        hint = f"; did you mean {meant!r}?" if meant else f"; it has {', '.join(known)}"
        msg = f"{name}() has no argument {one!r}{hint}"
        raise TypeError(msg)


def tell_mistakes(op: Any, origin: CallSite | None) -> None:
    """Warn of what an op says of its own numbers; an op without ``likely_mistakes`` says nothing.

    Pipes call this and ops do not, as ops are made again where nobody wrote anything.
    """
    for told in getattr(op, "likely_mistakes", ()):
        warn(told, LikelyMistake, origin)


BY_KEY = ("affine", "dataset", "follow", "io", "level", "reader", "series")
"""Options of which a mapping is one value per key: none of them is a mapping itself."""
# That of one volume is a mapping already; of options by key, each value is one.
_STORAGE = "storage_options"


def named_by_key(
    options: Mapping[str, Any], keys: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return which keys the options name that are given by key.

    Parameters
    ----------
    options
        By name; those of :data:`BY_KEY`, ``storage_options``, and any that a backend or a reader
        of the user's own takes. Of the latter, a mapping is by key where it names a key.
    keys
        The volumes of a sample; none as long as no sample was seen.

    Examples
    --------
    >>> named_by_key({"level": {"image": 1}, "series": 2})
    {'level': ('image',)}
    >>> named_by_key({"window": {"image": 40}, "codec": {"name": "x"}}, ["image", "label"])
    {'window': ('image',)}
    """
    return {name: tuple(given) for name, given in options.items() if _is_by_key(name, given, keys)}


def options_of(key: str, options: Mapping[str, Any], keys: Collection[str] = ()) -> dict[str, Any]:
    """Return the options for one volume: those for all, and its own.

    Examples
    --------
    >>> options = {"level": {"image": 1}, "series": 2}
    >>> options_of("image", options), options_of("label", options)
    ({'series': 2, 'level': 1}, {'series': 2})
    """
    by_key = named_by_key(options, keys)
    shared = {name: given for name, given in options.items() if name not in by_key}
    own = {name: options[name][key] for name in by_key if key in options[name]}
    return {**shared, **own}


def values_of(name: str, given: Any) -> tuple[Any, ...]:
    """Return what an option of :data:`BY_KEY` is for any volume.

    Examples
    --------
    >>> values_of("io", {"image": "pread", "label": "mmap"}), values_of("io", "auto")
    (('pread', 'mmap'), ('auto',))
    """
    return tuple(given.values()) if _is_by_key(name, given, ()) else (given,)


def _is_by_key(name: str, given: Any, keys: Collection[str]) -> bool:
    if not isinstance(given, Mapping):
        return False
    if name == _STORAGE and not all(v is None or isinstance(v, Mapping) for v in given.values()):
        return False
    return name in BY_KEY or any(key in keys for key in given)
