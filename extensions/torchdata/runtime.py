"""The adapter that runs one pipe in threads or processes of its own, on a device, or pinned."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import traceback
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import IterDataPipe

from ...adapters.adapter import Adapter
from ...adapters.timeout import ITEM_SECONDS
from ...core import Sample
from ...core.errors import GraphError, ItemTimeout, NotPicklable, WorkerDied
from ...core.validate import validate_int
from ...datapipes.background_iterator import STOP_SECONDS
from ...datapipes.datapipe import PerItem, SameLength
from ...graph import (
    Pipe,
    RewriteResult,
    Rule,
    Site,
    Traits,
    chained_name,
    describe,
    origin_of,
    traits_of,
    walk,
    with_parents,
)
from ...graph.rewrite import sweep
from ...reading_services.pipe_runner import restore_globals, states_of_globals
from .daemon_threads import Threads

_AHEAD = 2  # items under way for each thread


class Runtime(Adapter):
    """Run one pipe in threads or processes of its own, on a device, or pinned to cores.

    The order of the items and the batches stay the same. The pipe must make one item of each item,
    and remember nothing in between: a function of ``map``, or an op. As the last pipe of a chain it
    runs in the process of the loader, on several batches at once. Before other pipes it runs in the
    workers, on the items of one batch at once.

    Parameters
    ----------
    at
        Chained name of the pipes, such as ``"map"``.
    threads
        Number of its threads. They help where the work releases Python's lock. Two or more refuse
        a function whose first item draws from a global generator. Later draws are mostly noticed.
    processes
        Number of its processes. They start within seconds, as they import torch. Items travel by
        pickle. A function draws the same numbers as without them; as the last pipe, it is refused.
    device
        Device of the tensors that the pipe gets.
    cores
        Numbers of the cores that these may use (Linux).

    Raises
    ------
    ValueError
        The settings contradict each other, or a core is not there.
    GraphError
        No pipe has this name, the pipe is of another kind, or its draws would be mixed.
    NotPicklable, WorkerDied, ItemTimeout
        A function cannot be sent to a process, ends it, or takes more than ten minutes.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper([1, -2, 3]).map(abs)
    >>> list(Runtime("map", threads=2)(pipe))
    [1, 2, 3]
    """

    def __init__(
        self,
        at: str,
        *,
        threads: int = 0,
        processes: int = 0,
        device: Any = None,
        cores: Sequence[int] | None = None,
    ) -> None:
        self.threads = validate_int("threads", threads, least=0)
        self.processes = validate_int("processes", processes, least=0)
        if threads and processes:
            raise ValueError("Runtime takes threads= or processes=, not both")
        if not (threads or processes or device is not None or cores is not None):
            raise ValueError(
                "Runtime changes nothing: give threads=, processes=, device= or cores="
            )
        self.at, self.device = at, None if device is None else str(torch.device(device))
        self.cores = None if cores is None else tuple(sorted({*map(int, cores)}))
        if self.cores is not None:
            usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
            if not {*self.cores} <= usable or not self.cores:
                have = ", ".join(map(str, sorted(usable))) or "none that can be chosen"
                raise ValueError(f"cores={self.cores}: this process may use {have}")

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        every = [*walk(pipe)]
        pipes = [each for each in every if chained_name(each) == self.at]
        if not pipes:
            names = ", ".join(dict.fromkeys(map(chained_name, every)))
            msg = f"Runtime(at={self.at!r}) names no pipe; there is {names}"
            raise GraphError(msg, do="Give the chained name of one of these.").at(origin_of(pipe))
        for each in pipes:
            if not traits_of(each).per_item:
                msg = f"Runtime(at={self.at!r}): {describe(each)} does not take single items"
                do = "Name a pipe that makes one item of each item, such as map."
                raise GraphError(msg, do=do).at(origin_of(each))

        # The last pipes run here, several batches at once; others on the items of one batch.
        ends = {id(each) for each in pipes}
        later = [each for each in every if not traits_of(each).watches]
        while later and (id(later[-1]) in ends or traits_of(later[-1]).main_process):
            later.pop()
        is_late = iter([all(each is not other for other in later) for each in pipes])

        def match(site: Site) -> Any:
            return site.pipe if chained_name(site.pipe) == self.at else None

        def build(member: Pipe) -> Pipe:
            return RunApart(member, self, here=next(is_late) and self.threads + self.processes > 1)

        return sweep(pipe, (Rule("runtime", match, build),))

    def __repr__(self) -> str:
        return f"Runtime({self.at!r}, {self.words()})"

    def words(self) -> str:
        """Return the settings as arguments."""
        names = ("threads", "processes", "device", "cores")
        return ", ".join(f"{name}={v!r}" for name in names if (v := getattr(self, name)))


class RunApart(SameLength):
    """A pipe per item that runs apart from the others."""

    def __init__(self, pipe: Any, runtime: Runtime, *, here: bool) -> None:
        (parent,) = (each for each in vars(pipe).values() if isinstance(each, IterDataPipe))
        super().__init__(parent)
        self._runtime, self._work = runtime, _Work(pipe, runtime.device)
        vars(self)["origin"] = origin_of(pipe)
        self._pool: Any = None
        self._pid, self._here, self._is_checked = 0, here, False

    @property
    def traits(self) -> Traits:
        return replace(traits_of(self._work.member), ahead=True, main_process=self._here)

    def describe(self) -> str:
        """Return the pipe and where it runs."""
        return f"{describe(self._work.member)} [{self._runtime.words()}]"

    def settings(self) -> Any:
        """Return the settings of the pipe alone: where it runs changes no batch."""
        return describe(self._work.member)

    def __getstate__(self) -> Any:
        return {**super().__getstate__(), "_pool": None}

    def shutdown(self) -> None:
        """End its threads or processes; a later pass starts others."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()

    def _start(self) -> Any:
        """Return the running threads, or processes without answers of an earlier pass."""
        runtime = self._runtime
        if self._pool is not None and self._pid != os.getpid():
            self._pool = None  # that of the parent process
        if isinstance(self._pool, _Processes) and self._pool.pending:
            self.shutdown()
        if self._pool is None:
            self._pid = os.getpid()
            if runtime.processes:
                self._pool = _Processes(runtime.processes, self._work, runtime.cores)
            else:
                own = (runtime.cores,)
                self._pool = Threads(runtime.threads or 1, initializer=_pin, initargs=own)
            weakref.finalize(self, self._pool.stop)
        return self._pool

    def __iter__(self) -> Iterator[Any]:
        runtime, pool = self._runtime, self._start()
        # A single thread takes one item after the other, as the pipe would.
        most = runtime.processes or _AHEAD * runtime.threads * (runtime.threads > 1) or 1
        note = states_of_globals if most > 1 or runtime.processes else lambda: None
        under_way: deque[tuple[Any, Any]] = deque()
        items, end, last = iter(self.parent), None, note()
        try:
            while True:
                # The very first item runs alone: draws show in the global generators.
                while end is None and len(under_way) < (most if self._is_checked else 1):
                    if not runtime.processes:  # before an item that may seed the generators
                        self._refuse_draws(note(), last, [last])
                    try:
                        item = next(items)
                    except Exception as error:  # StopIteration too: raised after earlier results
                        end = error
                        break
                    last = note()
                    call = (last, item) if runtime.processes else (self._work, item)
                    under_way.append((pool.submit(*call), last))
                if not under_way:
                    if isinstance(end, StopIteration):
                        return
                    raise end  # type: ignore[misc]
                future, before = under_way[0]
                result = self._wait(future)
                under_way.popleft()
                if runtime.processes:
                    after, result = result
                    # Without a seed for each item, the next item would draw the same numbers. Later
                    # pipes go on from the state in which the function left the generators.
                    others = [state for _, state in under_way][:1]
                    self._refuse_draws(after, before, [before] if self._here else others)
                    restore_globals(after)
                else:
                    self._refuse_draws(note(), last, [last])
                self._is_checked = True
                yield result
                last = note()
        finally:
            for future, _ in under_way:
                future.cancel()

    def _refuse_draws(self, after: Any, before: Any, others: Sequence[Any]) -> None:
        """Raise if an item has drawn numbers that others would draw, too."""
        if (
            before is not None
            and not _equal(after, before)
            and any(_equal(before, other) for other in others)
        ):
            msg = f"{describe(self._work.member)} draws from a global generator, and items at once "
            msg += "would mix their numbers"
            do = "Draw from a generator that the item seeds, or use processes= before the batch."
            raise GraphError(msg, do=do).at(self.origin)

    def _wait(self, future: Any) -> Any:
        try:
            return future.result(ITEM_SECONDS)
        except TimeoutError as error:
            if not isinstance(error, _Late) and (isinstance(future, _Answer) or future.done()):
                raise  # by the function
            msg = f"{self.describe()} has not made an item in {ITEM_SECONDS:g} s"
            raise ItemTimeout(msg, do="Look for an endless loop.").at(self.origin) from error
        except _Died as error:
            msg = f"a process of {self.describe()} died"
            do = "Look for its reason above; -9 is often a lack of memory."
            raise WorkerDied(f"{msg}, with exit code {error}", do=do).at(self.origin) from error


