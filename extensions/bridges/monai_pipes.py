"""MONAI: its dictionary transforms on samples, as pipes where they have an equal; MetaTensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...core import Sample
from ...core.errors import SampleError
from ...core.sample import META
from ...datapipes.datapipe import chained_form, locate_errors
from ...graph import Pipe, Traits, traits_of, walk
from ...spatial.lazy.lazy_patch import patches_of
from .foreign_transforms import (
    LastPipe,
    OnVoxels,
    Voxels,
    copy_of,
    in_batch,
    in_words,
    original_affine,
    tensors_of,
)
from .monai_equals import split_transform

_MOST_SEEDS = 2**32  # NumPy's RandomState, which MONAI draws from, takes so many


@chained_form("map_monai")
class MapMONAI(OnVoxels):
    """Run a dictionary transform of MONAI on each sample, as pipes where it has an equal here.

    The first transforms of a ``Compose`` that have an equal become ordinary pipes, which
    ``print(pipe)`` shows: they read nothing, and add no interpolation. From the first one that has
    none, MONAI runs the rest on the voxels of each sample, as ``MetaTensor`` with the affine of the
    patch. Which have an equal: docs/bridges.md.

    Generators of transforms are seeded for each sample from its stream, so that batches are the
    same under any number of workers. After ``lazy_patch()`` an equal that moves voxels reads the
    corners of a patch from the volume around it, where MONAI has padding.

    Parameters
    ----------
    transform
        A dictionary transform, or a ``Compose`` of several; ``OneOf`` and its like run in MONAI.
    lazy
        Whether those that have an equal become pipes; False has MONAI run all.
    name
        Of the stream that the seeds come from; by default ``map_monai``.

    Raises
    ------
    SampleError
        At construction: a transform makes several samples of one, reads files, or is one for
        arrays. Later: it returned no mapping, or moves some volumes of the sample only.

    Examples
    --------
    >>> import numpy as np
    >>> from monai.transforms import Compose, Flipd, ThresholdIntensityd
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.arange(8.0).reshape(2, 2, 2)}]).open_volume()
    >>> pipe = pipe.map_monai(Compose([Flipd("image", 0), ThresholdIntensityd("image", 2)]))
    >>> print(pipe)
    import voxpipe as vp
    <BLANKLINE>
    pipe = (
        vp.from_cases([{'image': ...}])  # from_cases(1 cases)
        .open_volume()
        .flip(axes=(0,))
        .map_monai(...)  # map_monai(Compose(ThresholdIntensityd))
    )
    >>> next(iter(pipe))["image"].flatten().tolist()
    [4.0, 5.0, 6.0, 7.0, 0.0, 0.0, 0.0, 3.0]
    """

    def __init__(self, parent: Pipe, transform: Any, *, lazy: bool = True, name: str = "") -> None:
        with locate_errors(self):
            # After voxels are read, no step is lazy.
            lazy = lazy and not any(traits_of(pipe).voxels for pipe in walk(parent))
            transform = copy_of(transform)
            self.equals, rest = split_transform(transform, lazy=lazy)
        for one in self.equals:
            parent = one.after(parent, name)
        super().__init__(parent, rest, name)
        self.has_rest = rest is not None
        self.words = in_words(rest if self.has_rest else transform)
        if not self.has_rest:
            self.stream_names = ()

    @property
    def traits(self) -> Traits:
        """Reads nothing where all transforms became pipes."""
        return super().traits if self.has_rest else Traits(per_item=True)

    def describe(self) -> str:
        return super().describe() + ("" if self.has_rest else " ← as the pipes before it")

    def apply(self, item: Any) -> Any:
        if isinstance(item, Sample):
            for one in self.equals:
                one.refuse_others(item)
        return super().apply(item) if self.has_rest else item

    def run(self, sample: Sample, seed: int) -> Mapping[str, Any]:
        data = dict(sample)
        for key, tensor, patch in tensors_of(sample):
            data[key] = _meta_tensor(tensor, patch.provenance())
        self.transform.set_random_state(seed % _MOST_SEEDS)
        result = self.transform(data)
        if not isinstance(result, Mapping):
            msg = f"{self.words} returned a {type(result).__name__}, and one sample stays one"
            do = "Cut several patches with .lazy_patch(size, samples_per_volume=n), before it."
            raise SampleError(msg, do=do).at(self.origin, sample.case)
        return {key: _as_voxels(thing) for key, thing in result.items()}


def _as_voxels(thing: Any) -> Any:
    from monai.data import MetaTensor

    if isinstance(thing, MetaTensor):
        affine = thing.affine.detach().cpu().numpy().astype(np.float64)
        return Voxels(thing.as_tensor().detach(), affine)
    # Without its affine where set_track_meta(False) was called.
    return Voxels(thing.detach(), None) if isinstance(thing, torch.Tensor) else thing


def _meta_tensor(tensor: torch.Tensor, *sources: Mapping[str, Any], is_batch: bool = False) -> Any:
    """Return a MetaTensor that shares the memory of a tensor, with its metadata."""
    from monai.data import MetaTensor
    from monai.utils import TraceKeys

    shape = np.array(tensor.shape[-3:])
    each = [_meta_of(source, shape) for source in sources]
    if not is_batch:
        return MetaTensor(tensor, meta=each[0], device=tensor.device)
    # As monai.data.utils.collate_meta_tensor_fn() leaves it, so that decollate_batch() takes it.
    result = MetaTensor(tensor, device=tensor.device)
    common = set.intersection(*(set(meta) for meta in each))
    collate = torch.utils.data.default_collate
    with torch.device("cpu"):  # a default device is for new tensors, and not for copies of these
        result.meta = collate([{key: meta[key] for key in sorted(common)} for meta in each])
    result.applied_operations = [TraceKeys.NONE] * len(each)
    result.is_batch = True
    return result


def _meta_of(source: Mapping[str, Any], shape: Any) -> dict[str, Any]:
    """Return the metadata of a volume as MONAI's readers name them."""
    from monai.utils import MetaKeys, SpaceKeys

    meta = {
        MetaKeys.SPATIAL_SHAPE.value: shape,
        MetaKeys.SPACE.value: SpaceKeys.RAS.value,
        MetaKeys.ORIGINAL_CHANNEL_DIM.value: 0,
        "filename_or_obj": str(source.get("file", "")),
    }
    of_volume = original_affine(source)
    if of_volume is not None:
        affine = torch.tensor(source["affine"], dtype=torch.float64, device="cpu")
        meta[MetaKeys.AFFINE.value] = affine
        meta[MetaKeys.ORIGINAL_AFFINE.value] = of_volume
    return meta


