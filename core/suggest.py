"""Suggestions for misspelt names, words of other libraries and wrong units.

Each rule about numbers is narrow, because users ignore a warning that is often wrong. It misses
some mistakes so that it spares intended values.
"""

from __future__ import annotations

import difflib
import itertools
import math
import os
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

_BY_OURS = {
    ("degrees",): "angle",
    ("zoom", "factor"): "scale scales scale_range",
    ("factor",): "zoom zoom_range downsampling",
    ("rotate",): "rotate_range",
    ("translate",): "translation translate_range",
    ("shear",): "shear_range",
    ("p",): "prob",
    ("spacing",): "pixdim target",
    ("size", "shape", "patch"): "spatial_size target_shape roi_size patch_size",
    ("flip", "mirror"): "mirror mirror_axes",
    ("model",): "predictor network",
    ("batch_size",): "sw_batch_size",
    ("blend",): "mode overlap_mode",
    ("start",): "roi_start",
    ("end",): "roi_end",
    ("center",): "roi_center",
    ("slices",): "roi_slices",
    ("scale",): "roi_scale",
    ("axes",): "spatial_axis spatial_axes",
    ("k",): "max_k",
    ("divisible", "k"): "k_divisible",
    ("key",): "source_key",
    ("labels",): "label label_keys label_names",
    ("classes",): "labels",
    ("unknown",): "other others",
    ("padding",): "padding_mode",
    ("amount",): "max_displacement",
    ("mean",): "subtrahend",
    ("std",): "divisor",
    ("above",): "nonzero",
    ("ops",): "transforms",
    ("count",): "num_transforms",
    ("keep_statistics",): "retain_stats",
    ("invert",): "invert_image",
    ("keep_range",): "preserve_range",
    ("samples_per_volume",): "num_samples num_patches samples",
    ("overlap",): "patch_overlap",
    ("weights",): "probability_map weight_map w_key",
    ("policies",): "overrides",
    ("oversample",): "oversample_foreground_percent",
}
FOREIGN_ARGUMENTS = {word: ours for ours, theirs in _BY_OURS.items() for word in theirs.split()}
"""Our arguments by their names in MONAI and TorchIO; the first that a pipe has is suggested."""
RECIPES = ("monai_segmentation", "nnunet", "nnunet_augmentation", "two_views")
"""Functions of ``vp.recipes``, which are not chained forms."""
NO_COUNTERPART = {
    "keys": (
        ": all volumes of a sample move alike, so it is not written here; mode=, padding=, fill= "
        "and dtype= take {key: value}"
    ),
    "log_gamma": ": give gamma=math.exp(log_gamma)",
    "seed": ": the seed is the loader's, DataLoader2(..., seed=7)",
}
"""Hints for arguments without a counterpart."""
# Names in torch, MONAI and NumPy. NumPy's "reflect" is not our "reflection".
FOREIGN_MODES = {"bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}
FOREIGN_PADDINGS = {"edge": "border", "replicate": "border", "symmetric": "reflection"}

# 3.14 and 3.1416 are pi too.
_ROUNDED_PI = 0.002
# MONAI's offsets are 0.1 to 0.3; an image of less than 0.4 of its size is mostly padding.
_MOSTLY_PADDING = 0.4
# Channels of a colour image, without and with alpha.
_COLOURS = (3, 4)
_MOST_ENTRIES = 1000  # entries of a folder that are compared with a name
_MOST_NAMES = 3
_DIGITS = re.compile(r"\d+")
# A plane of colours is larger along both axes; kernels, logits and small boxes are not.
_LEAST_PLANE = 16


# Words of a key, divided by other characters than letters and by capitals of camelCase.
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Label names that are too short to be part of a word.
_AS_A_WORD = re.compile(r"gts?|rois?|annot\w*|segmentations?")
# Words of label keys in microscopy. A key with another word, nuclei_dapi, is that of an image.
_OF_OBJECTS = re.compile(
    r"cells?|nucle(us|i)|organelles?|mitochondria|synapses|instances?|objects?|targets?|semantic"
)
# Label names that may end a word: brainmask, groundtruth.
_AT_THE_END = re.compile(r"\w*(seg|mask|label|lesion|truth)s?")


@lru_cache(maxsize=1024)  # called for every sample
def looks_like_label(key: str) -> bool:
    """Return whether ``key`` is a usual name of a label."""
    words = [word.lower() for word in _WORDS.findall(key)]
    if words and all(map(_OF_OBJECTS.fullmatch, words)):
        return True
    return any(_AS_A_WORD.fullmatch(word) or _AT_THE_END.fullmatch(word) for word in words)


def closest(word: str, names: Collection[str], cutoff: float, most: int = 1) -> list[str]:
    """Return the closest known names, nearest first; ``cutoff`` is difflib's ratio."""
    return difflib.get_close_matches(word, names, n=most, cutoff=cutoff)


def few_names(names: Iterable[Any], most: int = 5) -> str:
    """Return the first names and the number of the others, as text."""
    every = [str(name) for name in names]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def path_hint(path: str | os.PathLike[str]) -> str:
    """Return the longest existing parent of a missing local path, and the closest names in it."""
    if os.path.islink(path):  # git-annex and DataLad use links for files that are not fetched
        return f'It is a link to {os.readlink(path)}, which is not there: "git annex get", perhaps.'
    folder, name = os.path.split(os.path.abspath(path)) if path else (os.curdir, "")
    while name and not os.path.isdir(folder):
        folder, name = os.path.split(folder)
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MOST_ENTRIES)]
    except OSError:  # not ours
        return "Check the path."
    if not name or os.path.islink(full := os.path.join(folder, name)):
        return "Check the path."
    if os.path.isfile(full):
        return f"{full} is a file."
    # Names that differ only in digits are other cases, not typos.
    others = [other for other in names if _DIGITS.sub("", other) != _DIGITS.sub("", name)]
    if near := closest(name, others, 0.7, _MOST_NAMES):
        return f"The folder {folder} has no {name!r}; did you mean {' or '.join(map(repr, near))}?"
    there = [*map(repr, sorted(names)[:_MOST_NAMES]), *["..."] * (len(names) > _MOST_NAMES)]
    return f"The folder {folder} has no {name!r}; it has {', '.join(there) or 'nothing'}"


