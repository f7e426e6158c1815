"""Environment variables: their allowed values, and one error for the others.

A loader checks all of them when it is created. ``docs/reference/environment.md`` has the table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .errors import BadSetting

CACHE = "VOXPIPE_CACHE"
CACHE_BYTES = "VOXPIPE_CACHE_BYTES"
MAPPED_BYTES = "VOXPIPE_MAPPED_BYTES"
NATIVE = "VOXPIPE_NATIVE"
REMOTE = "VOXPIPE_REMOTE"
REMOTE_DEADLINE = "VOXPIPE_REMOTE_DEADLINE"
REMOTE_HEDGE = "VOXPIPE_REMOTE_HEDGE"
POISON = "VOXPIPE_POISON"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(iB|B)?)?", re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def size_of_text(text: str) -> int:
    """Return the bytes of a text: ``25165824``, ``24M`` or ``24 MiB``; ``24MB`` are 24e6.

    Raises
    ------
    ValueError
        For other texts; the message has the allowed form.

    Examples
    --------
    >>> size_of_text("24M"), size_of_text("1.5 kB")
    (25165824, 1500)
    """
    if (match := _SIZE.fullmatch(text.strip())) is None:
        raise ValueError("a number of bytes, such as 25165824 or 24M")
    number, power, unit = match.groups()
    base = 1000 if (unit or "").upper() == "B" else 1024
    return int(float(number) * base ** _POWERS[power.upper()]) if power else int(float(number))


def bytes_text(count: int) -> str:
    """Return bytes in a unit that fits.

    Examples
    --------
    >>> bytes_text(999), bytes_text(25165824)
    ('999 B', '24 MiB')
    """
    number, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while number >= 1000 and len(units) > 1:
        number /= 1024
        units.pop(0)
    return f"{number:.3g} {units[0]}"


def _seconds(text: str) -> float:
    try:
        if (seconds := float(text)) > 0 and seconds != float("inf"):
            return seconds
    except ValueError:
        pass
    raise ValueError("a positive number of seconds")


def _one_of(*values: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text in values:
            return text
        raise ValueError(" or ".join((", ".join(values[:-1]), values[-1])))

    return read


# Parsers by variable; a ``ValueError`` has the allowed form.
_READERS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {
        CACHE: str,
        CACHE_BYTES: size_of_text,
        MAPPED_BYTES: size_of_text,
        NATIVE: _one_of("0", "portable", "avx2", "avx512", "avx512_gather"),
        REMOTE: _one_of("fsspec", "obstore"),
        REMOTE_DEADLINE: _seconds,
        REMOTE_HEDGE: _one_of("0", "1"),
        POISON: _one_of("0", "1", "finite"),
    }
)
NAMES: Sequence[str] = tuple(_READERS)


def read_setting(name: str, usual: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """Return the value of a setting; ``usual`` if it is unset or empty.

    Raises
    ------
    BadSetting
        If its text is not allowed.
    """
    text = environment.get(name)
    if not text:
        return usual
    try:
        return _READERS[name](text)
    except ValueError as error:
        msg = f"The environment variable {name} is {text!r}, but must be {error}."
        do = f"Set it to an allowed value, or unset it: unset {name}."
        raise BadSetting(msg, do=do) from None


def check_settings() -> None:
    """Read every setting; ``BadSetting`` for the first bad one."""
    for name in NAMES:
        read_setting(name, None)
