"""What a step drew for an item before, to be done again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .amounts import is_integer
from .choice import Choice
from .errors import BadRecord, VoxpipeError
from .origin import shorten

# Keys of voxels' own numbers are the largest that are drawn.
_LARGEST = 2**64
# Which axes: as many as were drawn.
_OF_ANY_LENGTH = ("axes", "flip")


@dataclass(frozen=True)
class RecordedDraw:
    """A draw that was kept; a step that has one draws nothing itself."""

    drawn: Mapping[str, Any] | None
    """The parameters; None where the op did not act."""


def check_record(op: Any, record: Any, draw: Callable[[Any], Any]) -> None:
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
        the op's argument of this name may have. Of a choice, one of its members has such a
        record; the message says which, by its path.
    """
    if record is None:
        return
    op = getattr(op, "drawn_by", op)  # what one op draws, others may hold
    if not isinstance(record, Mapping):
        raise _bad(op, f"is {shorten(record)}, and a mapping from name to parameter is wanted")
    if isinstance(getattr(op, "choice", None), Choice):
        _refuse_members(op, record, draw)
        return
    template = _template(op, draw)
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


def _refuse_members(op: Any, record: Mapping[str, Any], draw: Callable[[Any], Any]) -> None:
    """Refuse the record of a choice: what was chosen, then what each op of a member drew."""
    if unlike := set(record) ^ {"chosen", "drawn"}:
        raise _bad(op, f"differs in {', '.join(sorted(map(str, unlike)))}: it draws chosen, drawn")
    chosen, drawn = record["chosen"], record["drawn"]
    if wanted := op.choice.unlike(chosen):
        raise _bad(op, f"has chosen {shorten(chosen)}, and {op.choice.rule}() chooses {wanted}")
    _refuse_length(op, "drawn", drawn, len(chosen))
    for number, (member, each) in enumerate(zip(chosen, drawn, strict=True)):
        chain = op.members[member]
        _refuse_length(op, f"drawn[{number}]", each, len(chain))
        for place, ((_, one), values) in enumerate(zip(chain, each, strict=True)):
            try:
                check_record(one, values, draw)
            except BadRecord as error:
                path = f"drawn[{number}][{place}]"
                joint = "." if error.what.startswith("drawn[") else ": "
                raise BadRecord(f"{path}{joint}{error.what}", do=error.do) from None


def _refuse_length(op: Any, path: str, value: Any, count: int) -> None:
    if not isinstance(value, (list, tuple)) or len(value) != count:
        raise _bad(op, f"has {path} {shorten(value)}, and a list of {count} is wanted")


def _template(op: Any, draw: Callable[[Any], Any]) -> Any:
    """Return what the op draws where it acts; None where that is not known here."""
    always = dataclasses.replace(op, p=1.0) if getattr(op, "p", 1.0) not in (0, 1) else op
    try:
        return draw(always)
    except VoxpipeError:  # e.g. nothing is found that a recorded box would not need
        return None


def _refuse_value(op: Any, name: str, value: Any, drawn: Any) -> None:
    if not _alike(value, drawn, any_length=name in _OF_ANY_LENGTH):
        raise _bad(op, f"has {name} {shorten(value)}, and what it draws is like {shorten(drawn)}")
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
            return all(is_integer(one) and one in (0, 1, 2) for one in value)
        fits = len(value) == len(drawn)
        return fits and all(_alike(a, b) for a, b in zip(value, drawn, strict=True))
    if isinstance(drawn, (int, float)) and not isinstance(drawn, bool):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # Written so that NaN is none, and before a number of any length becomes a double.
        return is_number and abs(value) <= _LARGEST
    return isinstance(value, type(drawn))


def _bad(op: Any, what: str) -> BadRecord:
    do = 'Give replay() what a batch\'s "meta" has under "draws", of a chain with the same ops.'
    return BadRecord(f"the record of {op.describe()} {what}", do=do)
