"""Checks of arguments: numbers, ranges to draw from, probabilities, flags and keys."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Real
from operator import index
from typing import Any, ClassVar, TypeGuard

import numpy as np

from .call_site import shorten

Range = tuple[float, float]
ParameterRange = float | Range  # A scalar, or a range (low, high) to draw from uniformly


def parse_range(
    name: str,
    value: Any,
    *,
    positive: bool = False,
    least: float = -math.inf,
    forms: str = "a number or (low, high)",
) -> ParameterRange:
    """Return a number or a range as a float or a pair; messages name the allowed ``forms``.

    Examples
    --------
    >>> parse_range("std", [0, 0.1], least=0)
    (0.0, 0.1)
    """
    pair = entries_of(value)
    is_range = len(pair) == 2
    numbers = pair if is_range else (value,)
    if not all(map(is_number, numbers)):
        raise ValueError(f"{name} is {forms}, got {value!r}")
    floats = [float(v) for v in numbers]
    if not all(map(math.isfinite, floats)) or (positive and min(floats) <= 0):
        rule = "numbers above 0" if positive else "finite numbers"
        raise ValueError(f"{name} takes {rule}, got {value!r}")
    if min(floats) < least:
        raise ValueError(f"{name} takes numbers >= {least:g}, got {value!r}")
    if not is_range:
        return floats[0]
    if floats[0] > floats[1]:
        each = ", ".join(f"({v:g}, {v:g})" for v in floats)
        hint = f"; for a value of each of two axes write ({each})"
        raise ValueError(f"{name} takes a range (low, high) with low <= high, got {value!r}{hint}")
    return (floats[0], floats[1])


def is_empty_cell(value: Any) -> bool:
    """Whether a value of a table is empty: None, blank text, NaN, pandas' NA and NaT, or n/a."""
    if isinstance(value, str):
        return value.strip() in ("", "n/a", "N/A", "#N/A", "nan", "NaN", "<NA>", "NaT")
    is_missing = isinstance(value, (float, np.floating)) and math.isnan(value)
    return value is None or is_missing or type(value).__name__ in ("NAType", "NaTType")


def as_number(
    name: str, value: Any, *, least: float = -math.inf, optional: bool = False
) -> float | None:
    """Return one finite number as a float; None if it is optional and given."""
    if value is None and optional:
        return None
    if not is_finite(value) or value < least:
        rule = "a finite number" if least == -math.inf else f"a number >= {least:g}"
        raise ValueError(f"{name} is {rule}{' or None' if optional else ''}, got {value!r}")
    return float(value)


def as_flag(name: str, value: Any) -> bool:
    """Return True or False; ValueError for other values, also if Python treats them as true."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise ValueError(f"{name} is True or False, got {value!r}")


def as_volume_key(name: str, value: Any) -> str | None:
    """Return the key of a volume, or None."""
    if value is None or (isinstance(value, str) and value):
        return value
    raise ValueError(f"{name} is the key of a volume or None, got {value!r}")


def as_keys(asker: str, keys: Any) -> tuple[str, ...]:
    """Return one or several keys of volumes as a tuple; ``asker`` names the argument."""
    several = (keys,) if isinstance(keys, str) else keys
    words = tuple(several) if isinstance(several, Iterable) else (several,)
    if not all(isinstance(key, str) and key for key in words):
        rule = "the key of a volume, or several: 'ct' or ['ct', 't1']"
        raise ValueError(f"{asker} takes {rule}, got {keys!r}")
    # The order of a set differs between processes.
    return tuple(sorted(words)) if isinstance(several, (set, frozenset)) else words


def value_at(entry: ParameterRange, u: float) -> float:
    """Return the number of an entry at the uniform number ``u`` from [0, 1)."""
    low, high = entry if isinstance(entry, tuple) else (entry, entry)
    return low + (high - low) * u


def bounds_of(entry: ParameterRange) -> Range:
    """Return the lowest and the highest number of an entry."""
    return entry if isinstance(entry, tuple) else (entry, entry)


def as_probability(name: str, value: Any) -> float:
    """Return a probability as a float."""
    if not is_number(value) or not 0 <= float(value) <= 1:
        raise ValueError(f"{name} is a probability from 0 to 1, got {value!r}")
    return float(value)


def as_choice(
    name: str, value: Any, choices: Sequence[str], words: Mapping[str, str] | None = None
) -> str:
    """Return ``value`` if it is one of ``choices``.

    ``words`` maps words of other libraries to ours, for the error message.
    """
    if isinstance(value, str) and value in choices:
        return value
    ours = (words or {}).get(value) if isinstance(value, str) else None
    hint = f": that is {ours!r} here" if ours else ""
    raise ValueError(f"{name} is one of {', '.join(map(repr, choices))}, got {value!r}{hint}")


def as_count(name: str, value: Any) -> int:
    """Return a whole number of at least 0."""
    if not is_integer(value) or value < 0:
        raise ValueError(f"{name} is a whole number of at least 0, got {value!r}")
    return int(value)


def is_number(value: Any) -> TypeGuard[float]:
    """Whether ``value`` is a real number of Python or NumPy, and no bool."""
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether ``value`` is a number, and neither infinite nor NaN."""
    return is_number(value) and math.isfinite(value)


