"""Pipes that run in the loader's own process: copies to devices, and ranks that end together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from ...batching.job import Instruction
from ...core.errors import PrefetchTimeoutError
from ...datapipes.background_iterator import Exhausted, Prefetcher, RunningAhead
from ...datapipes.datapipe import MainProcess, SameLength, locate_errors
from ...datapipes.rank_barrier import RankBarrier
from ...datapipes.tensors import BUFFER_BYTES, map_tensors, need_cuda, parse_device
from ...graph import Pipe, Traits

_BUFFER_SIZE = 2  # one that is in use, one that is being copied


def pin_memory_fn(data: Any, device: Any = None) -> Any:
    """Return ``data`` with the tensors in it in page-locked memory.

    A class of your own can have a method ``pin_memory(device)``.
    """
    if hasattr(data, "pin_memory"):
        return data.pin_memory(device)
    return map_tensors(data, lambda tensor: tensor.pin_memory())


class PinMemory(MainProcess, Prefetcher, form="pin_memory"):
    """Copy the tensors of each item into page-locked memory, in a thread, two items ahead.

    Batches of a ``DataLoader2`` with workers are in page-locked memory already, once CUDA has
    been initialised. This pipe is not replicable: a loader runs it in its own process.

    ``pin_memory_fn(item, device)`` copies an item; the default goes into mappings, lists and
    tuples. The default of ``device`` is the current CUDA device; without CUDA the construction
    raises ``NoDevice``, a ``RuntimeError``. Items made ahead take at most ``buffer_bytes``.
    """

    def __init__(
        self,
        source_datapipe: Pipe,
        device: Any = None,
        pin_memory_fn: Callable[..., Any] = pin_memory_fn,
        *,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        super().__init__(source_datapipe, _BUFFER_SIZE, buffer_bytes=buffer_bytes)
        with locate_errors(self):
            need_cuda("pin_memory")
        self.device = torch.cuda.current_device() if device is None else device
        self.pin_memory_fn = pin_memory_fn

    def change(self) -> Callable[[Any], Any]:
        return lambda item: self.pin_memory_fn(item, self.device)

    def instructions(self) -> tuple[Instruction, ...] | None:
        return None  # it has to be run


class ToDevice(MainProcess, SameLength, form="to_device"):
    """Move every tensor of an item to a device; other values stay.

    This pipe is not replicable: a loader runs it in its own process, after its workers. A device
    is as torch takes it (``"cuda"``, ``"cuda:1"``, ``torch.device("cpu")``). One that is not there
    raises ``NoDevice``, a ``RuntimeError``, at construction. ``non_blocking`` goes on while tensors
    in page-locked memory are copied.

    Examples
    --------
    >>> import torch
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper([{"image": torch.ones(2), "case": "a"}]).to_device("cpu")
    >>> list(pipe)
    [{'image': tensor([1., 1.]), 'case': 'a'}]
    """

    def __init__(self, source_datapipe: Pipe, device: Any, *, non_blocking: bool = True) -> None:
        super().__init__(source_datapipe)
        self.non_blocking = non_blocking
        with locate_errors(self):
            self.device = parse_device("to_device", device)
            if self.device.type == "cuda":
                need_cuda("to_device", self.device)

    def __iter__(self) -> Iterator[Any]:
        for item in self.parent:
            yield map_tensors(item, lambda one: one.to(self.device, non_blocking=self.non_blocking))


TIMEOUT = 1800.0  # seconds that a rank may take for an item by default: half an hour
# Messages of a rank to the others before each item.
_ITEM, _END = 1, 2


class FullSync(MainProcess, RunningAhead, SameLength, form="fullsync"):
    """Yield items as long as every rank of ``torch.distributed`` has one.

    Without it a rank whose share is longer waits for ever for the others in its next collective.

    Before each item the ranks agree over gloo whether all have one. A thread makes one item ahead
    in each rank. One rank alone sends no message. This pipe is not replicable: a loader runs it
    in its own process, after its workers.

    Parameters
    ----------
    datapipe
        The parent: this rank's share.
    timeout
        Seconds that any rank may take for an item.

    Raises
    ------
    PrefetchTimeoutError
        While iterating, on every rank: one took too long for an item; the message names it.
    RankFailed
        While iterating: another rank failed; the message names it and its error.
    RankMissing
        While iterating: another rank left its loop, is gone, or does not answer.
    """

    running = ("_ahead", "_barrier")
    _barrier: RankBarrier | None

    def __init__(self, datapipe: Pipe, timeout: float = TIMEOUT) -> None:
        super().__init__(datapipe)
        if not timeout > 0:
            raise ValueError(f"timeout is a number of seconds above 0, got {timeout}")
        if not dist.is_available():
            raise RuntimeError("Torch Distributed is required to be available")
        self.timeout = timeout
        self.fresh()

    def fresh(self) -> None:
        self._ahead = self._barrier = None

    def __iter__(self) -> Iterator[Any]:
        if not dist.is_initialized():
            msg = "Torch Distributed is required to be initialized to use `FullSync`: call "
            raise RuntimeError(msg + "torch.distributed.init_process_group() first")
        if dist.get_world_size() == 1:
            yield from self.parent
            return
        if self._barrier is None or not self._barrier.is_open:
            # A rank that is late says so after ``timeout``: the others have to be still there.
            do = "See the log of that rank, or give fullsync() a longer timeout=."
            self._barrier = RankBarrier(2 * self.timeout, do=do)
        barrier = self._barrier
        # One item, of any size: a rank that waits for another has the next one ready.
        with self.make_ahead(most=1, most_bytes=BUFFER_BYTES) as ahead:
            try:
                while True:
                    item, message = None, _ITEM
                    try:
                        item = ahead.take(self.timeout)
                    except Exhausted:
                        message = _END
                    if _END in barrier.tell(message):
                        return
                    yield item
            except BaseException as error:  # the loop's as well, if it goes elsewhere
                if isinstance(error, PrefetchTimeoutError):
                    ahead.abandon()
                barrier.part(error)
                raise

    def shutdown(self) -> None:
        """End the thread and leave the other ranks; any number of times."""
        super().shutdown()
        barrier, self._barrier = self._barrier, None
        if barrier is not None:
            barrier.close()


class ShardingRoundRobinDispatcher(SameLength, form="sharding_round_robin_dispatch"):
    """Mark that everything above runs in one process, which deals its items out to the workers.

    By itself it passes the items on. A reading service with workers runs the pipes before it once,
    in the process of the loader, and the pipes after it in the workers. Several such pipes in
    merging branches act as one, where the branches merge. ``sharding_group_filter`` must be
    ``SHARDING_PRIORITIES.MULTIPROCESSING``.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> once = IterableWrapper(range(3))
    >>> list(once.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING))
    [0, 1, 2]
    """

    traits: ClassVar[Traits] = Traits(dispatches=True)

    def __init__(
        self, source_datapipe: Pipe, sharding_group_filter: SHARDING_PRIORITIES | None = None
    ) -> None:
        super().__init__(source_datapipe)
        if sharding_group_filter != SHARDING_PRIORITIES.MULTIPROCESSING:
            msg = "`sharding_round_robin_dispatch` currently only supports "
            msg += f"`SHARDING_PRIORITIES.MULTIPROCESSING`, got {sharding_group_filter}"
            raise NotImplementedError(msg)
        self.sharding_group_filter = sharding_group_filter

    def __iter__(self) -> Iterator[Any]:
        yield from self.parent
