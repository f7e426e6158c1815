"""Threads for calls of the user's functions, which nobody has to wait for at the end.

Those of ``ThreadPoolExecutor`` are joined when the interpreter ends, however long their calls take;
these are daemons.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.thread import BrokenThreadPool
from typing import Any

from ...thread_shutdown import going_on, wait_for, warn_of


class Threads:
    """Runs calls in threads, in the order in which they are given.

    Parameters
    ----------
    most
        Threads that are started, as there are calls for them.
    thread_name_prefix, initializer, initargs
        As of ``ThreadPoolExecutor``.
    """

    def __init__(
        self,
        most: int,
        *,
        thread_name_prefix: str = "voxpipe",
        initializer: Callable[..., Any] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        self._most, self._name = most, thread_name_prefix
        self._initializer, self._initargs = initializer, initargs
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
        self._calls = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._given: list[Future[Any]] = []

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a call made; return what becomes of it."""
        going_on()
        self._given = [future for future in self._given if not future.done()]
        made: Future[Any] = Future()
        self._calls.put((made, lambda: call(*arguments)))
        self._given.append(made)
        if len(self._threads) < min(self._most, len(self._given)):
            self._start()
        return made

    def _start(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Make no call that has not begun, and wait for the others, but not for ever."""
        for future in self._given:
            future.cancel()
        self.end()

    def end(self, last: Callable[[], None] | None = None) -> None:
        """Let the threads end after the calls that were given, and wait, but not for ever.

        ``last`` is called by one of them before it ends; its errors are lost.
        """
        if last is not None:
            self._calls.put((Future(), last))
            if not self._threads:
                self._start()
        for _ in self._threads:
            self._calls.put(None)
        late = wait_for(*self._threads)
        if late is not None:
            warn_of(late.name)

    def _run(self) -> None:
        broken: BaseException | None = None
        try:
            if self._initializer is not None:
                self._initializer(*self._initargs)
        except BaseException as error:
            broken = error
        while (given := self._calls.get()) is not None:
            future, call = given
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if broken is not None:
                    raise BrokenThreadPool("the initializer of the threads failed") from broken
                result = call()
            except BaseException as error:  # handed to whoever asked, whatever it is
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
            del given, future, call
