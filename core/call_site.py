"""The call, file and line that the user wrote, and warnings that appear once.

Errors, profiles and ``explain()`` quote pipes as the user's script writes them. The origin of a
pipe is the innermost frame outside voxpipe and torch.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import reprlib
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from .context import ContextKey, holding
from .cures import cure
from .redact import public_text, public_value

# Frames of these packages are machinery between the user's line and the pipe.
_MACHINERY = ("voxpipe", "torch", "torchdata", "functools", "contextlib")
# The outermost frames of a thread: the user has no line outside them.
_THREADS = ("threading", "concurrent")
# Characters of an argument.
_LONGEST_ARGUMENT = 40
# Characters of a description of ops: about five, as many as a choice usually has.
_LONGEST_OPS = 200
# Nesting of choices of ops.
_DEEPEST_OPS = 8
# Digits of a number and levels of a list: more would not fit into a message.
_MOST_DIGITS, _DEEPEST = 100, 40
# The registries of ``warnings.warn_explicit``, by file: each warning appears once per line.
_MESSAGES: dict[str, dict[Any, Any]] = {}
# A chain warns a few times per key, but data may create any number of keys.
_MOST_MESSAGES = 4096
_AHEAD = ContextKey(False)
is_looking_ahead = _AHEAD.get
"""Whether this thread plans patches without realizing them."""

# Arguments that may hold credentials: they are never shown and enter no digest of a chain.
CREDENTIALS = ("storage_options",)
_MASK = "{…}"


@dataclass(frozen=True)
class CallSite:
    """One call in the user's code."""

    call: str  # the call as written, shortened: ``lazy_patch((96, 96, 96))``
    file: str  # path of the script, as in its frame; empty if unknown
    line: int  # line number in ``file``

    def __str__(self) -> str:
        if not self.file:
            return self.call
        dot = "" if self.call.startswith("vp.") else "."  # a function, or a chained pipe
        return f"{dot}{self.call}   {os.path.basename(self.file)}:{self.line}"


def shorten(value: Any) -> str:
    """Return ``repr(value)``, shortened for a message, with URLs without secrets.

    Examples
    --------
    >>> shorten((96, 96, 96))
    '(96, 96, 96)'
    >>> shorten("https://me:secret@host/a.nii?X-Signature=abc")
    "'https://host/a.nii'"
    """
    if (words := _words_of(value)) is not None:
        return words if len(words) <= _LONGEST_OPS else words[: _LONGEST_OPS - 1] + "…"
    if isinstance(value, functools.partial):
        return f"partial({shorten(value.func)}, …)"
    has_name = callable(value) and hasattr(value, "__name__")
    text = value.__name__ if has_name else _BEGINNING.repr(public_value(_first_of(value)))
    text = public_text(" ".join(text.split()))
    return text if len(text) <= _LONGEST_ARGUMENT else text[: _LONGEST_ARGUMENT - 1] + "…"


def _first_of(value: Any) -> Any:
    """Return a list or mapping without entries that are not shown."""
    if type(value) is dict and len(value) > _DEEPEST:
        return dict(itertools.islice(value.items(), _DEEPEST + 1))
    return value[: _DEEPEST + 1] if type(value) in (list, tuple) else value


class _Beginning(reprlib.Repr):
    """The beginning of a ``repr``: all of it may be gigabytes, or end in a ``RecursionError``."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = self.maxdict = self.maxlist = self.maxtuple = _DEEPEST
        self.maxset = self.maxfrozenset = self.maxdeque = self.maxarray = _DEEPEST
        self.maxother = sys.maxsize  # never cut: `public_text` needs whole URLs

    def repr_str(self, x: str, level: int) -> str:
        return repr(x)

    def repr_int(self, x: int, level: int) -> str:
        is_short = x.bit_length() < 3 * _MOST_DIGITS
        return repr(x) if is_short else f"<a number of {x.bit_length()} bits>"

    def repr_dict(self, x: dict[Any, Any], level: int) -> str:
        if level <= 0:
            return "{...}"
        first = itertools.islice(x.items(), self.maxdict)
        pairs = ((self.repr1(key, level - 1), self.repr1(one, level - 1)) for key, one in first)
        return f"{{{', '.join(f'{key}: {one}' for key, one in pairs)}}}"


_BEGINNING = _Beginning()


def _words_of(value: Any, levels: int = _DEEPEST_OPS) -> str | None:
    """Return the description of an op, of a list of ops or of their weights; else None."""
    if isinstance(value, (Mapping, list, tuple)):
        parts: list[str] = []
        for one in value:
            text = _words_of(one, levels - 1) if levels else None
            if text is None:
                return None
            weight = f": {shorten(value[one])}" if isinstance(value, Mapping) else ""
            parts.append(f"{text}{weight}")
        body = ", ".join(parts)
        text = f"{{{body}}}" if isinstance(value, Mapping) else f"[{body}]"
        return text if parts else None
    is_op = dataclasses.is_dataclass(value) and not isinstance(value, type)
    describe = getattr(value, "describe", None) if is_op else None
    return describe() if callable(describe) else None


def call_text(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return a call as a reader would write it.

    Examples
    --------
    >>> call_text("rotate", (15,), {"p": 0.5})
    'rotate(15, p=0.5)'
    >>> call_text("open_volume", (), {"storage_options": {"key": "AKIA"}})
    'open_volume(storage_options={…})'
    """
    parts = [shorten(a) for a in args]
    parts += [f"{k}={_MASK if k in CREDENTIALS else shorten(v)}" for k, v in kwargs.items()]
    return f"{name}({', '.join(parts)})"


