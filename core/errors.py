"""Every error that voxpipe raises on purpose, as one tree; what each means stands at its class.

Each is also the built-in that a caller would expect, so that code which knows nothing of voxpipe
can still catch it::

    VoxpipeError
    ├── VolumeError: something is wrong with one stored volume
    │   ├── VolumeReadError: it cannot be read; what to catch around reading
    │   │   ├── VolumeNotFound, UnknownFormat, BadHeader (LeadsOutside), TruncatedVolume
    │   │   ├── CorruptVolume (VolumeChanged), VolumeTooLarge, MissingDependency
    │   │   ├── CacheTooSmall, CacheBusy
    │   │   └── StoreUnavailable, AccessDenied, ForkUnsafe
    │   ├── DestinationExists, DestinationBusy, DestinationFull
    │   └── OutOfVolume, BadManifest, StaleEntry
    ├── BadSetting, GridMismatch, PatchSizeError, BadPlan, BadRecord, PolicyConflict, SampleError
    ├── UnknownCase, GraphError (NotPicklable, NotRemovable, UnendedCache)
    ├── StreamError (HashMismatch), NotOffered, BudgetExceeded, StateMismatch (BadState), NoDevice
    ├── ItemTimeout (PrefetchTimeoutError), TooManyFailures, WorkerDied
    ├── RankFailed, RanksDiffer, RankMissing
    └── IteratorInvalidated, LoaderShutDown

and warnings, which are no errors unless you make them such::

    SlotsUsedUp, WorkerReplaced, CacheUnused, IdleWorkers, RanksAlike, LikelyLabel, MissingLabel,
    ProvenanceLost, UnopenedVolume, EmptyVolume, LintWarning, LikelyMistake, NotFinite,
    CasesLeftOut

A message says what happened, to which file, at which pipe as the user wrote it, and what to do.
The last three are filled in on the way up: whoever knows the place calls :meth:`VoxpipeError.at`.
"""

from __future__ import annotations

from traceback import walk_tb
from typing import Any, Self, TypeVar

from .call_site import CallSite
from .redact import public_name, public_text