class _Processes:
    """Processes with one item each, in turn; they end with this process."""

    def __init__(self, count: int, work: _Work, cores: Sequence[int] | None) -> None:
        context = multiprocessing.get_context("forkserver")
        try:
            payload = pickle.dumps(work)
        except Exception as error:
            msg = f"{describe(work.member)} cannot be sent to a process: {error}"
            raise NotPicklable(msg, do="Define its function at the top of a module.") from error
        self._running: deque[tuple[Any, Any]] = deque()
        self._pid = os.getpid()
        self.pending = 0
        """Number of items without an answer."""
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, payload, cores), daemon=True)
            # Workers are daemons, which may have no children; these end with them all the same.
            own = vars(multiprocessing.current_process())["_config"]
            was = own.pop("daemon", None)
            try:
                process.start()
            finally:
                own.update({} if was is None else {"daemon": was})
            theirs.close()
            self._running.append((process, ours))

    def submit(self, states: Any, item: Any) -> _Answer:
        """Send an item to the process whose turn it is."""
        message, (process, channel) = pickle.dumps((states, item)), self._running[0]
        self._running.rotate(-1)
        self.pending += 1
        with contextlib.suppress(OSError):  # the answer says that it is dead
            channel.send_bytes(message)
        return _Answer(self, process, channel)

    def stop(self) -> None:
        """End the processes, also those that are at work."""
        if self._pid != os.getpid():
            return
        running, self._running = self._running, deque()
        for process, channel in running:
            channel.close()
            process.terminate()
        for process, _channel in running:
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()
            process.join()


