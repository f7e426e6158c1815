"""The errors and warnings of voxpipe, as one tree.

Each error is also the built-in error that a caller would expect, so code that does not know
voxpipe can catch it::

    VoxpipeError
    ├── VolumeError: one stored volume is wrong
    │   ├── VolumeReadError: it cannot be read; catch this around reading
    │   │   ├── VolumeNotFound, UnknownFormat, BadHeader (LeadsOutside), TruncatedVolume
    │   │   ├── CorruptVolume (VolumeChanged), VolumeTooLarge, MissingDependency
    │   │   ├── CacheTooSmall, CacheBusy
    │   │   └── StoreUnavailable, AccessDenied, ForkUnsafe
    │   ├── DestinationExists, DestinationBusy, DestinationFull
    │   └── OutOfVolume, BadManifest, StaleEntry
    ├── BadSetting, GridMismatch, PatchSizeError, BadPlan, BadRecord, PolicyConflict
    ├── SampleError (UnknownName), UnknownCase
    ├── GraphError (BadChain, NotPicklable, NotRemovable, UnendedCache)
    ├── StreamError (HashMismatch), NotOffered, BudgetExceeded, StateMismatch (BadState), NoDevice
    ├── ItemTimeout (PrefetchTimeoutError), TooManyFailures, WorkerDied
    ├── RankFailed, RanksDiffer, RankMissing
    └── IteratorInvalidated, LoaderShutDown, UsageError

Warnings::

    SlotsUsedUp, WorkerReplaced, CacheUnused, IdleWorkers, RanksAlike, LikelyLabel, MissingLabel,
    ProvenanceLost, UnopenedVolume, EmptyVolume, LintWarning, LikelyMistake, NotFinite,
    CasesLeftOut

A message has the event with its file, the pipe as the user wrote it, and the cure. Callers that
know the place add it with :meth:`VoxpipeError.at`.
"""

from __future__ import annotations

import re
from functools import partial
from traceback import walk_tb
from typing import Any, Self, TypeVar

from .call_site import CallSite
from .cures import cure
from .redact import public_name, public_text
from .spelling import of_error


class VoxpipeError(Exception):
    """Base of the tree: an event, its place, and the cure.

    Parameters
    ----------
    message
        One sentence: the event, with its file or value.
    do
        One sentence: the cure; by default the usual cure of this class. A mark such as
        ``⟦overwrite=True⟧`` names an argument; a command names its option there.

    Examples
    --------
    >>> print(PatchSizeError("patch is 4-D, got (1, 2, 3, 4)", do="Give three sizes."))
    patch is 4-D, got (1, 2, 3, 4)
      Give three sizes.
    """

    usual_advice = ""

    def __init__(self, message: str, *, do: str = "") -> None:
        # Names and texts of other libraries may contain a URL with its key.
        self.message = cure(message, public_text)
        super().__init__(self.message)
        self.do = cure(do, public_text) or self.usual_advice
        self.case: str = ""
        self.item: str = ""
        self.key: str = ""
        self.origin: CallSite | None = None

    @property
    def args(self) -> tuple[Any, ...]:
        """The event. The setter ignores torch, which would append the arguments of a pipe."""
        return (self.message,)

    @args.setter
    def args(self, args: tuple[Any, ...]) -> None:
        return

    def at(
        self, origin: CallSite | None = None, case: str = "", item: str = "", key: str = ""
    ) -> Self:
        """Add the place of the error, unless a closer place is already set.

        ``item`` describes an item without a name: ``"item 1 of batch 3"``; ``key`` names the
        volume of a case.
        """
        self.key = self.key or key
        if self.origin is None:
            self.origin = origin
        if not (self.case or self.item):
            self.case, self.item = public_name(case), "" if case else item
        return self

    def __str__(self) -> str:
        lines = [self.message]
        if self.case or self.item or self.key:
            lines.append(f"  {_within(self.case, self.item, self.key)}")
        if self.origin is not None:
            lines.append(f"  at {self.origin}")
        text = "\n".join(lines)
        return f"{text}\n  " + self.do if self.do else text

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.message,), self.__dict__)


_THREE_NUMBERS = re.compile(r"([(\[][^()\[\], ]+, [^()\[\], ]+), (?:0|1|None)([)\]])")
_THREE_SIZES = re.compile(r"\b(\d+x\d+)x1\b")