def numbers_of(amount: Any) -> tuple[float, ...]:
    """Return all numbers of an amount: a scalar, a range, or one of these per axis."""
    if not isinstance(amount, tuple):
        return (amount,)
    return sum(map(numbers_of, amount), ())


def radians_hint(name: str, degrees: Any) -> tuple[str, ...]:
    """Return a hint if the largest angle is pi, or above 0, at most pi / 2 and not whole."""
    most = max(map(abs, numbers_of(degrees)))
    small = 0 < most <= math.pi / 2 + _ROUNDED_PI and most != round(most)
    if not small and abs(most - math.pi) > _ROUNDED_PI:
        return ()
    return (
        f"angle-in-radians: {name} of at most {most:g} looks like radians, but angles are in "
        f"degrees; write {math.degrees(most):.4g}, or a whole number if it is meant.",
    )


def factor_hint(name: str, factors: Any) -> tuple[str, ...]:
    """Return a hint if every factor is below 0.4."""
    most = max(numbers_of(factors))
    if most >= _MOSTLY_PADDING:
        return ()
    return (
        f"factor-far-below-1: {name} of at most {most:g} shrinks the content to {most:g} of its "
        f"size on a grid of the same size; MONAI's scale_range={most:g} is {name}=({1 - most:g}, "
        f"{1 + most:g}), and its scale_params={most:g} is {name}={1 / most:g}.",
    )


def percentile_hint(name: str, percentiles: Iterable[float]) -> tuple[str, ...]:
    """Return a hint if the largest percentile is above 0 and at most 1."""
    most = max(percentiles)
    if not 0 < most <= 1:
        return ()
    return (
        f"percentile-as-part: {name} of {most:g} is {most:g} percent; percentiles are from 0 to "
        f"100, so write {100 * most:g} if that part is meant.",
    )


def colours_hint(name: str, shape: Iterable[int]) -> tuple[str, ...]:
    """Return a hint if the first of three axes is 3 or 4 long, and both others more than 16."""
    first, *others = shape
    if len(others) != 2 or first not in _COLOURS or min(others) <= _LEAST_PLANE:
        return ()
    sizes = ", ".join(map(str, (first, *others)))
    return (
        f"colours-as-slices: {name!r} of shape ({sizes}) is a volume of {first} slices; write "
        f"array[..., None], of shape ({sizes}, 1), for a plane of {first} channels, or give "
        "open_volume(affine=numpy.eye(4)) if slices are meant.",
    )