def caller(call: str) -> CallSite:
    """Return the innermost frame outside voxpipe and torch as the origin of ``call``."""
    frame = sys._getframe(1)
    # The generated ``__init__`` of a dataclass is in no file.
    while frame.f_back is not None and (
        _is_machinery(frame)
        or (frame.f_code.co_name, frame.f_code.co_filename) == ("__init__", "<string>")
    ):
        frame = frame.f_back
    return CallSite(call, frame.f_code.co_filename, frame.f_lineno)


def looking_ahead() -> holding[bool]:
    """Suppress warnings of this thread while patches are planned that may never be realized."""
    # A suppressed warning does not count as given: it appears when the patch is realized.
    return holding(_AHEAD, True)


def warn(text: str, category: type[Warning], origin: CallSite | None = None) -> None:
    """Warn at ``origin``; without one, at the user's line that led here."""
    if is_looking_ahead():
        return
    text = cure(text)
    if origin is None:
        depth, site = _led_here()
        if not isinstance(site, CallSite):
            warnings.warn(text, category, stacklevel=depth)
            return
        origin = site
    registry = _MESSAGES.setdefault(origin.file, {})
    warnings.warn_explicit(text, category, origin.file, origin.line, registry=registry)


def _led_here() -> tuple[int, CallSite | None]:
    """Return the ``stacklevel`` of the user's frame, and in our threads the pipe that runs."""
    depth, frame = 2, sys._getframe(2)
    pipe: CallSite | None = None
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] in _THREADS:
            return depth, pipe
        if not _is_machinery(frame):
            return depth, None
        pipe = pipe or _written_at(frame)
        depth, frame = depth + 1, frame.f_back
    return depth, None


def _written_at(frame: FrameType) -> CallSite | None:
    """Return the origin of the pipe or instruction whose method a frame runs."""
    code = frame.f_code
    if "self" not in code.co_varnames[: code.co_argcount]:
        return None
    origin = getattr(frame.f_locals.get("self"), "__dict__", {}).get("origin")
    return origin if isinstance(origin, CallSite) and origin.file else None


class WarnOnce:
    """Warnings that each appear once, and never during :func:`looking_ahead`.

    Copies of a pipe share the object; a pickled copy arrives empty.

    Examples
    --------
    >>> once = WarnOnce()
    >>> with looking_ahead():
    ...     once.warn("gt", "'gt' is an intensity", UserWarning)
    >>> with warnings.catch_warnings(record=True) as warned:
    ...     warnings.simplefilter("always")
    ...     once.warn("gt", "'gt' is an intensity", UserWarning)
    ...     once.warn("gt", "'gt' is an intensity", UserWarning)
    >>> len(warned)
    1
    """

    def __init__(self) -> None:
        self._things: dict[Hashable, None] = {}

    def warn(
        self,
        thing: Hashable,
        text: str | Callable[[], str],
        category: type[Warning],
        origin: CallSite | None = None,
    ) -> None:
        """Warn unless ``thing`` is registered; a warning raised as an error is not registered.

        ``text`` may be a function, called only when needed; an empty text means: not yet.
        """
        if thing in self._things or is_looking_ahead():
            return
        message = text if isinstance(text, str) else text()
        if message:
            warn(message, category, origin)
            self.leave(thing)

    def leave(self, thing: Hashable) -> None:
        """Register ``thing``: it was warned of, or checked and correct."""
        self._things[thing] = None
        if len(self._things) > _MOST_MESSAGES:
            with suppress(KeyError, RuntimeError):  # another thread adds or removes: the next trims
                del self._things[next(iter(self._things))]

    def __contains__(self, thing: Hashable) -> bool:
        return thing in self._things

    def __reduce__(self) -> tuple[type[WarnOnce], tuple[()]]:
        return WarnOnce, ()


def _is_machinery(frame: FrameType) -> bool:
    # ``python -m voxpipe`` and doctests run under other names and count as the user.
    return frame.f_globals.get("__name__", "").partition(".")[0] in _MACHINERY
