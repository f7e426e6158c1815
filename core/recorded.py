"""What a step drew for an item before, to be done again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .errors import BadRecord, VoxpipeError

NoneType = type(None)
# Which axes, and which members of a choice: as many as were drawn.
_OF_ANY_LENGTH = ("axes", "flip", "chosen", "drawn")


@dataclass(frozen=True)
class Recorded:
    """A draw that was kept; a step that has one draws nothing itself."""

    drawn: Mapping[str, Any] | None
    """The parameters; None where the op did not act."""


def refuse_unlike(op: Any, record: Any, draw: Callable[[Any], Any]) -> None:
    """Refuse a record that ``op`` could not have drawn, by what it draws itself.

    Parameters
    ----------
    op
        A spatial or value op.
    record
        What is to be done instead of a draw.
    draw
        Returns what an op draws here.

    Raises
    ------
    BadRecord
        A name is missing or unknown, a value has another form, is not finite, or is none that
        the op's argument of this name may have.
    """
    if record is None:
        return
    template = _template(op, draw)
    if not isinstance(record, Mapping):
        raise _bad(op, f"is {record!r}, and a mapping from name to parameter is wanted")
    if template is None:
        return
    sometimes = getattr(op, "sometimes_drawn", ())
    unlike = (set(record) ^ set(template)) - set(sometimes)
    if unlike:
        names = ", ".join(sorted(map(str, unlike)))
        raise _bad(op, f"differs in {names}: it draws {', '.join(template) or 'nothing'}")
    for name in template:
        if name in record:
            _refuse_value(op, name, record[name], template[name])


def _template(op: Any, draw: Callable[[Any], Any]) -> Any:
    """Return what the op draws where it acts; None where that is not known here."""
    always = dataclasses.replace(op, p=1.0) if getattr(op, "p", 1.0) not in (0, 1) else op
    try:
        return draw(always)
    except VoxpipeError:  # e.g. nothing is found that a recorded box would not need
        return None


def _refuse_value(op: Any, name: str, value: Any, drawn: Any) -> None:
    if not _alike(value, drawn, any_length=name in _OF_ANY_LENGTH):
        raise _bad(op, f"has {name} {value!r}, and what it draws is like {drawn!r}")
    if name not in {field.name for field in dataclasses.fields(op)}:
        return
    try:
        dataclasses.replace(op, **{name: drawn})
    except (VoxpipeError, ValueError, TypeError):
        return  # the argument means something else than what is drawn
    try:
        dataclasses.replace(op, **{name: value})
    except (VoxpipeError, ValueError, TypeError) as error:
        raise _bad(op, f"has a {name} that cannot be: {error}") from None


def _alike(value: Any, drawn: Any, *, any_length: bool = False) -> bool:
    if isinstance(drawn, (list, tuple)):
        if not isinstance(value, (list, tuple)):
            return False
        if any_length:
            return all(isinstance(one, (int, list, tuple, Mapping, NoneType)) for one in value)
        fits = len(value) == len(drawn)
        return fits and all(_alike(a, b) for a, b in zip(value, drawn, strict=True))
    if isinstance(drawn, (int, float)) and not isinstance(drawn, bool):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    return isinstance(value, type(drawn))


def _bad(op: Any, what: str) -> BadRecord:
    do = 'Give replay() what a batch\'s "meta" has under "draws", of a chain with the same ops.'
    return BadRecord(f"the record of {op.describe()} {what}", do=do)
