"""Answers that several deliveries take their chunks from: asked for once, here for the next.

The patches of a visit touch the same shards, each in other places. Whoever asks first asks for
all of the shard; those that come while it is on its way wait for the same request, and later ones
find it here until its room is needed. So with the index of a shard, for which four patches of a
batch would ask at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from .in_flight import Later
from .ranges import ReadRange

Key = tuple[str, ReadRange]
"""An array, and what is asked for."""
Answer = bytes | None
Ask = Callable[[Later], Coroutine[Any, Any, Answer]]


class _Shared:
    """One answer, on its way or here."""

    def __init__(self, key: Key, size: int, stays: bool) -> None:
        self.key, self.size, self.stays = key, size, stays
        self.later = Later()
        self.users: set[Later] = set()
        self.task: asyncio.Future[Answer]


class SharedAnswers:
    """Answers by array and range, while somebody uses them and then as long as there is room.

    :meth:`begin` belongs to the event loop of the requests; the rest is called from any thread.

    Parameters
    ----------
    lock
        That of whoever counts the memory: an ``RLock``.
    room
        Returns the bytes that all answers together may take now; called with the lock held.
    """

    def __init__(self, lock: AbstractContextManager[Any], room: Callable[[], int]) -> None:
        self.held_bytes = 0
        self._lock = lock
        self._room = room
        # What was used last comes last.
        self._answers: OrderedDict[Key, _Shared] = OrderedDict()
        self._used: dict[Later, list[_Shared]] = {}

    def begin(
        self, key: Key, size: int, ask: Ask, later: Later, *, stays: bool = True
    ) -> asyncio.Future[Answer] | None:
        """Return what to wait for, asking only if nobody has; None where there is no room for it.

        Parameters
        ----------
        key
            Names the answer.
        size
            Bytes that it has at most.
        ask
            Sends the request.
        later
            Who uses it, until :meth:`release`.
        stays
            Whether to keep it for others once nobody uses it.
        """
        with self._lock:
            if later.ended:
                raise asyncio.CancelledError
            shared = self._answers.get(key)
            if shared is None:
                if not self.spare(size):
                    return None
                shared = self._answers[key] = _Shared(key, size, stays)
                self.held_bytes += size
                shared.task = asyncio.ensure_future(ask(shared.later))
                shared.task.add_done_callback(partial(self._arrived, shared))
            self._answers.move_to_end(key)
            if later not in shared.users:
                shared.users.add(later)
                self._used.setdefault(later, []).append(shared)
                later.needs.append(shared.later)
        # Whoever stops waiting does not take it from the others.
        return asyncio.shield(shared.task)

    def holds(self, key: Key) -> bool:
        """Whether an answer is here or on its way."""
        with self._lock:
            return key in self._answers

    def used_by(self, later: Later) -> set[int]:
        """Return the ``id`` of each answer that is counted here and used by one delivery."""
        with self._lock:
            done = [each for each in self._used.get(later, ()) if each.task.done()]
            return {id(memoryview(each.task.result() or b"").obj) for each in done if _good(each)}

    def release(self, later: Later) -> None:
        """Note that one delivery uses its answers no more; drop what nobody waits for."""
        with self._lock:
            later.ended = True
            for shared in self._used.pop(later, ()):
                shared.users.discard(later)
                if not shared.users and not (shared.stays and shared.task.done()):
                    self._drop(shared)
                    if not shared.task.done():
                        # The loop may have ended with its process.
                        with contextlib.suppress(RuntimeError):
                            shared.task.get_loop().call_soon_threadsafe(shared.task.cancel)

    def spare(self, size: int) -> bool:
        """Drop what nobody uses, the oldest first, until ``size`` bytes more have room."""
        with self._lock:
            over = self.held_bytes + size - self._room()
            if over <= 0:
                return True
            idle = [each for each in self._answers.values() if not each.users]
            if sum(each.size for each in idle) < over:
                return False  # nothing is given up where that would not do
            for shared in idle:
                self._drop(shared)
                over -= shared.size
                if over <= 0:
                    break
            return True

    @property
    def in_use(self) -> bool:
        """Whether a delivery uses any."""
        return bool(self._used)

    def forget(self, token: str) -> None:
        """Drop what is here of one array: something of it is damaged, or no longer wanted."""
        with self._lock:
            for shared in [each for each in self._answers.values() if each.key[0] == token]:
                self._drop(shared)

    def clear_idle(self) -> None:
        """Drop all that nobody uses."""
        with self._lock:
            for shared in [each for each in self._answers.values() if not each.users]:
                self._drop(shared)

    def __len__(self) -> int:
        return len(self._answers)

    def _drop(self, shared: _Shared) -> None:
        if self._answers.get(shared.key) is shared:
            del self._answers[shared.key]
            self.held_bytes -= shared.size

    def _arrived(self, shared: _Shared, done: asyncio.Future[Answer]) -> None:
        with self._lock:
            if done.cancelled() or done.exception() is not None or done.result() is None:
                self._drop(shared)  # the next one asks again
            elif self._answers.get(shared.key) is shared:
                size = memoryview(done.result() or b"").nbytes
                self.held_bytes += size - shared.size
                shared.size = size


def _good(shared: _Shared) -> bool:
    return not shared.task.cancelled() and shared.task.exception() is None
