"""The pipe that an error comes from, or a thread is in: read off the frames of its stack.

Pipes of torch's run functions of the user's and say nothing of themselves when these fail, so
the innermost frame that belongs to a pipe is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from traceback import walk_tb
from types import FrameType

from ..core import CallSite
from ..core.sample import Sample
from .node import Pipe, describe, is_pipe, origin_of, parents_of, traits_of


def error_location(error: BaseException) -> CallSite | None:
    """Return the pipe, as the user wrote it, in which ``error`` was raised; None if unknown."""
    # The frame that caught it is left out: a look at its variables would keep the error, which
    # keeps the frame.
    owners = map(_owner, _frames_of(error))
    return _place(next((owner for owner in owners if owner is not None), None))


def failed_item(error: BaseException) -> tuple[str, str]:
    """Return the case of the item at which a pipe failed, and which item it was; else nothing."""
    # For where items are made one after the other, and nobody else knows which one it was: the case
    # is that of a sample that the pipe holds, the number that of the items which came out of the
    # pipe before it, or out of this one if there is none, or several. torch counts them.
    owner, case = None, ""
    for frame in _frames_of(error):
        pipe = _owner(frame)
        owner = pipe if owner is None else owner
        # An outer frame may hold the sample before as well; what it gave to an inner one is it.
        cases = {each.case for each in frame.f_locals.values() if isinstance(each, Sample)}
        if pipe is not None and pipe is owner and cases:
            case = cases.pop() if len(cases) == 1 else ""
            break
    if owner is None:
        return "", ""
    parents = parents_of(owner)
    if len(parents) != 1:
        return case, f"item {_count_yielded(owner)} of {describe(owner)}"
    # It came out of the parent already.
    number = _count_yielded(parents[0]) - 1
    return case, f"item {number} of {describe(_user_pipe(parents[0]))}" if number >= 0 else ""


def _count_yielded(pipe: Pipe) -> int:
    """Return how many items came out of a pipe in this pass, or were passed over before it."""
    return getattr(pipe, "_number_of_samples_yielded", 0) + getattr(pipe, "passed_over", 0)


def _user_pipe(pipe: Pipe) -> Pipe:
    """Return the pipe that the user wrote, where one of an adapter's watches it."""
    while traits_of(pipe).watches:
        (pipe,) = parents_of(pipe)
    return pipe


def _frames_of(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames that an error came through, the innermost first, but for who caught it."""
    # A StopIteration ends the generator of its pipe: only its own traceback has that frame.
    if isinstance(error.__cause__, StopIteration):
        yield from reversed([frame for frame, _ in walk_tb(error.__cause__.__traceback__)])
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    yield from reversed([frame for frame, _ in walk_tb(trace)])


def frame_location(frame: FrameType | None) -> CallSite | None:
    """Return the pipe, as the user wrote it, that a running frame works for; None if unknown."""
    return _place(frame_pipe(frame)[0])


def frame_pipe(frame: FrameType | None) -> tuple[Pipe | None, tuple[FrameType, ...]]:
    """Return the pipe that a running frame works for, and the frames that tell one item of it."""
    # These are its own and that of what it calls: as long as somebody keeps them, another call of
    # the same function has others.
    inner: tuple[FrameType, ...] = ()
    while frame is not None:
        owner = _owner(frame)
        if owner is not None:
            return owner, (frame, *inner)
        inner, frame = (frame,), frame.f_back
    return None, ()


def _place(pipe: Pipe | None) -> CallSite | None:
    """Return where a pipe was written; one that does not know its line is told by what it is."""
    # Not one of our machinery: it is no reason to blame the pipe that reads from it.
    if pipe is None:
        return None
    is_ours = type(pipe).__module__.partition(".")[0] == "voxpipe"
    return origin_of(pipe) or (None if is_ours else CallSite(describe(pipe), "", 0))


def _owner(frame: FrameType) -> Pipe | None:
    if "self" not in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
        return None
    owner = frame.f_locals.get("self")
    return owner if owner is not None and is_pipe(owner) else None
