"""The worker process: it takes jobs, makes batches, and ends by order or without its parent."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import mmap
import os
import pickle
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, get_context, parent_process, util
from queue import SimpleQueue
from typing import Any

from ...batching.channel_orders import take_channels
from ...batching.collate import batches_in, using_threads
from ...batching.job import CURRENT_STEP, NOTE_BYTES, Job, QueuedJob
from ...core.context import RUNNING_PASS, holding
from ...core.counters import PIPE_STATS
from ...core.errors import NotPicklable
from ...core.redact import public_text
from ...spatial.lazy.virtual_volume import TILES, divide_tiles
from ...storage.ranges import COALESCING, PoliciesByKey
from ...volumes import register_backend, register_decoder
from ...volumes.session import SESSION
from ..transport.messages import (
    END_OF_ITEMS,
    STOP,
    BatchMessage,
    Carrier,
    Deal,
    DoJob,
    ErrorMessage,
    NewSlot,
    Notes,
    Ready,
    RetireSlot,
    SourceFailed,
    Took,
    WorkerReport,
    pack,
)
from ..transport.shared_memory import SharedMemory, send_descriptor
from ..transport.slot_writer import HAS_SLOTS, Slot, SlotWriter
from .script import ALWAYS, ScriptUnpickler, adopt, ignore_signals

# Exit code of a worker whose parent is gone. No process reads it then, so it must differ from
# the exit codes that users' functions are likely to use.
ORPHAN_EXIT = 113
_PLAIN = (
    "Let workers yield plain data: read streams and open files in a map() at the end of the chain "
    "(webdataset(decode=True) reads its own), or use ⟦num_workers=0⟧."
)
# Exit code of a worker that cannot receive a message, e.g. for lack of memory. The consumer
# replaces it.
DEAF = 115
_TOOK = pickle.dumps(Took())


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker at its start."""

    torch: bool  # whether its payload needs torch
    threads: int  # patches that it realizes at once
    script: dict[str, str]
    """Location of the user's script for unpickling; empty if the worker has imported it."""
    environment: dict[str, str]
    """The environment of the consumer; that of a fork server may be older."""
    slot_bytes: int | None
    """Shared memory for its batches; None sends batches through the pipe."""
    cache_bytes: int = 0  # decoded chunks that it keeps, in bytes
    coalesce_policies: PoliciesByKey = field(default_factory=dict)  # by key
    ahead: int = 0  # batches of each worker that may be in flight
    workers: int = 1  # number of workers
    ahead_bytes: int | None = None
    """Bytes that it may prefetch for later patches and keep; None for the default."""
    signals: frozenset[int] = ALWAYS  # signals that only the consumer handles
    ends_late: bool = True  # whether a timer ends it if it does not start in time
    number: int = 0  # its index among the workers


def run_worker(
    channel: connection.Connection,
    channels: list[connection.Connection],
    payload: bytes,
    settings: WorkerSettings,
    make_line: type[Line] | None = None,
) -> None:
    """Serve jobs until a stop message arrives or the parent is gone."""
    ignore_signals(settings.signals)
    for other in channels:
        other.close()
    prepare_process(settings)
    with warnings.catch_warnings(record=True) as record:
        serve(channel, payload, settings, record, make_line or Line)


def prepare_process(settings: WorkerSettings) -> None:
    """Give this process the settings that hold for all of its consumers."""
    # Objects that the fork server imported are never garbage. A collection would write into their
    # headers, and so copy their pages into this worker. It was off since the fork.
    gc.freeze()
    gc.enable()
    # Variables that the script or a library sets at its import in this process stay.
    adopt(settings.environment, os.environ, AT_START)
    make_semaphores_nameless()
    keep_freed_memory()
    PIPE_STATS.take()  # a forked child inherits the counts of its parent
    take_channels()
    SESSION.chunks.lend(settings.cache_bytes)  # the loan ends with the process
    divide_tiles(settings.workers)
    if settings.ahead_bytes is not None:
        SESSION.ahead.limit(settings.ahead_bytes)


def serve(
    channel: connection.Connection,
    payload: bytes,
    settings: WorkerSettings,
    record: list[warnings.WarningMessage],
    make_line: type[Line],
) -> None:
    """Serve the jobs of one consumer; ``record`` gets the warnings of this process."""
    queue = JobQueue(lambda data: make_line.unpickler(data, settings.script).load())

    def listen() -> None:
        _listen(channel, queue, make_line.leave)
        queue.close()

    threading.Thread(target=listen, daemon=True).start()
    with holding(COALESCING, (settings.coalesce_policies, "")), using_threads(settings.threads):
        # These contexts hold for all threads: another thread plans the prefetches.
        try:
            _serve(channel, queue, payload, settings, record, make_line)
        except (BrokenPipeError, ConnectionResetError):
            # The consumer is gone, and the listening thread did not notice it first. Errors of the
            # user's code are sent to the consumer and never arrive here.
            make_line.leave(ORPHAN_EXIT)


