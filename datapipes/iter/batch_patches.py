"""Gather samples into a batch; lazy patches are realized where the batch lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import default_collate

from ...core import META, Sample
from ...core.errors import PatchSizeError, SampleError, placed
from ...graph import Pipe, Traits
from ...spatial import LazyPatch
from ..datapipe import DataPipe, chained, length_of
from ..memory import Layout, batch_memory


@chained("batch_patches")
class BatchPatches(DataPipe):
    """Stack samples into ``{"image": (B, C, I, J, K), ..., "meta": [provenance, ...]}``.

    Parameters
    ----------
    batch_size
        Samples per batch.
    drop_last
        Whether to leave out a last, smaller batch.

    Notes
    -----
    Lazy patches are realized here, and tensors are stacked. Rewritten by
    ``FuseSpatial`` they are realized straight into the batch's memory, without a
    tensor of their own. Numbers become one tensor, other things a list.

    Raises
    ------
    PatchSizeError
        If the samples of a batch differ in shape or in their keys.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> cases = [{"image": np.full((2, 2, 2), n, np.uint8)} for n in range(3)]
    >>> batch = next(iter(from_cases(cases).open_volume().batch_patches(2)))
    >>> batch["image"].shape, [m["case"] for m in batch["meta"]]
    (torch.Size([2, 1, 2, 2, 2]), ['0', '1'])
    """

    def __init__(self, parent: Pipe, batch_size: int, *, drop_last: bool = False) -> None:
        super().__init__()
        self.parent = parent
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.straight = False
        if batch_size < 1:
            msg = f"a batch has at least one sample, got batch_size={batch_size}"
            raise PatchSizeError(msg).at(self.origin)

    @property
    def traits(self) -> Traits:
        """Gathers, and realizes what is still lazy."""
        return Traits(voxels=True, group=self.batch_size, drop_last=self.drop_last)

    def describe(self) -> str:
        """Return the pipe as written, and whether it realizes straight into the batch."""
        return self.origin.call + (" ← straight into the batch" if self.straight else "")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield batches."""
        held: list[Any] = []
        for sample in self.parent:
            held.append(sample)
            if len(held) == self.batch_size:
                yield self.gather(held)
                held = []
        if held and not self.drop_last:
            yield self.gather(held)

    def __len__(self) -> int:
        """Return the number of batches; TypeError if the parent has no length."""
        whole, rest = divmod(length_of(self, self.parent), self.batch_size)
        return whole + bool(rest and not self.drop_last)

    def gather(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return one batch of ``samples``."""
        try:
            keys = self._keys(samples)
            arrays = [key for key in keys if _is_array(samples[0][key])]
            layouts = [self._layout(key, samples) for key in arrays]
            batch: dict[str, Any] = {}
            for key, out in zip(arrays, batch_memory().take(layouts), strict=True):
                self._fill(out, key, samples)
                batch[key] = torch.from_numpy(out)
        except Exception as error:
            raise placed(error, self.origin)  # noqa: B904
        for key in keys:
            if key not in batch:
                batch[key] = _collate([sample[key] for sample in samples])
        ordered = {key: batch[key] for key in keys}
        if all(isinstance(sample, Sample) for sample in samples):
            ordered[META] = [sample.provenance() for sample in samples]
        return ordered

    def _keys(self, samples: Sequence[Any]) -> list[str]:
        for sample in samples:
            if not isinstance(sample, Mapping):
                msg = f"batch_patches stacks samples or mappings, got {type(sample).__name__}"
                raise SampleError(msg, do="Use torch's batch() and collate() for other items.")
            if set(sample) != set(samples[0]):
                msg = (
                    f"{_name(samples[0])} has {sorted(samples[0])}, "
                    f"{_name(sample)} has {sorted(sample)}"
                )
                raise PatchSizeError(msg, do="Every sample of a batch needs the same keys.")
        return list(samples[0])

    def _layout(self, key: str, samples: Sequence[Any]) -> Layout:
        shapes = []
        for sample in samples:
            try:
                shapes.append(tuple(sample[key].shape))
            except Exception as error:
                raise placed(error, case=getattr(sample, "case", ""))  # noqa: B904
            if shapes[-1] != shapes[0]:
                msg = (
                    f"{key} of {_name(samples[0])} is {shapes[0]}, "
                    f"that of {_name(sample)} is {shapes[-1]}"
                )
                do = "Cut patches of one size: .lazy_patch(size) or .crop_or_pad(size)."
                raise PatchSizeError(msg, do=do)
        dtype = np.result_type(*(_dtype(sample[key]) for sample in samples))
        return (len(samples), *shapes[0]), dtype

    def _fill(self, out: NDArray[Any], key: str, samples: Sequence[Any]) -> None:
        for place, sample in zip(out, samples, strict=True):
            thing = sample[key]
            if not isinstance(thing, LazyPatch):
                place[...] = thing.numpy() if isinstance(thing, torch.Tensor) else thing
                continue
            try:
                if self.straight:
                    thing.realize(out=place)
                else:
                    place[...] = thing.realize()
            except Exception as error:
                raise placed(error, case=getattr(sample, "case", ""))  # noqa: B904


def _is_array(thing: Any) -> bool:
    return isinstance(thing, (LazyPatch, torch.Tensor, np.ndarray))


def _dtype(thing: Any) -> Any:
    if isinstance(thing, torch.Tensor):
        return torch.empty(0, dtype=thing.dtype).numpy().dtype
    return thing.dtype


def _collate(things: list[Any]) -> Any:
    numbers = all(isinstance(t, (bool, int, float)) for t in things)
    return default_collate(things) if numbers else things


def _name(sample: Any) -> str:
    return f"case {sample.case}" if isinstance(sample, Sample) else "a sample"
