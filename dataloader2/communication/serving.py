"""The side that answers: one request after the other, errors included."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ...core.errors import ProtocolViolation
from . import messages as m
from .protocol import EmptyQueue, ProtocolServer
from .raised import Raised

# A client that does not come while all others wait for it has died.
_MEETING = 600.0


class Alone:
    """What one server does for all, where there is only one."""

    lock: AbstractContextManager[Any] = nullcontext()
    """Held while a pipe is used."""

    def meet(self, act: Callable[[], None], number: int) -> None:
        """Call ``act``."""
        act()

    def leave(self) -> None:
        """Come to no further meeting."""


class Together(Alone):
    """Servers in threads of one process whose pipes belong together: branches of a demux.

    A reset, a limit, a pause is done once, when all were asked for it.
    """

    def __init__(self, count: int) -> None:
        self.lock = threading.Lock()
        self._barrier = threading.Barrier(count, self._do, _MEETING)
        self._act: Callable[[], None] | None = None
        self._error: BaseException | None = None

    def meet(self, act: Callable[[], None], number: int) -> None:
        """Wait for all others; then the first of them acts, and its error is everybody's."""
        if number == 0:
            self._act = act
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise ProtocolViolation(
                "another client of this process did not ask for the same, or has ended",
                do="Reset, limit, pause and resume all clients of one process, or none.",
            ) from None
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """End the meetings: this one does not come any more."""
        self._barrier.abort()

    def _do(self) -> None:
        self._error = None
        try:
            with self.lock:
                assert self._act is not None
                self._act()
        except Exception as error:
            self._error = error


class Server:
    """Answers the requests of one client; a subclass has a method for each class of them."""

    def __init__(
        self,
        pipe: Any,
        protocol: Any,
        where: tuple[str, int],
        together: Alone | None,
        of_worker: tuple[Any, Any],
    ) -> None:
        self.pipe = pipe
        self.protocol: Any = protocol
        self.where = where
        self.together = together or Alone()
        self.of_worker = of_worker
        """Which worker of how many this is, and what makes its pipe of an epoch, or None."""

    def meet(self, act: Callable[[], None]) -> None:
        """Do what is done once for all servers that belong together."""
        self.together.meet(act, self.where[1])

    def answers(self) -> dict[type[m.Request], Callable[[Any], None]]:
        """Return what is called for each class of requests."""
        raise NotImplementedError

    def serve(self, block: bool) -> Iterator[bool]:
        """Yield after each answer, until the client terminates; with ``block`` wait for requests.

        Without it, yield where there is no request, too.
        """
        protocol: ProtocolServer = self.protocol
        try:
            while True:
                try:
                    request = protocol.get_new_request(block=block)
                except EmptyQueue:
                    yield True
                    continue
                if isinstance(request, m.TerminateRequest):
                    protocol.response_terminate()
                    return
                self._answer(request)
                yield True
        finally:
            self.together.leave()

    def _answer(self, request: m.Request) -> None:
        answer = self.answers().get(type(request))
        try:
            if answer is None:
                msg = f"{type(request).__name__} is nothing that {type(self.pipe).__name__} answers"
                raise ProtocolViolation(msg)
            answer(request)
        except BaseException as error:
            # What was raised in the middle of an answer that was sent has nobody to go to.
            if self.protocol.have_pending_request():
                self.protocol.response_worker_exception(
                    Raised.of(error, "in {} {}".format(*self.where))
                )
            if not isinstance(error, Exception):
                raise
