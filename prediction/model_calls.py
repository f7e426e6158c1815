"""Calls of a model on batches of windows: its device, its type, no gradients; several ranks."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from ..core.errors import GraphError, SampleError
from ..dataloader2 import DataLoader2
from ..reading_services.distributed import without_parts
from ..storage.content import behaviour_digest

Model = Callable[[torch.Tensor], Any]
# First spatial axis of a batch (B, C, I, J, K).
_FIRST_AXIS = 2
# A few windows of one channel: trims take a sixteenth of the time of a trim after each window.
_TRIM_BYTES = 128 * 1024**2
_ONE = "Leave head= out, and give one destination: it has one output."


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set a module to evaluation inside the ``with`` block, then restore the mode of each part."""
    parts = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    modes = [part.training for part in parts]
    if parts:
        model.eval()
    try:
        yield
    finally:
        for part, mode in zip(parts, modes, strict=True):
            part.training = mode


def first_tensor(model: Any) -> torch.Tensor | None:
    """Return a floating-point parameter or buffer, for its device and type; None without any."""
    if not isinstance(model, torch.nn.Module):
        return None
    every = itertools.chain(model.parameters(), model.buffers())
    return next((tensor for tensor in every if tensor.is_floating_point()), None)


def run_model(
    model: Model, batch: torch.Tensor, mirror: Sequence[int], *heads: int | str | None
) -> tuple[list[NDArray[np.float32]], bool]:
    """Return the model's outputs for a batch (B, C, I, J, K), as float32 in main memory.

    The second value is whether the model may keep that memory, and overwrite it in its next call.

    Parameters
    ----------
    model
        Returns a tensor (B, C, I, J, K), or several outputs.
    batch
        Windows of any type. The model gets them in its own type, else in float32.
    mirror
        Axes, 0 to 2. The result is the mean over all combinations of mirrored axes, each mirrored
        back. One axis has two of them, three axes have eight.
    heads
        Positions or keys of the wanted outputs. None for a single one, and for the finest of deep
        supervision.
    """
    like = first_tensor(model)
    device, dtype = (None, torch.float32) if like is None else (like.device, like.dtype)
    with torch.inference_mode():
        batch = batch.to(device, dtype)
        totals: list[torch.Tensor] = []
        ways = [
            [_FIRST_AXIS + axis for axis in axes]
            for count in range(len(mirror) + 1)
            for axes in itertools.combinations(mirror, count)
        ]
        for axes in ways:
            # Models may overwrite their input: give each of several ways a copy.
            windows = batch.flip(axes) if len(ways) > 1 else batch
            # Detached: other owners of the memory are outside of this function.
            choose = partial(_one_output, model(windows), size=windows.shape[2:])
            outputs = [choose(head=head).detach() for head in heads or (None,)]
            del choose
            for output in outputs:
                if len(output) != len(batch):
                    msg = f"the model gave {len(output)} rows for a batch of {len(batch)} windows"
                    raise SampleError(msg, do="It must return one row for each, (B, C, I, J, K).")
                if output.is_complex():
                    msg = f"the model returned complex numbers, {output.dtype}"
                    raise SampleError(msg, do="Return their magnitude, or both parts as channels.")
            # Models may also overwrite their earlier outputs.
            results = [(out.flip(axes) if len(ways) > 1 else out).float() for out in outputs]
            pairs = zip(totals, results, strict=True)
            totals = [a.add_(b) for a, b in pairs] if totals else results
        means = [total / len(ways) for total in totals] if len(ways) > 1 else totals
        arrays = [*map(torch.Tensor.cpu, means)]
        is_kept = any(
            array.data_ptr() == output.data_ptr() and _is_held_elsewhere(output)
            for array, output in zip(arrays, outputs, strict=True)
        )
        return [*map(torch.Tensor.numpy, arrays)], is_kept


