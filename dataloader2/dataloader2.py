"""The front: compile the graph, iterate over it, say where it is."""

from __future__ import annotations

import copy
import hashlib
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import torch

from ..adapters import Adapter
from ..core.errors import BudgetExceeded, LoaderShutDown
from ..core.whole import whole
from ..datapipes.cost import cost_of
from ..diagnosing import BATCHES, SECONDS, Diagnosis, Extent, Pace, Subject, diagnose
from ..diagnosing.twins import untimed
from ..graph import (
    Change,
    Pipe,
    clone,
    explain_rewritten,
    fingerprint,
    origin_of,
    verify,
    walk,
)
from ..reading_services import InProcessReadingService, ReadingService
from ..reading_services.work import Place, batch_count
from ..volumes.scheme import ReadScheme
from .asked import checked_service, checked_state, checked_step, refuse_others
from .behind import detached
from .epoch_setter import EpochSetter
from .iterator import DataLoader2Iterator, Progress
from .listed import AdapterLike, iterable, listed
from .negotiated import Negotiated, negotiated
from .state import State, checkpoint_of, restore_service
from .stats import Waits
from .telling import Telling

MAX_SEED = 2**64


class DataLoader2(Telling):
    """Iterate over a chain of datapipes.

    Parameters
    ----------
    datapipe
        The last pipe of a chain. The loader works on a copy: yours never changes.
    datapipe_adapter_fn
        One adapter or several, applied in order: ``[FuseSpatial(), Timeout(item=60)]``.
    reading_service
        Where the graph runs; by default in this process.
    seed
        Seed of the run, 0 <= seed < 2**64. Without one it is drawn from torch's global
        generator at the first iteration, so that ``torch.manual_seed`` fixes it.

    Notes
    -----
    Batch *b* of epoch *e* is a function of (graph, seed, e, b): workers, prefetching and
    adapters do not enter. Each ``iter()`` begins the next epoch. ``state_dict()`` is a few
    numbers; :meth:`load_state_dict` continues in the middle of an epoch and reads nothing
    for it.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}] * 3).open_volume()
    >>> pipe = pipe.lazy_patch(4, samples_per_volume=2).batch_patches(2)
    >>> with DataLoader2(pipe, seed=7) as loader:
    ...     [tuple(batch["image"].shape) for batch in loader]
    [(2, 1, 4, 4, 4), (2, 1, 4, 4, 4), (2, 1, 4, 4, 4)]
    """

    def __init__(
        self,
        datapipe: Pipe,
        datapipe_adapter_fn: AdapterLike | Iterable[AdapterLike] | None = None,
        reading_service: ReadingService | None = None,
        *,
        seed: int | None = None,
        **others: NoReturn,
    ) -> None:
        refuse_others(others)
        self._seed: int | None = None
        self._hash_of_data: str | None = None
        self._epoch = 0
        self._place = Place()
        self._progress: Progress | None = None
        # Weak: an iterator that the caller drops must end its epoch at once.
        self._live: weakref.ref[DataLoader2Iterator] | None = None
        self._shut_down = False
        self._pace, self._waits = Pace(), Waits()
        self._negotiated: Negotiated | None = None
        # The compiler, top to bottom.
        self._written = verify(iterable(datapipe))
        self._graph = clone(self._written)
        # Where errors without a place of their own point: the last pipe that knows its line.
        self._origin = ([None, *filter(None, map(origin_of, walk(self._written)))])[-1]
        self._adapters = listed(datapipe_adapter_fn)
        self._changes: list[Change] = []
        for adapter in self._adapters:
            self._graph = verify(self._adapted(adapter))
        # A copy: one service object may be given to several loaders.
        self._service = copy.copy(checked_service(reading_service) or InProcessReadingService())
        self._whole = self._graph
        self._graph, self._tail = detached(self._whole, self._service)
        self._work = self._service.distribute(self._graph)
        self._fingerprint = fingerprint(self._written)
        # Frees the workers of a loader that is dropped without a word.
        self._finalizer = weakref.finalize(self, self._service.stop)
        if seed is not None:
            self.seed(seed)

    def _adapted(self, adapter: AdapterLike) -> Pipe:
        if isinstance(adapter, Adapter):
            rewritten = adapter.rewrite(self._graph)
            self._changes += rewritten.changes
            return rewritten.after
        return adapter(self._graph)

    def __iter__(self) -> DataLoader2Iterator:
        """Begin the next epoch; an iterator that is still running is invalidated."""
        if self._shut_down:
            raise LoaderShutDown("this loader was shut down", do="Make a new DataLoader2.")
        self._end_live()
        self._pace.interrupt()
        seed = self._seed_of_run()
        self._progress = Progress(self._epoch, self._place)
        self._place = Place()
        iterator = DataLoader2Iterator(self, seed, self._progress)
        self._live = weakref.ref(iterator)
        return iterator

    def _where(self) -> tuple[int, Place]:
        """Return the epoch of the next batch, and what of it was delivered."""
        if self._progress is not None:
            return self._progress.epoch, self._progress.place
        return self._epoch, self._place

    def _seed_of_run(self) -> int:
        if self._seed is None:
            self._seed = int(torch.empty((), dtype=torch.int64).random_().item())
        return self._seed

    def _end_live(self) -> None:
        """End the running epoch, if any; the next one has the next number."""
        progress, self._progress = self._progress, None
        live = self._live() if self._live is not None else None
        if progress is not None:
            # An iterator that was never asked for a batch has used up nothing.
            self._epoch, self._place = (
                (progress.epoch + 1, Place())
                if progress.begun
                else (progress.epoch, progress.place)
            )
        if live is not None:
            live.invalidate()

    def _finished(self, progress: Progress) -> None:
        if self._progress is progress:
            self._progress = None
            self._epoch = progress.epoch + 1

    def seed(self, seed: int) -> None:
        """Set the seed; the next iteration is epoch 0 under it."""
        seed = whole("seed", seed, least=0, below=MAX_SEED)
        self._end_live()
        self._seed, self._epoch, self._place = seed, 0, Place()

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``, from its beginning.

        An iterator that was not asked for a batch yet is that iteration.
        """
        epoch = whole("epoch", epoch, least=0)
        if self._progress is not None and not self._progress.begun:
            self._progress.epoch, self._progress.place = epoch, Place()
            return
        self._end_live()
        self._epoch, self._place = epoch, Place()

    def is_before(self, epoch: int) -> bool:
        """Whether the next ``iter()`` begins ``epoch``, or goes on from a loaded place in it."""
        running = self._progress is not None and self._progress.begun
        return not running and self._where()[0] == epoch

    def __len__(self) -> int:
        """Return the number of batches of an epoch; TypeError where it is not known."""
        return batch_count(self._work)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a small JSON-able dict, at any time.

        What counts is what was handed to the caller; batches that workers made ahead do not.
        """
        epoch, place = self._where()
        return State(
            seed=self._seed_of_run(),
            epoch=epoch,
            next_batch=place.next,
            ahead=tuple(sorted(place.ahead)),
            shares=self._service.shares(self._work),
            graph=self._fingerprint,
            data=self._data_hash(),
            service=checkpoint_of(self._service),
        ).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken, under any number of workers.

        Raises
        ------
        StateMismatch
            If it belongs to another chain, list of cases or version.
        """
        loaded = State.from_json(
            checked_state(state),
            graph=self._fingerprint,
            hash_of_data=self._data_hash(),
            shares=self._service.shares(self._work),
        )
        self._end_live()
        restore_service(self._service, loaded.of_service)
        self._seed, self._epoch = loaded.seed, loaded.epoch
        self._place = Place(loaded.next_batch, frozenset(loaded.ahead))

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        datapipe: Pipe,
        datapipe_adapter_fn: AdapterLike | Iterable[AdapterLike] | None = None,
        reading_service: ReadingService | None = None,
    ) -> DataLoader2:
        """Return a loader of ``datapipe`` that continues where ``state`` was taken.

        A state is a few numbers and holds no chain (torchdata's holds a pickle of it): give the
        chain that it was taken of.

        Raises
        ------
        StateMismatch
            If it belongs to another chain, list of cases or version.
        """
        loader = cls(datapipe, datapipe_adapter_fn, reading_service)
        try:
            loader.load_state_dict(state)
        except BaseException:
            loader.shutdown()
            raise
        return loader

    @property
    def sampler(self) -> EpochSetter:
        """What frameworks set the epoch on: ``loader.sampler.set_epoch(epoch)``."""
        return EpochSetter(self)

    def _data_hash(self) -> str:
        if self._hash_of_data is None:
            self._hash_of_data = self._hashed_data()
        return self._hash_of_data

    def _hashed_data(self) -> str:
        hashes = [p.data_hash() for p in walk(self._graph) if hasattr(type(p), "data_hash")]
        return hashlib.blake2b("".join(hashes).encode(), digest_size=8).hexdigest()

    def explain(self) -> str:
        """Return the graph as written and as it runs, what was refused, where it runs, its cost.

        Says how voxels are read, too. Reads the headers of the first volumes, and no voxel.
        """
        parts = [
            explain_rewritten(self._written, self._whole, self._changes),
            self._service.explain(self._work),
            *filter(None, [self._tail.explain()]),
        ]
        cost = cost_of(untimed(self._graph), self._seed or 0, self._epoch)
        try:
            reading = self._agreed().explain()
        except BudgetExceeded as error:
            reading = f"refused: {error}"
        return "\n\n".join([*parts, *([str(cost)] if cost is not None else []), reading])

    def schemes(self) -> dict[str, ReadScheme]:
        """Return how the voxels of each key are read; empty where that cannot be planned.

        Negotiated once, before the first epoch or here; reads a few headers, and no voxel.

        Raises
        ------
        BudgetExceeded
            Batches and buffers need more memory than they may take; this is a ``MemoryError``.
        """
        return dict(self._agreed().schemes)

    def _agreed(self) -> Negotiated:
        if self._negotiated is None:
            epoch, place = self._where()
            run = (self._seed or 0, epoch, place.next)
            self._negotiated = negotiated(untimed(self._graph), self._service, *run)
            self._work = replace(
                self._work,
                cache_bytes=self._negotiated.cache_bytes,
                ahead_bytes=self._negotiated.ahead_bytes,
                joinings=self._negotiated.joinings,
            )
        return self._negotiated

    def diagnose(
        self,
        *,
        step: Callable[[Any], object] | None = None,
        batches: int = BATCHES,
        seconds: float = SECONDS,
    ) -> Diagnosis:
        """Measure what each part could do alone, and return which one limits the loader.

        The parts are planning, fetching, decoding, resampling, transport and the consumer. They
        are measured on the plans of the next batches by copies of the graph and of the workers,
        so the loader stays where it is. Takes about ten times ``seconds``, and the start of the
        workers.

        Parameters
        ----------
        step
            What you do with a batch, e.g. one training step; it is called some dozen times with
            real batches, so give it a copy of a model that matters. It has to wait for a device
            that it uses. Without it the time counts for which your loop has kept batches so far.
        batches
            Different batches that are looked at.
        seconds
            Time for which each part is measured, at least two batches per worker.

        Returns
        -------
        Diagnosis
            ``limit``, ``ceilings`` (batches/s) and ``advice``; print it for the table.

        Raises
        ------
        GraphError
            The graph cannot be split, so its parts cannot be measured apart; or its source
            cannot be planned twice, because it is an iterator or an epoch is running.
        """
        if self._shut_down:
            raise LoaderShutDown("this loader was shut down", do="Make a new DataLoader2.")
        checked_step(step)
        self._pace.interrupt()
        epoch, place = self._where()
        subject = Subject(
            self._graph,
            self._service,
            self._seed or 0,
            epoch,
            place,
            running=self._progress is not None and self._progress.begun,
            kept=self._pace.seconds(),
        )
        advice = self._agreed().advice
        found = diagnose(subject, Extent(batches, seconds), step)
        return replace(found, notes=(*found.notes, *advice))

    def shutdown(self) -> None:
        """Stop everything; the loader cannot be iterated again. Any number of times."""
        self._shut_down = True
        self._end_live()
        self._finalizer()

    def __enter__(self) -> DataLoader2:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"DataLoader2({type(self._written).__name__}, {self._service!r})"
