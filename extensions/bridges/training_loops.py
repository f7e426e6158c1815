"""Lightning's data module of chains, and epochs whose end Accelerate sees."""

from __future__ import annotations

import functools
import importlib
import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import FrameType, new_class
from typing import Any

from ...adapters import Adapter
from ...batching.job import BatchResult
from ...core.validate import validate_int
from ...dataloader2.compiler import adapter_list
from ...dataloader2.dataloader2 import DataLoader2
from ...dataloader2.iterator import RunningEpoch
from ...graph import Pipe, is_pipe
from ...reading_services import (
    DistributedReadingService,
    InProcessReadingService,
    ReadingService,
    SequentialReadingService,
)
from ...reading_services.reading_service import leave
from ...reading_services.replica import MAX_SEED

# Both are one library, published twice: classes of one are none of the other.
_LIBRARIES = ("lightning.pytorch", "pytorch_lightning")
_STAGES = ("train", "val", "test", "predict")
# Functions of Lightning between its trainer and ``sampler.set_epoch()`` of a loader.
_MOST_FRAMES = 4


def repeated_batches(frame: FrameType | None) -> float:
    """Return the batches of the epoch that a trainer with ``overfit_batches`` repeats, or 0."""
    # Lightning replaces only the sampler of torch's loaders, and notifies no other loader.
    for _ in range(_MOST_FRAMES):
        if frame is None:
            break
        with suppress(RuntimeError):  # a module without a trainer raises it
            space = frame.f_locals
            trainer: Any = space.get("trainer") or getattr(space.get("self"), "trainer", None)
            if getattr(trainer, "overfit_batches", 0):
                return float(trainer.num_training_batches)
        frame = frame.f_back
    return 0


def in_gradient_state(running: RunningEpoch) -> RunningEpoch:
    """Return an epoch in Accelerate's ``GradientState``; the same one without an Accelerator."""
    state: Any = importlib.import_module("accelerate.state")
    if not state.is_initialized():
        return running
    return replace(running, batches=AcceleratedEpoch(running, state.GradientState))


class AcceleratedEpoch(Iterator[Any]):
    """Batches read one ahead, as in Accelerate's own loaders, so that the last is known as such.

    ``accumulate()`` and ``gather_for_metrics()`` read ``end_of_dataloader`` and ``remainder`` of
    the innermost loop.
    """

    end_of_dataloader = False

    def __init__(self, running: RunningEpoch, state: type[Any]) -> None:
        self.last = -1
        self._running, self._batches = running, running.batches
        self._coming: deque[tuple[int, Any]] = deque()  # at most two that are not empty
        self._error: Exception | None = None
        self._is_over = self._has_failures = False
        self._state = state
        state().dataloader_references += [self]  # the state keeps a weak reference

    @property
    def remainder(self) -> int:
        """Items of the last batch of all ranks before its fill; 0 without fill, -1 if unknown."""
        items = self._running.items_without_fill()
        if not items or not self.end_of_dataloader:
            return 0
        if items > 0 and not self._has_failures:
            return items
        warnings.warn(
            "gather_for_metrics() keeps the items that fill the last batch of all ranks, as their "
            'number is unknown. Give DistributedReadingService(uneven="drop"), or a chain that is '
            "planned and ends with batches, without OnError.",
            stacklevel=4,  # the call of gather_for_metrics()
        )
        return -1

    def __next__(self) -> Any:
        while self._error is None and not self._is_over and self._full() < 2:
            try:
                batch = next(self._batches)
            except StopIteration:
                self._is_over = True
            except Exception as error:  # raised after the batch before it
                self._error = error
            else:
                self._coming.append((self._batches.last, batch))
        if not self._coming:
            raise self._error or StopIteration
        self.last, batch = self._coming.popleft()
        if self._is_over and not self._full() and not self.end_of_dataloader:
            self.end_of_dataloader = True
            if isinstance(batch, BatchResult):
                missing = (failure.item >= 0 for failure in batch.failures)
                self._has_failures = bool(batch.elsewhere) or any(missing)
        return batch

    def _full(self) -> int:
        every = (batch for _, batch in self._coming)
        return sum(not (isinstance(each, BatchResult) and each.is_empty) for each in every)

    def leave(self) -> None:
        """End the wait for a batch in another thread."""
        leave(self._batches)

    def close(self) -> None:
        """End the epoch; the loop around it is the innermost again."""
        state = self._state()
        state.dataloader_references = [e for e in state.dataloader_references if e is not self]
        self._coming.clear()
        self._error = None
        self._batches.close()


