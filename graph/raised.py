"""Which pipe an error comes from, or a thread is in: read off the frames of its stack.

Pipes of torch's run functions of the user's and say nothing of themselves when these fail, so
the innermost frame that belongs to a pipe is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType

from ..core import Origin
from .node import Pipe, describe, is_pipe, origin_of


def raised_at(error: BaseException) -> Origin | None:
    """Return the pipe, as the user wrote it, in which ``error`` was raised; None if unknown.

    The frame that caught it is left out: a look at its variables would keep the error, which
    keeps the frame.
    """
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return _innermost(reversed(frames))


def standing_at(frame: FrameType | None) -> Origin | None:
    """Return the pipe, as the user wrote it, that a running frame works for; None if unknown."""
    return _innermost(_outwards(frame))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _innermost(frames: Iterator[FrameType]) -> Origin | None:
    for frame in frames:
        if "self" not in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
            continue
        owner = frame.f_locals.get("self")
        if owner is not None and is_pipe(owner):
            return origin_of(owner) or _unwritten(owner)
    return None


def _unwritten(pipe: Pipe) -> Origin | None:
    """Return a pipe that does not know its line, by what it is; None for one of our machinery.

    It is no reason to blame the pipe that reads from it.
    """
    if type(pipe).__module__.partition(".")[0] == "voxpipe":
        return None
    return Origin(describe(pipe), "", 0)
