"""One pass over a loader: takes batches, notes how far it has come, and ends what it began."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

from ..core.errors import IteratorInvalidated, VoxpipeError
from ..datapipes.iter.stack.devices import with_tensors
from ..reading_services import Epoch
from ..realizing import Outcome
from .pausing import Pausing
from .position import Progress

if TYPE_CHECKING:
    from .dataloader2 import DataLoader2


class DataLoader2Iterator:
    """One epoch of a loader.

    It can be paused, by hand or after a number of batches: a ``for`` loop over it ends, and
    another one goes on after :meth:`resume`. Workers keep what they have made meanwhile.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> from voxpipe.dataloader2 import DataLoader2
    >>> batches = iter(DataLoader2(IterableWrapper(range(5))))
    >>> batches.limit(2)
    >>> list(batches)
    [0, 1]
    >>> batches.resume()
    >>> list(batches)
    [2, 3]
    """

    def __init__(self, loader: DataLoader2, seed: int, progress: Progress) -> None:
        self._loader = loader
        self._seed = seed
        self._progress = progress
        self._ended_by = ""
        self._batches: Epoch | None = None
        self._step = 1
        self._failure: BaseException | None = None
        self._interrupted = False
        self._pausing = Pausing()

    def __iter__(self) -> DataLoader2Iterator:
        return self

    def __next__(self) -> Any:
        if self._ended_by:
            do = "One iterator of a loader is live: take a new one, or make two loaders."
            raise IteratorInvalidated(self._ended_by, do=do)
        if self._failure is not None:
            raise self._failure  # the epoch failed; it did not end
        self._pausing.ask()
        asked = time.perf_counter()
        self._loader._pace.asked(asked)
        try:
            batch = self._next()
        except StopIteration:
            self._close()
            self._loader._finished(self._progress)
            raise
        except BaseException as error:
            self._close()
            if isinstance(error, VoxpipeError):
                error.at(self._loader._origin)
            if isinstance(error, Exception):
                self._failure = _again(error)
            else:  # Ctrl-C: nothing failed, so who asks again has the rest
                self._interrupted = True
            raise
        self._pausing.handed()
        handed = time.perf_counter()
        self._loader._pace.handed(handed)
        self._loader._waits.add(handed - asked)
        return batch

    def _next(self) -> Any:
        """Return the next batch of which there is something, and note what was delivered."""
        while True:
            batch = next(self._started())
            here = self._progress.position
            failed = here.failed
            if isinstance(batch, Outcome):
                failed = self._loader._failed.admit(batch, self._loader._policy, failed)
            is_empty = isinstance(batch, Outcome) and batch.is_empty
            if is_empty:
                here.place.leave_out(batch.failures)
            else:
                batch = self._moved(batch.batch if isinstance(batch, Outcome) else batch)
            # Last, and in one step: whoever interrupts this has the batch once more, not never.
            self._progress.position = here.after(self._started().last, failed, self._step)
            if not is_empty:
                return batch

    def _moved(self, batch: Any) -> Any:
        """Return the batch on the device that the graph asks for."""
        device = self._loader._work.hints.device
        if device is None:
            return batch
        return with_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))

    def limit(self, num_batches: int | None) -> None:
        """Pause after ``num_batches`` more batches, again after each resume(); None: never."""
        self._pausing.limit(num_batches)

    def pause(self) -> None:
        """Hand out no batch until :meth:`resume`; a ``for`` loop ends."""
        self._loader._pace.interrupt()
        self._pausing.pause()

    def resume(self) -> None:
        """Go on with the next batch; warns if the iterator is not paused."""
        self._pausing.resume()

    def _started(self) -> Epoch:
        if self._batches is None:
            if self._progress.begun and not self._interrupted:
                raise StopIteration
            self._interrupted = False
            progress, loader = self._progress, self._loader
            here = progress.position
            loader._agreed()
            progress.begun = True
            # Below 0 batches have the numbers of their shares, one for each in turn.
            self._step = max(1, -loader._service.shares(loader._work))
            self._batches = loader._service.epoch(loader._work, self._seed, here.epoch, here.place)
            # Ranks agree on one seed: the state of each is that of all.
            loader._seed = seed = getattr(self._batches, "seed", self._seed)
            self._batches = loader._tail.behind(self._batches, seed, here.epoch)
        return self._batches

    def invalidate(self, why: str) -> None:
        """End the epoch; further use says why."""
        self._ended_by = why
        self._close()

    def _close(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()

    def __del__(self) -> None:
        # Dropped in the middle of an epoch: workers must not wait for the loader's own end.
        self._close()


def _again(error: Exception) -> Exception:
    """Return the error to raise when a failed epoch is asked once more.

    A copy: the traceback of the error holds the caller's frames, these hold the iterator, and
    an iterator that held the error would keep the caller's batch until the next collection.
    """
    try:
        again = copy.copy(error)
    except Exception:  # a user's class whose constructor wants more than its message
        return error
    again.__cause__ = error.__cause__
    return again
