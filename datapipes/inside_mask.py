"""Which mask says where the patches of a sample may lie, or which weights say how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core import CallSite, Sample
from ..core.call_site import warn
from ..core.errors import LikelyMistake, PatchSizeError
from ..spatial import MaskedPatch, WeightedPatch, refuse_changed, stored_labels
from ..spatial.placing.sampling_mask import OTHER, Classes
from ..volumes import Volume
from .spatial import volume_named


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
    given: Mapping[str, Any],
    otherwise: str,
    sampling: str,
    origin: CallSite,
) -> ByWeights:
    """Return what makes the ops of a pipe that draws by weights.

    ``given`` has the arguments that belong to a mask, which must not be there.

    Raises
    ------
    PatchSizeError
        The arguments make no sense, or do not go together.
    """
    for name, value in given.items():
        if _is_given(name, value):
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
    given: Mapping[str, Any],
    otherwise: str,
    sampling: str,
    origin: CallSite,
) -> InsideMask | None:
    """Return what makes the ops of a pipe with these arguments; None without a mask.

    Raises
    ------
    PatchSizeError
        They make no sense, or do not go together.
    """
    if mask is None:
        named = [name for name, value in given.items() if _is_given(name, value)]
        if named or otherwise != "error":
            msg = f"{(named or ['otherwise'])[0]} belongs to mask="
            raise PatchSizeError(msg, do='Give mask= too: the key of a label, e.g. "label".')
        return None
    if sampling != "uniform":
        drawing = {name: given[name] for name in ("class_weights", "oversample")}
        named = [name for name, value in drawing.items() if _is_given(name, value)]
        if named or otherwise != "error":
            msg = (
                f"{(named or ['otherwise'])[0]} belongs to sampling='uniform': a grid draws nothing"
            )
            raise PatchSizeError(msg, do="Leave it out: patches of the grid that touch mask= stay.")
    _refuse_no_volume("mask", mask)
    found = InsideMask(size, mask, {**given, "otherwise": otherwise, "origin": origin})
    # One op of nothing: what the arguments alone show is refused where they were written.
    patch = MaskedPatch(size, _Nothing(), **found.settings)
    _tell_of_background(patch, origin)
    return found


def _is_given(name: str, value: Any) -> bool:
    """Whether an argument is not as it is by default; a volume is not asked for its truth."""
    if value is None or name == "oversample":
        return value is not None
    return not (isinstance(value, (int, float, Mapping)) and not value)


def _tell_of_background(patch: MaskedPatch, origin: CallSite) -> None:
    """Refuse, or tell of, the background as a class where patches anywhere are meant."""
    weights = dict(patch.class_weights)
    background = weights.get(0, 0.0)
    if not background:
        return
    if patch.oversample is not None:
        raise PatchSizeError(
            "oversample draws the other patches anywhere, and class_weights lists 0: the voxels "
            "in the middle of patches about foreground would be background",
            do="Leave 0 out of class_weights.",
        )
    others = sum(weights.values()) - background
    # MONAI's pos and neg are as much by default; nnU-Net's two thirds are more.
    if others < background and others:
        share = others / (others + background)
        text = (
            f"class_weights={{0: {background:g}, ...}} puts a voxel of label 0 into the middle of "
            f"{1 - share:.0%} of the patches, which then avoid the others: that is not a patch "
            f"anywhere, as nnU-Net draws its rest\n  at {origin}\n"
            f"  Write oversample={share:.2g} in its place, without 0 in class_weights; or leave it "
            "if it is meant, and filter this warning."
        )
        warn(text, LikelyMistake, origin)


class _Nothing:
    token = ""
