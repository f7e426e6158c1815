"""How many items a pipe yields: asked of every pipe of a graph once.

A pipe asks its parents, and each of two branches that meet asks what they have in common: with
plain ``len`` the time doubles with every diamond. Here what was answered is remembered until
the question is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

from torch.utils.data import IterDataPipe

from ..graph import Pipe, is_pipe, parents_of, walk
from ..graph.node import swap_parents

_UNKNOWN = (TypeError, NotImplementedError)
_answered: ContextVar[dict[int, Any] | None] = ContextVar("_answered", default=None)
_may_open: ContextVar[bool] = ContextVar("_may_open", default=True)


class _Asked(IterDataPipe[Any]):
    """Stands for a parent of a torch pipe, which asks it for its length and for nothing else."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self.pipe = (lambda: pipe,)  # no edge of the graph

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return length(self.pipe[0]())

    def get_length_by_instance(self, instance: int) -> int:
        """Return the length of a branch, which torch's branches ask their trunk for."""
        trunk: Any = self.pipe[0]()
        return int(type(trunk).get_length_by_instance(_settings(trunk), instance))


def length(pipe: Any) -> int:
    """Return ``len(pipe)``, in time that is linear in the pipes of its graph.

    Raises
    ------
    TypeError
        It is not known.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(3))
    >>> for _ in range(40):
    ...     left, right = pipe.fork(2)
    ...     pipe = left.zip(right)
    >>> length(pipe)
    3
    """
    answered = _answered.get()
    if answered is not None:
        return _remembered(pipe, answered)
    answered = {}
    token = _answered.set(answered)
    try:
        # Parents first: a chain of hundreds would be too deep to ask from its end.
        for each in walk(pipe) if is_pipe(pipe) else ():
            with contextlib.suppress(Exception):  # nobody may want to know
                _remembered(each, answered)
        return _remembered(pipe, answered)
    finally:
        _answered.reset(token)


@contextlib.contextmanager
def without_opening() -> Iterator[None]:
    """Let lengths be unknown that only the headers of all volumes tell."""
    token = _may_open.set(False)
    try:
        yield
    finally:
        _may_open.reset(token)


def may_open() -> bool:
    """Whether headers may be read to know a length: not for one that is only good to know."""
    return _may_open.get()


def _remembered(pipe: Any, answered: dict[int, Any]) -> int:
    if id(pipe) not in answered:
        try:
            answered[id(pipe)] = _own_length(pipe)
        except _UNKNOWN as error:
            answered[id(pipe)] = error
    answer = answered[id(pipe)]
    if isinstance(answer, Exception):
        raise answer
    return int(answer)


def _own_length(pipe: Any) -> int:
    """Ask a pipe, so that it asks its parents through here; one of torch's does not by itself."""
    if not is_pipe(pipe) or not type(pipe).__module__.startswith("torch.utils.data."):
        return len(pipe)
    try:
        return int(type(pipe).__len__(_settings(pipe)))
    except AttributeError:  # it has none, or wants more of a parent
        return len(pipe)


def _settings(pipe: Pipe) -> Any:
    """Return what torch's pipe holds, with other parents.

    No copy of the pipe: when one of a shuffle goes, it empties the buffer that both have.
    """
    settings: Any = SimpleNamespace(**vars(pipe))
    swap_parents(settings, {id(parent): _Asked(parent) for parent in parents_of(pipe)})
    return settings
