"""The worker process: takes jobs, makes batches, ends when it is told or left alone."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import mmap
import os
import pickle
import threading
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

from ...batching.collate import batches_in, using_threads
from ...batching.job import CURRENT_STEP, NOTE_BYTES, Job, QueuedJob
from ...core.context import RUNNING_PASS, holding
from ...core.counters import PIPE_STATS
from ...core.errors import NotPicklable
from ...core.redact import public_text
from ...spatial.lazy.virtual_volume import TILES, divide_tiles
from ...storage.ranges import COALESCE_POLICIES, PoliciesByKey
from ...volumes import register_backend, register_decoder
from ...volumes.session import SESSION
from ..transport.batch_pickle import pack
from ..transport.messages import (
    END_OF_ITEMS,
    STOP,
    BatchMessage,
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
)
from ..transport.shared_memory import SharedMemory, send_descriptor
from ..transport.slot_writer import HAS_SLOTS, Slot, SlotWriter
from .script import ALWAYS, ScriptUnpickler, adopt, ignore_signals

# A worker that ends by itself because its parent is gone exits with this code. Nobody is left to
# read it then; so it must not be one that a user's function is likely to exit with.
ORPHAN_EXIT = 113
_PLAIN = (
    "Let workers yield plain data: read streams and open files in a map() at the end of the chain "
    "(webdataset(decode=True) reads its own), or use num_workers=0."
)
# One that cannot take a message, e.g. for lack of memory; the consumer starts another.
DEAF = 115
_TOOK = pickle.dumps(Took())


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker is told at its start, besides what it runs."""

    torch: bool  # whether what it runs needs torch
    threads: int  # patches that it realizes at once
    script: dict[str, str]
    """Where to find the user's script, if something of it arrives; empty if it was imported."""
    environment: dict[str, str]
    """The environment of the consumer; that of a fork server may be older."""
    slot_bytes: int | None
    """Shared memory that it may take for batches; None sends them through the pipe."""
    cache_bytes: int = 0  # decoded chunks that it keeps, in bytes
    coalesce_policies: PoliciesByKey = field(default_factory=dict)  # by key
    ahead: int = 0  # batches of each worker that may be in flight
    workers: int = 1  # how many workers there are
    ahead_bytes: int | None = None
    """What it may fetch for later patches and keep, in bytes; None: as usual."""
    signals: frozenset[int] = ALWAYS  # signals that only the consumer handles
    ends_late: bool = True  # whether it has a timer that ends it if it does not start in time
    number: int = 0  # its number among the workers


def run_worker(
    channel: connection.Connection,
    channels: list[connection.Connection],
    payload: bytes,
    settings: WorkerSettings,
) -> None:
    """Serve jobs until told to stop, or until the parent is gone."""
    ignore_signals(settings.signals)
    # What the fork server imported is never garbage. Collecting would write into each object's
    # header and so copy every page of it into this worker. A fork has turned that off until now.
    gc.freeze()
    gc.enable()
    for other in channels:
        other.close()
    # Variables that the script or a library sets at its import in this process stay.
    adopt(settings.environment, os.environ, AT_START)
    make_semaphores_nameless()
    keep_freed_memory()
    PIPE_STATS.take()  # a forked child inherits what its parent has counted
    SESSION.chunks.lend(settings.cache_bytes)  # for life: the loan ends with the process
    divide_tiles(settings.workers)
    if settings.ahead_bytes is not None:
        SESSION.ahead.limit(settings.ahead_bytes)
    queue = JobQueue(lambda data: ScriptUnpickler(data, settings.script).load())
    threading.Thread(target=_listen, args=(channel, queue), daemon=True).start()
    with (
        holding(COALESCE_POLICIES, settings.coalesce_policies),
        using_threads(settings.threads),
        warnings.catch_warnings(record=True) as record,
    ):
        # For life, and of all threads: what is fetched ahead is planned in another than this one.
        try:
            _serve(channel, queue, payload, settings, record)
        except (BrokenPipeError, ConnectionResetError):
            # The consumer is gone, and the other thread did not notice it first. What the user's
            # code raises is told, and does not come here.
            os._exit(ORPHAN_EXIT)


