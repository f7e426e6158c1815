"""Actors that the ranks of a job share, and their manager."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import threading
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError

from ...adapters.timeout import ITEM_SECONDS
from ...reading_services.workers.worker import note_steps_in, prepare_process, serve
from .actor import Caller, FarLine, NearLine
from .shared_batches import LAST_HIT, STORE, SharingUnpickler

MANAGER = -1
"""The number with which a manager connects to a pool."""
NAMESPACE = "voxpipe"
_UNUSED_SECONDS = 3  # Then a manager ends.
# Seconds for one batch while other ranks wait; the usual limit of a rank for a batch.
_LONGEST_TURN = ITEM_SECONDS
STUCK_EXIT = 116
"""Exit status of an actor in which the batch of one rank holds up all others."""
_leave = os._exit


class _Turns:
    """A lock that threads get in the order in which they come.

    A turn of more than ``seconds`` for which others wait ends this process, and they get another.
    """

    def __init__(self, seconds: float = _LONGEST_TURN) -> None:
        self._turn = threading.Condition()
        self._next = self._now = 0
        self._seconds = seconds

    def __enter__(self) -> None:
        with self._turn:
            number, self._next = self._next, self._next + 1
            while self._now < number:
                now = self._now
                if not self._turn.wait_for(lambda: self._now > now, self._seconds):  # noqa: B023
                    _leave(STUCK_EXIT)

    def __exit__(self, *error: object) -> None:
        with self._turn:
            self._now += 1
            self._turn.notify_all()


_TURNS = _Turns()


class _InTurns:
    """A line whose batches are made in turns with those of other ranks."""

    memory: Any
    unpickler = SharingUnpickler

    @staticmethod
    def leave(code: int) -> None:
        """Stay, for the other ranks."""

    def share_notes(self) -> None:
        """Share the current step with the rank."""
        with _TURNS:
            super().share_notes()  # type: ignore[misc]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the turn of this rank, and note steps for it."""
        with _TURNS:
            note_steps_in(self.memory)
            yield

    def answer(self, message: bytes, carrier: Any) -> None:
        """Send an answer; a kept batch has the time of its making, from which paces follow."""
        if LAST_HIT.seconds:
            answer = pickle.loads(message)
            report = answer.report._replace(seconds=LAST_HIT.seconds)
            message = pickle.dumps(replace(answer, report=report))
        super().answer(message, carrier)  # type: ignore[misc]


class _NearLine(_InTurns, NearLine): ...


class _FarLine(_InTurns, FarLine): ...


class SharedActor:
    """A worker in a process of Ray that makes batches of several ranks, one of each in turn."""

    def __init__(self) -> None:
        self._catching: Any = None
        self._record: list[warnings.WarningMessage] = []

    async def serve(self, caller: Caller, number: int) -> None:
        """Serve the jobs of one rank, in a thread, until it closes the stream."""
        with ThreadPoolExecutor(1) as thread:
            await asyncio.wrap_future(thread.submit(self._serve, caller, number))

    def _serve(self, caller: Caller, number: int) -> None:
        channel, is_near, payload, settings = caller.join(number)
        with _TURNS:
            if self._catching is None:
                prepare_process(settings)
                self._catching = warnings.catch_warnings(record=True)
                self._record = self._catching.__enter__()
            STORE.most_bytes = max(STORE.most_bytes, caller.shared_bytes)
        serve(channel, payload, settings, self._record, _NearLine if is_near else _FarLine)


@dataclass
class _Place:
    """An actor, and the number of ranks that it serves."""

    actor: Any
    ranks: int = 0


class Manager:
    """Owner of the actors of one pool: they end with the last rank that uses them."""

    def __init__(self) -> None:
        self._places: dict[int, _Place] = {}
        self._ends: dict[bytes, asyncio.Future[None]] = {}
        threading.Thread(target=self._end_unused, daemon=True).start()

    async def serve(
        self, place: int, options: Mapping[str, Any], caller: Caller, number: int
    ) -> None:
        """Let the actor of a place serve a rank, and start the actor if it is not there."""
        if (end := self._ends.get(caller.key)) is None:
            end = self._ends[caller.key] = asyncio.ensure_future(self._end_of(caller))
        if (one := self._places.get(place)) is None:
            make: Any = ray.remote(SharedActor)
            one = self._places[place] = _Place(make.options(**options).remote())
        one.ranks += 1
        call = asyncio.ensure_future(one.actor.serve.remote(caller, number))
        try:
            await asyncio.wait([call, end], return_when=asyncio.FIRST_COMPLETED)
            for future in filter(asyncio.Future.done, (call, end)):
                future.result()
        except RayActorError:
            one.ranks = 1  # Others find the place free at once.
            raise
        finally:
            one.ranks -= 1
            if one.ranks <= 0 and self._places.get(place) is one:
                del self._places[place]
                ray.kill(one.actor)

    async def _end_of(self, caller: Caller) -> None:
        """Wait for the end of a rank, which may have been killed."""
        try:
            stream, _ = await asyncio.to_thread(caller.connect, MANAGER)
            over, loop = asyncio.Event(), asyncio.get_running_loop()
            loop.add_reader(stream.fileno(), over.set)
            await over.wait()
            loop.remove_reader(stream.fileno())
            stream.close()
        finally:
            del self._ends[caller.key]

    def _end_unused(self) -> None:
        seconds, pause = 0, threading.Event()
        while seconds < _UNUSED_SECONDS:
            pause.wait(1.0)
            seconds = 0 if self._ends else seconds + 1
        os._exit(0)


def manager_of(pool: str, node: Any) -> Any:
    """Return the manager of a pool, which the first rank starts on its node."""
    make: Any = ray.remote(Manager)
    return make.options(
        name=f"voxpipe-{pool}",
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        scheduling_strategy=node,
    ).remote()
