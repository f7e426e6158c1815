"""Map-style pipes behind queues."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data import MapDataPipe

from ..worker import process_reset_fn
from . import messages as m
from .iter import (
    ANSWER_TIMEOUT,
    NotAvailable,
    default_not_available_hook,
    in_time,
    until_available,
)
from .protocol import EmptyQueue, MapDataPipeQueueProtocolClient, MapDataPipeQueueProtocolServer
from .serving import Alone, Server

__all__ = [
    "DataPipeBehindQueues",
    "EnsureNonBlockingMapDataPipe",
    "NonBlockingMap",
    "NotAvailable",
    "QueueWrapperForMap",
    "default_not_available_hook",
]


class NonBlockingMap(MapDataPipe[Any]):
    """A map-style pipe that can be asked without waiting."""

    not_available_hook: ClassVar[Any] = staticmethod(default_not_available_hook)

    def __getitem__(self, index: Any) -> Any:
        return until_available(lambda: self.nonblocking_getitem(index), NonBlockingMap)

    def __len__(self) -> int:
        return int(until_available(self.nonblocking_len, NonBlockingMap))

    def nonblocking_len(self) -> int:
        """Return the length, or raise ``NotAvailable``."""
        raise NotImplementedError(f"{type(self).__name__} has no nonblocking_len")

    def nonblocking_getitem(self, index: Any) -> Any:
        """Return an item, or raise ``NotAvailable`` or ``IndexError``."""
        raise NotImplementedError(f"{type(self).__name__} has no nonblocking_getitem")

    @staticmethod
    def register_not_available_hook(hook_function: Any) -> None:
        """Call this, or nothing if None, before a pipe is asked again."""
        NonBlockingMap.not_available_hook = (
            None if hook_function is None else staticmethod(hook_function)
        )


def EnsureNonBlockingMapDataPipe(validated_datapipe: Any) -> Any:  # noqa: N802  torchdata's name
    """Return the pipe itself, with the two methods that do not wait if it has none."""
    if not isinstance(validated_datapipe, MapDataPipe):
        msg = f"a map-style datapipe expected, got {type(validated_datapipe).__name__}"
        raise TypeError(msg)
    pipe: Any = validated_datapipe
    if not hasattr(pipe, "nonblocking_len"):
        pipe.nonblocking_len = types.MethodType(len, pipe)
    if not hasattr(pipe, "nonblocking_getitem"):
        pipe.nonblocking_getitem = types.MethodType(_item_of, pipe)
    return pipe


def _item_of(pipe: Any, index: Any) -> Any:
    return pipe[index]


def DataPipeBehindQueues(  # noqa: N802  torchdata's name
    source_datapipe: Any,
    protocol: Any,
    process_name: str,
    loop_id: int,
    worker_info: Any,
    custom_reset_fn: Any,
    blocking_request_get: bool = False,
    request_counter: Alone | None = None,
) -> Iterator[bool]:
    """Answer requests for items by key until ``TerminateRequest``; yield after each.

    The parameters are those of the function of this name for iterable pipes.
    """
    if not isinstance(protocol, MapDataPipeQueueProtocolServer):
        msg = f"a MapDataPipeQueueProtocolServer expected, got {type(protocol).__name__}"
        raise TypeError(msg)
    server = _KeyServer(
        EnsureNonBlockingMapDataPipe(source_datapipe),
        protocol,
        (process_name, loop_id),
        request_counter,
        (worker_info, custom_reset_fn),
    )
    return server.serve(blocking_request_get)


class _KeyServer(Server):
    """Answers for a map-style pipe."""

    def answers(self) -> dict[type[m.Request], Any]:
        return {
            m.GetItemRequest: self._item,
            m.LenRequest: self._len,
            m.ResetEpochRequest: self._reset,
        }

    def _item(self, request: m.GetItemRequest) -> None:
        try:
            with self.together.lock:
                value = until_available(
                    lambda: self.pipe.nonblocking_getitem(request.key), NonBlockingMap
                )
        except IndexError:
            self.protocol.response_index_out_of_bound()
        else:
            self.protocol.response_item(request.key, value)

    def _len(self, request: m.LenRequest) -> None:
        length = until_available(self.pipe.nonblocking_len, NonBlockingMap)
        self.protocol.response_len(length)

    def _reset(self, request: m.ResetEpochRequest) -> None:
        info, custom = self.of_worker
        seeds, change = request.seed_generator, request.iter_reset_fn
        pipe = process_reset_fn(self.pipe, info, seeds, False, change, custom)
        self.pipe = EnsureNonBlockingMapDataPipe(pipe)
        self.protocol.response_reset_epoch()


class QueueWrapperForMap(NonBlockingMap):
    """The pipe behind the queues, seen from the other side.

    Parameters
    ----------
    protocol
        The queues, as a protocol's client.
    response_wait_time
        Seconds that the methods that do not wait wait for a response.
    timeout
        Seconds that an item or the length may take.

    Raises
    ------
    ItemTimeout
        From ``pipe[key]`` and ``len(pipe)``, when they are over.
    """

    def __init__(
        self,
        protocol: Any,
        response_wait_time: float = 0.0,
        timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        if not isinstance(protocol, MapDataPipeQueueProtocolClient):
            msg = f"a MapDataPipeQueueProtocolClient expected, got {type(protocol).__name__}"
            raise TypeError(msg)
        self.protocol = protocol
        self._wait = response_wait_time
        self._timeout = timeout

    def __getitem__(self, index: Any) -> Any:
        return in_time(lambda: self._item(index, True, self._timeout))

    def __len__(self) -> int:
        return int(in_time(lambda: self._length(True, self._timeout)))

    def nonblocking_getitem(self, index: Any) -> Any:
        """Return an item if it is there within ``response_wait_time``."""
        try:
            return self._item(index, self._wait > 0, self._wait or None)
        except EmptyQueue:
            raise NotAvailable from None

    def nonblocking_len(self) -> int:
        """Return the length if it is there within ``response_wait_time``."""
        try:
            return self._length(self._wait > 0, self._wait or None)
        except EmptyQueue:
            raise NotAvailable from None

    def _item(self, index: Any, block: bool, timeout: float | None) -> Any:
        if self.protocol.can_take_request():
            self.protocol.request_item(index)
        response = self.protocol.get_response_item(block=block, timeout=timeout)
        if isinstance(response, m.StopIterationResponse):
            raise IndexError(f"there is no item {index!r}")
        return response.value

    def _length(self, block: bool, timeout: float | None) -> int:
        if self.protocol.can_take_request():
            self.protocol.request_len()
        return int(self.protocol.get_response_len(block=block, timeout=timeout).len)
