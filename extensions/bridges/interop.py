"""Chains in loaders of others: as data sets of torch's, as nodes of ``torchdata.nodes``."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info
from torchdata.nodes import BaseNode

from ...batching.job import Failure
from ...core.errors import TooManyFailures
from ...core.validate import validate_int
from ...dataloader2.compiler import AdapterLike, adapter_list, check_epoch
from ...dataloader2.dataloader2 import DataLoader2
from ...datapipes import DataPipe
from ...graph import Pipe, clone, verify
from ...reading_services import ReadingService
from ...reading_services.planner import DeliveredBatches
from ...reading_services.replica import MAX_SEED


@dataclass(frozen=True)
class _WorkerPosition(DeliveredBatches):
    """Where one worker of a loader of torch's is: of each ``workers`` batches one is its own."""

    worker: int = 0
    workers: int = 1

    def after(self, index: int, step: int = 1) -> DeliveredBatches:
        return replace(self, next=index + 1)

    def holds(self, index: int) -> bool:
        return index < self.next or index % self.workers != self.worker

    def leave_out(self, failures: Sequence[Failure]) -> None:
        # Cases that cannot be planned are reported after the last batch: then no turn is lost.
        errors = [failure for failure in failures if failure.item >= 0]
        if self.workers == 1 or not errors:
            return
        first = "\n".join(map(str, errors[:1]))
        msg = f"no item of batch {errors[0].batch} could be made, and {self.workers} workers of "
        msg += "torch's loader are taken in turn: without it the batches after it would change "
        do = "Mend the file, give larger batches, or use DataLoader2 or num_workers=0, which "
        raise TooManyFailures(f"{msg}places\n{first}", do=f"{do}leave such a batch out.")


