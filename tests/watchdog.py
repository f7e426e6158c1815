"""A run of tests that hangs ends, and its last words are the test and where it hangs."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

# How many calls of the main thread are repeated at the end, where they are read first.
SHOWN = 12


class Watchdog:
    """Ends the process when a test takes too long.

    A thread of Python says more than the timer of ``faulthandler``, which knows no test; that one
    comes after it, for hangs that hold the interpreter.

    Parameters
    ----------
    seconds
        That a test may take.
    leave
        What ends the process.
    """

    def __init__(self, seconds: float, leave: Callable[[int], object] = os._exit) -> None:
        self._seconds, self._leave = seconds, leave
        self._changed = threading.Condition()
        self._test: str | None = None
        self._until = 0.0
        self._err = 2
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch, before pytest takes what is written for itself."""
        self._err = os.dup(2)
        self._thread.start()

    def at(self, test: str | None) -> None:
        """Note the test that begins; None after the last."""
        with self._changed:
            self._test, self._until = test, time.monotonic() + self._seconds
            self._changed.notify()

    def _watch(self) -> None:
        with self._changed:
            while True:
                if self._test is None:
                    self._changed.wait()
                    continue
                left = self._until - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            test = self._test
        faulthandler.dump_traceback(file=self._err, all_threads=True)
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        calls = "".join(traceback.format_stack(frame)[-SHOWN:])
        os.write(self._err, f"\n{calls}\nno end after {self._seconds:g} s: {test}\n".encode())
        # A child that lives on holds the pipes of this process, and pytest-xdist waits for them.
        for child in multiprocessing.active_children():
            child.kill()
        self._leave(1)
