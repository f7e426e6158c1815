"""Gather samples into a batch, realize lazy patches in its memory, and change whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar

from ..batching.batch_steps import FillOutside, Scale, ScaleLabels
from ..batching.channel_orders import ChannelOrders
from ..batching.collate import Collate, RealizePatches
from ..batching.job import as_arrays, as_tensors
from ..core.call_site import WarnOnce, warn
from ..core.errors import LikelyMistake
from ..core.validate import as_count, as_flag, as_keys, as_number, entries_of, is_integer, is_number
from ..graph import Pipe, Traits, describe, parents_of, traits_of, walk
from ..spatial.lazy.patch_report import log_fusion, logs_fusion
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
    cases. Without ``labels=`` of ``open_volume()`` the first batches are checked. An image whose
    stored voxels are few whole numbers causes a ``LikelyLabel`` warning.

    Raises
    ------
    PatchSizeError
        The batch size is no whole number of at least 1. The samples of a batch differ in shape
        or in their keys.
    SampleError
        Volumes of one key have the same named channels in another order.

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
        self._once, self._orders = WarnOnce(), ChannelOrders(self.origin)
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
        samples, is_logged = iter(self.parent), logs_fusion()
        while batch := list(islice(samples, self.batch_size)):
            if is_logged:
                log_fusion(batch)
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
        # Masks and weights of earlier pipes, which open them if necessary.
        names = [getattr(p, name, None) for p in walk(self.parent) for name in ("mask", "weights")]
        place_keys = tuple(dict.fromkeys(name for name in names if isinstance(name, str)))
        rest = self._likely, self._once, place_keys, self._orders
        return (Collate(self.origin, self.of_cases, *rest),)

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

    Each becomes a tensor (C, I, J, K). Labels have their stored type, intensities float32, or
    their stored type after lattice ops (crop, flip, ...) alone. The pipe is for functions that
    need voxels before ``batch_patches``, which realizes by itself.

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


@chained_form("deep_supervision")
class DeepSupervision(PerItem):
    """Put a list of labels at several scales in the place of the labels of a batch.

    For networks with outputs at several resolutions: nnU-Net's deep supervision. Nothing is read
    again: each scale takes the voxels in the middles of its larger ones. Put it after
    ``batch_patches``, and after pipes that change labels.

    Parameters
    ----------
    scales
        For each output of the network, the finest first, the part that its grid has of the
        patch's: a number from above 0 to 1, or one for each axis. ``(1, 0.5, 0.25)``
    keys
        The labels, each of which becomes a list of tensors.

    Raises
    ------
    SampleError
        It comes before ``batch_patches()``, or there is no such key.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"label": np.zeros((8, 8, 4), np.uint8)}]).open_volume().batch_patches(1)
    >>> batch = next(iter(pipe.deep_supervision((1, (0.5, 0.5, 1)))))
    >>> [tuple(one.shape) for one in batch["label"]]
    [(1, 1, 8, 8, 4), (1, 1, 4, 4, 4)]
    """

    def __init__(
        self,
        parent: Pipe,
        scales: Sequence[float | Sequence[float]],
        keys: str | Sequence[str] = "label",
    ) -> None:
        super().__init__(parent)
        with locate_errors(self):
            each = tuple(map(_as_scale, entries_of(scales)))
            if not each:
                msg = "scales is a number from above 0 to 1 for each output, or three, got "
                raise ValueError(f"{msg}{scales!r}")
            names = as_keys("deep_supervision(keys=)", keys)
        self.step = ScaleLabels(each, names, self.origin)

    is_drawn = False

    def instructions(self) -> tuple[ScaleLabels, ...]:
        return (self.step,)


def _as_scale(value: Any) -> Scale:
    parts = entries_of(value) or (value,) * 3
    if len(parts) != 3 or not all(is_number(part) and 0 < part <= 1 for part in parts):
        msg = "a scale is a number from above 0 to 1, or one for each of three axes, got "
        raise ValueError(f"{msg}{value!r}")
    i, j, k = map(float, parts)
    return (i, j, k)


@chained_form("fill_outside")
class FillOutsidePipe(PerItem):
    """Fill volumes of a batch outside of its mask.

    For volumes normalized inside of a mask, which must be 0 outside after any op: nnU-Net's
    ``use_mask_for_norm``. Put it after ``batch_patches``.

    Parameters
    ----------
    keys
        The volumes that are filled.
    mask
        Key of the mask. A voxel is outside where all of its channels are ``outside``.
    outside
        The value of the mask outside.
    fill
        The new value of voxels outside.
    channels
        Which channels are filled; by default all.
    keep_mask
        Whether the batch keeps the mask.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"image": np.ones((1, 1, 3), np.float32), "label": np.array([[[-1, 0, 2]]], np.int8)}
    >>> pipe = from_cases([case]).open_volume().batch_patches(1)
    >>> next(iter(pipe.fill_outside("image", mask="label", outside=-1)))["image"].flatten().tolist()
    [0.0, 1.0, 1.0]
    """

    def __init__(
        self,
        parent: Pipe,
        keys: str | Sequence[str],
        *,
        mask: str,
        outside: int = 0,
        fill: float = 0.0,
        channels: Sequence[int] | None = None,
        keep_mask: bool = True,
    ) -> None:
        super().__init__(parent)
        with locate_errors(self):
            names = as_keys("fill_outside(keys=)", keys)
            (key,) = as_keys("fill_outside(mask=)", [mask])
            value = as_number("fill", fill)
            if not is_integer(outside):
                raise ValueError(f"outside is the label of the mask that says so, got {outside!r}")
            if channels is not None:
                channels = tuple(as_count("channels", n) for n in entries_of(channels))
            keeps = as_flag("keep_mask", keep_mask)
        fill_with = value or 0.0
        self.step = FillOutside(names, key, int(outside), fill_with, channels, keeps, self.origin)

    is_drawn = False

    def instructions(self) -> tuple[FillOutside, ...]:
        return (self.step,)
