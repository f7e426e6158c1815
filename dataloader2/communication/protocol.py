"""Who may say what when: one request at a time, and one response to each."""

from __future__ import annotations

import queue
from typing import Any

from ...core.errors import ProtocolViolation
from . import messages as m
from .raised import Raised


class EmptyQueue(Exception):
    """Nothing arrived within the time that was given."""


class Protocol:
    """Two queues: requests one way, responses the other."""

    def __init__(self, request_queue: Any, response_queue: Any) -> None:
        self.request_queue = request_queue
        self.response_queue = response_queue


class ProtocolClient(Protocol):
    """The side that asks."""

    _req_sent: m.Request | None = None

    def can_take_request(self) -> bool:
        """Whether nothing is under way."""
        return self._req_sent is None

    def waiting_for_response(self) -> bool:
        """Whether a request is under way."""
        return self._req_sent is not None

    def request_sent(self, request: m.Request) -> None:
        """Note that a request is under way."""
        if self._req_sent is not None:
            raise ProtocolViolation(
                f"{_name(request)} while {_name(self._req_sent)} is not answered",
                do="Take the response first: one request at a time.",
            )
        self._req_sent = request

    def request_served(self, result: m.Response | None = None) -> None:
        """Note that the request was answered."""
        if self._req_sent is None:
            raise ProtocolViolation("nothing was asked, so nothing can be answered")
        self._req_sent = None

    def send(self, request: m.Request) -> None:
        """Put a request into the queue."""
        self.request_sent(request)
        self.request_queue.put(request)

    def receive(
        self, *kinds: type[m.Response], block: bool = False, timeout: float | None = None
    ) -> Any:
        """Return the response, which is of one of ``kinds``.

        Parameters
        ----------
        kinds
            Classes that answer what was asked.
        block
            Whether to wait.
        timeout
            For at most so many seconds; None for as long as it takes.

        Raises
        ------
        EmptyQueue
            There is none yet; the request stays under way.
        """
        if self._req_sent is None:
            raise ProtocolViolation("nothing was asked, so there is no response to wait for")
        try:
            response = self.response_queue.get(block=block, timeout=timeout)
        except queue.Empty:
            told = f"no response to {_name(self._req_sent)}"
            raise EmptyQueue(told + (f" within {timeout:g} s" if timeout else " yet")) from None
        asked, self._req_sent = self._req_sent, None
        if isinstance(response, m.WorkerExceptionResponse):
            response.exc.reraise()
        if not isinstance(response, kinds):
            raise ProtocolViolation(f"{_name(response)} came in response to {_name(asked)}")
        return response

    def discard_existing_request(self, timeout: float | None = None) -> None:
        """Wait for the response that is under way, if any, and forget it, errors included."""
        if self._req_sent is not None:
            try:
                self.response_queue.get(block=True, timeout=timeout)
            except queue.Empty:
                raise EmptyQueue(f"no response to {_name(self._req_sent)}") from None
            self._req_sent = None

    def request_reset_epoch(self, seed_generator: Any, iter_reset_fn: Any = None) -> None:
        """Ask for a new epoch."""
        self.send(m.ResetEpochRequest(seed_generator, iter_reset_fn))

    def get_response_reset_epoch(self, block: bool = False, timeout: float | None = None) -> Any:
        """Return when it has begun."""
        return self.receive(m.ResetEpochResponse, block=block, timeout=timeout)

    def request_terminate(self) -> None:
        """Ask the other side to end, whatever is under way."""
        self._req_sent = None
        self.send(m.TerminateRequest())

    def get_response_terminate(self, timeout: float | None = None) -> None:
        """Return when it ends; answers to what was asked before are passed over."""
        while not isinstance(self.response_queue.get(timeout=timeout), m.TerminateResponse):
            pass
        self._req_sent = None


