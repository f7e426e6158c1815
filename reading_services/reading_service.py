"""The contract of reading services, which run a graph somewhere.

A loader calls three methods, in this order, for any number of epochs in a row:

``distribute(graph) -> Work``
    Decide where each pipe runs, without starting anything, so that ``explain()`` can show it.
``epoch(work, seed, epoch, cursor) -> Epoch``
    Start one pass over the batches not yet delivered and return its iterator.
``stop()``
    Free everything that outlives an epoch.

The life of an epoch. Code that differs from this table is wrong.

======================  =========================================================
finished                ``StopIteration`` after the last batch; then as closed
failed                  ``next`` raises the error; then as closed
abandoned, Ctrl-C       the loader calls ``close()``, at the latest when the
                        loader or its iterator is collected; then as closed
closed                  within ``limits.stop`` seconds every process that the epoch
                        owns is gone, every handle it opened is closed, and only
                        batches that the user still has hold its memory
======================  =========================================================

``close()`` may be called any number of times, also from ``__del__``. A thread of a pipe after the
batches may be waiting for the next one; then the consumer's thread first calls ``leave()``, if the
epoch has it. An epoch with other ranks notifies them, so that they end at their next batch and not
at their timeout.
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
from .planner import DeliveredBatches
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
        """Free all resources of the pass."""


def refuse_unknown(kind: type, others: Mapping[str, Any], substitutes: Mapping[str, str]) -> None:
    """Raise ``TypeError`` for unknown arguments of a service or loader, with one to use instead.

    ``substitutes`` maps arguments of other loaders and services to ours, with ``{value}``.
    """
    for other, value in others.items():
        parameters = inspect.signature(kind).parameters.values()
        names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        suggestions = [f"{close}={shorten(value)}" for close in closest(other, names, 0.6)]
        if other in substitutes:
            suggestions.insert(0, substitutes[other].format(value=shorten(value)))
        words = f"give {suggestions[0]}" if suggestions else f"it takes {', '.join(names)}"
        raise TypeError(f"{kind.__name__} has no {other}; {words}")


def text_of(service: Any, first: str, **usual: Any) -> str:
    """Return a service as code: its first argument, and those that differ from the default.

    ``usual`` maps an attribute to its value if the argument is left out.
    """
    words = [f"{first}={getattr(service, first)!r}"]
    for name, parameter in inspect.signature(type(service)).parameters.items():
        value = getattr(service, name, parameter.default)
        if name != first and value != usual.get(name, parameter.default):
            words.append(f"{name}={value!r}")
    return f"{type(service).__name__}({', '.join(words)})"


def leave(epoch: object) -> None:
    """Wake the thread that waits for the next batch of an epoch, if the epoch supports it."""
    if hasattr(epoch, "leave"):
        epoch.leave()


def leaving_error() -> IteratorInvalidated:
    """Return the error of a wait that :func:`leave` ended; an end would hide lost batches."""
    return IteratorInvalidated("this epoch was left", do="Take a new iterator of the loader.")


class ReadingService(Protocol):
    """Runs a graph somewhere.

    A service need not inherit from it. Optional methods, by name:

    - ``budgets(work, remote=)``: the memory budgets for reading.
    - ``checkpoint()``, ``restore(state)``, ``refuse_state()``: its own state in the loader's state.
    - ``divide(work)``: this rank's part.
    - ``alone()``: a copy that does not wait for other ranks.
    """

    def distribute(self, graph: Pipe) -> Work:
        """Decide where each pipe runs."""

    def epoch(self, work: Work, seed: int, epoch: int, cursor: DeliveredBatches) -> Epoch:
        """Start one pass over the batches that ``cursor`` does not hold."""

    def shares(self, work: Work) -> int:
        """Return the number of processes that share a graph that cannot be split; else 0."""

    def explain(self, work: Work) -> str:
        """Return the text of where each pipe runs."""

    def stop(self) -> None:
        """Free everything that outlives an epoch."""


# The running epochs of this process: the last to end closes the volumes.
#
# A training loop may validate between two of its batches. The end of the inner epoch must not close
# the volumes of the outer one.

# Weak: an epoch that is dropped without a close must not keep volumes open.
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
