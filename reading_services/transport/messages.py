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

    index: int  # which batch, or which item of a replicated graph
    job: bytes  # ``Job`` or index, pickled by itself: it may hold things of the user's; empty: none
    seed: int
    epoch: int
    free_slots: tuple[int, ...] = ()  # slots that the consumer no longer looks into
    given_up: tuple[int, ...] = ()
    """Those of them that are not to be used again: a child of the consumer looks into them."""
    run: int = 0  # which pass of its pool it belongs to
    payload: bytes = b""  # what the worker runs from here on; empty: as before


class Deal(NamedTuple):
    """To a worker: an item that is dealt out to it."""

    item: bytes = b""  # the item, pickled
    ends: bool = False  # there is none: that was all
    fails: bool = False  # there is none: what makes them has failed


class Took(NamedTuple):
    """From a worker: it has begun with the next item that was dealt out to it."""


STOP = b""  # to a worker: end now


class Ready(NamedTuple):
    """From a worker: it is up."""


class Notes(NamedTuple):
    """From a worker: memory in which it notes what it is at; its descriptor follows."""

    size: int


class NewSlot(NamedTuple):
    """From a worker: a slot; its descriptor follows."""

    number: int
    size: int


class RetireSlot(NamedTuple):
    """From a worker: a slot that it will not use again."""

    number: int


class WorkerReport(NamedTuple):
    """What a worker did besides making the batch."""

    ledger: dict[Key, PipeCounts]
    warnings: tuple[tuple[str, type[Warning]], ...]
    versions: tuple[OpenedVersion, ...]  # which versions of volumes it has opened


@dataclass(frozen=True)
class BatchMessage:
    """From a worker: a batch."""

    index: int
    data: bytes | None  # None if its replica of the graph has no more items
    report: WorkerReport


@dataclass(frozen=True)
class ErrorMessage:
    """From a worker: an error in the pipes."""

    index: int
    error: bytes  # the exception, pickled; empty if it cannot be
    what: str  # its class and message
    text: str  # the worker's traceback
    report: WorkerReport  # what it did and warned of until then


Feed: TypeAlias = Callable[[], Any]
"""Waits for the next item of a worker; returns ``END_OF_ITEMS`` after the last."""
END_OF_ITEMS = object()  # known in one process only


class SourceFailed(RuntimeError):
    """The pipes that make the items have failed, in the process that runs them."""
