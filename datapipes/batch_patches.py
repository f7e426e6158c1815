"""Gather samples into a batch; lazy patches are realized in the batch's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

from ..batching.collate import Collate, RealizePatches
from ..batching.job import apply_transforms, as_arrays, as_tensors
from ..core.call_site import WarnOnce, warn
from ..core.errors import LikelyMistake
from ..graph import Pipe, Traits, describe, parents_of, traits_of, walk
from ..spatial.lazy.patch_steps import in_batch
from ..spatial.ops.op import whole_number
from ..spatial.placing.drawn_patch import first_forced
from .datapipe import DataPipe, PerItem, chained_form, length_of, locate_errors
from .epoch import SeedStamper
from .open_volume import likely_labels
from .patch_sampler import PatchSampler
from .points_and_boxes import MovePlaces


@chained_form("batch_patches")
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
    The share of ``lazy_patch(oversample=)`` is one of each batch here: the last samples of a batch
    are drawn about foreground. A pipe in between that reads voxels, moves places or runs a function
    needs the place of a patch before its batch is known. Then each patch draws whether it is about
    foreground, with a warning.

    Lazy patches are realized straight into the batch's memory, without a tensor of their own;
    tensors are stacked. Numbers become one tensor, other things a list. Plain mappings are
    stacked too, but without ``meta``, with a ``ProvenanceLost`` warning if the chain began with
    cases. If ``open_volume()`` was given no keys of labels, the first batches are checked: an
    image whose stored voxels are few whole numbers causes a ``LikelyLabel`` warning.

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

    def __init__(self, parent: Pipe, batch_size: int, *, drop_last: bool = False) -> None:
        super().__init__(parent)
        with locate_errors(self):
            self.batch_size = whole_number("batch_size", batch_size, least=1)
        self.drop_last = drop_last
        self._likely = likely_labels(self.origin, parent)
        self._once = WarnOnce()
        shares, looking = _oversample_shares(parent)
        # From the chain as it is written: an adapter that removes realize() changes no draw.
        self.has_shares = bool(shares) and looking is None
        self._tell_of_shares(shares, looking)
        self.of_cases = any(isinstance(p, SeedStamper) and not parents_of(p) for p in walk(parent))

    @property
    def traits(self) -> Traits:
        """Traits of a pipe that gathers samples and realizes lazy patches."""
        return Traits(voxels=True, group=self.batch_size, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        samples = iter(self.parent)
        while batch := list(islice(samples, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield self.gather(in_batch(batch) if self.has_shares else batch)

    def _tell_of_shares(self, shares: Sequence[float], looking: Pipe | None) -> None:
        """Warn where a share is not one of each batch, or none of it."""
        for share in shares:
            if looking is not None:
                text = (
                    f"oversample={share:.3g} is a share of all patches here, not of each batch: "
                    f"{describe(looking)} looks at a patch before its batch is known\n"
                    f"  at {self.origin}\n"
                    "  Put that pipe after batch_patches() if it can stand there."
                )
            elif share and first_forced(self.batch_size, share) == self.batch_size:
                text = (
                    f"oversample={share:.3g} of {self.batch_size} patches in a batch is none, as "
                    f"in nnU-Net: no patch is drawn about foreground\n  at {self.origin}\n"
                    "  Make larger batches, or the share larger."
                )
            else:
                continue
            warn(text, LikelyMistake, self.origin)

    def __len__(self) -> int:
        count = length_of(self, self.parent)
        return (count if self.drop_last else count + self.batch_size - 1) // self.batch_size

    def instructions(self) -> tuple[Collate]:
        place_keys = masks_and_weights(self.parent)
        how = self.origin, self.of_cases, self._likely, self._once
        return (Collate(*how, place_keys),)

    def gather(self, samples: Sequence[Any]) -> dict[str, Any]:
        """Return one batch of ``samples``."""
        items: list[Any] = list(map(as_arrays, samples))
        for instruction in self.instructions():
            items = instruction(items)
        return dict(as_tensors(items[0]))


def _oversample_shares(sink: Pipe) -> tuple[list[float], Pipe | None]:
    """Return the shares that patches are drawn with, and a pipe that looks at them before."""
    shares: list[float] = []
    looking: Pipe | None = None
    behind: dict[int, bool] = {}
    for pipe in walk(sink):
        after = any(behind[id(parent)] for parent in parents_of(pipe))
        traits = traits_of(pipe)
        looks = traits.voxels or traits.runs_user_code or not traits.is_known
        if after and (looks or isinstance(pipe, MovePlaces)):
            looking = looking or pipe
        if isinstance(pipe, PatchSampler) and pipe.oversample is not None:
            shares.append(pipe.oversample)
            after = True
        behind[id(pipe)] = after
    return shares, looking


@chained_form("realize")
class Realize(PerItem):
    """Read and resample every lazy patch of a sample; the rest passes through.

    Each becomes a tensor (C, I, J, K): labels in their stored type, intensities in
    float32, or in their stored type after lattice ops (crop, flip, ...) alone.
    ``batch_patches`` realizes by itself; this pipe is for functions that need voxels before.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> volume = np.arange(8, dtype=np.int16).reshape(2, 2, 2)
    >>> sample = next(iter(from_cases([{"image": volume}]).open_volume().realize()))
    >>> sample["image"].flatten().tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    traits: ClassVar[Any] = Traits(per_item=True, voxels=True)

    def __init__(self, parent: Pipe) -> None:
        super().__init__(parent)
        self._likely = likely_labels(self.origin, parent)

    def instructions(self) -> tuple[RealizePatches]:
        return (RealizePatches(self.origin, self._likely),)

    def apply(self, item: Any) -> Any:
        return apply_transforms(self.instructions(), item)


def masks_and_weights(parent: Pipe) -> tuple[str, ...]:
    """Return the keys by which pipes choose places, which these pipes open if necessary."""
    names = [getattr(pipe, name, None) for pipe in walk(parent) for name in ("mask", "weights")]
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
