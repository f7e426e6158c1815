"""The adapter that runs one pipe in threads or processes of its own, on a device, or pinned."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import queue
import traceback
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data.datapipes.iter import IterableWrapper

from ...adapters.adapter import Adapter
from ...adapters.timeout import ITEM_SECONDS
from ...core.errors import GraphError, ItemTimeout, NotPicklable, WorkerDied
from ...core.validate import validate_int
from ...datapipes.background_iterator import STOP_SECONDS
from ...datapipes.datapipe import PerItem, SameLength
from ...datapipes.tensors import map_tensors
from ...graph import (
    Pipe,
    RewriteResult,
    Rule,
    Site,
    Traits,
    chained_name,
    describe,
    origin_of,
    parents_of,
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
        return f"Runtime({self.at!r}, {self.arguments()})"

    def arguments(self) -> str:
        """Return the settings as a call writes them."""
        names = ("threads", "processes", "device", "cores")
        return ", ".join(f"{name}={v!r}" for name in names if (v := getattr(self, name)))


class RunApart(SameLength):
    """A pipe per item that runs apart from the others."""

    def __init__(self, pipe: Any, runtime: Runtime, *, here: bool) -> None:
        (parent,) = parents_of(pipe)
        super().__init__(parent)
        self._runtime, self._function = runtime, _ItemFunction(pipe, runtime.device)
        vars(self)["origin"] = origin_of(pipe)
        self._pool: Any = None
        self._pid, self._here, self._is_checked = 0, here, False

    @property
    def traits(self) -> Traits:
        return replace(traits_of(self._function.pipe), ahead=True, main_process=self._here)

    def describe(self) -> str:
        """Return the pipe and where it runs."""
        return f"{describe(self._function.pipe)} [{self._runtime.arguments()}]"

    def settings(self) -> Any:
        """Return the settings of the pipe alone: where it runs changes no batch."""
        return describe(self._function.pipe)

    def __getstate__(self) -> Any:
        return {**super().__getstate__(), "_pool": None}

    def shutdown(self) -> None:
        """End its threads or processes; a later pass starts others."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()

    def _start(self) -> Any:
        """Return the running threads or processes; start them for the first pass of a process."""
        runtime = self._runtime
        if self._pid != os.getpid():
            self._pool = None  # that of the parent process
        elif isinstance(self._pool, _Processes) and self._pool.threads.busy:
            self.shutdown()  # an earlier pass was left
        if self._pool is None:
            self._pid = os.getpid()
            if runtime.processes:
                self._pool = _Processes(self.describe(), self._function, runtime)
            else:
                own = (runtime.cores,)
                self._pool = Threads(runtime.threads or 1, initializer=_pin, initargs=own)
            weakref.finalize(self, self._pool.stop)
        return self._pool

    def __iter__(self) -> Iterator[Any]:
        pool, threads, processes = self._start(), self._runtime.threads, self._runtime.processes
        # A single thread takes one item after the other, as the pipe would.
        most = processes or _AHEAD * threads * (threads > 1) or 1
        states = states_of_globals if most > 1 or processes else lambda: None
        under_way: deque[tuple[Future[Any], Any]] = deque()
        items, end, last = iter(self.parent), None, states()
        try:
            while True:
                # The very first item runs alone: draws show in the global generators.
                while end is None and len(under_way) < (most if self._is_checked else 1):
                    if not processes:  # before an item that may seed the generators
                        self._refuse_draws(states(), last)
                    try:
                        item = next(items)
                    except Exception as error:  # StopIteration too: raised after earlier results
                        end = error
                        break
                    last = states()
                    call = (last, item) if processes else (self._function, item)
                    under_way.append((pool.submit(*call), last))
                if not under_way:
                    if isinstance(end, StopIteration):
                        return
                    raise end  # type: ignore[misc]
                future, before = under_way.popleft()
                result = self._wait(future)
                if processes:
                    after, result = result
                    # Without a seed for each item, the next item would draw the same numbers.
                    if self._here or (under_way and _equal(before, under_way[0][1])):
                        self._refuse_draws(after, before)
                    # Later pipes go on from the state in which the function left the generators.
                    restore_globals(after)
                else:
                    self._refuse_draws(states(), last)
                self._is_checked = True
                yield result
                last = states()
        finally:
            for future, _ in under_way:
                future.cancel()

    def _refuse_draws(self, after: Any, before: Any) -> None:
        """Raise if an item has drawn numbers, which other items would draw, too."""
        if before is not None and not _equal(after, before):
            msg = f"{describe(self._function.pipe)} draws from a global generator, and items at "
            msg += "once would mix their numbers"
            do = "Draw from a generator that the item seeds, or use processes= before the batch."
            raise GraphError(msg, do=do).at(self.origin)

    def _wait(self, future: Future[Any]) -> Any:
        try:
            return future.result(ITEM_SECONDS)
        except TimeoutError as error:
            if future.done():
                raise  # by the function
            msg = f"{self.describe()} has not made an item in {ITEM_SECONDS:g} s"
            raise ItemTimeout(msg, do="Look for an endless loop.").at(self.origin) from error
        except WorkerDied as error:
            self.shutdown()
            error.at(self.origin)
            raise


