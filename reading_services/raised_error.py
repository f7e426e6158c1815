"""Errors of pipes as they were raised: torch writes its own lines into them on their way.

To a text it adds; anything else, the key of a ``KeyError`` or the fields of an error of the user's,
it throws away, and keeps no copy. But it asks a function for the arguments of the pipe just
before it does so, for every error that passes, and that function is where we look on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data.datapipes import _hook_iterator

from ..core.errors import E

# torch writes this into the message of every error that passes through a pipe.
_TORCH_SAYS = "\nThis exception is thrown by __iter__ of"
_HELD = "_voxpipe_held"
# torch's, and private: without it texts are still as they were raised, and the rest is lost.
_ASKED = "_generate_input_args_string"


def as_raised(error: E) -> E:
    """Return ``error`` with what it held when it was raised.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> try:
    ...     list(IterableWrapper([7]).map({}.__getitem__))
    ... except KeyError as error:
    ...     as_raised(error)
    KeyError(7)
    """
    held = getattr(error, "__dict__", {}).pop(_HELD, None)
    if not _is_written_over(error):
        return error
    if held is not None:
        error.args = held
    elif isinstance(error, OSError) and error.errno is not None:
        # torch puts its lines in the place of an argument that is no text: the number. With
        # these two it travels whole, its file included.
        error.args = (error.errno, error.strerror)
    else:
        error.args = (error.args[0].split(_TORCH_SAYS, 1)[0], *error.args[1:])
    return error


def _is_written_over(error: BaseException) -> bool:
    text = error.args[0] if error.args else None
    return isinstance(text, str) and _TORCH_SAYS in text


def _noting(asked: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return torch's function, which notes first what the error that passes holds."""

    @functools.wraps(asked)
    def noted(pipe: Any) -> str:
        error = sys.exc_info()[1]
        if error is not None and not _is_written_over(error):
            error.__dict__[_HELD] = error.args
        return asked(pipe)

    return noted


def _watch() -> None:
    asked = getattr(_hook_iterator, _ASKED, None)
    if asked is not None and not hasattr(asked, "__wrapped__"):
        setattr(_hook_iterator, _ASKED, _noting(asked))


_watch()
