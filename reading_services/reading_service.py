"""The contract of reading services, which run a graph somewhere.

A service is asked three things, in this order, any number of epochs in a row:

``distribute(graph) -> Work``
    Decide what runs where. Pure: nothing starts, so ``explain()`` can show it.
``epoch(work, seed, epoch, cursor) -> Epoch``
    Start one pass over the batches not yet delivered and return its iterator.
``stop()``
    Free everything that outlives an epoch.

The life of an epoch. If the code disagrees with this, the code is wrong.

======================  =========================================================
finished                ``StopIteration`` after the last batch; then as closed
failed                  the error is raised from ``next``; then as closed
abandoned, Ctrl-C       ``close()`` is called by the loader, at the latest when the
                        loader or its iterator is collected; then as closed
closed                  within ``limits.stop`` seconds every process that the epoch
                        owns is gone, every handle it opened is closed, its memory
                        is only held by batches that the user still has
======================  =========================================================

``close()`` may be called any number of times, also from ``__del__``. Where a thread of a pipe
behind the batches may wait for the next one, ``leave()``, if it has one, is called before, from the
consumer's thread. An epoch that other ranks take part in tells them that it is left: they end at
their next batch, and wait for nobody's limit.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from ..core.call_site import shorten
from ..core.errors import IteratorInvalidated
from ..core.suggest import closest
from ..graph import Pipe
from ..volumes import close_volumes
from .delivered_batches import DeliveredBatches
from .work import Work


class Epoch(Protocol):
    """One pass over the data."""

    last: int
    """Position of the batch that ``next`` returned last."""

    def __iter__(self) -> Iterator[Any]:
        """Return itself."""

    def __next__(self) -> Any:
        """Return the next batch, in plan order."""

    def close(self) -> None:
        """Free what the pass holds."""


def refuse_unknown(
    service: type, others: Mapping[str, Any], substitutes: Mapping[str, str]
) -> None:
    """Raise ``TypeError`` for arguments that a service does not have, saying what is meant.

    ``substitutes`` say what users of other loaders and services give instead, with ``{value}``.
    """
    for other, value in others.items():
        parameters = inspect.signature(service).parameters.values()
        names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        suggestions = [f"{close}={shorten(value)}" for close in closest(other, names, 0.6)]
        if other in substitutes:
            suggestions.insert(0, substitutes[other].format(value=shorten(value)))
        words = f"give {suggestions[0]}" if suggestions else f"it takes {', '.join(names)}"
        raise TypeError(f"{service.__name__} has no {other}; {words}")


def text_of(service: Any, first: str, **usual: Any) -> str:
    """Return a service as it is written: its first argument, and those that are not as usual.

    ``usual`` are values that an attribute has where its argument was left out.
    """
    words = [f"{first}={getattr(service, first)!r}"]
    for name, parameter in inspect.signature(type(service)).parameters.items():
        value = getattr(service, name, parameter.default)
        if name != first and value != usual.get(name, parameter.default):
            words.append(f"{name}={value!r}")
    return f"{type(service).__name__}({', '.join(words)})"


def leave(epoch: object) -> None:
    """Let an epoch wake the thread that waits for its next batch, if it can."""
    if hasattr(epoch, "leave"):
        epoch.leave()


def leaving_error() -> IteratorInvalidated:
    """Return the error of a wait that :func:`leave` ended; an end would hide lost batches."""
    return IteratorInvalidated("this epoch was left", do="Take a new iterator of the loader.")


class ReadingService(Protocol):
    """Runs a graph somewhere.

    Nothing has to be inherited. A service may also have, found by name: ``budgets(work, remote=)``,
    what reading may spend; ``checkpoint()``, ``restore(state)`` and ``refuse_state()``, for a state
    of its own in that of the loader; ``divide(work)``, this rank's part of it; ``alone()``, a copy
    that waits for no other rank.
    """

    def distribute(self, graph: Pipe) -> Work:
        """Decide what runs where."""

    def epoch(self, work: Work, seed: int, epoch: int, cursor: DeliveredBatches) -> Epoch:
        """Start one pass over the batches that ``cursor`` does not hold."""

    def shares(self, work: Work) -> int:
        """Return among how many processes a graph is divided that cannot be split; else 0."""

    def explain(self, work: Work) -> str:
        """Return where what runs."""

    def stop(self) -> None:
        """Free everything that outlives an epoch."""


# Which epochs run in this process: the last of them to end closes the volumes.
#
# A training loop may validate between two of its batches. The inner epoch that ends must leave
# open what the outer one reads.

# Weak: an epoch that is dropped without being closed keeps nothing open for ever.
_RUNNING: weakref.WeakSet[object] = weakref.WeakSet()
_OWNER = os.getpid()


def begin(epoch: object) -> None:
    """Note that an epoch runs, until it is ended or collected."""
    global _RUNNING, _OWNER
    if os.getpid() != _OWNER:  # a forked child runs none of its parent's
        _RUNNING, _OWNER = weakref.WeakSet(), os.getpid()
    _RUNNING.add(epoch)


def end(epoch: object) -> None:
    """Note that an epoch has ended, any number of times, and close the volumes after the last."""
    _RUNNING.discard(epoch)
    if not _RUNNING:
        close_volumes()
