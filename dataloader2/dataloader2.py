"""The front: compile the graph, iterate over it, say where it is."""

from __future__ import annotations

import atexit
import contextlib
import copy
import math
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any, NoReturn

from ..batching import ErrorPolicy, Failure
from ..core.call_site import WarnOnce
from ..core.errors import LoaderShutDown, NotPicklable, RanksAlike
from ..core.locks import ForkSafeLock
from ..core.validate import validate_int
from ..datapipes.background_iterator import STOP_SECONDS
from ..diagnosing import Pace
from ..graph import Pipe, origin_of, verify, walk
from ..reading_services import InProcessReadingService, ReadingService
from ..reading_services.distributed import without_parts
from ..reading_services.place import Place
from ..reading_services.reading_service import Dividing
from ..reading_services.seed_generator import MAX_SEED
from ..reading_services.work import Planned, Replicated, Work, batch_count
from .asked import (
    chain_for_state,
    checked_epoch,
    checked_service,
    refuse_others,
)
from .behind import Tail
from .compiled import Compiled, compiled
from .drawn import Drawn
from .explaining import Explaining
from .failed import Failed
from .interop.epoch_setter import EpochSetter
from .iterator import EXITING, Begun, DataLoader2Iterator, Turn
from .listed import AdapterLike, iterable, listed
from .negotiated import Negotiated
from .outline import Outline
from .position import Position, Progress
from .state import State, checkpoint_of, refuse_for_service, saved_shares
from .stats import Counts, Waits
from .telling import Telling

# By number, as a set of weak references cannot be looked through while other threads add to it.
_LOADERS: weakref.WeakValueDictionary[int, DataLoader2] = weakref.WeakValueDictionary()
_NUMBERS = count()
# Seconds between two looks at who is to leave: the epoch of another thread may just have begun.
_LOOK = 0.05


class _Freed:
    """What outlives the epochs of a loader, and is freed with it, whichever way it ends."""

    def __init__(self, service: ReadingService) -> None:
        self._service = service
        self._tail: Tail | None = None

    def put(self, tail: Tail) -> None:
        """Hold the pipes of the next epochs, and free those of the last."""
        last, self._tail = self._tail, tail
        if last is not None:
            last.shutdown()

    def free(self) -> None:
        """Stop the service, then the pipes that are behind it."""
        try:
            self._service.stop()
        finally:
            if self._tail is not None:
                self._tail.shutdown()


