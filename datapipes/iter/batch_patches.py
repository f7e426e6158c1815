"""Gather samples into a batch; lazy patches are realized where the batch lies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...core.errors import PatchSizeError
from ...graph import Pipe, Traits, walk
from ...realizing import Gather, InThreads, JoinReads
from ...spatial import Policy
from ...spatial.ops.sizes import whole_number
from ..datapipe import DataPipe, chained, length_of
from ..tensors import as_arrays, as_tensors
from .cases import FromCases, ListCases
from .overriding import sampled_by


@chained("batch_patches")
class BatchPatches(DataPipe):
    """Stack samples into ``{"image": (B, C, I, J, K), ..., "meta": [provenance, ...]}``.

    Parameters
    ----------
    batch_size
        Samples per batch.
    drop_last
        Whether to leave out a last, smaller batch.
    policies
        ``Policy`` by key, as of ``open_volume``, for a chain that was written elsewhere.
    override
        Whether these policies hold whatever the pipes asked for; by default that is a conflict.

    Notes
    -----
    Lazy patches are realized here, and tensors are stacked. Rewritten by
    ``FuseSpatial`` they are realized straight into the batch's memory, without a
    tensor of their own. Numbers become one tensor, other things a list. Plain mappings are
    stacked too, but without ``meta``; if the chain began with cases, a ``ProvenanceLost``
    warning says so.

    Raises
    ------
    PatchSizeError
        If the batch size is no whole number of at least 1, or the samples of a batch differ
        in shape or in their keys.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> cases = [{"image": np.full((2, 2, 2), n, np.uint8)} for n in range(3)]
    >>> batch = next(iter(from_cases(cases).open_volume().batch_patches(2)))
    >>> batch["image"].shape, [m["case"] for m in batch["meta"]]
    (torch.Size([2, 1, 2, 2, 2]), ['0', '1'])
    """

    def __init__(
        self,
        parent: Pipe,
        batch_size: int,
        *,
        drop_last: bool = False,
        policies: Mapping[str, Policy] | None = None,
        override: bool = False,
    ) -> None:
        super().__init__()
        self.parent = sampled_by(dict(policies or {}), override, parent, self.origin)
        try:
            self.batch_size = whole_number("batch_size", batch_size, least=1)
        except PatchSizeError as error:
            raise error.at(self.origin)  # noqa: B904
        self.drop_last = drop_last
        self.straight = False
        self.joins = False
        self.threads: int | None = None
        self.of_cases = any(isinstance(p, (FromCases, ListCases)) for p in walk(parent))

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

    def instructions(self) -> tuple[JoinReads | Gather | InThreads, ...]:
        """Return what gathers one batch."""
        gather = Gather(self.straight, self.origin, self.of_cases)
        steps = (JoinReads(self.origin), gather) if self.joins else (gather,)
        if self.threads is None:
            return steps
        return tuple(InThreads(self.threads, step) for step in steps)

    def gather(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return one batch of ``samples``."""
        items: list[Any] = list(map(as_arrays, samples))
        for instruction in self.instructions():
            items = instruction(items)
        return dict(as_tensors(items[0]))
