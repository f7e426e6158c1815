"""Threads and processes that answer for pipes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from . import iter as of_items
from . import map as of_keys
from .protocol import IterDataPipeQueueProtocolServer, MapDataPipeQueueProtocolServer
from .queue import ProcessQueue
from .serving import Alone, Together

__all__ = [
    "CreateProcessForDataPipeline",
    "CreateProcessForMultipleDataPipelines",
    "DataPipeToQueuesLoop",
    "MultipleDataPipesToQueuesLoop",
]


def DataPipeToQueuesLoop(  # noqa: N802  torchdata's name
    source_datapipe: Any,
    req_queue: Any,
    res_queue: Any,
    process_name: str,
    worker_info: Any,
    call_on_process_init: Any = None,
    custom_reset_fn: Any = None,
) -> None:
    """Answer for one pipe until the client terminates; what a worker process runs.

    Parameters
    ----------
    source_datapipe
        Iterable or map-style.
    req_queue, res_queue
        Requests come from the one, responses go to the other; any with ``put`` and ``get``.
    process_name
        Where errors say that they come from.
    worker_info
        Which worker of how many this is.
    call_on_process_init
        ``f(pipe)`` returns the pipe to answer for; or None.
    custom_reset_fn
        ``f(pipe, worker_info, seed_generator)`` returns the pipe of an epoch; or None.
    """
    torch.set_num_threads(1)
    pipe, error = source_datapipe, None
    if call_on_process_init is not None:
        try:
            pipe = call_on_process_init(pipe)
        except Exception as raised:
            error = raised
    if error is not None:
        # The client learns of it with its first request.
        pipe = _Failing(error)
    loop_id = worker_info.worker_id
    _serve(pipe, req_queue, res_queue, process_name, loop_id, worker_info, custom_reset_fn)


class _Failing(IterDataPipe[Any]):
    """Raises what preparing the pipe raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        raise self.error

    def reset_iterator(self) -> None:
        raise self.error

    def nonblocking_next(self) -> Any:
        raise self.error


def MultipleDataPipesToQueuesLoop(  # noqa: N802  torchdata's name
    source_datapipes: Sequence[Any],
    req_queues: Sequence[Any],
    res_queues: Sequence[Any],
    process_name: str,
    worker_info: Any,
    call_on_process_init: None = None,
    custom_reset_fn: Any = None,
) -> None:
    """Answer for several pipes that belong together (branches of a demux), each in a thread.

    One of them is used at a time. Reset, pause and resume are done once, when all clients have
    asked; a failed epoch of one leaves the others.
    """
    if call_on_process_init is not None:
        raise ValueError("several pipes share one process: prepare them before they are sent")
    if not len(source_datapipes) == len(req_queues) == len(res_queues):
        counts = (len(source_datapipes), len(req_queues), len(res_queues))
        raise ValueError(f"as many pipes as queues of both kinds expected, got {counts}")
    torch.set_num_threads(1)
    together = Together(len(source_datapipes))
    pairs = zip(source_datapipes, req_queues, res_queues, strict=True)
    threads = [
        threading.Thread(
            target=_serve,
            args=(*pair, process_name, number, worker_info, custom_reset_fn, together),
            name=f"{process_name}-{number}",
        )
        for number, pair in enumerate(pairs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def CreateProcessForDataPipeline(  # noqa: N802  torchdata's name
    multiprocessing_ctx: Any,
    datapipe: Any,
    process_name: str,
    worker_info: Any,
    call_on_process_init: Any = None,
    custom_reset_fn: Any = None,
) -> tuple[Any, ProcessQueue, ProcessQueue]:
    """Return a process, not yet started, that answers for a pipe, and its two queues."""
    asked, answered = ProcessQueue(multiprocessing_ctx), ProcessQueue(multiprocessing_ctx)
    hooks = (call_on_process_init, custom_reset_fn)
    process = multiprocessing_ctx.Process(
        target=DataPipeToQueuesLoop,
        args=(datapipe, asked, answered, process_name, worker_info, *hooks),
        name=process_name,
        daemon=True,
    )
    answered.process = process
    return process, asked, answered


def CreateProcessForMultipleDataPipelines(  # noqa: N802  torchdata's name
    multiprocessing_ctx: Any,
    datapipes: Sequence[Any],
    process_name: str,
    worker_info: Any,
    custom_reset_fn: Any = None,
) -> tuple[Any, list[ProcessQueue], list[ProcessQueue]]:
    """Return a process, not yet started, that answers for several pipes, and their queues."""
    asked = [ProcessQueue(multiprocessing_ctx) for _ in datapipes]
    answered = [ProcessQueue(multiprocessing_ctx) for _ in datapipes]
    process = multiprocessing_ctx.Process(
        target=MultipleDataPipesToQueuesLoop,
        args=(datapipes, asked, answered, process_name, worker_info, None, custom_reset_fn),
        name=process_name,
        daemon=True,
    )
    for queue in answered:
        queue.process = process
    return process, asked, answered


def _serve(
    pipe: Any,
    req_queue: Any,
    res_queue: Any,
    process_name: str,
    loop_id: int,
    worker_info: Any,
    custom_reset_fn: Any,
    together: Alone | None = None,
) -> None:
    if isinstance(pipe, IterDataPipe):
        items = IterDataPipeQueueProtocolServer(req_queue, res_queue)
        loop = of_items.DataPipeBehindQueues(
            pipe, items, process_name, loop_id, worker_info, custom_reset_fn, True, together
        )
    elif isinstance(pipe, MapDataPipe):
        keys = MapDataPipeQueueProtocolServer(req_queue, res_queue)
        loop = of_keys.DataPipeBehindQueues(
            pipe, keys, process_name, loop_id, worker_info, custom_reset_fn, True, together
        )
    else:
        raise TypeError(f"a datapipe expected, got {type(pipe).__name__}")
    for _ in loop:
        pass