def hide_last_axis(error: VoxpipeError) -> None:
    """Shorten the sizes of three numbers in an error of 2-D data."""
    for name in ("message", "do"):
        text = cure(getattr(error, name), partial(_THREE_NUMBERS.sub, r"\1\2"))
        setattr(error, name, cure(text, partial(_THREE_SIZES.sub, r"\1")))


# Exceptions that get a place. Workers also report sys.exit() of a function, instead of ending.
LOCATABLE = (Exception, SystemExit)
E = TypeVar("E", bound=BaseException)


def add_location(
    error: E, origin: CallSite | None = None, case: str = "", item: str = "", key: str = ""
) -> E:
    """Return ``error`` with its place: in the message of our errors, else as a note.

    The arguments are those of :meth:`VoxpipeError.at`. A foreign error keeps its class and
    message. A ``StopIteration``, which would end an epoch, becomes a ``RuntimeError`` that names
    the function.
    """
    error = _without_stop(error)
    if isinstance(error, VoxpipeError):
        error.at(origin, case, item, key)
        return error
    lines = [_within(public_name(case), item, key)] if case or item else []
    lines += [f"at {origin}"] if origin is not None else []
    lines += filter(None, [of_error(error)])
    for line in lines:
        notes = getattr(error, "__notes__", ())
        if line.split(" ", 1)[0] not in {n.split(" ", 1)[0] for n in notes}:
            error.add_note(line)
    return error


def _without_stop(error: Any) -> Any:
    """Return the error for a function that raised StopIteration; other errors unchanged."""
    is_new = isinstance(error, StopIteration)
    stop = error if is_new else error.__cause__  # Python converts it where it leaves a generator
    if not isinstance(stop, StopIteration) or not (is_new or isinstance(error, RuntimeError)):
        return error
    *_, code = (frame.f_code for frame, _ in walk_tb(stop.__traceback__))
    where = f"{code.co_qualname}() ({code.co_filename}:{code.co_firstlineno})"
    what = (
        f"{where} raised StopIteration: an iterator in it has no more items. Give next() a "
        "default, or make the iterator again for each epoch."
    )
    error = RuntimeError() if is_new else error
    error.args, error.__cause__ = (what,), stop
    return error


def missing_key_hint(key: str, do: str = "") -> str:
    """Return the cure for a sample that lacks a volume, which may be optional."""
    return (
        f"{do} If only some cases have {key!r} (optional= of list_cases): give it to the others "
        f"with .map(), or leave them out with .filter(lambda sample: {key!r} in sample), right "
        "after the cases."
    ).strip()


def _within(case: str, item: str, key: str) -> str:
    where = [f"in case {case}"] if case else [f"in {item}"] if item else []
    return ", ".join([*where, f"under {key!r}"] if key else where)


class VolumeError(VoxpipeError):
    """One stored volume is wrong."""


class VolumeReadError(VolumeError):
    """A stored volume cannot be read; the message has the reason."""


class VolumeNotFound(VolumeReadError, FileNotFoundError):
    """No file or object exists at this path or URL."""

    usual_advice = "Check the path."


class UnknownFormat(VolumeReadError, ValueError):
    """No registered backend opens this source."""


class BadHeader(VolumeReadError, ValueError):
    """The header cannot be read or contradicts itself."""

    usual_advice = "Check how the file was written, or copy it again."


class LeadsOutside(BadHeader):
    """A header, a link in a folder, or the name of a case leads outside of its folder."""


class TruncatedVolume(VolumeReadError, EOFError):
    """The file holds fewer voxels than its header says."""

    usual_advice = "Copy or download the file again."


class CorruptVolume(VolumeReadError, ValueError):
    """The stored voxels cannot be decoded, or contradict the header."""

    usual_advice = "Copy or write the file again."


class VolumeChanged(CorruptVolume):
    """The stored volume changed after it was opened; voxels of both versions would mix."""

    usual_advice = "Make a new Volume once it is written."


class OutOfVolume(VolumeError, IndexError):
    """A region or an index is not inside the volume."""


class VolumeTooLarge(VolumeReadError, MemoryError):
    """The requested voxels do not fit into the memory of the machine."""


class CacheTooSmall(VolumeReadError, OSError):
    """The cache directory has no room for a decoded volume."""