class VoxpipeDataModule:
    """A ``LightningDataModule`` of chains, one for each stage that there is.

    Lightning keeps the state of the loader in its checkpoints. ``fit(..., ckpt_path=...)`` resumes
    in the middle of an epoch with the batches of an uninterrupted run, under any number of workers.
    Each of several ranks gets its part of every batch of the chain. Loaders are closed when a
    stage ends.

    It is a data module of ``lightning`` or ``pytorch_lightning``, whichever is imported when it is
    made. Derive to change ``train_dataloader()`` and the like.

    Parameters
    ----------
    train, val, test, predict
        The last pipe of a chain each, which ends in batches; by default no such stage. ``val``,
        ``test`` and ``predict`` may be lists of several.
    adapters
        As of ``DataLoader2``.
    reading_service
        As of ``DataLoader2``, for each loader. On several ranks it follows a
        ``DistributedReadingService`` unless it divides among ranks itself. For training, that
        service drops a last batch that ranks cannot share. Otherwise it repeats the last item, as
        Lightning's sampler does.
    seed
        As of ``DataLoader2``.

    Raises
    ------
    ModuleNotFoundError
        Neither ``lightning`` nor ``pytorch_lightning`` is installed.
    TypeError
        A stage is no chain.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return an instance of a class that derives from Lightning's, too."""
        kind: Any = cls
        return object.__new__(_with_lightning(kind, _bases()))

    def __init__(
        self,
        train: Pipe | None = None,
        val: Any = None,
        *,
        test: Any = None,
        predict: Any = None,
        adapters: Adapter | Iterable[Adapter] | None = None,
        reading_service: ReadingService | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        chains = (train, val, test, predict)
        self.chains: Mapping[str, Any] = dict(zip(_STAGES, chains, strict=True))
        for stage, chain in self.chains.items():
            several = isinstance(chain, (list, tuple)) and stage != "train"
            if chain is not None and not all(map(is_pipe, chain if several else [chain])):
                msg = f"{stage} of VoxpipeDataModule is the last pipe of a chain"
                raise TypeError(f"{msg}, got {type(chain).__name__}")
        self.adapters = adapter_list(adapters)
        self.reading_service = reading_service
        self.seed = seed if seed is None else validate_int("seed", seed, least=0, below=MAX_SEED)
        self._loaders: dict[str, list[DataLoader2]] = {}
        self._leave_out_stages()

    def __reduce__(self) -> tuple[Any, ...]:
        # Loaders stay; Lightning's class may be another one where it is unpickled.
        own = ("_loaders", "trainer", *(f"{stage}_dataloader" for stage in _STAGES))
        state = {k: v for k, v in vars(self).items() if k not in own}
        return _restore, (type(self).__mro__[1], state)

    def train_dataloader(self) -> Any:
        """Return the loader of ``train``."""
        return self._loader("train")

    def val_dataloader(self) -> Any:
        """Return the loader of ``val``, or a list of them."""
        return self._loader("val")

    def test_dataloader(self) -> Any:
        """Return the loader of ``test``, or a list of them."""
        return self._loader("test")

    def predict_dataloader(self) -> Any:
        """Return the loader of ``predict``, or a list of them."""
        return self._loader("predict")

    def teardown(self, stage: str) -> None:
        """Close the loaders of a stage of Lightning's: fit, validate, test or predict."""
        self._close(*{"fit": ("train", "val"), "validate": ("val",)}.get(stage, (stage,)))

    def on_exception(self, exception: BaseException) -> None:
        """Close all loaders."""
        self._close(*_STAGES)

    def _leave_out_stages(self) -> None:
        """Show Lightning no loader for a stage without a chain: it warns of an empty list."""
        for stage in _STAGES:
            hook = f"{stage}_dataloader"
            is_ours = getattr(type(self), hook) is getattr(VoxpipeDataModule, hook)
            if is_ours and self.chains[stage] is None:
                # It compares the code of a method with that of its own class.
                vars(self)[hook] = getattr(super(), hook)

    def _loader(self, stage: str) -> Any:
        chain = self.chains[stage]
        self._close(stage)
        several = isinstance(chain, (list, tuple))
        loaders = self._loaders[stage] = [
            DataLoader2(one, self.adapters, self._service(stage), seed=self.seed)
            for one in (chain if several else [chain])
        ]
        return loaders if several else loaders[0]

    def _close(self, *stages: str) -> None:
        for loader in (one for stage in stages for one in self._loaders.pop(stage, ())):
            loader.shutdown()

    def _service(self, stage: str) -> ReadingService | None:
        """Return the service, after one that gives each of several ranks its part."""
        service = self.reading_service
        trainer: Any = vars(self).get("trainer")
        first = getattr(service, "services", (service,))[0]
        if getattr(trainer, "world_size", 1) == 1 or isinstance(first, DistributedReadingService):
            return service
        ranks = DistributedReadingService(uneven="drop" if stage == "train" else "pad")
        return SequentialReadingService(ranks, service or InProcessReadingService())


def _bases() -> tuple[type, ...]:
    """Return the data modules of the libraries that are imported, or of the first that is there."""
    modules = [sys.modules[name] for name in _LIBRARIES if name in sys.modules]
    for name in () if modules else _LIBRARIES:
        with suppress(ModuleNotFoundError):
            modules = [importlib.import_module(name)]
            break
    if not modules:
        msg = "VoxpipeDataModule is a data module of Lightning: pip install lightning"
        raise ModuleNotFoundError(msg)
    return tuple(module.LightningDataModule for module in modules)


@functools.cache
def _with_lightning(kind: Any, bases: tuple[type, ...]) -> Any:
    home = {"__module__": kind.__module__}
    return new_class(kind.__name__, (kind, *bases), {}, lambda body: body.update(home))


def _restore(kind: Any, state: Mapping[str, Any]) -> Any:
    module = kind.__new__(kind)
    vars(module).update(state, _loaders={})
    module._leave_out_stages()
    return module
