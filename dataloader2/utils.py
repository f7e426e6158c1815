"""Two functions that torchdata's workers call on a graph: at their start, before every epoch."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..core.errors import NotOffered
from ..graph import Pipe
from ..reading_services import WorkerInfo
from ..reading_services.replica import SeedGenerator, apply_shares
from .graph import set_graph_random_seed

__all__ = ["WorkerInfo", "process_init_fn", "process_reset_fn"]

# torchdata's file for it, as ``os.path`` leads to another module.
sys.modules[f"{__name__}.worker"] = sys.modules[__name__]


def process_init_fn(
    datapipe: Any,
    worker_info: WorkerInfo,
    custom_init_fn: Callable[[Any, WorkerInfo], Any] | None = None,
    worker_prefetch_cnt: int = 0,
    dispatching_req_queue: None = None,
    dispatching_res_queue: None = None,
) -> Any:
    """Return the graph of one worker: its share, changed by a function, with items made ahead.

    ``datapipe`` is changed in place; ``custom_init_fn(pipe, worker_info)`` returns the pipe that
    goes on. Queues of a dispatching process are not offered.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(process_init_fn(IterableWrapper(range(5)).sharding_filter(), WorkerInfo(2, 1)))
    [1, 3]
    """
    if dispatching_req_queue is not None or dispatching_res_queue is not None:
        raise NotOffered(
            "a worker does not ask a dispatching process through queues that it is given",
            do="Use .sharding_round_robin_dispatch() with MultiProcessingReadingService.",
        )
    pipe: Any = datapipe
    apply_shares(pipe, workers=worker_info.num_workers, worker=worker_info.worker_id)
    if custom_init_fn is not None:
        pipe = custom_init_fn(pipe, worker_info)
    return pipe.prefetch(worker_prefetch_cnt) if worker_prefetch_cnt else pipe


def process_reset_fn(
    datapipe: Pipe | Any,
    worker_info: WorkerInfo,
    seed_generator: SeedGenerator,
    distributed_shared_seed: bool = False,
    iter_reset_fn: Callable[[Any], Any] | None = None,
    custom_reset_fn: Callable[[Any, WorkerInfo, SeedGenerator], Any] | None = None,
) -> Any:
    """Return the graph of one worker for an epoch, its random pipes seeded in place.

    So are the global generators of ``random``, torch and NumPy: with ``distributed_shared_seed``
    alike in all workers. ``iter_reset_fn(pipe)`` and ``custom_reset_fn(pipe, worker_info,
    seed_generator)`` return the pipe that goes on.
    """
    own = seed_generator.generate_seed
    draw = seed_generator.generate_shared_seed if distributed_shared_seed else own
    random.seed(draw())
    torch.manual_seed(draw())
    np.random.seed(draw() % 2**32)  # NumPy's global generator takes 32 bits
    pipe = set_graph_random_seed(datapipe, seed_generator)
    if iter_reset_fn is not None:
        pipe = iter_reset_fn(pipe)
    if custom_reset_fn is not None:
        pipe = custom_reset_fn(pipe, worker_info, seed_generator)
    return pipe
