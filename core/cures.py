"""Texts that know which arguments they name, so that a command can name its options instead.

>>> text = cure("Give another place, or ⟦overwrite=True⟧.")
>>> text
'Give another place, or overwrite=True.'
>>> spell(text, lambda one: f"--{one.name}")
'Give another place, or --overwrite.'
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any, NamedTuple

# ⟦overwrite=True⟧, ⟦affine=⟧, ⟦open_volume(axes="zyx")⟧ or a word: brackets that no path has.
_MARK = re.compile(r"⟦((?:\w+\()?[a-z]\w*(?:=[^⟦⟧]*)?)⟧")
# JSON in place of calls in Python.
_VALUES = {"numpy.diag([x, y, z, 1])": "[[x, 0, 0, 0], [0, y, 0, 0], [0, 0, z, 0], [0, 0, 0, 1]]"}


class Argument(NamedTuple):
    """An argument that an error names."""

    name: str
    value: Any  # to give; None where the user has to choose it
    python: str  # the text for Python


class Cure(str):
    """A text with arguments in it; sums with other texts know them, too."""

    parts: tuple[str | Argument, ...]

    def __new__(cls, *parts: str | Argument) -> Cure:
        """Return the text of parts, for Python."""
        texts = (one if isinstance(one, str) else one.python for one in parts)
        self = super().__new__(cls, "".join(texts))
        self.parts = parts
        return self

    def __add__(self, other: str) -> Cure:
        return Cure(*self.parts, *_parts_of(other))

    def __radd__(self, other: str) -> Cure:
        return Cure(*_parts_of(other), *self.parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return Cure, self.parts


def cure(text: str, change: Callable[[str], str] = str) -> str:
    """Return a text, after a function of strings, that knows the arguments in its marks.

    A mark is ``⟦name=value⟧`` with a literal, a word or nothing as the value.
    """
    parts = list[str | Argument]()
    for part in _parts_of(text):
        texts: list[Any] = [part] if isinstance(part, Argument) else _MARK.split(change(part))
        parts += [_argument_of(one) if n % 2 else one for n, one in enumerate(texts)]
    return Cure(*parts) if len(parts) > 1 or isinstance(text, Cure) else str(*parts)


def _argument_of(code: str) -> Argument:
    name, _, text = code.partition("=")
    if "(" in name:  # of a call
        name, text = name.partition("(")[2], text.removesuffix(")")
    try:
        return Argument(name, ast.literal_eval(text), code)
    except (SyntaxError, ValueError):
        return Argument(name, _VALUES.get(text, text or None), code)


def _parts_of(text: str) -> tuple[str | Argument, ...]:
    return text.parts if isinstance(text, Cure) else (text,)


def spell(text: str, words: Callable[[Argument], str]) -> str:
    """Return a text with other words for its arguments."""
    return "".join(one if isinstance(one, str) else words(one) for one in _parts_of(text))
