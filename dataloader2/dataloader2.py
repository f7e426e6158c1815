"""The front: compile the graph, iterate over it, say where it is."""

from __future__ import annotations

import atexit
import contextlib
import copy
import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any, NoReturn

from ..adapters import Profile
from ..adapters.profile import without_timers
from ..batching.job import ErrorPolicy, Failure
from ..core.call_site import WarnOnce
from ..core.context import holding
from ..core.errors import BudgetExceeded, LoaderShutDown, RanksAlike
from ..core.locks import ForkSafeLock
from ..core.validate import as_flag, validate_int
from ..core.views import Report
from ..datapipes.background_iterator import STOP_SECONDS
from ..datapipes.case_names import FOLDERS
from ..datapipes.cases import hold_listings, take_listings
from ..datapipes.cost import explain_cost, passes_of
from ..diagnosing import Diagnosis, Effort, Measurement, Subject
from ..diagnosing import diagnose as diagnose_parts
from ..diagnosing import measure as measure_parts
from ..diagnosing.effort import BATCHES, DIAGNOSE_SECONDS, MEASURE_SECONDS
from ..graph import Pipe, explain_rewritten, origin_of, to_dot, to_mermaid, traits_of, verify, walk
from ..reading_services import InProcessReadingService, ReadingService
from ..reading_services.distributed import without_parts
from ..reading_services.main_process_tail import MainProcessTail
from ..reading_services.planner import Position
from ..reading_services.reading_service import refuse_unknown
from ..reading_services.replica import MAX_SEED
from ..reading_services.work import PlannedWork, ReplicatedWork, batch_count
from ..volumes.scheme import ReadScheme
from .batch_numbers import BatchesByNumber
from .compiler import (
    AdapterLike,
    CompiledChain,
    Negotiation,
    adapter_list,
    check_epoch,
    check_service,
    compile_chain,
    iterable,
    negotiate,
    substitutes_for,
)
from .iterator import (
    EXITING,
    Counts,
    DataLoader2Iterator,
    ForFrameworks,
    Progress,
    RunningEpoch,
    Stats,
    TorchSeed,
    Turn,
    shown_to_frameworks,
)
from .state import Outline, State, checkpoint_of, in_folders, restorer, saved_shares

# By number, as a set of weak references cannot be looked through while other threads add to it.
_LOADERS: weakref.WeakValueDictionary[int, DataLoader2] = weakref.WeakValueDictionary()
_NUMBERS = count()
# Seconds between two looks at who is to leave: the epoch of another thread may just have begun.
_LOOK = 0.05


def _free(service: ReadingService, tails: list[MainProcessTail]) -> None:
    """Stop a service, then the pipes after it, which outlive the epochs of a loader."""
    try:
        service.stop()
    finally:
        for tail in tails:
            tail.shutdown()