class CacheBusy(VolumeReadError, TimeoutError):
    """Another process kept a needed cache entry locked for too long."""


class MissingDependency(VolumeReadError, ImportError):
    """An optional package is needed to open this source."""


class StoreUnavailable(VolumeReadError, ConnectionError):
    """A remote store kept failing until the deadline."""


class AccessDenied(VolumeReadError, PermissionError):
    """A store refuses to answer with these credentials, or a file may not be read by this user."""


class ForkUnsafe(VolumeReadError, RuntimeError):
    """A connection that the parent process opened cannot be used after a fork."""


class DestinationExists(VolumeError, FileExistsError):
    """The destination of a volume already exists."""


class DestinationBusy(VolumeError, TimeoutError):
    """Another process is writing to the destination of a volume."""


class DestinationFull(VolumeError, OSError):
    """The disk has no room for the rest of a volume."""


class BadManifest(VolumeError, ValueError):
    """A file is not a valid manifest."""


class StaleEntry(VolumeError, ValueError):
    """A volume has changed since its manifest was written."""


class BadSetting(VoxpipeError, ValueError):
    """An environment variable of voxpipe has an invalid value."""


class UsageError(VoxpipeError, ValueError):
    """A command line that cannot be run; its exit status is 2."""


class GridMismatch(VoxpipeError, ValueError):
    """The volumes of one case have different grids."""


class PatchSizeError(VoxpipeError, ValueError):
    """A patch that cannot be cut, or patches that cannot be stacked."""


class BadPlan(VoxpipeError, ValueError):
    """Plain data that describe no plan, or one of another version."""


class BadRecord(VoxpipeError, ValueError):
    """A record for ``replay()`` that the op could not have drawn."""


class PolicyConflict(VoxpipeError, ValueError):
    """Two places set different sampling of one volume."""


class SampleError(VoxpipeError, TypeError):
    """A pipe was given an item that it cannot use."""


class UnknownName(SampleError):
    """A format has no option of this name, or a case no volume of it.

    ``argument`` is the option of the format, or the argument that names a volume.
    """

    def __init__(self, message: str, *, do: str = "", argument: str = "") -> None:
        super().__init__(message, do=do)
        self.argument = argument


class UnknownCase(VoxpipeError, KeyError):
    """A mapping of results has no case of this name."""


class GraphError(VoxpipeError, ValueError):
    """The graph of pipes is not legal."""


class BadChain(GraphError):
    """Plain data that describe no chain, or one of another version."""


class NotPicklable(GraphError, TypeError):
    """A pipe cannot travel to a worker process."""


class NotRemovable(GraphError, RuntimeError):
    """A source, or a pipe that reads several, cannot be removed from a graph."""


class UnendedCache(GraphError, RuntimeError):
    """An ``on_disk_cache()`` without ``end_caching()``, or the other way round."""


class StreamError(VoxpipeError, ValueError, RuntimeError):
    """A file or an archive is damaged, too large, or has an unsafe member name."""


class HashMismatch(StreamError):
    """A file is not the one that was expected."""


class NotOffered(VoxpipeError, NotImplementedError):
    """A feature that voxpipe omits on purpose; the message has the alternative."""


class BudgetExceeded(VoxpipeError, MemoryError):
    """Reading would take more memory than its limit; raised before anything is read."""


class StateMismatch(VoxpipeError, ValueError):
    """A saved state belongs to another graph, data set or version."""


class BadState(StateMismatch, TypeError):
    """A saved state has a missing or unknown field, or a bad value."""


class ItemTimeout(VoxpipeError, TimeoutError):
    """Nothing arrived within the time that was given."""


class PrefetchTimeoutError(ItemTimeout, RuntimeError):
    """Prefetching an item, here or on another rank, took longer than its timeout.

    Parameters
    ----------
    message
        One sentence; or the timeout in seconds, as in torchdata.
    do
        One sentence: the cure; by default the usual cure of this class.

    Examples
    --------
    >>> print(PrefetchTimeoutError(5))
    Fail to fetch data within 5 seconds
    """

    timeout: float | None = None  # seconds, where known

    def __init__(self, message: str | float, *, do: str = "") -> None:
        if isinstance(message, str):
            super().__init__(message, do=do)
        else:
            super().__init__(f"Fail to fetch data within {message:g} seconds", do=do)
            self.timeout = message


