"""What the two sides say to each other. Requests are answered in the order of their arrival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...reading_services.seeds.seed_generator import SeedGenerator
from .raised import Raised

Change = Callable[[Any], Any]
"""What a pipe becomes before it goes on."""


class DataLoaderQueueMessage:
    """Anything that is said."""


class Request(DataLoaderQueueMessage):
    """From the client."""


class Response(DataLoaderQueueMessage):
    """From the server."""


@dataclass(frozen=True)
class ResetEpochRequest(Request):
    """Begin an epoch."""

    seed_generator: SeedGenerator
    """The worker's seeds."""
    iter_reset_fn: Change | None = None
    """What the pipe becomes for this epoch."""


class ResetEpochResponse(Response):
    """It has begun."""


@dataclass(frozen=True)
class LimitRequest(Request):
    """Make no more items than this, until resumed."""

    num_batches: int | None
    """Of all workers together; None for no limit."""
    limit_fn: Callable[[Any, int | None], Any] | None = None
    """What the pipe becomes."""
    worker_num_batches: int | None = None
    """Of this worker; None for ``num_batches``."""


class LimitResponse(Response):
    """The limit holds."""


@dataclass(frozen=True)
class PauseRequest(Request):
    """Call ``pause`` of every pipe that has it, and hand out nothing."""

    pause_fn: Change | None = None
    """What the pipe becomes."""


class PauseResponse(Response):
    """Everything stands still."""


@dataclass(frozen=True)
class ResumeRequest(Request):
    """Go on: call ``resume`` of every pipe that has it."""

    resume_fn: Change | None = None
    """What the pipe becomes."""


class ResumeResponse(Response):
    """It goes on."""


class TerminateRequest(Request):
    """End the loop that answers."""


class TerminateResponse(Response):
    """It ends now."""


class LenRequest(Request):
    """How many items are there."""


@dataclass(frozen=True)
class LenResponse(Response):
    """So many."""

    len: int
    """The length."""


@dataclass(frozen=True)
class GetItemRequest(Request):
    """Look up one item."""

    key: Any
    """Which."""


@dataclass(frozen=True)
class GetItemResponse(Response):
    """The item."""

    key: Any
    """What was asked for."""
    value: Any
    """The item."""


class GetNextRequest(Request):
    """Make the next item."""


@dataclass(frozen=True)
class GetNextResponse(Response):
    """The item."""

    value: Any
    """The item."""


class StopIterationResponse(Response):
    """There is no further item; or none under this index."""


class InvalidStateResponse(Response):
    """The pipe has to be reset first."""


@dataclass(frozen=True)
class WorkerExceptionResponse(Response):
    """What was asked for raised an error."""

    exc: Raised
    """The error; ``exc.reraise()`` raises it as itself."""
