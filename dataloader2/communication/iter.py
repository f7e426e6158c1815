"""Iterable pipes behind queues."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from torch.utils.data import IterDataPipe

from ...core.errors import ItemTimeout
from ...graph import walk
from ..worker import process_reset_fn
from . import messages as m
from .protocol import EmptyQueue, IterDataPipeQueueProtocolClient, IterDataPipeQueueProtocolServer
from .serving import Alone, Server

__all__ = [
    "DataPipeBehindQueues",
    "EnsureNonBlockingDataPipe",
    "InvalidStateResetRequired",
    "NonBlocking",
    "NotAvailable",
    "QueueWrapper",
    "TerminateRequired",
    "default_not_available_hook",
]

# Seconds. A batch that takes ten minutes is none that anybody waits for.
ANSWER_TIMEOUT = 600.0
# Only for pipes of the user's that can do no better than being asked again.
_NOT_AVAILABLE_SLEEP = 0.001


def default_not_available_hook() -> None:
    """Let others run before a pipe that has no item yet is asked again."""
    time.sleep(_NOT_AVAILABLE_SLEEP)


class NotAvailable(Exception):
    """There is no item yet; ask again."""


class InvalidStateResetRequired(Exception):
    """The pipe has to be reset before it has items."""


class TerminateRequired(Exception):
    """The pipe is about to end."""


def until_available(ask: Callable[[], Any], kind: Any) -> Any:
    """Ask until there is an answer, and call the hook of ``kind`` of pipes, if any, in between."""
    while True:
        try:
            return ask()
        except NotAvailable:
            if kind.not_available_hook is not None:
                kind.not_available_hook()


def in_time(ask: Callable[[], Any]) -> Any:
    """Return what the other side of the queues answers; ``ItemTimeout`` if nothing came."""
    try:
        return ask()
    except EmptyQueue as error:
        raise ItemTimeout(
            str(error), do="Raise timeout=, or see what the other side is at."
        ) from None


class NonBlocking(IterDataPipe[Any]):
    """A pipe that can be asked without waiting.

    A subclass has ``nonblocking_next``, which raises :class:`NotAvailable` where there is no item
    yet; ``next`` then calls the hook and asks again.
    """

    not_available_hook: ClassVar[Any] = staticmethod(default_not_available_hook)

    def __iter__(self) -> Iterator[Any]:
        self.reset_iterator()
        return self

    def __next__(self) -> Any:
        return until_available(self.nonblocking_next, NonBlocking)

    def nonblocking_next(self) -> Any:
        """Return the next item, or raise ``NotAvailable`` or ``StopIteration``."""
        raise NotImplementedError(f"{type(self).__name__} has no nonblocking_next")

    def reset_iterator(self) -> None:
        """Begin anew."""
        raise NotImplementedError(f"{type(self).__name__} has no reset_iterator")

    @staticmethod
    def register_not_available_hook(hook_function: Any) -> None:
        """Call this, or nothing if None, before a pipe is asked again."""
        NonBlocking.not_available_hook = (
            None if hook_function is None else staticmethod(hook_function)
        )


def EnsureNonBlockingDataPipe(validated_datapipe: Any) -> Any:  # noqa: N802  torchdata's name
    """Return the pipe itself, with ``nonblocking_next`` and ``reset_iterator`` if it has none."""
    if not isinstance(validated_datapipe, IterDataPipe):
        msg = f"an iterable datapipe expected, got {type(validated_datapipe).__name__}"
        raise TypeError(msg)
    pipe: Any = validated_datapipe
    if isinstance(pipe, NonBlocking):
        return pipe
    if not hasattr(pipe, "nonblocking_next"):
        pipe._as_iterator = None
        pipe.nonblocking_next = types.MethodType(_next_of, pipe)
    if not hasattr(pipe, "reset_iterator"):
        pipe.reset_iterator = types.MethodType(_begin_anew, pipe)
    return pipe


def _next_of(pipe: Any) -> Any:
    if pipe._as_iterator is None:
        pipe._as_iterator = iter(pipe)
    return next(pipe._as_iterator)


def _begin_anew(pipe: Any) -> None:
    pipe._as_iterator = None


def DataPipeBehindQueues(  # noqa: N802  torchdata's name
    source_datapipe: Any,
    protocol: Any,
    process_name: str,
    loop_id: int,
    worker_info: Any,
    custom_reset_fn: Any,
    blocking_request_get: bool = False,
    request_counter: Alone | None = None,
) -> Iterator[bool]:
    """Answer requests for the items of a pipe until ``TerminateRequest``; yield after each.

    Parameters
    ----------
    source_datapipe
        An iterable pipe.
    protocol
        The queues, as a protocol's server.
    process_name, loop_id
        Where errors say that they come from.
    worker_info
        Which worker of how many this is.
    custom_reset_fn
        ``f(pipe, worker_info, seed_generator)`` returns the pipe of an epoch; or None.
    blocking_request_get
        Whether to wait for requests; else yields where there is none.
    request_counter
        What servers of pipes that belong together share.
    """
    if not isinstance(protocol, IterDataPipeQueueProtocolServer):
        msg = f"an IterDataPipeQueueProtocolServer expected, got {type(protocol).__name__}"
        raise TypeError(msg)
    server = _ItemServer(
        EnsureNonBlockingDataPipe(source_datapipe),
        protocol,
        (process_name, loop_id),
        request_counter,
        (worker_info, custom_reset_fn),
    )
    return server.serve(blocking_request_get)


class _ItemServer(Server):
    """Answers for an iterable pipe."""

    _failure: Exception | None = None
    _left: int | None = None

    def answers(self) -> dict[type[m.Request], Any]:
        return {
            m.GetNextRequest: self._next,
            m.ResetEpochRequest: self._reset,
            m.LimitRequest: self._limit,
            m.PauseRequest: self._pause,
            m.ResumeRequest: self._resume,
        }

    def _next(self, request: m.GetNextRequest) -> None:
        if self.protocol.is_paused() or self._left == 0:
            self.protocol.response_stop_iteration()
            return
        if self._failure is not None:
            raise self._failure  # the epoch failed; it did not end
        try:
            with self.together.lock:
                value = until_available(self.pipe.nonblocking_next, NonBlocking)
        except StopIteration:
            self.protocol.response_stop_iteration()
        except InvalidStateResetRequired:
            self.protocol.response_invalid_state()
        except Exception as error:
            self._failure = error
            raise
        else:
            self._left = None if self._left is None else self._left - 1
            self.protocol.response_next(value)

    def _reset(self, request: m.ResetEpochRequest) -> None:
        info, custom = self.of_worker

        def act() -> None:
            self._become(
                process_reset_fn(
                    self.pipe,
                    info,
                    request.seed_generator,
                    type(self.together) is not Alone,
                    request.iter_reset_fn,
                    custom,
                )
            )

        self.meet(act)
        self.pipe.reset_iterator()
        self._failure = self._left = None
        self.protocol.response_reset_epoch()

    def _limit(self, request: m.LimitRequest) -> None:
        own = request.worker_num_batches
        count = request.num_batches if own is None else own
        change = request.limit_fn
        if change is not None:
            self.meet(lambda: self._become(change(self.pipe, count)))
        self._most = self._left = count
        self.protocol.response_limit()

    _most: int | None = None

    def _pause(self, request: m.PauseRequest) -> None:
        def act() -> None:
            for pipe in reversed(list(walk(self.pipe))):
                _call(pipe, "pause")
            if request.pause_fn is not None:
                self._become(request.pause_fn(self.pipe))

        self.meet(act)
        self.protocol.response_pause()

    def _resume(self, request: m.ResumeRequest) -> None:
        def act() -> None:
            if request.resume_fn is not None:
                self._become(request.resume_fn(self.pipe))
            for pipe in walk(self.pipe):
                _call(pipe, "resume")

        self.meet(act)
        self._left = self._most
        self.protocol.response_resume()

    def _become(self, pipe: Any) -> None:
        self.pipe = EnsureNonBlockingDataPipe(pipe)


def _call(pipe: Any, name: str) -> None:
    method = getattr(type(pipe), name, None)
    if callable(method):
        method(pipe)


class QueueWrapper(NonBlocking):
    """The pipe behind the queues, seen from the other side.

    Parameters
    ----------
    protocol
        The queues, as a protocol's client.
    response_wait_time
        Seconds that ``nonblocking_next`` waits before it raises :class:`NotAvailable`.
    timeout
        Seconds that ``next`` and the other responses may take.

    Raises
    ------
    ItemTimeout
        From ``next``, when they are over.
    """

    def __init__(
        self,
        protocol: Any,
        response_wait_time: float = 0.0,
        timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        if not isinstance(protocol, IterDataPipeQueueProtocolClient):
            msg = f"an IterDataPipeQueueProtocolClient expected, got {type(protocol).__name__}"
            raise TypeError(msg)
        self.protocol = protocol
        self._stop_iteration = False
        self._wait = response_wait_time
        self._timeout = timeout

    def reset_iterator(self) -> None:
        """Go on where the other side is; :meth:`request_reset_epoch` begins an epoch."""

    def __next__(self) -> Any:
        return in_time(lambda: self._asked(block=True, timeout=self._timeout))

    def nonblocking_next(self) -> Any:
        """Return the next item if it is there within ``response_wait_time``."""
        try:
            return self._asked(block=self._wait > 0, timeout=self._wait or None)
        except EmptyQueue:
            raise NotAvailable from None

    def _asked(self, block: bool, timeout: float | None) -> Any:
        if self._stop_iteration:
            raise StopIteration
        if self.protocol.can_take_request():
            self.protocol.request_next()
        response = self.protocol.get_response_next(block=block, timeout=timeout)
        if isinstance(response, m.StopIterationResponse):
            self._stop_iteration = True
            raise StopIteration
        if isinstance(response, m.InvalidStateResponse):
            raise InvalidStateResetRequired("request_reset_epoch() first")
        return response.value

    def request_reset_epoch(self, seed_generator: Any, iter_reset_fn: Any = None) -> None:
        """Ask for a new epoch."""
        self._stop_iteration = False
        self.protocol.request_reset_epoch(seed_generator, iter_reset_fn)

    def get_reset_epoch_response(self) -> None:
        """Wait until it has begun."""
        self.protocol.get_response_reset_epoch(block=True, timeout=self._timeout)

    def request_limit(
        self, num_batches: int | None, limit_fn: Any = None, worker_num_batches: int | None = None
    ) -> None:
        """Ask for no more than so many items until resumed."""
        self.protocol.request_limit(num_batches, limit_fn, worker_num_batches)

    def get_limit_response(self) -> None:
        """Wait until the limit holds."""
        self.protocol.get_response_limit(block=True, timeout=self._timeout)

    def request_pause(self, pause_fn: Any = None) -> None:
        """Ask to stand still."""
        self.protocol.request_pause(pause_fn)

    def get_pause_response(self) -> None:
        """Wait until everything stands still."""
        self.protocol.get_response_pause(block=True, timeout=self._timeout)

    def request_resume(self, resume_fn: Any = None) -> None:
        """Ask to go on."""
        self._stop_iteration = False
        self.protocol.request_resume(resume_fn)

    def get_resume_response(self) -> None:
        """Wait until it goes on."""
        self.protocol.get_response_resume(block=True, timeout=self._timeout)