class RankFailed(VoxpipeError, RuntimeError):
    """Another rank of ``torch.distributed`` failed; the message has its error."""


class NoDevice(VoxpipeError, RuntimeError):
    """The requested device does not exist."""


class TooManyFailures(VoxpipeError, RuntimeError):
    """More items of an epoch failed than ``OnError(budget=...)`` allows."""


class WorkerDied(VoxpipeError, RuntimeError):
    """A worker process ended by itself."""


class RanksDiffer(VoxpipeError, RuntimeError):
    """The ranks of a job are about to run different epochs, chains or cases."""


class RankMissing(VoxpipeError, RuntimeError):
    """A rank of a torch.distributed job left or never joined; or there is no job."""


class IteratorInvalidated(VoxpipeError, RuntimeError):
    """A newer iterator of the same loader has taken over."""


class LoaderShutDown(VoxpipeError, RuntimeError):
    """The loader was used after ``shutdown()``."""


class SlotsUsedUp(RuntimeWarning):
    """The shared memory for batches is used up, so batches are copied; nothing is lost."""


class WorkerReplaced(RuntimeWarning):
    """A worker process died and another took its place; no batch is lost or delivered twice."""


class CacheUnused(RuntimeWarning):
    """A cache on the disk cannot be written to; reading goes on without it, more slowly."""


class IdleWorkers(UserWarning):
    """Fewer workers run than requested, because the graph cannot be split."""


class RanksAlike(UserWarning):
    """Every rank of a job makes the same batches, because nothing divides them."""


class LikelyLabel(UserWarning):
    """A volume has the name or the values of a label, but is sampled as an intensity."""


class LintWarning(UserWarning):
    """A graph is legal, but probably a mistake."""


class LikelyMistake(UserWarning):
    """A setting is allowed, but looks like a mistake, e.g. another unit."""


class ExtraInterpolation(UserWarning):
    """Pipes with different sampling were separated, so voxels are interpolated twice."""


class MissingLabel(UserWarning):
    """A mask lacks the label that patches are drawn by, but has other labels."""


class ProvenanceLost(UserWarning):
    """Samples became plain mappings, so their batch has no provenance."""


class UnopenedVolume(UserWarning):
    """A batch holds the path of a volume, probably instead of its voxels."""


class EmptyVolume(UserWarning):
    """A volume has a header but no stored voxels, so all of it is read as fill."""


class CasesLeftOut(UserWarning):
    """Files cannot be read, so their cases or slices are left out."""


class NotFinite(RuntimeWarning):
    """A model returned NaN or infinite numbers, which are in the result."""


# Errors of Python in users' readers, and our errors in their place, which are subclasses of them.
_ERRORS_OF_FILES = {
    FileNotFoundError: VolumeNotFound,
    PermissionError: AccessDenied,
    EOFError: TruncatedVolume,
    ImportError: MissingDependency,
    MemoryError: VolumeTooLarge,
}


def is_of_user(kind: Any) -> bool:
    """Whether a class or a function is not part of voxpipe."""
    return str(getattr(kind, "__module__", "")).partition(".")[0] != __name__.partition(".")[0]


def reader_error(error: Exception, reader: Any, doing: str, name: str) -> Exception:
    """Return an error of a user's backend or function as one of the file; others unchanged."""
    kind = reader if hasattr(reader, "__qualname__") else type(reader)
    if isinstance(error, VoxpipeError) or not is_of_user(kind):
        return error
    kinds = [ours for theirs, ours in _ERRORS_OF_FILES.items() if isinstance(error, theirs)]
    # Callers of the system's errors use their class, for instance to wait after a timeout.
    if isinstance(error, OSError) and type(error) is not OSError and not kinds:
        error.add_note(f"{kind.__qualname__} failed {doing} {name}.")
        return error
    event = f"{type(error).__module__}.{type(error).__name__}: {error}".removeprefix("builtins.")
    msg = f"{kind.__qualname__} failed {doing} {name}: {event}".rstrip(": ")
    do = f"Check whether the file is whole, or correct {kind.__qualname__}."
    answer = next(iter(kinds), VolumeReadError)(f"{msg}.", do=do)
    answer.__cause__ = error
    return answer