class DataLoader2(BatchesByNumber, ForFrameworks):
    """Iterate over a chain of datapipes.

    Batch *b* of epoch *e* is a function of (graph, seed, e, b): workers, prefetching and
    adapters do not enter. Each ``iter()`` begins the next epoch. ``state_dict()`` is a few
    numbers; :meth:`load_state_dict` continues in the middle of an epoch and reads nothing
    for it.

    Parameters
    ----------
    datapipe
        The last pipe of a chain. The loader works on a copy: yours never changes.
    datapipe_adapter_fn
        One adapter or several, applied in order: ``[Timeout(item=60), Profile()]``.
    reading_service
        Where the graph runs; by default in this process.
    seed
        Seed of the run, 0 <= seed < 2**64. Without one it is drawn from torch's global
        generator at the first iteration, so that ``torch.manual_seed`` fixes it; called again
        between two epochs it begins another run.
    fuse
        Whether to merge spatial pipes (:class:`~voxpipe.FuseSpatial`); batches stay the same.

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
        fuse: bool = True,
        **others: NoReturn,
    ) -> None:
        if others:
            refuse_unknown(DataLoader2, others, substitutes_for(datapipe))
        self._seed: int | None = None
        self._draw: TorchSeed | None = None
        # Progress of the epoch that an iterator was made for, else of the next one.
        self._progress, self._epoch_is_set = Progress(Position()), False
        # Weak: an iterator that the caller drops must end its epoch at once.
        self._live: weakref.ref[DataLoader2Iterator] | None = None
        # A thread holds the turn while it makes a batch, or begins or ends an epoch. The position
        # of the loader changes under the lock, inside of the turn, which is held only briefly.
        self._turn, self._lock = Turn(), ForkSafeLock()
        self._shut_down, self._counts, self._once = False, Counts(), WarnOnce()
        self._negotiation: Negotiation | None = None
        # The number that a framework set, and the epoch that it began; None after other changes.
        self._set_from_outside: tuple[int, int] | None = None
        # The compiler, top to bottom.
        self._original = verify(hold_listings(iterable(datapipe)))
        # Where errors without a place of their own point: the last pipe that knows its line.
        self._origin = ([None, *filter(None, map(origin_of, walk(self._original)))])[-1]
        # A copy: one service object may be given to several loaders.
        self._given_service = check_service(reading_service) or InProcessReadingService()
        self._service = copy.copy(self._given_service)
        self.reading_service = self._service
        self._tails: list[MainProcessTail] = []
        self._fuse, adapters = as_flag("fuse", fuse), adapter_list(datapipe_adapter_fn)
        self._take(compile_chain(self._original, adapters, self._service, self._fuse))
        self._outline = Outline.of(self._original)
        # Frees the resources of a loader that is dropped without shutdown().
        self._finalizer = weakref.finalize(self, _free, self._service, self._tails)
        self._finalizer.atexit = False  # an epoch that runs ends first
        _LOADERS[next(_NUMBERS)] = self
        if seed is not None:
            self.seed(seed)

    def _take(self, chain: CompiledChain) -> None:
        """Set the ``chain`` of the next epochs, and free the pipes of the last one."""
        for tail in self._tails:
            tail.shutdown()
        self._tails[:] = [chain.tail]
        with self._lock:
            self._chain, self._work, self._negotiation = chain, chain.work, None
            self.measurement: Measurement | None = None  # by measure() or diagnose()
            self._coming: CompiledChain | None = None

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
        return (self._coming or self._chain).adapters

    @adapters.setter
    def adapters(self, adapters: AdapterLike | Iterable[AdapterLike] | None) -> None:
        # Compiled now, so that mistakes are raised here; the service stops at the next epoch.
        run = self._service, self._fuse
        self._coming = compile_chain(self._original, adapter_list(adapters), *run)

    @property
    def failures(self) -> tuple[Failure, ...]:
        """Failures that ``OnError`` left out or replaced: the last thousand."""
        return tuple(self._counts.failures)

    def __iter__(self) -> DataLoader2Iterator:
        """Begin the next epoch; an iterator that is still running is invalidated.

        One that another thread asks for a batch at the moment is waited for: until it gets it, or
        leaves its wait for workers.
        """
        self._refuse_if_shut_down()
        with self._taking_over("a newer iterator of this DataLoader2 has taken over"):
            self._refuse_if_shut_down()
            self._counts.interrupt()
            if self._coming is not None:
                self._service.stop()  # workers that stayed run the chain as it was
                self._take(self._coming)
            if self._position == Position(self._position.epoch):
                self._take_cases(hold_listings(self._original, anew=True))
            with self._lock:
                if self._draw is not None and self._draw.is_outdated():  # another run is meant
                    self._seed = self._draw = None
                    if not self._epoch_is_set:
                        self._seek(Position())
                seed, self._epoch_is_set = self._seed_of_run(), False
                self._progress.is_live = True
            begin, end = partial(self._begin, seed), self._end
            run = (self._progress, begin, end, self._counts, self._origin, self._turn)
            iterator = DataLoader2Iterator(*run)
            self._live, self._own = weakref.ref(iterator), None
            return iterator

    def _refuse_if_shut_down(self) -> None:
        if self._shut_down:
            raise LoaderShutDown("this loader was shut down", do="Make a new DataLoader2.")

    def _begin(self, seed: int, progress: Progress) -> RunningEpoch:
        """Start the batches of an epoch; it goes on where an interrupt has left it."""
        here = progress.position
        message = partial(without_parts, self._service, self._chain.whole)
        self._once.warn(RanksAlike, message, RanksAlike, self._origin)
        self._agree()
        progress.has_begun = True
        work, service = self._work, self._service
        in_turn = not (isinstance(work, ReplicatedWork) and work.as_ready)
        step = 1 if in_turn else max(1, service.shares(work))
        listings = hold_listings(self._original)
        self._outline.hash_lists()  # for states, which then take no time
        running = service.epoch(work, seed, here.epoch, here.cursor)
        if take_listings(listings, self._original):  # rank 0 had listed other cases
            self._outline = self._outline.on(self._original)
        # Ranks agree on one seed: the state of each is that of all.
        with self._lock:
            self._seed = shared_seed = getattr(running, "seed", seed)
        batches = self._chain.tail.epoch(running, shared_seed, here.epoch)
        policy = work.errors if isinstance(work, PlannedWork) else ErrorPolicy()
        items_without_fill = getattr(running, "items_without_fill", int)
        epoch_of_loader = RunningEpoch(batches, step, policy, items_without_fill)
        return epoch_of_loader if self._is_inner else shown_to_frameworks(epoch_of_loader)

    def _take_cases(self, graph: Pipe) -> None:
        """Let the next epoch have the cases that were listed for a graph like this one."""
        if take_listings(self._original, graph):
            self._outline = self._outline.on(self._original)
            getattr(self._work, "replicas", {}).clear()

    def _seed_of_run(self) -> int:
        if self._seed is None:
            self._draw = TorchSeed.draw()
            self._seed = self._draw.seed
        return self._seed

    @contextlib.contextmanager
    def _taking_over(self, why: str, most: float = math.inf) -> Iterator[None]:
        """End the running epoch, if any, and let no other thread at the loader inside the block.

        A thread in the middle of a batch is stopped, and gets ``most`` seconds to leave. A later
        one ends the epoch itself when it returns.
        """
        deadline, had_turn = time.monotonic() + most, self._turn.is_mine()
        try:
            has_turn = had_turn or self._turn.acquire(timeout=0.0)
            while not has_turn and time.monotonic() < deadline:
                live = self._live() if self._live is not None else None
                if live is not None:
                    live.leave(why)
                del live  # or an iterator that is dropped meanwhile would be there as long as this
                has_turn = self._turn.acquire(timeout=_LOOK)
            if has_turn:  # the next epoch has the next number
                progress, live = self._progress, self._live() if self._live is not None else None
                self._end(progress)
                if live is not None:
                    live.invalidate(why)
                else:
                    progress.close()  # its iterator was dropped in another thread
                del live
            yield
        finally:
            self._turn.restore(had_turn)

    def _end(self, progress: Progress) -> None:
        with self._lock:
            if self._progress is progress:
                self._seek(progress.following())

    def seed(self, seed: int) -> None:
        """Set the seed; the next iteration is epoch 0 under it."""
        seed = validate_int("seed", seed, least=0, below=MAX_SEED)
        why = "seed() of its DataLoader2 began another run"
        with self._taking_over(why), self._lock:
            self._seed, self._draw, self._set_from_outside = seed, None, None
            self._seek(Position())

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``, from its beginning.

        An iterator that was not asked for a batch yet is that iteration. A place from
        :meth:`load_state_dict` in that epoch is kept: frameworks set the epoch of a resumed run.
        """
        epoch, self._set_from_outside = check_epoch(epoch), None
        had_turn = self._turn.is_mine()
        try:  # or else another thread is at a batch
            is_free = had_turn or self._turn.acquire(timeout=0.0)
            if is_free and self._progress.is_live and not self._progress.has_begun:
                if self._progress.position.epoch != epoch:
                    self._progress.position = Position(epoch)
                return
        finally:
            self._turn.restore(had_turn)
        with self._taking_over(f"set_epoch({epoch}) of the loader ended its epoch"), self._lock:
            self._epoch_is_set = True
            if self._progress.position.epoch != epoch:
                self._seek(Position(epoch))

    def __len__(self) -> int:
        """Return the number of batches of an epoch; TypeError where it is not known."""
        return self._count(self._work)

    def _count(self, work: Any) -> int:
        own = self._service
        # Ranks may have been started since the loader was made.
        return batch_count(own.divide(work) if hasattr(own, "divide") else work)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a small JSON-able dict, at any time.

        Only batches that the caller has received count, not those that workers made ahead.
        """
        with self._lock:
            here, seed = self._position, self._seed_of_run()
            chain = self._chain if self._progress.is_live else self._coming or self._chain
        shares, outline = saved_shares(self._service, chain.work), self._outline
        return State(
            *(seed, here.epoch, here.cursor.next, here.cursor.ahead, shares),
            *(outline.graph, outline.data, here.failures),
            pipes=outline.pipes,
            cases=outline.cases,
            order=chain.order,
            service=checkpoint_of(self._service),
        ).to_json()

    def load_state_dict(
        self, state: Mapping[str, Any], *, folders: Mapping[str, str] | None = None
    ) -> None:
        """Continue where ``state`` was taken, under any number of workers.

        A state that is refused changes nothing: a running epoch goes on. If the same files are in
        another folder, as in the ``$SLURM_TMPDIR`` of another job, give
        ``folders={saved_folder: folder_here}``, as ``map_location`` of ``torch.load``.

        Raises
        ------
        BadState
            If it is no state: a field is missing, unknown, of another form or out of range.
        StateMismatch
            If it belongs to another chain, list of cases or service, or if other adapters changed
            the order.
        """
        chain = self._coming or self._chain
        shares = saved_shares(self._service, chain.work)
        anew = hold_listings(self._original, anew=True)

        def read(folders: Mapping[str, str] | None) -> State:
            with holding(FOLDERS, folders):
                outline = Outline.of(anew) if folders else self._outline.on(anew)
                return State.from_json(state, outline=outline, order=chain.order, shares=shares)

        new_state = in_folders(read, folders)
        if self._outline.has_data(new_state.data):
            new_state.refuse_beyond(lambda: self._count(chain.work))
        restore = restorer(self._service, new_state.service)
        with self._taking_over("load_state_dict() of its DataLoader2 ended its epoch"):
            restore()
            self._take_cases(anew)
            with self._lock:
                self._seed, self._draw = new_state.seed, None
                self._seek(new_state.position)
                self._set_from_outside = None

    @classmethod
    def from_state(
        cls,
        state: Mapping[str, Any],
        datapipe: Pipe | None = None,
        datapipe_adapter_fn: AdapterLike | Iterable[AdapterLike] | None = None,
        reading_service: ReadingService | None = None,
        *,
        folders: Mapping[str, str] | None = None,
        fuse: bool = True,
    ) -> DataLoader2:
        """Return a loader of ``datapipe`` that continues where ``state`` was taken.

        A state is a few numbers and holds no chain (torchdata's holds a pickle of it): give the
        chain that it was taken of. ``folders`` is that of :meth:`load_state_dict`.

        Raises
        ------
        TypeError
            There is no chain: the call is torchdata's.
        BadState, StateMismatch
            As of :meth:`load_state_dict`.
        """
        if datapipe is None or callable(getattr(datapipe, "distribute", None)):
            msg = "from_state(state, datapipe, adapters, reading_service): a state holds no chain"
            raise TypeError(f"{msg}; give the one that it was taken of, with its adapters")
        loader = cls(datapipe, datapipe_adapter_fn, reading_service, fuse=fuse)
        try:
            loader.load_state_dict(state, folders=folders)
        except BaseException:
            loader.shutdown()
            raise
        return loader

    def explain(self, *, measure: bool = False) -> str:
        """Return the graph as written and as it runs, refusals, processes and cost.

        Also shows how voxels are read, and the last measurement. Reads the headers of the first
        volumes, and no voxel, unless *measure* calls :meth:`measure`.
        """
        if measure:
            self.measure()
        chain = self._chain
        run = (self._seed or 0, self._position.epoch, chain.tail.pipes)
        parts = [
            explain_rewritten(self._original, chain.whole, chain.changes),
            self._service.explain(self._work),
            chain.tail.explain(),
            explain_cost(without_timers(chain.graph), *run),
        ]
        if any(traits_of(pipe).opens for pipe in walk(chain.graph)):
            try:
                parts.append(self._agree().explain())
            except BudgetExceeded as error:
                parts.append(f"refused: {error}")
        return Report("\n\n".join(filter(None, [*parts, str(self.measurement or "")])))

    def schemes(self) -> dict[str, ReadScheme]:
        """Return how the voxels of each key are read; empty where that cannot be planned.

        Negotiated once, before the first epoch or here; reads a few headers, and no voxel.

        Raises
        ------
        BudgetExceeded
            Batches and buffers need more memory than they may take; this is a ``MemoryError``.
        """
        return dict(self._agree().schemes)

    def _agree(self) -> Negotiation:
        """Return the negotiation of the chain, its stores and the service, made at first use."""
        with self._turn if self._negotiation is None else contextlib.nullcontext():
            if self._negotiation is None:
                here = self._position
                run = (self._seed or 0, here.epoch, here.cursor.next)
                negotiation = negotiate(
                    without_timers(self._chain.graph), self._service, self._work, *run
                )
                self._work, self._negotiation = negotiation.applied_to(self._work), negotiation
            return self._negotiation

    def diagnose(
        self,
        *,
        step: Callable[[Any], object] | None = None,
        batches: int = BATCHES,
        seconds: float = DIAGNOSE_SECONDS,
    ) -> Diagnosis:
        """Measure the rate of each part alone, and return the part that limits the loader.

        Copies of the graph and of the workers run the next batches, so the loader stays where it
        is. It measures only the rank that calls it, which waits for no other. Takes about 12 times
        ``seconds``, longer with slow batches, and starts workers twice.

        Parameters
        ----------
        step
            Your function of a batch, e.g. one training step. It is called some dozen times with
            real batches, so give it a copy of a model that matters. It has to wait for a device
            that it uses. By default the time for which your loop has kept batches so far.
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
        extent = Effort(batches, seconds)
        self.measurement = diagnosis = diagnose_parts(self._subject(), extent, step)
        return diagnosis

    def measure(self, *, batches: int = BATCHES, seconds: float = MEASURE_SECONDS) -> Measurement:
        """Measure the time of a patch, part by part, and predict patches per second from that.

        The first half of :meth:`diagnose`, without ``step`` and in less time: the loader is not run
        as a whole. Takes about nine times ``seconds``, and the start of the workers.
        """
        self.measurement = measure_parts(self._subject(), Effort(batches, seconds))
        return self.measurement

    def _subject(self) -> Subject:
        self._refuse_if_shut_down()
        self._counts.interrupt()
        here, graph, schemes = self._position, self._chain.graph, self._agree()
        run = (self._seed or 0, here.epoch)
        # Before they happen, as they do where parts are measured.
        passes = passes_of(without_timers(graph), *run)
        notes = (*(f"read as a whole: {each}." for each in passes), *schemes.advice)
        has_begun, step_time = self._progress.has_begun, self._counts.kept_seconds()
        loop: Any = (has_begun, step_time, schemes.applied_to, notes, self._chain.tail.pipes)
        return Subject(graph, self._service, *run, here.cursor, *loop)

    @property
    def datapipe(self) -> Pipe:
        """The last pipe of the chain as it runs: the loader's own copy, after the adapters.

        It is read-only (``voxpipe.graph.walk(loader.datapipe)``). For a change, change your own
        chain or :attr:`~voxpipe.DataLoader2.adapters`.
        """
        return self._chain.whole

    def stats(self) -> Stats:
        """Return the counts of delivered batches and of waits; print it, or use ``to_json()``.

        With ``Profile`` among the adapters it also has the counts of each pipe.
        """
        here, counts, profile = self._position, self._counts, self._profile()
        return Stats(
            *(here.epoch, here.cursor.next, counts.batches, counts.wait, counts.longest),
            *(counts.kept_seconds(), dict(counts.errors)),
            () if profile is None else tuple(profile.to_json()),
        )

    def to_mermaid(self) -> str:
        """Return the graph as it runs, as a Mermaid flowchart."""
        return to_mermaid(self._chain.graph)

    def to_dot(self) -> str:
        """Return the graph as it runs, in the DOT language of Graphviz."""
        return to_dot(self._chain.graph)

    def _profile(self) -> Profile | None:
        return next((a for a in self._chain.adapters if isinstance(a, Profile)), None)

    def profile(self) -> str:
        """Return the table of the ``Profile`` among the adapters."""
        if profile := self._profile():
            return profile.table()
        raise ValueError("this loader is not profiled; give it the adapter Profile()")

    def shutdown(self) -> None:
        """Stop everything; the loader cannot be iterated again. Any number of times."""
        self._shut_down = True
        with self._taking_over("its DataLoader2 was shut down", STOP_SECONDS):
            self._finalizer()

    def __enter__(self) -> DataLoader2:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        return f"DataLoader2({type(self._original).__name__}, {self._service!r})"


@atexit.register
def _shut_down_all() -> None:
    """Shut down loaders when the interpreter ends, while its modules still exist."""
    EXITING.set()
    for reference in _LOADERS.valuerefs():
        loader = reference()
        if loader is not None:
            with contextlib.suppress(Exception):  # a thread of the user's may be in the midst of it
                loader.shutdown()