class VoxpipeError(Exception):
    """Base of the tree: what happened, where it was written, what to do.

    Parameters
    ----------
    what
        One sentence: what happened, to which file or value.
    do
        One sentence: what the reader can do about it; where nothing is given, what usually helps
        against errors of this class.

    Examples
    --------
    >>> print(PatchSizeError("patch is 4-D, got (1, 2, 3, 4)", do="Give three sizes."))
    patch is 4-D, got (1, 2, 3, 4)
      Give three sizes.
    """

    usual_advice = ""

    def __init__(self, what: str, *, do: str = "") -> None:
        # A URL with its key may stand in a name, or in what somebody else said.
        self.what = public_text(what)
        super().__init__(self.what)
        self.do = public_text(do) or self.usual_advice
        self.case: str = ""
        self.item: str = ""
        self.key: str = ""
        self.origin: CallSite | None = None

    @property
    def args(self) -> tuple[Any, ...]:
        """What happened. torch would add the arguments of a pipe, which is told in other words."""
        return (self.what,)

    @args.setter
    def args(self, args: tuple[Any, ...]) -> None:
        return

    def at(
        self, origin: CallSite | None = None, case: str = "", item: str = "", key: str = ""
    ) -> Self:
        """Say where it happened, unless a place closer to it already did.

        ``item`` says which item it was, for those that have no name: ``"item 1 of batch 3"``;
        ``key`` which volume of a case.
        """
        self.key = self.key or key
        if self.origin is None:
            self.origin = origin
        if not (self.case or self.item):
            self.case, self.item = public_name(case), "" if case else item
        return self

    def __str__(self) -> str:
        lines = [self.what]
        if self.case or self.item or self.key:
            lines.append(f"  {_within(self.case, self.item, self.key)}")
        if self.origin is not None:
            lines.append(f"  at {self.origin}")
        if self.do:
            lines.append(f"  {self.do}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.what,), self.__dict__)


# What is told with its place. A function that calls sys.exit() would end its process; a worker
# tells of it instead, as of any error.
LOCATABLE = (Exception, SystemExit)
E = TypeVar("E", bound=BaseException)


def add_location(
    error: E, origin: CallSite | None = None, case: str = "", item: str = "", key: str = ""
) -> E:
    """Return ``error`` with its place: in its message if it is ours, else as a note.

    A foreign error keeps its class and message. A ``StopIteration``, which would end an epoch,
    becomes a ``RuntimeError`` that names the function.
    """
    # ``origin`` is the pipe as the user wrote it, ``case`` a name, ``item`` which it was, where
    # that has no name, and ``key`` which volume.
    error = _without_stop(error)
    if isinstance(error, VoxpipeError):
        error.at(origin, case, item, key)
        return error
    lines = [_within(public_name(case), item, key)] if case or item else []
    lines += [f"at {origin}"] if origin is not None else []
    for line in lines:
        notes = getattr(error, "__notes__", ())
        if line.split(" ", 1)[0] not in {n.split(" ", 1)[0] for n in notes}:
            error.add_note(line)
    return error


def _without_stop(error: Any) -> Any:
    """Return the error of a function that raised StopIteration; any other error as it is."""
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
    """Return what to do where a sample has no volume of a name that may be an optional one."""
    return (
        f"{do} If only some cases have {key!r} (optional= of list_cases): give it to the others "
        f"with .map(), or leave them out with .filter(lambda sample: {key!r} in sample), right "
        "after the cases."
    ).strip()


def _within(case: str, item: str, key: str) -> str:
    where = [f"in case {case}"] if case else [f"in {item}"] if item else []
    return ", ".join([*where, f"under {key!r}"] if key else where)


class VolumeError(VoxpipeError):
    """Something is wrong with one stored volume."""


class VolumeReadError(VolumeError):
    """A stored volume cannot be read, whatever the reason; the message names it."""


class VolumeNotFound(VolumeReadError, FileNotFoundError):
    """There is nothing at this path or URL."""

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
    """The stored voxels cannot be decoded, or are not what the header says."""

    usual_advice = "Copy or write the file again."


class VolumeChanged(CorruptVolume):
    """What is stored is not the version any more that was opened; voxels of both would mix."""

    usual_advice = "Make a new Volume once it is written."


class OutOfVolume(VolumeError, IndexError):
    """A region or an index does not lie inside the volume."""


class VolumeTooLarge(VolumeReadError, MemoryError):
    """The voxels that are asked for take more than the memory of the machine."""


class CacheTooSmall(VolumeReadError, OSError):
    """The cache directory has no room for a decoded volume."""


class CacheBusy(VolumeReadError, TimeoutError):
    """Another process kept what is needed of the cache locked for too long."""


class MissingDependency(VolumeReadError, ImportError):
    """An optional package is needed to open this source."""


class StoreUnavailable(VolumeReadError, ConnectionError):
    """A remote store kept failing until the deadline."""


class AccessDenied(VolumeReadError, PermissionError):
    """A store refuses to answer with these credentials, or a file may not be read by this user."""


class ForkUnsafe(VolumeReadError, RuntimeError):
    """A connection that the parent process opened cannot be used after a fork."""


class DestinationExists(VolumeError, FileExistsError):
    """Something is in the place where a volume shall be written."""


class DestinationBusy(VolumeError, TimeoutError):
    """Another process is writing in the place where a volume shall be written."""


class DestinationFull(VolumeError, OSError):
    """The disk has no room for the volume that is being written there."""


class BadManifest(VolumeError, ValueError):
    """A file is no manifest, or makes no sense as one."""


class StaleEntry(VolumeError, ValueError):
    """A volume has changed since the manifest was written that describes it."""


class BadSetting(VoxpipeError, ValueError):
    """An environment variable of voxpipe that is none of what it may be."""


class GridMismatch(VoxpipeError, ValueError):
    """The volumes of one case do not lie on one grid."""


class PatchSizeError(VoxpipeError, ValueError):
    """A patch that cannot be cut, or patches that cannot be stacked."""


class BadPlan(VoxpipeError, ValueError):
    """Plain data that describe no plan, or one of another version."""


class BadRecord(VoxpipeError, ValueError):
    """A record for ``replay()`` that the op could not have drawn."""


class PolicyConflict(VoxpipeError, ValueError):
    """Two places ask for different sampling of one volume."""


class SampleError(VoxpipeError, TypeError):
    """A pipe was given an item that it cannot use."""


class UnknownCase(VoxpipeError, KeyError):
    """A mapping of results has no case of this name."""


class GraphError(VoxpipeError, ValueError):
    """The graph of pipes is not legal."""


class NotPicklable(GraphError, TypeError):
    """A pipe cannot travel to a worker process."""


class NotRemovable(GraphError, RuntimeError):
    """A pipe whose place nothing can take: a source, or one that reads several."""


class UnendedCache(GraphError, RuntimeError):
    """An ``on_disk_cache()`` without ``end_caching()``, or the other way round."""


class StreamError(VoxpipeError, ValueError, RuntimeError):
    """A file or an archive is damaged, holds more than it may, or names what it must not."""


class HashMismatch(StreamError):
    """A file is not the one that was expected."""


class NotOffered(VoxpipeError, NotImplementedError):
    """Something that voxpipe leaves out on purpose; the message says what to use instead."""


class BudgetExceeded(VoxpipeError, MemoryError):
    """Reading would take more memory than it may; found before anything is read."""


class StateMismatch(VoxpipeError, ValueError):
    """A saved state belongs to another graph, data set or version."""


class BadState(StateMismatch, TypeError):
    """What is no saved state: a field is missing, unknown, of another form or out of range."""


class ItemTimeout(VoxpipeError, TimeoutError):
    """Nothing arrived within the time that was given."""


class PrefetchTimeoutError(ItemTimeout, RuntimeError):
    """What makes an item ahead, here or on another rank, took longer than it may.

    Parameters
    ----------
    what
        One sentence; or the seconds that it was given, as in torchdata.
    do
        One sentence: what the reader can do about it; where nothing is given, what usually helps
        against errors of this class.

    Examples
    --------
    >>> print(PrefetchTimeoutError(5))
    Fail to fetch data within 5 seconds
    """

    timeout: float | None = None  # seconds that it was given, where they are known

    def __init__(self, what: str | float, *, do: str = "") -> None:
        if isinstance(what, str):
            super().__init__(what, do=do)
        else:
            super().__init__(f"Fail to fetch data within {what:g} seconds", do=do)
            self.timeout = what


class RankFailed(VoxpipeError, RuntimeError):
    """Another rank of ``torch.distributed`` told that it failed; the message has its error."""


class NoDevice(VoxpipeError, RuntimeError):
    """The device that was asked for is not there."""


class TooManyFailures(VoxpipeError, RuntimeError):
    """More items of an epoch failed than ``OnError(budget=...)`` allows."""


class WorkerDied(VoxpipeError, RuntimeError):
    """A worker process ended by itself."""


class RanksDiffer(VoxpipeError, RuntimeError):
    """The ranks of a job are about to run different epochs, chains or cases."""


class RankMissing(VoxpipeError, RuntimeError):
    """A rank of a torch.distributed job left, is gone or did not come; or there is no job."""


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
    """Fewer workers work than were asked for, because the graph cannot be split."""


class RanksAlike(UserWarning):
    """Every rank of a job makes the same batches, because nothing divides them."""


class LikelyLabel(UserWarning):
    """The name of a volume, or its values, say label, but it is sampled as an intensity."""


class LintWarning(UserWarning):
    """A graph is legal, but does what hardly anybody wants."""


class LikelyMistake(UserWarning):
    """A setting is allowed, and looks as if something else were meant: another unit, say."""


class MissingLabel(UserWarning):
    """A label that patches are to be drawn by is not in a mask, which holds others instead."""


class ProvenanceLost(UserWarning):
    """Samples became plain mappings, so their batch cannot say where they come from."""


class UnopenedVolume(UserWarning):
    """A batch holds the path of a volume where its voxels were meant, perhaps."""


class EmptyVolume(UserWarning):
    """A volume has a header and no voxels: nothing of it is stored, so it is read as all fill."""


class CasesLeftOut(UserWarning):
    """Files that cannot be read, and so the cases or the slices that they may be part of."""


class NotFinite(RuntimeWarning):
    """A model gave NaN or infinite numbers, and the result has what comes of them."""
