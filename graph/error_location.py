"""The pipe of an error or a running thread, found in the frames of its stack.

Errors of a user's function in torch's pipes do not name the pipe, so the innermost frame that
belongs to a pipe is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from traceback import walk_tb
from types import FrameType

from ..core import CallSite
from ..core.sample import Sample
from .node import Pipe, describe, is_pipe, origin_of, parents_of, traits_of


def error_location(error: BaseException) -> CallSite | None:
    """Return the origin of the pipe in which ``error`` was raised; None if unknown."""
    owners = map(_owner, _frames_of(error))
    return _place(next((owner for owner in owners if owner is not None), None))


def failed_item(error: BaseException) -> tuple[str, str]:
    """Return the case and the number of the item at which a pipe failed; empty if unknown.

    For items made one after the other. The case is that of the only sample in the pipe's frames.
    torch counts the items of each pipe: the number is that of the single parent, else of the pipe.
    """
    owner, case = None, ""
    for frame in _frames_of(error):
        pipe = _owner(frame)
        owner = pipe if owner is None else owner
        # The innermost frame with a sample: an outer one may also hold the previous sample.
        cases = {value.case for value in frame.f_locals.values() if isinstance(value, Sample)}
        if pipe is not None and pipe is owner and cases:
            case = cases.pop() if len(cases) == 1 else ""
            break
    if owner is None:
        return "", ""
    parents = parents_of(owner)
    if len(parents) != 1:
        return case, f"item {_count_yielded(owner)} of {describe(owner)}"
    number, source = _count_yielded(parents[0]) - 1, parents[0]
    while traits_of(source).watches:  # an adapter's pipe, which watches one of the user's
        (source,) = parents_of(source)
    return case, f"item {number} of {describe(source)}" if number >= 0 else ""


def _count_yielded(pipe: Pipe) -> int:
    """Return the items that a pipe yielded or skipped in this pass."""
    return getattr(pipe, "_number_of_samples_yielded", 0) + getattr(pipe, "passed_over", 0)


def _frames_of(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames of an error, innermost first, without the frame that caught it."""
    # The variables of the catching frame hold the error, which holds the frame: a cycle.
    # A StopIteration ends the generator of its pipe: only its own traceback has that frame.
    if isinstance(error.__cause__, StopIteration):
        yield from reversed([frame for frame, _ in walk_tb(error.__cause__.__traceback__)])
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    yield from reversed([frame for frame, _ in walk_tb(trace)])


def frame_location(frame: FrameType | None) -> CallSite | None:
    """Return the origin of the pipe for which a frame runs; None if unknown."""
    return _place(frame_pipe(frame)[0])


def frame_pipe(frame: FrameType | None) -> tuple[Pipe | None, tuple[FrameType, ...]]:
    """Return the pipe for which a frame runs, and the frames that identify its current item."""
    # The pipe's frame and that of its callee: while a caller holds both, no other call has them.
    inner: tuple[FrameType, ...] = ()
    while frame is not None:
        owner = _owner(frame)
        if owner is not None:
            return owner, (frame, *inner)
        inner, frame = (frame,), frame.f_back
    return None, ()


def _place(pipe: Pipe | None) -> CallSite | None:
    """Return the origin of a pipe; for a foreign pipe without one, its description."""
    # None for our own pipes without an origin: they are machinery between the user's pipes.
    if pipe is None:
        return None
    is_ours = type(pipe).__module__.partition(".")[0] == "voxpipe"
    return origin_of(pipe) or (None if is_ours else CallSite(describe(pipe), "", 0))


def _owner(frame: FrameType) -> Pipe | None:
    if "self" not in frame.f_code.co_varnames[: frame.f_code.co_argcount]:
        return None
    owner = frame.f_locals.get("self")
    return owner if owner is not None and is_pipe(owner) else None