def is_integer(value: Any) -> bool:
    """Whether ``value`` is an integer of Python or NumPy, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def entries_of(value: Any) -> tuple[Any, ...]:
    """Return the entries of a tuple, a list or a one-dimensional array; else an empty tuple."""
    if isinstance(value, np.ndarray):
        return tuple(value) if value.ndim == 1 else ()
    return tuple(value) if isinstance(value, (tuple, list)) else ()


def as_axes(name: str, value: Any) -> tuple[int, ...]:
    """Return one or several spatial axes, numbers or ``"i"``, ``"j"``, ``"k"``, as a tuple."""
    names = entries_of(value) or (value,)
    axes = [
        {"i": 0, "j": 1, "k": 2}.get(one, one) if isinstance(one, str) else one for one in names
    ]
    if not all(is_integer(axis) and axis in (0, 1, 2) for axis in axes):
        msg = f"{name} is 0, 1 or 2, or 'i', 'j', 'k', or several of them, got {value!r}"
        raise ValueError(msg)
    return tuple(map(int, axes))


def as_channels(name: str, value: Any) -> tuple[int | str, ...]:
    """Return one channel or several, by number or name, as a tuple.

    Examples
    --------
    >>> as_channels("channels", "DAPI"), as_channels("channels", [2, 0])
    (('DAPI',), (2, 0))
    """
    channels = entries_of(value) or (value,)
    if not all((isinstance(c, str) and c) or (is_integer(c) and c >= 0) for c in channels):
        rule = "an integer >= 0, the name of a channel, or several of them"
        raise ValueError(f"{name} is {rule}, got {value!r}")
    return tuple(one if isinstance(one, str) else int(one) for one in channels)


def as_dtype(name: str, value: Any) -> np.dtype[Any]:
    """Return the NumPy type of a NumPy or torch type, or of its name.

    Examples
    --------
    >>> as_dtype("dtype", "int8")
    dtype('int8')
    >>> as_dtype("dtype", "U3")
    Traceback (most recent call last):
        ...
    ValueError: dtype is a type of real numbers, such as 'uint8' or np.float32, got 'U3'
    """
    # Without importing torch: str() of its types is torch.float16.
    is_of_torch = type(value).__module__ == "torch"
    try:
        dtype = np.dtype(str(value).removeprefix("torch.") if is_of_torch else value)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "biuf" or dtype.subdtype is not None:
        rule = "a type of real numbers, such as 'uint8' or np.float32"
        raise ValueError(f"{name} is {rule}, got {shorten(value)}")
    return dtype


Check = Callable[[str, Any], Any]


def set_checked(op: Any, **checks: Check) -> None:
    """Set fields of a frozen dataclass to the results of checks, by name."""
    for name, check in checks.items():
        object.__setattr__(op, name, check(name, getattr(op, name)))


class FieldChecks:
    """Base class of frozen dataclasses whose constructor checks and converts fields."""

    checks: ClassVar[Mapping[str, Check]] = {}
    """Checks of fields: functions of name and value that return the stored value or raise. Those
    of base classes apply, too."""

    def __init_subclass__(cls) -> None:
        for base in cls.__mro__:
            cls.checks = {**vars(base).get("checks", {}), **cls.checks}
        super().__init_subclass__()

    def __post_init__(self) -> None:
        set_checked(self, **self.checks)


def or_none(check: Check) -> Check:
    """Return the check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


