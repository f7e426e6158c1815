"""Run a model over batches of windows: on its device, in its type, without gradients."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.errors import SampleError

Model = Callable[[torch.Tensor], Any]
# Of a sample (B, C, I, J, K), the axes that are mirrored.
_FIRST_AXIS = 2
# A few windows of one channel; a sixteenth of the time that it takes after each of them.
_TRIM_BYTES = 128 * 1024**2


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Set a module to evaluation inside the ``with`` block, each part as it was afterwards."""
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
    """Return a parameter or buffer of a module, which tells device and type; None without any."""
    if not isinstance(model, torch.nn.Module):
        return None
    every = itertools.chain(model.parameters(), model.buffers())
    return next((tensor for tensor in every if tensor.is_floating_point()), None)


def run_model(
    model: Model, batch: torch.Tensor, mirror: Sequence[int]
) -> tuple[NDArray[np.float32], bool]:
    """Return what the model gives for a batch (B, C, I, J, K), float32 in memory.

    And whether the model may keep its memory, and write to it when it is called again.

    Parameters
    ----------
    model
        Of several outputs (deep supervision) the first counts.
    batch
        Windows of any type; they come to the model in its own, else in float32.
    mirror
        Axes, 0 to 2. The mean over all ways to mirror along some of them is taken: two of one
        axis, eight of three, each mirrored back, so that no voxel moves.
    """
    like = first_tensor(model)
    device, dtype = (None, torch.float32) if like is None else (like.device, like.dtype)
    with torch.inference_mode():
        batch = batch.to(device, dtype)
        total: torch.Tensor | None = None
        ways = [
            [_FIRST_AXIS + axis for axis in axes]
            for count in range(len(mirror) + 1)
            for axes in itertools.combinations(mirror, count)
        ]
        for axes in ways:
            # Of several ways each is a copy, also the first: models may write to what they get.
            windows = batch.flip(axes) if len(ways) > 1 else batch
            # Detached, nothing here holds the tensor itself: who else does holds its memory.
            output = _one_output(model(windows)).detach()
            if len(output) != len(batch):
                msg = f"the model gave {len(output)} rows for a batch of {len(batch)} windows"
                raise SampleError(msg, do="It must give one for each, (B, C, I, J, K).")
            # And to what they gave before.
            result = (output.flip(axes) if len(ways) > 1 else output).float()
            total = result if total is None else total.add_(result)
        assert total is not None
        mean = total / len(ways) if len(ways) > 1 else total
        local = mean.cpu()
        is_kept = local.data_ptr() == output.data_ptr() and _is_held_elsewhere(output)
        array: NDArray[np.float32] = local.numpy()
        return array, is_kept


def _is_held_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether anything but this tensor may hold its memory."""
    count: Any = getattr(torch._C, "_storage_Use_Count", None)  # as torch's graphs of CUDA ask
    if count is None or not tensor.untyped_storage().resizable():  # memory of NumPy's, say
        return True
    owners, of_new = (count(t.untyped_storage()._cdata) for t in (tensor, torch.empty(1)))
    return bool(owners > of_new)


class Heap:
    """Gives back what is free in the heap, from time to time; only glibc has to be told."""

    # Arrays of some megabytes, as windows are, come and go there, and leave holes that stay. What
    # was given back is taken, page by page, for the next window: so it is not done after each.
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


def _one_output(result: Any) -> torch.Tensor:
    while isinstance(result, (list, tuple)) and result:
        result = result[0]
    if not isinstance(result, torch.Tensor) or result.ndim != 5:
        what = f"of shape {tuple(result.shape)}" if isinstance(result, torch.Tensor) else ""
        msg = f"the model gave a {type(result).__name__} {what}".rstrip()
        do = "It must give a tensor (B, C, I, J, K): wrap it in a function that returns one."
        raise SampleError(msg, do=do)
    return result


def model_key(model: Any) -> str:
    """Return a digest of the weights of a module, by which a run that was killed is known again.

    Empty for any other function: what it computes is not known.
    """
    if not isinstance(model, torch.nn.Module):
        return ""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, torch.Tensor):  # of get_extra_state()
            digest.update(f"{name} {tensor!r}".encode())
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        bare: Any = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(bare.view(torch.uint8).numpy() if bare.numel() else b"")
    return f"{type(model).__module__}.{type(model).__qualname__} {digest.hexdigest()}"
