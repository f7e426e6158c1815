"""Chained forms of ops: a pipe class for every op, whose arguments are the op's fields.

So an op is written once, and what a user may give to ``.rotate(...)`` is what ``Rotate`` takes.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Sequence
from typing import Any

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


WORDS = {
    "angle": ("degrees",),
    "scale": ("zoom", "factor"),
    "scales": ("zoom", "factor"),
    "scale_range": ("zoom", "factor"),
    "zoom": ("factor",),
    "zoom_range": ("factor",),
    "downsampling": ("factor",),
    "rotate_range": ("rotate",),
    "translation": ("translate",),
    "translate_range": ("translate",),
    "shear_range": ("shear",),
    "prob": ("p",),
    "pixdim": ("spacing",),
    "target": ("spacing",),
    "spatial_size": ("size", "shape"),
    "target_shape": ("size",),
    "roi_size": ("size",),
    "roi_start": ("start",),
    "roi_end": ("end",),
    "roi_center": ("center",),
    "roi_slices": ("slices",),
    "roi_scale": ("scale",),
    "spatial_axis": ("axes",),
    "spatial_axes": ("axes",),
    "max_k": ("k",),
    "k_divisible": ("divisible", "k"),
    "source_key": ("key",),
    "padding_mode": ("padding",),
    "max_displacement": ("amount",),
    "subtrahend": ("mean",),
    "divisor": ("std",),
    "nonzero": ("above",),
    "transforms": ("ops",),
    "num_transforms": ("count",),
    "retain_stats": ("keep_statistics",),
    "invert_image": ("invert",),
    "preserve_range": ("keep_range",),
}
"""What MONAI and TorchIO call our arguments; the first that a pipe has is meant."""
REASONS = {
    "keys": (
        ": all volumes of a sample move alike, so it is not written here; mode=, padding=, fill= "
        "and dtype= take {key: value}"
    ),
    "log_gamma": ": give gamma=math.exp(log_gamma)",
    "seed": ": the seed is the loader's, DataLoader2(..., seed=7)",
}
"""What is said of an argument that has no counterpart."""
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
    near = [one for one in WORDS.get(given, ()) if one in known]
    if not near and given in REASONS:
        return REASONS[given]
    if not near and given not in WORDS:
        near = difflib.get_close_matches(given, known, n=1, cutoff=_MISSPELT)
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
