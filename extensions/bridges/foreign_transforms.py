"""Pipes that run transforms of MONAI and TorchIO on voxels, with a seed for each sample."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...batching.collate import RealizePatches
from ...batching.job import apply_transforms
from ...core import Sample, Stream
from ...core.call_site import shorten
from ...core.errors import SampleError
from ...core.locks import ForkSafeLock
from ...core.sample import META
from ...core.stream import common_identity
from ...datapipes.datapipe import (
    MainProcess,
    PerItem,
    SameLength,
    locate_errors,
    stream_name,
    wrong_item,
)
from ...graph import Pipe, Traits
from ...spatial.lazy.lazy_patch import patches_of

# Rounding of an affine to float32, per matrix entry in millimetres per voxel.
_SAME = 1e-4
# A transform keeps its draws in itself, and torch has one generator for all.
_ONE_AT_A_TIME = ForkSafeLock()


class Voxels(NamedTuple):
    """The result of a transform for one volume."""

    tensor: torch.Tensor  # (C, I, J, K)
    affine: NDArray[np.float64] | None  # 4x4, in millimetres, RAS+; None if unknown


@dataclass(frozen=True)
class ChangedPatch:
    """The provenance of voxels that a transform has brought to a grid of its own."""

    patch: Any  # the source of the voxels
    affine: NDArray[np.float64] | None
    shape: tuple[int, ...]
    changed_by: str

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""
        return str(self.patch.kind)

    @property
    def draws(self) -> Mapping[str, Any]:
        """The draws of the patch before the transform."""
        return self.patch.draws  # type: ignore[no-any-return]

    def provenance(self) -> dict[str, Any]:
        """Return file, region, matrix and affine as of a patch; there is no plan."""
        entries = {**self.patch.provenance(), "changed_by": self.changed_by}
        entries.pop("plan", None)
        of_volume = original_affine(entries)
        if self.affine is None or of_volume is None:
            return {k: v for k, v in entries.items() if k not in ("affine", "matrix")}
        matrix = np.linalg.solve(of_volume, self.affine)
        return {**entries, "affine": self.affine.tolist(), "matrix": matrix.tolist()}


def original_affine(source: Mapping[str, Any]) -> NDArray[np.float64] | None:
    """Return the affine of the stored volume, of an entry of ``meta["sources"]``; None if unknown.

    Examples
    --------
    >>> shift = [[1, 0, 0, 2], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    >>> original_affine({"affine": shift, "matrix": shift}).tolist() == np.eye(4).tolist()
    True
    """
    if not {"affine", "matrix"} <= source.keys():
        return None
    # affine = stored @ matrix
    affine, matrix = (np.array(source[name], np.float64) for name in ("affine", "matrix"))
    return np.asarray(np.linalg.solve(matrix.T, affine.T).T)


class OnVoxels(PerItem):
    """A pipe that runs a transform of another library on the voxels of each sample."""

    def __init__(self, parent: Pipe, transform: Any, name: str) -> None:
        super().__init__(parent)
        self.stream_names = (stream_name(parent, name, self.form_name),)
        self.has_name = bool(name)
        self.transform = transform
        self.words = in_words(transform)
        self._settings = (settings_of(transform), name)

    @property
    def traits(self) -> Traits:
        return Traits(per_item=True, voxels=True, runs_user_code=True)

    def describe(self) -> str:
        return f"{self.form_name}({self.words})"

    def settings(self) -> Any:
        return self._settings

    def apply(self, item: Any) -> Any:
        sample = self.voxels_of(item)
        identity = common_identity(sample.identity) if self.has_name else sample.identity
        seed = Stream(sample.seed, sample.epoch, identity, self.stream_names[0]).integer()
        with _ONE_AT_A_TIME:
            results = self.run(sample, seed)
        return _with_results(sample, results, self.describe())

    def voxels_of(self, item: Any) -> Sample:
        """Return the sample with tensors in the place of lazy patches."""
        if not isinstance(item, Sample):
            do = f"Put {self.form_name}() after open_volume(), or after lazy_patch()."
            if isinstance(item, Mapping) and META in item:
                do = f"Put {self.form_name}() before batch_patches(): it changes one sample."
            raise wrong_item(self, item, "a sample", do)
        if patches_of(item):
            return apply_transforms((RealizePatches(self.origin),), item)  # type: ignore[no-any-return]
        return item

    def run(self, sample: Sample, seed: int) -> Mapping[str, Any]:
        """Return the transform's result for a sample: ``Voxels`` of its volumes, by key."""
        raise NotImplementedError


def copy_of(transform: Any) -> Any:
    """Return a copy: transforms keep their draws, and the user's object must not change."""
    try:
        return copy.deepcopy(transform)
    except Exception as error:
        msg = f"{shorten(transform)} cannot be copied: {error}"
        raise SampleError(msg, do="Keep open files and the like out of it.") from error


def _with_results(sample: Sample, results: Mapping[str, Any], by: str) -> Sample:
    """Return a sample of results, each with where it comes from."""
    data = {key: one.tensor if isinstance(one, Voxels) else one for key, one in results.items()}
    patches: dict[str, Any] = {k: sample.patches[k] for k in results if k in sample.patches}
    for key, patch in patches.items():
        one = results[key]
        if isinstance(one, Voxels) and not _lies_on(patch, one):
            patches[key] = ChangedPatch(patch, one.affine, tuple(one.tensor.shape), by)
    return sample.replace(data=data, patches=patches)


def _lies_on(patch: Any, voxels: Voxels) -> bool:
    """Whether voxels are on the grid of the patch that they were made of."""
    if tuple(patch.shape) != tuple(voxels.tensor.shape):
        return False
    if patch.affine is None or voxels.affine is None:
        return True
    return bool(np.allclose(patch.affine, voxels.affine, rtol=0, atol=_SAME))


def tensors_of(sample: Sample) -> Iterator[tuple[str, torch.Tensor, Any]]:
    """Yield key, tensor (C, I, J, K) and origin of each volume of a realized sample."""
    for key, thing in sample.items():
        if isinstance(thing, torch.Tensor) and key in sample.patches:
            yield key, thing, sample.patches[key]


class LastPipe(MainProcess, SameLength):
    """A pipe that makes things of another library of its items; workers cannot send these."""

    def __iter__(self) -> Iterator[Any]:
        for item in self.parent:
            with locate_errors(self, item):
                yield self.make(item)

    def make(self, item: Any) -> Any:
        """Return the result for a sample or a batch."""
        raise NotImplementedError


def in_batch(pipe: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Return the tensors (B, C, I, J, K) of a batch that come from volumes, by key."""
    if not isinstance(batch, Mapping) or META not in batch:
        msg = f"a sample, or a batch with its {META!r}"
        do = f"Put {pipe.form_name}() last, after batch_patches() or realize()."
        raise wrong_item(pipe, batch, msg, do)
    sources = [meta["sources"] for meta in batch[META]]
    return {
        key: thing
        for key, thing in batch.items()
        if isinstance(thing, torch.Tensor) and all(key in source for source in sources)
    }


def parts_of(transform: Any) -> list[Any]:
    """Return the transforms that one consists of, or holds for its own use."""
    attributes = vars(transform).values() if hasattr(transform, "__dict__") else ()
    each = [
        one
        for thing in attributes
        for one in (thing if isinstance(thing, (list, tuple)) else [thing])
    ]
    root = type(transform).__module__.partition(".")[0]
    return [one for one in each if type(one).__module__.partition(".")[0] == root and callable(one)]


def in_words(transform: Any) -> str:
    """Return the names of a transform and of those in it, as ``Compose(RandFlipd, Zoomd)``."""
    name = getattr(transform, "__name__", type(transform).__name__)
    members = getattr(transform, "transforms", ())
    members = members if isinstance(members, Sequence) else ()
    inner = ", ".join(in_words(one) for one in members)
    return f"{name}({inner})" if inner else str(name)


_PLAIN = (str, int, float, bool, type(None))
_MOST_LEVELS = 8  # of transforms in transforms; one of the user's may hold itself


def settings_of(transform: Any, levels: int = _MOST_LEVELS) -> Any:
    """Return names and settings of a transform, without its draws, as plain values."""
    # An argument of the constructor that is kept under the same name is a setting.
    names = inspect.signature(type(transform).__init__).parameters
    own = getattr(transform, "__dict__", {})
    plain = {name: _plain(own[name]) for name in names if name in own}
    inner = [settings_of(one, levels - 1) for one in parts_of(transform)] if levels else []
    return (in_words(transform), plain, inner)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return value.tolist()
    return value if isinstance(value, _PLAIN) else type(value).__name__