def _environment_at_start() -> dict[str, str]:
    """Return the variables with which this process began, or has now where Linux is not."""
    # The script of the user may have run here already. Forked children have those of the parent.
    with contextlib.suppress(OSError), open("/proc/self/environ", "rb") as file:
        entries = (entry.partition("=") for entry in os.fsdecode(file.read()).split("\0"))
        return {name: value for name, _, value in entries if name}
    return dict(os.environ)


AT_START = _environment_at_start()


def _listen(channel: connection.Connection, queue: JobQueue) -> None:
    """Take messages while the main thread works, so that the consumer never waits to send."""
    parent = parent_process()
    handles: list[Any] = [channel] if parent is None else [channel, parent.sentinel]
    try:
        while True:
            ready = connection.wait(handles)
            if channel not in ready:
                break
            message = channel.recv_bytes()
            if message == STOP:
                os._exit(0)
            queue.put(message)
    except (EOFError, OSError):
        pass
    except BaseException:  # a worker that hears nothing is worse than one that is gone
        with contextlib.suppress(Exception):
            traceback.print_exc()
        os._exit(DEAF)
    # Nobody is left to work for. The main thread may be stuck in a read: leave without it.
    os._exit(ORPHAN_EXIT)


class JobQueue:
    """Jobs in the order of their arrival, looked at by a thread while they wait."""

    def __init__(self, load: Callable[[bytes], Any]) -> None:
        self._load = load
        self._waiting: SimpleQueue[QueuedJob] = SimpleQueue()
        self._dealt: SimpleQueue[Deal] = SimpleQueue()
        self._ahead: SimpleQueue[QueuedJob] = SimpleQueue()
        self._messages: deque[DoJob] = deque()
        self._run = 0
        self._is_looking = False

    def look_ahead(self) -> None:
        """Begin to look at jobs that wait; before, nobody knows the backends of the user."""
        if self._is_looking:
            return
        self._is_looking = True

        # In a copy of the context: the read scheme holds for what is read ahead too.
        def look() -> None:
            while True:
                self._ahead.get().look()

        run = partial(copy_context().run, look)
        threading.Thread(target=run, name="voxpipe-read-ahead", daemon=True).start()

    def put(self, data: bytes) -> None:
        """Take a message, which is a job or what it works on; never waits."""
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
        """Return the job; before the first of a pass forget what is of the last one."""
        # By then every job of that was answered. Jobs are loaded in their order, in two threads.
        if self._run and message.run != self._run:
            SESSION.begin_pass(keeps_read=TILES.most > 0)
        self._run = message.run
        return self._load(message.job)

    def get(self) -> QueuedJob:
        """Wait for the next job."""
        return self._waiting.get()

    def messages(self) -> Iterator[DoJob]:
        """Yield each message once as soon as it is here, also of jobs that wait behind others."""
        # Those that came later say which slots are free now; a worker that read this only when
        # their turn comes would take as many slots more as jobs wait.
        while self._messages:
            yield self._messages.popleft()

    def dealt(self) -> Any:
        """Wait for the next item that is dealt out to this worker, or the end of them."""
        deal = self._dealt.get()
        if deal.ends:
            return END_OF_ITEMS
        if deal.fails:
            raise SourceFailed("what makes the items that are dealt out has failed")
        return self._load(deal.item)


class _Line:
    """Sends each message whole: threads of the user's pipes may take what is dealt out."""

    def __init__(self, channel: connection.Connection, queue: JobQueue) -> None:
        self._channel = channel
        self._queue = queue
        self._sending = threading.Lock()

    def announce(self, slot: Slot) -> None:
        with self._sending:
            self._channel.send(NewSlot(slot.number, slot.size))
            send_descriptor(self._channel, slot.fd)

    def retire(self, number: int) -> None:
        self.send_bytes(pickle.dumps(RetireSlot(number)))

    def dealt(self) -> Any:
        """Wait for the next item that is dealt out, and say that it, or the end, was taken."""
        try:
            return self._queue.dealt()
        finally:
            self.send_bytes(_TOOK)

    def send_bytes(self, message: bytes) -> None:
        with self._sending:
            self._channel.send_bytes(message)


