"""Gather samples into a batch; lazy patches are realized where the batch lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ...core.errors import PatchSizeError
from ...graph import Pipe, Traits
from ...realizing import Gather
from ..datapipe import DataPipe, chained, length_of
from ..tensors import as_arrays, as_tensors


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

    def instructions(self) -> tuple[Gather, ...]:
        """Return what gathers one batch."""
        return (Gather(self.straight, self.origin),)

    def gather(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return one batch of ``samples``."""
        items = list(map(as_arrays, samples))
        for instruction in self.instructions():
            items = instruction(items)
        return dict(as_tensors(items[0]))