class ResumableDataset(IterableDataset[Any]):
    """A chain as a data set for ``torch.utils.data.DataLoader(..., batch_size=None)``.

    For torchdata's ``StatefulDataLoader``, which saves and resumes states in the middle of an
    epoch. Without this class it does not know a shuffle, and resumes with other items. Each worker
    makes its share of the batches; together they come in the order of the plan. A state requires
    the same number of workers, unlike those of :class:`DataLoader2`.

    Parameters
    ----------
    datapipe
        The last pipe of a chain that makes batches.
    datapipe_adapter_fn
        One adapter or several.
    seed
        Seed of the run. Without one torch's generator gives one: in this process once, in workers
        for each epoch. With one, set the epoch of workers by :meth:`ResumableDataset.set_epoch`.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> chain = IterableWrapper(range(6)).shuffle()
    >>> items = iter(to_dataset(chain, seed=7))
    >>> seen = [next(items) for _ in range(2)]
    >>> state, rest = items.state_dict(), list(items)
    >>> again = iter(to_dataset(chain))
    >>> again.load_state_dict(state)
    >>> list(again) == rest
    True
    """

    def __init__(
        self,
        datapipe: Pipe,
        datapipe_adapter_fn: AdapterLike | Iterable[AdapterLike] | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self._datapipe = clone(verify(datapipe))
        self._adapters = adapter_list(datapipe_adapter_fn)
        self._seed = None if seed is None else validate_int("seed", seed, least=0, below=MAX_SEED)
        self._epoch = self._calls = 0
        self._is_in_worker = False
        last_call: Any = torch.zeros(2, dtype=torch.int64, device="cpu")
        self._last_call = last_call.share_memory_()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._last_call.share_memory_()  # a deep copy is not shared

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of ``epoch``, here and in workers, also those that stay.

        Call it before ``iter(loader)``: a worker that stays reads the epoch when it begins, perhaps
        after ``iter(loader)`` has returned.
        """
        self._epoch, self._calls = check_epoch(epoch), self._calls + 1
        self._last_call[:] = torch.tensor([self._epoch, self._calls], device="cpu")

    def __iter__(self) -> ResumableIterator:
        info = get_worker_info()
        # The first epoch of a worker is that of its start: set_epoch() may have another by now.
        if self._is_in_worker and self._last_call[1] != self._calls:
            self._epoch, self._calls = self._last_call.tolist()
        self._is_in_worker = info is not None
        seed = self._seed
        if seed is None and info is not None:
            seed = info.seed - info.id  # torch's draw for this epoch; the same in all workers
        loader = DataLoader2(self._datapipe, self._adapters, seed=seed)
        loader._is_inner = True
        loader.set_epoch(self._epoch)
        if info is None:
            self._seed = loader.state_dict()["seed"]
        share = (0, 1) if info is None else (info.id, info.num_workers)
        return ResumableIterator(self, loader, share)


to_dataset = ResumableDataset


class ResumableIterator(Iterator[Any]):
    """One epoch of a data set, or one worker's share of it."""

    def __init__(
        self, dataset: ResumableDataset, loader: DataLoader2, share: tuple[int, int]
    ) -> None:
        self._dataset = dataset
        self._loader = loader
        self._share = share
        self._batches: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._batches is None:
            loader, (worker, workers) = self._loader, self._share
            here = loader._position
            share = _WorkerPosition(here.cursor.next, (), worker, workers)
            loader._seek(replace(here, cursor=share))
            self._dataset._epoch = here.epoch + 1
            self._batches = iter(loader)
        return next(self._batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the epoch, as plain data."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state`` was taken; BadState or StateMismatch if that cannot be."""
        self._loader.load_state_dict(state)
        self._dataset._seed = self._loader.state_dict()["seed"]
        self._batches = None


class PipeNode(BaseNode[Any]):  # type: ignore[misc]  # torchdata ships no types
    """A node that yields the items of a chain; made by :func:`to_node`."""

    def __init__(self, loader: DataLoader2) -> None:
        super().__init__()
        self.loader = loader
        loader._is_inner = True
        self._batches: Iterator[Any] | None = None
        # Nodes that make ahead ask from a thread of theirs, which may outlive them a little.
        self._turn = threading.Lock()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or go on where ``initial_state`` was taken."""
        super().reset(initial_state)
        with self._turn:
            if initial_state is not None:
                self.loader.load_state_dict(initial_state)
            self._batches = iter(self.loader)

    def next(self) -> Any:
        with self._turn:
            assert self._batches is not None  # reset() comes first
            return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Return the place in the epoch, as plain data."""
        with self._turn:
            return self.loader.state_dict()

    def shutdown(self) -> None:
        """Stop the workers and threads of the loader, after the current item."""
        with self._turn:
            self.loader.shutdown()


def to_node(
    datapipe: Pipe,
    datapipe_adapter_fn: AdapterLike | Iterable[AdapterLike] | None = None,
    reading_service: ReadingService | None = None,
    *,
    seed: int | None = None,
) -> PipeNode:
    """Return a chain as a source of ``torchdata.nodes``.

    Its state is that of a :class:`DataLoader2`: a few numbers, exact in the middle of an epoch. The
    parameters are those of :class:`DataLoader2`.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> from torchdata.nodes import Batcher, Loader
    >>> loader = Loader(Batcher(to_node(IterableWrapper(range(5))), 2, drop_last=False))
    >>> list(loader)
    [[0, 1], [2, 3], [4]]
    """
    return PipeNode(DataLoader2(datapipe, datapipe_adapter_fn, reading_service, seed=seed))


class FromNode(DataPipe):
    """A node of ``torchdata.nodes`` as the source of a chain.

    Every pass resets the node. It stays in the process of the loader. After a resume its items are
    read again and dropped, because only the node could skip them. For a chain in the middle of
    nodes prefer :func:`to_node`, which has the node's own state.

    Examples
    --------
    >>> from torchdata.nodes import IterableWrapper
    >>> list(from_node(IterableWrapper([1, 2])).map(str))
    ['1', '2']
    """

    def __init__(self, node: BaseNode[Any]) -> None:
        super().__init__()
        if not isinstance(node, BaseNode):
            raise TypeError(f"a node of torchdata.nodes expected, got {type(node).__name__}")
        self.node = node

    def __iter__(self) -> Iterator[Any]:
        self.node.reset()
        yield from self.node

    def settings(self) -> Any:
        """Return the class of the node: its settings are its own."""
        return type(self.node).__name__


from_node = FromNode