def _serve(
    channel: connection.Connection,
    queue: JobQueue,
    payload: bytes,
    settings: WorkerSettings,
    record: list[warnings.WarningMessage],
) -> None:
    if settings.torch:
        import torch

        from ..global_generators import own_generators

        own_generators()
        # Workers divide the machine between them; a thread pool in each would fight over it.
        torch.set_num_threads(1)

    line = _Line(channel, queue)
    if HAS_SLOTS:
        _note_where_it_is(channel)
    slots: SlotWriter | None = None
    if HAS_SLOTS and settings.slot_bytes is not None:
        slots = SlotWriter(
            line.announce, line.retire, settings.slot_bytes, settings.ahead, settings.workers
        )
    source: Any = None
    run = 0  # the pass of which the functions in it are
    if settings.ends_late:  # in a fork it is the timer of the parent, whose thread is not here
        faulthandler.cancel_dump_traceback_later()
    channel.send(Ready())
    while True:
        waiting = queue.get()
        message = waiting.message
        for news in queue.messages():
            if slots is not None:
                slots.release(news.free_slots, news.given_up)
        job: Any = None
        try:
            if message.payload:
                payload, source = message.payload, None
            if source is None or message.run != run:
                fresh = _load(payload, settings, registers=source is None)
                source = source.renew(fresh) if hasattr(source, "renew") else fresh
                if hasattr(source, "feed"):
                    source.feed(line.dealt, settings.number)
                run = message.run
                queue.look_ahead()
            job = waiting.job()
            data = _make(source, job, message, slots)
            answer = pickle.dumps(BatchMessage(message.index, data, _report(record, job)))
        except BaseException as error:  # told to the consumer, whatever it is
            answer = pickle.dumps(_failure(message.index, job, error, _report(record, job)))
        waiting.close()
        line.send_bytes(answer)


def _load(payload: bytes, settings: WorkerSettings, *, registers: bool) -> Any:
    """Return the objects of a payload in the state that they have in the consumer.

    They are loaded anew for each epoch. Backends and decoders are registered if ``registers``.
    """
    _, backends, decoders, source, _ = ScriptUnpickler(payload, settings.script).load()
    if registers:
        for name, matcher, factory in reversed(backends):
            register_backend(name, matcher, factory)
        for codec, maker in decoders:
            register_decoder(codec, maker)
        warnings.simplefilter("always")  # the consumer's filters decide
    return source


def _note_where_it_is(channel: connection.Connection) -> None:
    """Let the consumer see what this worker is at, also when it hangs or is gone."""
    fd = os.memfd_create("voxpipe-notes", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, mmap.PAGESIZE)
        memory = SharedMemory(fd, mmap.PAGESIZE).bytes()
        CURRENT_STEP.share(memory)
        RUNNING_PASS.share(memory[NOTE_BYTES:])
        channel.send(Notes(mmap.PAGESIZE))
        send_descriptor(channel, fd)
    finally:
        os.close(fd)


def _make(source: Any, job: Any, message: DoJob, slots: SlotWriter | None) -> bytes | None:
    """Return the packed batch of a job; None if the replica has no more."""
    try:
        with batches_in(slots):
            batch = source.run(job, message.seed, message.epoch)
    except StopIteration:
        return None
    numbers: set[int] = set()
    try:
        data, numbers = pack(batch, slots)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        msg = f"what the chain yields cannot travel from the worker: {error}"
        raise NotPicklable(msg, do=_PLAIN).at(getattr(source, "last", None)) from error
    finally:
        if slots is not None:
            slots.note_sent(numbers)
    return data


def _report(record: list[warnings.WarningMessage], job: Any) -> WorkerReport:
    """Return what was counted, warned of and opened since the last report."""
    new = record[:]  # other threads may add to it meanwhile
    del record[: len(new)]
    pairs: dict[tuple[str, type[Warning]], None] = {}
    for each in new:
        text, category = type(each.message).__name__, each.category
        with contextlib.suppress(Exception):  # a user's __str__ may fail
            text = str(each.message)
        try:
            pickle.loads(pickle.dumps(category))
        except Exception:  # the consumer has no such class, e.g. one defined inside a function
            category = UserWarning
        pairs[text, category] = None
    versions = SESSION.versions.take()
    if isinstance(job, Job):
        versions = tuple(one._replace(case=job.cases_with(one.name)) for one in versions)
    return WorkerReport(PIPE_STATS.take(), tuple(pairs), versions)