class _Late(TimeoutError):
    """There is no answer yet."""


class _Died(Exception):
    """The process has ended."""


class _Answer:
    """The answer of a process."""

    def __init__(self, processes: _Processes, process: Any, channel: Any) -> None:
        self._processes, self._process, self._channel = processes, process, channel

    def result(self, seconds: float) -> Any:
        """Wait for the answer; raise the error of the process."""
        if not self._channel.poll(seconds):
            raise _Late
        try:
            message = self._channel.recv_bytes()
        except (EOFError, OSError) as error:
            self._process.join(STOP_SECONDS)
            raise _Died(self._process.exitcode) from error
        self._processes.pending -= 1
        answer = pickle.loads(message)  # noqa: S301  made by our own process
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self) -> None:
        """Do nothing: the next pass has other processes."""


def _serve(channel: Any, payload: bytes, cores: Sequence[int] | None) -> None:
    """Work on items until the other end of the channel is gone."""
    _pin(cores)
    work = pickle.loads(payload)  # noqa: S301  made by our parent process
    with contextlib.suppress(EOFError, OSError):
        while True:
            states, item = pickle.loads(channel.recv_bytes())  # noqa: S301  made by our parent
            restore_globals(states)
            try:
                result = work(item)
                answer = pickle.dumps((states_of_globals(), result))
            except Exception as error:
                error.add_note(f"in a process of its own:\n{traceback.format_exc()}")
                try:
                    answer = pickle.dumps(error)
                    pickle.loads(answer)  # noqa: S301  made above: some errors cannot be made anew
                except Exception:
                    answer = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
            channel.send_bytes(answer)


class _One(IterDataPipe[Any]):
    """A source of one item."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __iter__(self) -> Iterator[Any]:
        yield self.item


class _Work:
    """The work of a pipe on one item, on a device."""

    def __init__(self, member: Any, device: str | None) -> None:
        self.member: Any = with_parents(member, [_One(None)])
        self.device = device

    def __call__(self, item: Any) -> Any:
        if self.device is None:
            return self._apply(item)
        leaves = tree_leaves({**item} if isinstance(item, Sample) else item)
        homes = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
        result = self._apply(_to_device(item, self.device))
        return _to_device(result, homes.pop() if len(homes) == 1 else "cpu")

    def _apply(self, item: Any) -> Any:
        if isinstance(self.member, PerItem):
            return self.member.apply(item)
        (result,) = with_parents(self.member, [_One(item)])
        return result


def _to_device(thing: Any, device: Any) -> Any:
    """Return an item with its tensors on a device."""
    if isinstance(thing, Sample):
        return thing.with_data(**_to_device({**thing}, device))
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), thing)


def _equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    same_numpy = all(np.array_equal(a, b) for a, b in zip(one[1], other[1], strict=True))
    return bool(one[0] == other[0] and same_numpy and torch.equal(one[2], other[2]))


def _pin(cores: Sequence[int] | None) -> None:
    if cores is not None:
        os.sched_setaffinity(0, cores)