class DataLoader2(Explaining, Telling):
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
        generator at the first iteration, so that ``torch.manual_seed`` fixes it; called again
        between two epochs it begins another run.

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
        refuse_others(others, datapipe)
        self._seed: int | None = None
        self._position, self._epoch_told = Position(), False
        self._drawn: Drawn | None = None
        self._progress: Progress | None = None
        # Weak: an iterator that the caller drops must end its epoch at once.
        self._live: weakref.ref[DataLoader2Iterator] | None = None
        # Who makes a batch, or begins or ends an epoch, has the turn for so long. What says where
        # the loader is changes in the lock, inside of the turn, which nobody has for long.
        self._turn, self._lock = Turn(), ForkSafeLock()
        self._shut_down = False
        self._pace, self._waits, self._failed = Pace(), Waits(), Failed()
        self._negotiated: Negotiated | None = None
        self._once = WarnOnce()
        # The compiler, top to bottom.
        self._written = verify(iterable(datapipe))
        # Where errors without a place of their own point: the last pipe that knows its line.
        self._origin = ([None, *filter(None, map(origin_of, walk(self._written)))])[-1]
        # A copy: one service object may be given to several loaders.
        self._service = copy.copy(checked_service(reading_service) or InProcessReadingService())
        self._freed = _Freed(self._service)
        self._take(compiled(self._written, listed(datapipe_adapter_fn), self._service))
        self._outline = Outline.of(self._written)
        # Frees what a loader holds that is dropped without a word.
        self._finalizer = weakref.finalize(self, self._freed.free)
        self._finalizer.atexit = False  # an epoch that runs ends first
        _LOADERS[next(_NUMBERS)] = self
        if seed is not None:
            self.seed(seed)

    def _take(self, chain: Compiled) -> None:
        self._adapters, self._graph, self._changes = chain.adapters, chain.graph, chain.changes
        self._freed.put(chain.tail)
        self._whole, self._tail = chain.whole, chain.tail
        with self._lock:
            self._work, self._order, self._negotiated = chain.work, chain.order, None
            self._coming: Compiled | None = None

    @property
    def adapters(self) -> tuple[AdapterLike, ...]:
        """The adapters of the next epoch, in order; set others between two epochs.

        A running epoch goes on as it is. Batches stay the same, and so do saved states, unless an
        adapter is there to change them.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> from voxpipe.adapters import Profile
        >>> loader = DataLoader2(IterableWrapper([1, 2]))
        >>> loader.adapters += (Profile(),)
        >>> list(loader)
        [1, 2]
        """
        return self._adapters if self._coming is None else self._coming.adapters

    @adapters.setter
    def adapters(self, adapters: AdapterLike | Iterable[AdapterLike] | None) -> None:
        # Compiled now, so that what is wrong is told here; the service stops at the next epoch.
        self._coming = compiled(self._written, listed(adapters), self._service)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What failed and was left out or replaced, by ``OnError``: the last thousand."""
        return tuple(self._failed.kept)

    @property
    def _policy(self) -> ErrorPolicy:
        return self._work.errors if isinstance(self._work, Planned) else ErrorPolicy()

    def __iter__(self) -> DataLoader2Iterator:
        """Begin the next epoch; an iterator that is still running is invalidated.

        One that another thread asks for a batch at the moment is waited for: until it gets it, or
        leaves its wait for workers.
        """
        self._refuse_if_shut_down()
        with self._taking_over("a newer iterator of this DataLoader2 has taken over"):
            self._refuse_if_shut_down()
            self._pace.interrupt()
            if self._coming is not None:
                self._service.stop()  # workers that stayed run the chain as it was
                self._take(self._coming)
            with self._lock:
                self._begin_again_if_seeded()
                seed, self._epoch_told = self._seed_of_run(), False
                self._progress = progress = Progress(self._position)
            counts = Counts(self._pace, self._waits, self._failed)
            begin, end = partial(self._begun, seed), self._finished
            iterator = DataLoader2Iterator(progress, begin, end, counts, self._origin, self._turn)
            self._live = weakref.ref(iterator)
            return iterator

    def _refuse_if_shut_down(self) -> None:
        if self._shut_down:
            raise LoaderShutDown("this loader was shut down", do="Make a new DataLoader2.")

    def _begun(self, seed: int, progress: Progress) -> Begun:
        """Start the batches of an epoch; it goes on where an interrupt has left it."""
        here = progress.position
        told = partial(without_parts, self._service, self._whole)
        self._once.warn(RanksAlike, told, RanksAlike, self._origin)
        self._agreed()
        progress.begun = True
        work, service = self._work, self._service
        in_turn = not (isinstance(work, Replicated) and work.as_ready)
        step = 1 if in_turn else max(1, service.shares(work))
        running = service.epoch(work, seed, here.epoch, here.place)
        # Ranks agree on one seed: the state of each is that of all.
        with self._lock:
            self._seed = agreed = getattr(running, "seed", seed)
        batches = self._tail.behind(running, agreed, here.epoch)
        return Begun(batches, step, self._policy, work.hints.device)

    def _where(self) -> Position:
        """Return where the next batch is."""
        with self._lock:
            return self._position if self._progress is None else self._progress.position

    def _runs(self, *, next_epoch: bool) -> tuple[Work, str]:
        """Return what runs now, or what the next ``iter()`` begins with, and its order."""
        coming = self._coming if next_epoch else None
        return (self._work, self._order) if coming is None else (coming.work, coming.order)

    def _seed_of_run(self) -> int:
        if self._seed is None:
            self._drawn = Drawn.now()
            self._seed = self._drawn.seed
        return self._seed

    def _begin_again_if_seeded(self) -> None:
        """Begin another run if torch was seeded since it gave the seed of this one."""
        if self._drawn is not None and self._drawn.is_outdated():
            self._seed = self._drawn = None
            if not self._epoch_told:
                self._position = Position()

    @contextlib.contextmanager
    def _taking_over(self, why: str, most: float = math.inf) -> Iterator[None]:
        """End the running epoch, if any, and let no other thread at the loader inside the block.

        A thread that is in the midst of a batch is asked to leave, and waited for; after ``most``
        seconds no more, and it ends the epoch itself when it comes back.
        """
        deadline, has_turn = time.monotonic() + most, self._turn.acquire(0.0)
        while not has_turn and time.monotonic() < deadline:
            live = self._live() if self._live is not None else None
            if live is not None:
                live.leave(why)
            del live  # or an iterator that is dropped meanwhile would be there as long as this
            has_turn = self._turn.acquire(_LOOK)
        try:
            if has_turn:
                self._end_live(why)
            yield
        finally:
            if has_turn:
                self._turn.release()

    def _end_live(self, why: str) -> None:
        """End the running epoch, if any; the next one has the next number."""
        with self._lock:
            progress, self._progress = self._progress, None
            if progress is not None:
                # An iterator that was never asked for a batch has used up nothing.
                here = progress.position
                self._position = here.next_epoch() if progress.begun else here
        live = self._live() if self._live is not None else None
        if live is not None:
            live.invalidate(why)
        elif progress is not None:
            progress.close()  # its iterator was dropped in another thread, which is about to

    def _finished(self, progress: Progress) -> None:
        with self._lock:
            if self._progress is progress:
                self._progress = None
                self._position = progress.position.next_epoch()

    def seed(self, seed: int) -> None:
        """Set the seed; the next iteration is epoch 0 under it."""
        seed = validate_int("seed", seed, least=0, below=MAX_SEED)
        why = "seed() of its DataLoader2 began another run"
        with self._taking_over(why), self._lock:
            self._seed, self._drawn, self._position = seed, None, Position()

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``, from its beginning.

        An iterator that was not asked for a batch yet is that iteration.
        """
        epoch = checked_epoch(epoch)
        if self._turn.acquire(0.0):  # or else another thread is at a batch
            try:
                if self._progress is not None and not self._progress.begun:
                    self._progress.position = Position(epoch)
                    return
            finally:
                self._turn.release()
        with (
            self._taking_over(f"set_epoch({epoch}) of its DataLoader2 ended its epoch"),
            self._lock,
        ):
            self._position, self._epoch_told = Position(epoch), True

    def is_before(self, epoch: int) -> bool:
        """Whether the next ``iter()`` begins ``epoch``, or goes on from a loaded place in it."""
        running = self._progress is not None and self._progress.begun
        return not running and self._where().epoch == epoch

    def __len__(self) -> int:
        """Return the number of batches of an epoch; TypeError where it is not known."""
        own = self._service
        # Ranks may have been started since the loader was made.
        return batch_count(own.divided(self._work) if isinstance(own, Dividing) else self._work)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a small JSON-able dict, at any time.

        What counts is what was handed to the caller; batches that workers made ahead do not.
        """
        with self._lock:
            here, (work, order) = self._where(), self._runs(next_epoch=self._progress is None)
            seed = self._seed_of_run()
        return State(
            seed=seed,
            epoch=here.epoch,
            next_batch=here.place.next,
            ahead=here.place.ahead,
            failed=here.failed,
            shares=saved_shares(self._service.shares(work), work),
            order=order,
            graph=self._outline.graph,
            data=self._outline.data,
            pipes=self._outline.pipes,
            cases=self._outline.cases,
            service=checkpoint_of(self._service),
        ).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken, under any number of workers.

        One that is refused changes nothing: a running epoch goes on.

        Raises
        ------
        BadState
            If it is no state: a field is missing, unknown, of another form or out of range.
        StateMismatch
            If it belongs to another chain, list of cases or service, or if other adapters changed
            the order.
        """
        work, order = self._runs(next_epoch=True)
        loaded = State.from_json(
            state,
            outline=self._outline,
            order=order,
            shares=saved_shares(self._service.shares(work), work),
        )
        service: Any = self._service
        state_of_service = loaded.of_service
        refuse_for_service(service, state_of_service)
        place = Place(loaded.next_batch, loaded.ahead)
        with self._taking_over("load_state_dict() of its DataLoader2 ended its epoch"):
            if state_of_service:
                service.restore(state_of_service)
            with self._lock:
                self._seed, self._drawn = loaded.seed, None
                self._position = Position(loaded.epoch, place, loaded.failed)

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        datapipe: Pipe | None = None,
        datapipe_adapter_fn: AdapterLike | Iterable[AdapterLike] | None = None,
        reading_service: ReadingService | None = None,
    ) -> DataLoader2:
        """Return a loader of ``datapipe`` that continues where ``state`` was taken.

        A state is a few numbers and holds no chain (torchdata's holds a pickle of it): give the
        chain that it was taken of.

        Raises
        ------
        TypeError
            There is no chain: the call is torchdata's.
        BadState, StateMismatch
            As of :meth:`load_state_dict`.
        """
        loader = cls(chain_for_state(datapipe), datapipe_adapter_fn, reading_service)
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

    @property
    def batch_sampler(self) -> EpochSetter:
        """What frameworks ask for the items of a batch, ``loader.batch_sampler.batch_size``."""
        return EpochSetter(self)

    def shutdown(self) -> None:
        """Stop everything; the loader cannot be iterated again. Any number of times."""
        self._shut_down = True
        with self._taking_over("its DataLoader2 was shut down", STOP_SECONDS):
            self._finalizer()

    def __enter__(self) -> DataLoader2:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        # A copy would share workers and the end of them with its original, or free nothing.
        raise NotPicklable(
            "a DataLoader2 cannot be pickled or copied, as it holds workers and a running epoch",
            do="Make it again from its chain where it is needed, and load_state_dict() the "
            "state_dict() of this one.",
        )

    def __repr__(self) -> str:
        return f"DataLoader2({type(self._written).__name__}, {self._service!r})"


@atexit.register
def _shut_down_all() -> None:
    """End what still runs when the interpreter ends, while there are modules to end it with."""
    EXITING.set()
    for found in _LOADERS.valuerefs():
        loader = found()
        if loader is not None:
            with contextlib.suppress(Exception):  # a thread of the user's may be in the midst of it
                loader.shutdown()