@chained_form("to_metatensor")
class ToMetaTensor(LastPipe):
    """Make MONAI's ``MetaTensor`` of each volume of a batch, or of a realized sample.

    Each has the affine of its patch, that of the stored volume, spatial shape, file and case, as
    from MONAI's readers and ``list_data_collate``. So ``decollate_batch`` can split a batch; it
    cannot split lists of mappings, therefore ``meta`` is removed. Voxels are not copied. This pipe
    is not replicable: a loader runs it in its own process, after its workers.

    Raises
    ------
    SampleError
        It is no batch with ``meta``, and no sample.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((4, 5, 6))}] * 2).open_volume().batch_patches(2)
    >>> image = next(iter(pipe.to_metatensor()))["image"]
    >>> type(image).__name__, image.affine.shape, image.meta["spatial_shape"].tolist()
    ('MetaTensor', torch.Size([2, 4, 4]), [[4, 5, 6], [4, 5, 6]])
    """

    def __init__(self, parent: Pipe) -> None:
        super().__init__(parent)

    def make(self, item: Any) -> Any:
        if isinstance(item, Sample):
            if lazy := patches_of(item):
                msg = f"{', '.join(lazy)} of the sample is not read yet"
                do = "Put to_metatensor() after realize() or batch_patches()."
                raise SampleError(msg, do=do).at(self.origin, item.case)
            each = {k: _meta_tensor(t, patch.provenance()) for k, t, patch in tensors_of(item)}
            for tensor in each.values():
                tensor.meta["case"] = item.case
            return item.with_data(**each)
        batch = {**item} if isinstance(item, Mapping) else item
        for key, tensor in in_batch(self, batch).items():
            sources: Sequence[Any] = [meta["sources"][key] for meta in batch[META]]
            batch[key] = _meta_tensor(tensor, *sources, is_batch=True)
            batch[key].meta["case"] = [meta["case"] for meta in batch[META]]
        del batch[META]
        return batch
