"""Which mask says where the patches of a sample may lie, or which weights say how often."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core import Origin, Sample
from ...core.errors import PatchSizeError, SampleError
from ...spatial import LazyPatch, MaskedPatch, WeightedPatch, refuse_changed, stored_labels
from ...spatial.placing.mask_index import OTHER, Classes
from ...volumes import Volume


@dataclass(frozen=True, eq=False)
class InsideMask:
    """Makes the op of each sample."""

    size: Sequence[int]
    """Of the patches."""
    mask: str | Volume
    """Key of the mask, or one for all cases."""
    settings: Mapping[str, Any]
    """Of every ``MaskedPatch``."""

    def __call__(self, sample: Sample) -> MaskedPatch:
        """Return what draws the patches of a sample.

        Raises
        ------
        SampleError
            It has no such mask.
        """
        if isinstance(self.mask, Volume):
            return MaskedPatch(self.size, self.mask, self.mask.name, **self.settings)
        volume = volume_named(self.mask, sample, "mask")
        patch = MaskedPatch(self.size, volume, self.mask, **self.settings)
        return replace(patch, stored=self._stored(patch, sample[self.mask]))

    def _stored(self, patch: MaskedPatch, thing: Any) -> Classes:
        """Return the stored labels of each class, where they are others."""
        who, key = "lazy_patch(mask=)", patch.key
        if not patch.classes:
            stored_labels(thing, (), who, key)
            return ()
        found = tuple(
            label if label == OTHER else stored_labels(thing, (label,), who, key)
            for label in patch.classes
        )
        as_stored = tuple(label if label == OTHER else (label,) for label in patch.classes)
        return () if found == as_stored else found


@dataclass(frozen=True, eq=False)
class ByWeights:
    """Makes the op of each sample."""

    size: Sequence[int]
    """Of the patches."""
    weights: str | Volume
    """Key of the weights, or one volume for all cases."""
    settings: Mapping[str, Any]
    """Of every ``WeightedPatch``."""

    def __call__(self, sample: Sample) -> WeightedPatch:
        """Return what draws the patches of a sample.

        Raises
        ------
        SampleError
            It has no such volume, or a value op comes before.
        """
        if isinstance(self.weights, Volume):
            return WeightedPatch(self.size, self.weights, self.weights.name, **self.settings)
        volume = volume_named(self.weights, sample, "weights", kind="intensity")
        refuse_changed(sample[self.weights], "lazy_patch(weights=)", self.weights)
        return WeightedPatch(self.size, volume, self.weights, **self.settings)


def weighted_by(
    size: Sequence[int],
    weights: Any,
    given: Mapping[str, bool],
    otherwise: str,
    sampling: str,
    origin: Origin,
) -> ByWeights:
    """Return what makes the ops of a pipe that draws by weights.

    ``given`` says which arguments that belong to a mask are there too.

    Raises
    ------
    PatchSizeError
        The arguments make no sense, or do not go together.
    """
    for name, is_given in given.items():
        if is_given:
            raise PatchSizeError(
                f"{name} says what is inside, where every voxel counts alike; weights= says how "
                "often each is drawn. Give one of them.",
                do="To draw inside a mask only, write 0 into the weights of all else.",
            )
    if sampling != "uniform":
        raise PatchSizeError("weights belongs to sampling='uniform'; a grid covers everything")
    _refuse_no_volume("weights", weights)
    found = ByWeights(size, weights, {"otherwise": otherwise, "origin": origin})
    # One op of nothing: what the arguments alone show is refused where they were written.
    WeightedPatch(size, _Nothing(), **found.settings)
    return found


def _refuse_no_volume(argument: str, given: Any) -> None:
    if not isinstance(given, (str, Volume)):
        msg = f"{argument} is a key of the sample or a Volume, got {type(given).__name__}"
        raise PatchSizeError(msg, do="Write vp.Volume(array, affine=...) around an array.")


def masked_by(
    size: Sequence[int],
    mask: Any,
    min_share: float,
    class_weights: Mapping[Any, float] | None,
    otherwise: str,
    sampling: str,
    origin: Origin,
) -> InsideMask | None:
    """Return what makes the ops of a pipe with these arguments; None without a mask.

    Raises
    ------
    PatchSizeError
        They make no sense, or do not go together.
    """
    given = {"min_share": min_share, "class_weights": class_weights}
    if mask is None:
        named = [name for name, value in given.items() if value]
        if named or otherwise != "error":
            msg = f"{(named or ['otherwise'])[0]} belongs to mask="
            raise PatchSizeError(msg, do='Give mask= too: the key of a label, e.g. "label".')
        return None
    if sampling != "uniform":
        raise PatchSizeError("mask belongs to sampling='uniform'; a grid covers everything")
    _refuse_no_volume("mask", mask)
    found = InsideMask(size, mask, {**given, "otherwise": otherwise, "origin": origin})
    # One op of nothing: what the arguments alone show is refused where they were written.
    MaskedPatch(size, _Nothing(), **found.settings)
    return found


class _Nothing:
    token = ""


def volume_named(key: str, sample: Sample, argument: str, kind: str = "label") -> Any:
    """Return the volume that an argument names: a lazy one, or one that is not opened yet.

    Raises
    ------
    SampleError
        The sample has no such volume.
    """
    thing = sample.get(key)
    if isinstance(thing, LazyPatch):
        return thing.volume
    if isinstance(thing, Volume):
        return thing
    if isinstance(thing, (str, os.PathLike)):
        return Volume(thing, kind=kind)
    have = ", ".join(map(repr, sample)) or "nothing"
    what = "which it does not have" if thing is None else f"which holds a {type(thing).__name__}"
    do = "Name one of them; write vp.Volume(array, affine=...) around an array."
    if key in sample.patches:
        what = "which is realized already"
        do = "Move realize() after this pipe: it asks volumes, not voxels."
    raise SampleError(
        f"{argument}={key!r} names a volume of the sample, {what}; it has {have}", do=do
    )