def _environment_at_start() -> dict[str, str]:
    """Return the variables with which this process began; outside Linux its current ones."""
    # The script of the user may have run here already. Forked children inherit their parent's.
    with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as file:
        entries = (entry.partition("=") for entry in os.fsdecode(file.read()).split("\0"))
        return {name: value for name, _, value in entries if name}
    return dict(os.environ)


AT_START = _environment_at_start()


def _listen(
    channel: connection.Connection, queue: JobQueue, leave: Callable[[int], None] = os._exit
) -> None:
    """Receive messages while the main thread works, so that the consumer never waits to send."""
    parent = parent_process()
    handles: list[Any] = [channel] if parent is None else [channel, parent.sentinel]
    try:
        while True:
            ready = connection.wait(handles)
            if channel not in ready:
                break
            message = channel.recv_bytes()
            if message == STOP:
                leave(0)
                return
            queue.put(message)
    except (EOFError, OSError):
        pass
    except BaseException:  # a worker without its listener would block the consumer
        with contextlib.suppress(Exception):
            traceback.print_exc()
        leave(DEAF)
    # The consumer is gone. The main thread may be stuck in a read: exit without it.
    leave(ORPHAN_EXIT)


class JobQueue:
    """Jobs in the order of their arrival; a thread prefetches for them while they wait."""

    def __init__(self, load: Callable[[bytes], Any]) -> None:
        self._load = load
        self._waiting: SimpleQueue[QueuedJob | None] = SimpleQueue()
        self._dealt: SimpleQueue[Deal] = SimpleQueue()
        self._ahead: SimpleQueue[QueuedJob | None] = SimpleQueue()
        self._messages: deque[DoJob] = deque()
        self._run = 0
        self._is_looking = False

    def look_ahead(self) -> None:
        """Start the prefetching thread, once the backends of the user are registered."""
        if self._is_looking:
            return
        self._is_looking = True

        # In a copy of the context: the read scheme applies to prefetches too.
        def look() -> None:
            while (job := self._ahead.get()) is not None:
                job.look()

        run = partial(copy_context().run, look)
        threading.Thread(target=run, name="voxpipe-read-ahead", daemon=True).start()

    def put(self, data: bytes) -> None:
        """Store a message (a job, its updates, or a dealt item) without waiting."""
        message: DoJob | Deal = pickle.loads(data)
        if isinstance(message, Deal):
            self._dealt.put(message)
            return
        self._messages.append(message)
        if not message.job:
            return
        job = QueuedJob(partial(self._load_job, message), message)
        self._waiting.put(job)
        self._ahead.put(job)

    def _load_job(self, message: DoJob) -> Any:
        """Return the job; the first of a pass begins a new pass of the session."""
        # All jobs of the previous pass were answered. Two threads load jobs, in their order.
        if self._run and message.run != self._run:
            SESSION.begin_pass(keeps_read=TILES.most > 0)
        self._run = message.run
        return self._load(message.job)

    def get(self) -> QueuedJob | None:
        """Wait for the next job; None after the end."""
        return self._waiting.get()

    def close(self) -> None:
        """End the jobs, for the threads that wait for one."""
        self._waiting.put(None)
        self._ahead.put(None)

    def messages(self) -> Iterator[DoJob]:
        """Yield each message once as soon as it arrives, also those of waiting jobs."""
        # Messages of waiting jobs name free slots. A worker that read them only with their jobs
        # would allocate one more slot for each waiting job.
        while self._messages:
            yield self._messages.popleft()

    def dealt(self) -> Any:
        """Wait for the next item dealt out to this worker, or ``END_OF_ITEMS``."""
        deal = self._dealt.get()
        if deal.ends:
            return END_OF_ITEMS
        if deal.fails:
            raise SourceFailed("the pipes that make the dealt items have failed")
        return self._load(deal.item)