class _Processes:
    """Processes that take single items in turn, while threads wait for their answers."""

    def __init__(self, name: str, function: _ItemFunction, runtime: Runtime) -> None:
        context = multiprocessing.get_context("forkserver")
        try:
            payload = pickle.dumps(function)
        except Exception as error:
            msg = f"{describe(function.pipe)} cannot be sent to a process: {error}"
            raise NotPicklable(msg, do="Define its function at the top of a module.") from error
        self._name, self._pid, self.threads = name, os.getpid(), Threads(runtime.processes)
        self._running: list[tuple[Any, Any]] = []
        self._idle: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        for _ in range(runtime.processes):
            ours, theirs = context.Pipe()
            arguments = (theirs, payload, runtime.cores)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            # Workers are daemons, which may have no children; these end with them all the same.
            own = vars(multiprocessing.current_process())["_config"]
            was = own.pop("daemon", None)
            try:
                process.start()
            finally:
                own.update({} if was is None else {"daemon": was})
            theirs.close()
            self._running.append((process, ours))
            self._idle.put((process, ours))

    def submit(self, states: Any, item: Any) -> Future[Any]:
        """Send an item to the process whose turn it is."""
        return self.threads.submit(self._answer, pickle.dumps((states, item)))

    def _answer(self, message: bytes) -> Any:
        """Return the answer of the next idle process; raise the error of its function."""
        process, channel = self._idle.get()
        try:
            channel.send_bytes(message)
            data = channel.recv_bytes()
        except (EOFError, OSError) as error:
            process.join(STOP_SECONDS)
            msg = f"a process of {self._name} died, with exit code {process.exitcode}"
            do = "Look for its reason above; -9 is often a lack of memory."
            raise WorkerDied(msg, do=do) from error
        finally:
            self._idle.put((process, channel))
        answer = pickle.loads(data)  # noqa: S301  made by our own process
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        """End the processes, also those that are at work."""
        if self._pid != os.getpid():
            return
        for process, _ in self._running:
            process.terminate()
        for process, _ in self._running:
            process.join(STOP_SECONDS)
            if process.is_alive():
                process.kill()
            process.join()
        self.threads.stop()
        for _, channel in self._running:
            channel.close()


def _serve(channel: Any, payload: bytes, cores: Sequence[int] | None) -> None:
    """Work on items until the other end of the channel is gone."""
    _pin(cores)
    function = pickle.loads(payload)  # noqa: S301  made by our parent process
    with contextlib.suppress(EOFError, OSError):
        while True:
            states, item = pickle.loads(channel.recv_bytes())  # noqa: S301  made by our parent
            restore_globals(states)
            try:
                result = function(item)
                answer = pickle.dumps((states_of_globals(), result))
            except Exception as error:
                error.add_note(f"in a process of its own:\n{traceback.format_exc()}")
                try:
                    answer = pickle.dumps(error)
                    pickle.loads(answer)  # noqa: S301  made above: some errors cannot be made anew
                except Exception:
                    answer = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
            channel.send_bytes(answer)


class _ItemFunction:
    """The function that a pipe applies to one item, on a device."""

    def __init__(self, pipe: Any, device: str | None) -> None:
        self.pipe: Any = with_parents(pipe, [IterableWrapper([], deepcopy=False)])
        self.device = device

    def __call__(self, item: Any) -> Any:
        if self.device is None:
            return self._apply(item)
        homes: set[torch.device] = set()

        def move(tensor: torch.Tensor) -> torch.Tensor:
            homes.add(tensor.device)
            return tensor.to(self.device)

        result = self._apply(map_tensors(item, move))
        home = homes.pop() if len(homes) == 1 else "cpu"
        return map_tensors(result, lambda tensor: tensor.to(home))

    def _apply(self, item: Any) -> Any:
        if isinstance(self.pipe, PerItem):
            return self.pipe.apply(item)
        (result,) = with_parents(self.pipe, [IterableWrapper([item], deepcopy=False)])
        return result


def _equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    same_numpy = all(np.array_equal(a, b) for a, b in zip(one[1], other[1], strict=True))
    return bool(one[0] == other[0] and same_numpy and torch.equal(one[2], other[2]))


def _pin(cores: Sequence[int] | None) -> None:
    if cores is not None:
        os.sched_setaffinity(0, cores)
