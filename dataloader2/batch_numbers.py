"""Batches by their numbers: any of them is made without those before it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from ..batching.job import BatchResult
from ..core.context import holding
from ..core.errors import GraphError
from ..core.validate import validate_int
from ..datapipes.datapipe import MAY_OPEN
from ..graph import clone
from ..reading_services import InProcessReadingService
from ..reading_services.main_process_tail import MainProcessTail
from ..reading_services.planner import RequestedBatches
from ..reading_services.work import PlannedWork, batch_count
from ..volumes.chunks.chunk_cache import DEFAULT_BYTES
from .compiler import check_epoch


class BatchesByNumber:
    """The methods of a loader that make batches of a run by their numbers."""

    def batch(self, index: int, *, epoch: int | None = None) -> Any:
        """Return one batch of a run: the one that iteration gives at that place.

        It is made in this process, and no other batch is. The position of the loader stays, also in
        the middle of an epoch, and failures that ``OnError`` lets pass are not counted. In a run of
        several ranks it is this rank's part of the batch.

        Parameters
        ----------
        index
            Place of the batch in its epoch, from 0.
        epoch
            The epoch; by default that of the next batch.

        Raises
        ------
        IndexError
            The epoch has no such batch, or ``OnError`` left all items of it out.
        GraphError
            The graph cannot be split, so its batches follow from those before them. Or ranks have
            not agreed on a seed yet.
        LoaderShutDown, ValueError
            The loader was shut down; a number is below 0.

        Examples
        --------
        >>> import numpy as np
        >>> from voxpipe.dataloader2 import DataLoader2
        >>> from voxpipe.datapipes.iter import from_cases
        >>> pipe = from_cases([{"image": np.full((4, 4, 4), n)} for n in range(9)]).shuffle()
        >>> loader = DataLoader2(pipe.open_volume().batch_patches(2), seed=7)
        >>> third = list(loader)[2]["image"]
        >>> bool((loader.batch(2, epoch=0)["image"] == third).all())
        True
        """
        (batch,) = self._make((index,), epoch, InProcessReadingService())
        return batch

    def batches(self, indices: Iterable[int], *, epoch: int | None = None) -> Iterator[Any]:
        """Yield batches of a run by their numbers, in the given order; see :meth:`batch`.

        Workers of the loader's reading service make them: those that this iterator starts, and
        stops at its end. A running epoch goes on with its own. Where items have no numbers, or with
        ``OnError``, ascending numbers are fast: each smaller one plans from the first item.

        Raises
        ------
        IndexError, GraphError, LoaderShutDown, ValueError
            As in :meth:`batch`.
        """
        loader: Any = self
        service = copy.copy(loader._given_service)
        yield from self._make(indices, epoch, getattr(service, "alone", lambda: service)())

    def _make(self, indices: Iterable[int], epoch: int | None, service: Any) -> Iterator[Any]:
        loader: Any = self
        loader._refuse_if_shut_down()
        numbers = [validate_int("a batch", index, least=0) for index in indices]
        if epoch is None:
            epoch = loader._position.epoch
        work = loader._work
        if not isinstance(work, PlannedWork):
            msg = f"the batches of this graph follow from those before them: {work.reason}"
            raise GraphError(msg, do="Iterate to the batch; see explain() for the pipe.")
        if hasattr(loader._service, "divide"):
            work = loader._service.divide(work)
        self._refuse_unshared_seed(work.part.ranks)
        run = loader._seed_of_run(), check_epoch(epoch)
        if not isinstance(service, InProcessReadingService):
            work = loader._agree().applied_to(work)
        _refuse_beyond(work, numbers, epoch)
        # A running epoch has the pipes of the loader. One batch needs no negotiation.
        cut = replace(work.cut, planner=clone(work.cut.planner))
        work = replace(work, cut=cut, cache_bytes=work.cache_bytes or DEFAULT_BYTES)
        cursor = RequestedBatches(indices=tuple(dict.fromkeys(numbers)))
        tail = MainProcessTail(loader._chain.tail.pipes, loader._chain.tail.seconds)
        counts, ready = Counter(numbers), dict[int, Any]()
        try:
            with closing(tail.epoch(service.epoch(work, *run, cursor), *run)) as running:
                for number in numbers:
                    with loader._turn:  # batches of an epoch seed the global generators, too
                        while number not in ready and (batch := next(running, self)) is not self:
                            ready[running.last] = batch
                    batch = ready.get(number)
                    if batch is None or (isinstance(batch, BatchResult) and batch.is_empty):
                        why = "has no such batch" if batch is None else "has no item left in it"
                        raise IndexError(f"batch {number}: epoch {epoch} {why}")
                    counts[number] -= 1
                    if not counts[number]:
                        del ready[number]
                    yield batch.batch if isinstance(batch, BatchResult) else batch
        finally:
            service.stop()
            tail.shutdown()

    def _refuse_unshared_seed(self, ranks: int) -> None:
        """Raise where ranks have not agreed on a seed, which each would draw for itself."""
        loader: Any = self
        has_begun = loader._progress.has_begun or loader._position.epoch
        if ranks > 1 and not has_begun and (loader._seed is None or loader._draw is not None):
            msg = "ranks agree on a seed when an epoch begins, and this loader was given none"
            raise GraphError(msg, do="Give DataLoader2(seed=...), or begin an epoch first.")


def _refuse_beyond(work: PlannedWork, numbers: Sequence[int], epoch: int) -> None:
    """Raise for a number beyond the last batch, where that is known without reading."""
    try:
        with holding(MAY_OPEN, False):
            count = batch_count(work)
    except Exception:  # of a length of the user, too
        return
    for number in numbers:
        if number >= count and not work.errors.tolerates:
            raise IndexError(f"batch {number}: epoch {epoch} has no such batch, as it has {count}")
