"""Chained forms of ops: a pipe class for every op, whose arguments are the op's fields.

So an op is written once, and what a user may give to ``.rotate(...)`` is what ``Rotate`` takes.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Sequence
from typing import Any

# The fields that are never told apart by their place, whatever else an op has.
KEYWORD_ONLY = frozenset(
    {
        *("p", "space", "hard", "keep_size", "extent", "longest", "one", "where"),
        *("end", "center", "slices", "scale"),
        *("otherwise", "others", "overhang", "divisible"),
    }
)


WORDS = {
    "angle": "degrees",
    "scale": "zoom",
    "scales": "zoom",
    "scale_range": "zoom",
    "rotate_range": "rotate",
    "translation": "translate",
    "translate_range": "translate",
    "shear_range": "shear",
    "prob": "p",
}
"""What MONAI and TorchIO call our arguments."""


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
            near = [WORDS[given]] if WORDS.get(given) in known else []
            near = near or difflib.get_close_matches(given, known, n=1, cutoff=0.5)
            meant = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}"
            msg = f"{name}() has no argument {given!r}{meant}"
            raise TypeError(msg)
    try:
        arguments = dict(signature.bind(None, *args, **kwargs).arguments)
    except TypeError as error:
        by_name = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
        # Of these p is what people write by its place.
        by_name = ["p"] if "p" in by_name else by_name
        hint = f"; write {by_name[0]}= by keyword" if by_name and "too many" in str(error) else ""
        msg = f"{name}(): {error}{hint}"
        raise TypeError(msg) from None
    del arguments["parent"]
    return arguments


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