def _is_held_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether another object than this tensor may hold its memory."""
    count: Any = getattr(torch._C, "_storage_Use_Count", None)  # torch's CUDA graphs use it too
    if count is None or not tensor.untyped_storage().resizable():  # e.g. memory of NumPy
        return True
    owners, of_new = (count(t.untyped_storage()._cdata) for t in (tensor, torch.empty(1)))
    return bool(owners > of_new)


class Heap:
    """The heap of glibc, whose free memory is returned to the system from time to time."""

    # Windows of some megabytes fragment the heap. The next window takes returned memory again, page
    # by page, so a trim after each window would be slow.
    def __init__(self) -> None:
        c_library = ctypes.CDLL(None) if os.name == "posix" else None
        self._trim = getattr(c_library, "malloc_trim", None)
        self._bytes = 0

    def note(self, size: int) -> None:
        """Note that a model has made ``size`` bytes."""
        self._bytes += size
        if self._bytes >= _TRIM_BYTES and self._trim is not None:
            self._bytes = 0
            self._trim(0)


def _one_output(result: Any, head: int | str | None, size: Sequence[int]) -> torch.Tensor:
    """Return the wanted output; SampleError if several are possible."""
    while isinstance(result, (list, tuple, Mapping)) and result:
        is_named = isinstance(result, Mapping)
        outputs = dict(result) if is_named else dict(enumerate(result))
        if head is None and len(outputs) > 1 and not _is_deep_supervision(result, size):
            texts = (f"{name!r}: {_in_words(output)}" for name, output in outputs.items())
            msg = f"the model gave {len(outputs)} outputs: {', '.join(texts)}"
            do = f"Choose one: head={next(iter(outputs))!r}, or wrap the model in a module."
            raise SampleError(msg, do=do)
        name = next(iter(outputs)) if head is None else head
        if name not in outputs:
            msg = f"the model gave the outputs {', '.join(map(repr, outputs))}, and not {head!r}"
            raise SampleError(msg, do="Name one of them in head= or destination=.")
        result, head = outputs[name], None
    if not isinstance(result, torch.Tensor) or result.ndim != 2 + len(size) or head is not None:
        msg = f"the model gave {_in_words(result)}"
        form = "(B, C, I, J, K)" if len(size) == 3 else "(B, C, I, J)"
        do = f"It must return a tensor {form}: wrap it in a function that returns one."
        raise SampleError(msg, do=do if head is None else _ONE)
    return result


def _is_deep_supervision(result: Any, size: Sequence[int]) -> bool:
    """Whether the first output has the window's size, and the others are coarser ones."""
    count = 2 + len(size)
    tensors = [one for one in result if isinstance(one, torch.Tensor) and one.ndim == count]
    if len(tensors) < len(result) or tuple(tensors[0].shape[2:]) != tuple(size):
        return False
    finer = itertools.pairwise(tuple(tensor.shape[2:]) for tensor in tensors)
    same_classes = len({tensor.shape[:2] for tensor in tensors}) == 1
    return same_classes and all(b != a and all(map(int.__le__, b, a)) for a, b in finer)


def _in_words(result: Any) -> str:
    shape = f" of shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else ""
    return f"a {type(result).__name__}{shape}"


def model_key(model: Any) -> str | None:
    """Return a digest of modules, weights and buffers; empty for a function, None if unreadable."""
    if not isinstance(model, torch.nn.Module):
        return ""
    parts = model.named_modules()
    classes = {k: f"{type(part).__module__}.{type(part).__qualname__}" for k, part in parts}
    state = {**dict(model.named_buffers()), **model.state_dict()}  # with get_extra_state()
    weights = {k: _plain(v) if isinstance(v, torch.Tensor) else repr(v) for k, v in state.items()}
    return behaviour_digest(classes, weights) or None


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a dense one whose bytes can be read."""
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


@dataclass(frozen=True)
class Ranks:
    """Ranks that predict together: each runs the model on its windows, the first one stitches."""

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> Ranks:
        """Return the rank in torch's process group; without a group a single rank."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this rank stitches."""
        return self.rank == 0

    def refuse_alike(self, loader: DataLoader2) -> None:
        """Raise GraphError for a loader that does not divide its windows between ranks."""
        if without_parts(loader.reading_service, loader.datapipe):
            msg = f"each of {self.count} ranks would run all windows of the loader"
            do = "Give it a DistributedReadingService, or pass the chain, which predict divides."
            raise GraphError(msg, do=do)

    def gather(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of all ranks on the first rank, and nothing on the others.

        Each round gathers at most one item per rank; the last round has none. If a rank fails,
        the group's timeout ends the others.
        """
        source = iter(items)
        while True:
            item = next(source, None)
            every: list[Any] | None = [None] * self.count if self.is_first else None
            dist.gather_object(item, every)
            present = [each for each in every or () if each is not None]
            has_items: list[Any] = [bool(present)]
            dist.broadcast_object_list(has_items)
            if not has_items[0]:
                return
            yield from present