# Names in OME-XML, UDUNITS-2 (OME-Zarr), ImageJ and NRRD; Unicode has two letters µ.
_UNITS = {
    1e-9: "pm",
    1e-7: "angstrom å ångström",
    1e-6: "nm",
    1e-3: "um μm micron",
    1.0: "mm",
    10.0: "cm",
    100.0: "dm",
    1e3: "m",
    1e6: "km",
    25.4: "inch inches in",
    304.8: "foot feet ft",
    914.4: "yard yd",
    1609344.0: "mile mi",
    3.0856775814913673e19: "parsec pc",
}
_PREFIXES = [*str.split("yocto zepto atto femto pico nano micro milli"), ""]
_PREFIXES += str.split("kilo mega giga tera peta exa zetta yotta")
_POWERS = {prefix: 3 * n - 24 for n, prefix in enumerate(_PREFIXES)}
_POWERS |= {"centi": -2, "deci": -1, "deca": 1, "hecto": 2}
_SYMBOL = 3  # letters; a longer unit may have a plural
MILLIMETRES = {f"{prefix}meter": float(f"1e{n + 3}") for prefix, n in _POWERS.items()}
MILLIMETRES |= {unit: size for size, units in _UNITS.items() for unit in units.split()}
"""Millimetres of each unit of length, by the word that :func:`unit_word` returns."""


@lru_cache(maxsize=256)
def plain_unit(word: str) -> str:
    """Return our name of a unit in ``MILLIMETRES``: ``"um"`` for ``"micrometer"``."""
    return _UNITS.get(MILLIMETRES[word], word).split()[0]


@lru_cache(maxsize=256)
def unit_word(text: str) -> str:
    """Return a unit in lower case, singular, in American spelling and without hyphens.

    Examples
    --------
    >>> unit_word("Micro-metres"), unit_word("Å") in MILLIMETRES
    ('micrometer', True)
    """
    # ImageJ writes the micro sign as an escape.
    word = unicodedata.normalize("NFKC", text).casefold().replace("\\u00b5", "μ")
    word = re.sub(r"[\s._-]", "", word).replace("metre", "meter")
    stem = word.removesuffix("s")
    # The word "ms" is no length.
    return word if word in MILLIMETRES or len(stem) <= _SYMBOL else stem


def as_unit(name: str, value: Any, *, voxel: bool = True) -> str:
    """Return a unit of length as a word of ``MILLIMETRES``, or ``"voxel"``.

    Examples
    --------
    >>> as_unit("unit", "um"), as_unit("unit", "voxel")
    ('um', 'voxel')
    """
    word = unit_word(value) if isinstance(value, str) else ""
    if word in MILLIMETRES or (voxel and word == "voxel"):
        return word
    words = "'mm', 'um', 'nm', 'angstrom', 'cm', 'm', 'inch'" + (" or 'voxel'" if voxel else "")
    raise ValueError(f"{name} is a unit of length, one of {words}, got {value!r}")


LATER = {"came later": True}
"""Metadata of a dataclass field that older saved states lack. While the field has its default, it
is not part of a graph's hash, so older states still fit."""


def count_text(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun."""
    return f"{count} {noun if count == 1 else plural or f'{noun}s'}"


def validate_int(
    name: str, value: Any, *, least: int, below: int | None = None, unit: str = "", do: str = ""
) -> int:
    """Return ``value`` as an ``int``: TypeError if it is no whole number, ValueError out of range.

    True and False are refused. The message has the ``unit`` of the count and, in ``do``, other
    allowed values.

    Examples
    --------
    >>> validate_int("num_workers", 2, least=0)
    2
    >>> validate_int("num_workers", 1.5, least=0)
    Traceback (most recent call last):
        ...
    TypeError: num_workers is a whole number of at least 0, got 1.5
    """
    kind = f"whole number of {unit}" if unit else "whole number"
    power = {2**62: "2**62", 2**64: "2**64"}.get(below or 0, below)
    range_ = f"of at least {least}" if below is None else f"from {least} to below {power}"
    rule = f"{name} is a {kind}{',' if unit else ''} {range_}{do and f', {do}'}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = index(value)
    except TypeError:
        raise TypeError(f"{rule}, got {shorten(value)}") from None
    if number < least or (below is not None and number >= below):
        raise ValueError(f"{rule}, got {shorten(number)}")
    return number