class ProtocolServer(Protocol):
    """The side that answers."""

    _req_received: m.Request | None = None
    _paused = False

    def is_paused(self) -> bool:
        """Whether items are held back."""
        return self._paused

    def have_pending_request(self) -> bool:
        """Whether a request is not yet answered."""
        return self._req_received is not None

    def get_new_request(self, block: bool = False, timeout: float | None = None) -> m.Request:
        """Return the next request.

        Raises
        ------
        EmptyQueue
            There is none.
        """
        if self._req_received is not None:
            raise ProtocolViolation(f"{_name(self._req_received)} is not answered yet")
        try:
            request: m.Request = self.request_queue.get(block=block, timeout=timeout)
        except queue.Empty:
            raise EmptyQueue("no request") from None
        self._req_received = request
        return request

    def respond(self, response: m.Response, *to: type[m.Request]) -> None:
        """Answer the pending request, which is of one of the classes ``to`` if there are any."""
        if self._req_received is None:
            raise ProtocolViolation(f"{_name(response)}, and nothing was asked")
        if to and not isinstance(self._req_received, to):
            raise ProtocolViolation(
                f"{_name(response)} does not answer {_name(self._req_received)}"
            )
        # If this raises, as what cannot be pickled does, the request is still to be answered.
        self.response_queue.put(response)
        self._req_received = None

    def response_terminate(self) -> None:
        """Say goodbye."""
        self.respond(m.TerminateResponse(), m.TerminateRequest)

    def response_reset_epoch(self) -> None:
        """Say that the epoch has begun; it begins running."""
        self._paused = False
        self.respond(m.ResetEpochResponse(), m.ResetEpochRequest)

    def response_limit(self) -> None:
        """Say that the limit holds."""
        self.respond(m.LimitResponse(), m.LimitRequest)

    def response_pause(self) -> None:
        """Say that everything stands still."""
        self._paused = True
        self.respond(m.PauseResponse(), m.PauseRequest)

    def response_resume(self) -> None:
        """Say that it goes on."""
        self._paused = False
        self.respond(m.ResumeResponse(), m.ResumeRequest)

    def response_worker_exception(self, exception: Raised) -> None:
        """Send an error back, whatever was asked."""
        self.respond(m.WorkerExceptionResponse(exception))


class MapDataPipeQueueProtocolServer(ProtocolServer):
    """Answers for a map-style pipe."""

    def response_item(self, key: Any, value: Any) -> None:
        """Send an item."""
        self.respond(m.GetItemResponse(key, value), m.GetItemRequest)

    def response_len(self, size: int) -> None:
        """Send the length."""
        self.respond(m.LenResponse(size), m.LenRequest)

    def response_index_out_of_bound(self) -> None:
        """Say that there is no such item."""
        self.respond(m.StopIterationResponse(), m.GetItemRequest)


class MapDataPipeQueueProtocolClient(ProtocolClient):
    """Asks for items by key."""

    def request_len(self) -> None:
        """Ask for the length."""
        self.send(m.LenRequest())

    def request_item(self, index: Any) -> None:
        """Ask for one item."""
        self.send(m.GetItemRequest(index))

    def get_response_len(self, block: bool = False, timeout: float | None = None) -> Any:
        """Return the length."""
        return self.receive(m.LenResponse, block=block, timeout=timeout)

    def get_response_item(self, block: bool = False, timeout: float | None = None) -> Any:
        """Return the item, or that there is none."""
        kinds = (m.GetItemResponse, m.StopIterationResponse)
        return self.receive(*kinds, block=block, timeout=timeout)


class IterDataPipeQueueProtocolServer(ProtocolServer):
    """Answers for an iterable pipe."""

    def response_next(self, value: Any) -> None:
        """Send an item."""
        self.respond(m.GetNextResponse(value), m.GetNextRequest)

    def response_stop_iteration(self) -> None:
        """Say that there is no further item."""
        self.respond(m.StopIterationResponse(), m.GetNextRequest)

    def response_invalid_state(self) -> None:
        """Say that the pipe has to be reset first."""
        self.respond(m.InvalidStateResponse(), m.GetNextRequest)


class IterDataPipeQueueProtocolClient(ProtocolClient):
    """Asks for one item after the other."""

    def request_next(self) -> None:
        """Ask for the next item."""
        self.send(m.GetNextRequest())

    def request_limit(
        self, num_batches: int | None, limit_fn: Any = None, worker_num_batches: int | None = None
    ) -> None:
        """Ask for no more than so many items until resumed; None for any number."""
        self.send(m.LimitRequest(num_batches, limit_fn, worker_num_batches))

    def request_pause(self, pause_fn: Any = None) -> None:
        """Ask to stand still."""
        self.send(m.PauseRequest(pause_fn))

    def request_resume(self, resume_fn: Any = None) -> None:
        """Ask to go on."""
        self.send(m.ResumeRequest(resume_fn))

    def get_response_limit(self, block: bool = False, timeout: float | None = None) -> Any:
        """Return when the limit holds."""
        return self.receive(m.LimitResponse, block=block, timeout=timeout)

    def get_response_pause(self, block: bool = False, timeout: float | None = None) -> Any:
        """Return when everything stands still."""
        return self.receive(m.PauseResponse, block=block, timeout=timeout)

    def get_response_resume(self, block: bool = False, timeout: float | None = None) -> Any:
        """Return when it goes on."""
        return self.receive(m.ResumeResponse, block=block, timeout=timeout)

    def get_response_next(self, block: bool = False, timeout: float | None = None) -> Any:
        """Return the item, or why there is none."""
        kinds = (m.GetNextResponse, m.StopIterationResponse, m.InvalidStateResponse)
        return self.receive(*kinds, block=block, timeout=timeout)


def _name(message: object) -> str:
    return type(message).__name__