def _failure(index: int, job: Any, error: BaseException, report: WorkerReport) -> ErrorMessage:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # an exception may hold anything, e.g. a lock
        data = b""
    try:
        trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        # torch adds lines of its own to every message that passes through a pipe.
        what = f"{type(error).__name__}: {error}".split("\nThis exception is thrown by", 1)[0]
        # Of an error that cannot travel these are all that is told: its pipe, line and item.
        what = "\n  ".join([what, *getattr(error, "__notes__", ())])
    except Exception:  # a user's __str__ may fail too
        trace, what = "(its message cannot be shown)", type(error).__name__
    # The error itself stays as it is; what is told beside it shows no password of a URL.
    trace, what = public_text(trace), public_text(what)
    cases = f" ({job.cases()})" if isinstance(job, Job) and job.cases() else ""
    text = f"while making batch {index}{cases} in process {os.getpid()}\n{trace}"
    return ErrorMessage(index, data, what, text, report)


def make_semaphores_nameless() -> None:
    """Take away the names of all semaphores of this process, of those too that it will make.

    A lock that is made in a spawned process, by blosc or tqdm for instance, has a name below
    ``/dev/shm`` until Python shuts down, which a worker does not, for children, which it has not.
    """
    try:
        from multiprocessing import synchronize
    except ImportError:  # a system without semaphores
        return
    lock_class: Any = synchronize.SemLock
    unlink = lock_class._cleanup
    waiting: dict[Any, Any] = vars(util).get("_finalizer_registry", {})
    for last in list(waiting.values()):
        if getattr(last, "_callback", None) == unlink:
            with contextlib.suppress(Exception):  # somebody else took it away
                last()  # of no effect in a child that was forked from the maker
    with contextlib.suppress(ValueError):  # a system without forks
        make, context = lock_class.__init__, get_context("fork")

        def make_nameless(self: Any, *arguments: Any, **options: Any) -> None:
            """Say that children are forked: these need no name."""
            make(self, *arguments, **{**options, "ctx": context})

        lock_class.__init__ = make_nameless


# What a worker frees stays with its process, for the next patch.
#
# Stored chunks and decoded ones come and go, some hundred kilobytes each and thousands in a second,
# allocated in one thread and freed in another. glibc gives such memory back to the system and asks
# for it anew, and the system clears every page of it: a third of the processor time that receiving
# a bucket's chunks takes, or nothing of it, as chance has laid out the heaps.

# <malloc.h> of glibc.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
# The most that glibc takes from its heaps; larger blocks are mapped, and unmapped when freed.
_LARGEST = 32 * 1024**2
# What may lie free at the end of a heap: more than the chunks of a patch. With 64 MiB, two workers
# that read a bucket took 40 MB more, and no less processor time.
_MOST_FREE = 16 * 1024**2
# By how much a heap grows at a time; each step is a call of the system.
_STEP = 4 * 1024**2
# Heaps of one process. Each thread would get its own, up to eight per core, and what one of them
# keeps free, no other can use: 70 MB in two workers that read a bucket.
_HEAPS = 2
# Variables with which users say such things themselves.
_OWN_WORDS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
_OWN_HEAPS = "MALLOC_ARENA_MAX"
_TUNABLES, _OF_MALLOC = "GLIBC_TUNABLES", "glibc.malloc."


def keep_freed_memory(environment: Mapping[str, str] = os.environ) -> bool:
    """Let this process keep what it frees, within bounds; for processes of our own."""
    is_set = any(name in environment for name in _OWN_WORDS)
    if is_set or _OF_MALLOC in environment.get(_TUNABLES, ""):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library, another system
        return False
    options = [(_MMAP_THRESHOLD, _LARGEST), (_TRIM_THRESHOLD, _MOST_FREE), (_TOP_PAD, _STEP)]
    if _OWN_HEAPS not in environment:
        options.append((_ARENA_MAX, _HEAPS))
    return all(mallopt(which, size) == 1 for which, size in options)