class Line:
    """A worker's side of its channel; sends each message whole.

    Threads of the user's pipes may send too, as they take items.
    """

    unpickler = ScriptUnpickler
    """The class that loads payloads and jobs."""
    leave: Callable[[int], None] = os._exit
    """Ends this process with an exit status, unless it has further consumers."""
    turn: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    """The context of making a batch."""

    def __init__(self, channel: connection.Connection, queue: JobQueue) -> None:
        self._channel = channel
        self._queue = queue
        self._sending = threading.Lock()

    def carrier(self, settings: WorkerSettings) -> Carrier | None:
        """Return the memory in which batches travel; None to send them in messages."""
        if not HAS_SLOTS or settings.slot_bytes is None:
            return None
        size, ahead = settings.slot_bytes, settings.ahead
        return SlotWriter(self._announce, self._retire, size, ahead, settings.workers)

    def share_notes(self) -> None:
        """Share the current step with the consumer, which can read it even if this worker hangs."""
        if not HAS_SLOTS:
            return
        fd = os.memfd_create("voxpipe-notes", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            self.memory = SharedMemory(fd, mmap.PAGESIZE).bytes()
            note_steps_in(self.memory)
            self._channel.send(Notes(mmap.PAGESIZE))
            send_descriptor(self._channel, fd)
        finally:
            os.close(fd)

    def _announce(self, slot: Slot) -> None:
        with self._sending:
            self._channel.send(NewSlot(slot.number, slot.size))
            send_descriptor(self._channel, slot.fd)

    def _retire(self, number: int) -> None:
        self.send(pickle.dumps(RetireSlot(number)))

    def dealt(self) -> Any:
        """Wait for the next dealt item or the end, and report that it was taken."""
        try:
            return self._queue.dealt()
        finally:
            self.send(_TOOK)

    def send(self, message: bytes) -> None:
        """Send a message."""
        with self._sending:
            self._channel.send_bytes(message)

    def answer(self, message: bytes, carrier: Carrier | None) -> None:
        """Send the answer to a job, whose batch is in ``carrier``."""
        self.send(message)


def note_steps_in(memory: Any) -> None:
    """Note the current step and pass of this process in ``memory`` from now on."""
    CURRENT_STEP.share(memory)
    RUNNING_PASS.share(memory[NOTE_BYTES:])


class WorkerCore:
    """Loads the payload of a worker, makes the batches of its jobs, and reports."""

    def __init__(self, payload: bytes, settings: WorkerSettings, line: Line) -> None:
        self._payload, self._settings, self._line = payload, settings, line
        self._source: Any = None
        self._run = 0  # the pass of the functions in it

    def answer(
        self,
        waiting: QueuedJob,
        carrier: Carrier | None,
        record: list[warnings.WarningMessage],
        look_ahead: Callable[[], None],
    ) -> bytes:
        """Return the pickled answer to a job: its batch, or the error of the user's code."""
        message, job, start = waiting.message, None, time.perf_counter()
        try:
            self._load(message)
            look_ahead()
            job = waiting.job()
            data = _make(self._source, job, message, carrier)
            report = _report(record, job, message.run, start)
            return pickle.dumps(BatchMessage(message.index, data, report))
        except BaseException as error:  # the consumer raises it
            report = _report(record, job, message.run, start)
            return pickle.dumps(_failure(message.index, job, error, report))

    def _load(self, message: DoJob) -> None:
        """Load the objects of the payload for each pass, in the state that the consumer has."""
        if message.payload:
            self._payload, self._source = message.payload, None
        if self._source is not None and message.run == self._run:
            return
        data, settings, is_first = self._payload, self._settings, self._source is None
        _, backends, decoders, fresh, _ = self._line.unpickler(data, settings.script).load()
        if is_first:
            for name, matcher, factory in reversed(backends):
                register_backend(name, matcher, factory)
            for codec, maker in decoders:
                register_decoder(codec, maker)
            warnings.simplefilter("always")  # the consumer's filters decide
        self._source = self._source.renew(fresh) if hasattr(self._source, "renew") else fresh
        if hasattr(self._source, "feed"):
            self._source.feed(self._line.dealt, settings.number)
        self._run = message.run


def _serve(
    channel: connection.Connection,
    queue: JobQueue,
    payload: bytes,
    settings: WorkerSettings,
    record: list[warnings.WarningMessage],
    make_line: type[Line],
) -> None:
    if settings.torch:
        import torch

        from ..pipe_runner import own_generators

        own_generators()
        # The workers together use all cores; a thread pool in each would compete for them.
        torch.set_num_threads(1)

    line = make_line(channel, queue)
    line.share_notes()
    carrier = line.carrier(settings)
    core = WorkerCore(payload, settings, line)
    if settings.ends_late:  # a forked worker has no thread of the parent's timer
        faulthandler.cancel_dump_traceback_later()
    line.send(pickle.dumps(Ready()))
    while (waiting := queue.get()) is not None:
        for news in queue.messages():
            if carrier is not None:
                carrier.release(news.free_slots, news.given_up)
        with line.turn():
            answer = core.answer(waiting, carrier, record, queue.look_ahead)
        waiting.close()
        line.answer(answer, carrier)


def _make(source: Any, job: Any, message: DoJob, carrier: Carrier | None) -> bytes | None:
    """Return the packed batch of a job; None if the replica has no more."""
    try:
        with batches_in(carrier):
            batch = source.run(job, message.seed, message.epoch)
    except StopIteration:
        return None
    numbers: set[int] = set()
    try:
        data, numbers = pack(batch, carrier)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        msg = f"the items of the chain cannot travel from the worker: {error}"
        raise NotPicklable(msg, do=_PLAIN).at(getattr(source, "last", None)) from error
    finally:
        if carrier is not None:
            carrier.note_sent(numbers)
    return data


def _report(
    record: list[warnings.WarningMessage], job: Any, run: int, start: float
) -> WorkerReport:
    """Return the counts, warnings, opened versions and channels since the last report."""
    new = record[:]  # other threads may add to it meanwhile
    del record[: len(new)]
    pairs: dict[tuple[str, type[Warning]], None] = {}
    for entry in new:
        text, category = type(entry.message).__name__, entry.category
        with contextlib.suppress(Exception):  # a user's __str__ may fail
            text = str(entry.message)
        try:
            pickle.loads(pickle.dumps(category))
        except Exception:  # the consumer has no such class, e.g. one defined inside a function
            category = UserWarning
        pairs[text, category] = None
    versions = SESSION.take_versions()
    if isinstance(job, Job):
        versions = tuple(v._replace(case=job.cases_with(v.name)) for v in versions)
    seconds = time.perf_counter() - start
    ledger, channels = PIPE_STATS.take(), take_channels()
    return WorkerReport(ledger, tuple(pairs), versions, channels, run, seconds)


def _failure(index: int, job: Any, error: BaseException, report: WorkerReport) -> ErrorMessage:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # an exception may hold anything, e.g. a lock
        data = b""
    try:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        # torch adds lines of its own to every message that passes through a pipe.
        summary = f"{type(error).__name__}: {error}".split("\nThis exception is thrown by", 1)[0]
        # The consumer needs pipe, line and item (the notes) of an error that cannot be pickled.
        summary = "\n  ".join([summary, *getattr(error, "__notes__", ())])
    except Exception:  # a user's __str__ may fail too
        trace, summary = "(its message cannot be shown)", type(error).__name__
    # The error itself stays as it is; the texts must not show passwords of URLs.
    trace, summary = public_text(trace), public_text(summary)
    cases = f" ({job.cases()})" if isinstance(job, Job) and job.cases() else ""
    text = f"while making batch {index}{cases} in process {os.getpid()}\n{trace}"
    return ErrorMessage(index, data, summary, text, report)


def make_semaphores_nameless() -> None:
    """Unlink the names of all semaphores of this process, and make further ones without a name.

    A lock made in a spawned process, e.g. by blosc or tqdm, has a name below ``/dev/shm`` for
    child processes. Python removes it at shutdown, but workers end without one.
    """
    try:
        from multiprocessing import synchronize
    except ImportError:  # a system without semaphores
        return
    lock_class: Any = synchronize.SemLock
    unlink = lock_class._cleanup
    waiting: dict[Any, Any] = vars(util).get("_finalizer_registry", {})
    for finalizer in list(waiting.values()):
        if getattr(finalizer, "_callback", None) == unlink:
            with contextlib.suppress(Exception):  # another process removed it
                finalizer()  # has no effect in a child forked from the process that made it
    with contextlib.suppress(ValueError):  # a system without forks
        make, context = lock_class.__init__, get_context("fork")

        def make_nameless(self: Any, *arguments: Any, **options: Any) -> None:
            make(self, *arguments, **{**options, "ctx": context})

        lock_class.__init__ = make_nameless


# A worker keeps the memory that it frees, for the next patch.
#
# Workers allocate thousands of stored and decoded chunks per second, of some hundred kilobytes
# each, and free them in other threads. By default glibc returns such memory to the system, which
# clears each page before it is used again. Depending on the layout of the heaps, this takes up to
# a third of the processor time of receiving a bucket's chunks.

# Options in <malloc.h> of glibc.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
# The largest block that glibc takes from its heaps; it maps larger blocks, and unmaps them.
_LARGEST = 32 * 1024**2
# Free bytes at the end of a heap that stay: more than the chunks of a patch. With 64 MiB, two
# workers that read a bucket took 40 MB more, and as much processor time.
_MOST_FREE = 16 * 1024**2
# Growth of a heap at a time; each step is a system call.
_STEP = 4 * 1024**2
# Heaps of one process. By default each thread gets its own, up to eight per core, and cannot use
# free memory of the others: 70 MB in two workers that read a bucket.
_HEAPS = 2
# Variables with which users set these options themselves.
_OWN_WORDS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Make this process keep freed memory, within bounds; only for our own processes."""
    is_set = any(name in environment for name in _OWN_WORDS)
    if is_set or "glibc.malloc." in environment.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    options = [(_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _MOST_FREE), (_TOP_PAD, _STEP)]
    if "MALLOC_ARENA_MAX" not in environment:
        options.append((_ARENA_MAX, _HEAPS))
    return all(mallopt(which, size) == 1 for which, size in options)
