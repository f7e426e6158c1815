"""Messages between the consumer's process and its workers. Frozen; pickled whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ...core.counters import Key, PipeCounts
from ...volumes.session import OpenedVersion


@dataclass(frozen=True)
class DoJob:
    """To a worker: realize one batch."""

    index: int  # number of the batch, or of the item of a replicated graph
    job: bytes  # ``Job`` or index, pickled apart as it may hold the user's objects; empty: none
    seed: int
    epoch: int
    free_slots: tuple[int, ...] = ()  # slots that the consumer no longer uses
    given_up: tuple[int, ...] = ()
    """Free slots that must not be used again: a child of the consumer uses them."""
    run: int = 0  # number of the pass in its pool
    payload: bytes = b""  # new payload of the worker; empty for no change


class Deal(NamedTuple):
    """To a worker: an item that is dealt out to it."""

    item: bytes = b""  # the item, pickled
    ends: bool = False  # no item: that was the last one
    fails: bool = False  # no item: the pipes that make them have failed


class Took(NamedTuple):
    """From a worker: it has begun with its next dealt item."""


STOP = b""  # to a worker: end now


class Ready(NamedTuple):
    """From a worker: it is up."""


class Notes(NamedTuple):
    """From a worker: memory for its current step; the descriptor follows."""

    size: int


class NewSlot(NamedTuple):
    """From a worker: a slot; the descriptor follows."""

    number: int
    size: int


class RetireSlot(NamedTuple):
    """From a worker: a slot that it will not use again."""

    number: int


class WorkerReport(NamedTuple):
    """Counts, warnings and opened versions of a worker since its last report."""

    ledger: dict[Key, PipeCounts]
    warnings: tuple[tuple[str, type[Warning]], ...]
    versions: tuple[OpenedVersion, ...]  # versions of volumes that it has opened


@dataclass(frozen=True)
class BatchMessage:
    """From a worker: a batch."""

    index: int
    data: bytes | None  # None if the worker's replica of the graph has no more items
    report: WorkerReport


@dataclass(frozen=True)
class ErrorMessage:
    """From a worker: an error in the pipes."""

    index: int
    error: bytes  # the exception, pickled; empty if it cannot be
    what: str  # its class and message
    text: str  # the worker's traceback
    report: WorkerReport


Feed: TypeAlias = Callable[[], Any]
"""Waits for the next item of a worker; returns ``END_OF_ITEMS`` after the last."""
END_OF_ITEMS = object()  # compared by identity, so valid in one process only


class SourceFailed(RuntimeError):
    """The pipes that make the items have failed, in the process that runs them."""
