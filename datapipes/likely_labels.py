"""Which keys look like labels though nobody said so."""

from __future__ import annotations

import re
from functools import lru_cache

from ..core import Origin
from ..graph import Pipe, traits_of, walk
from ..realizing import LikelyLabels

# Between the words of a key: what is no letter, and the humps of camelCase.
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Too short to be told inside another word, or its beginning: they stand as a word.
_AS_A_WORD = re.compile(r"gts?|rois?|annot\w*|segmentations?")
# Also at the end of a word: brainmask, groundtruth.
_AT_THE_END = re.compile(r"\w*(seg|mask|label|lesion|truth)s?")


@lru_cache(maxsize=1024)  # asked for every sample
def looks_like_label(key: str) -> bool:
    """Return whether people who name a volume ``key`` usually mean classes.

    Examples
    --------
    >>> keys = ("gt", "brainMask", "seg_2", "weight", "segmented_ct")
    >>> [key for key in keys if looks_like_label(key)]
    ['gt', 'brainMask', 'seg_2']
    """
    words = [word.lower() for word in _WORDS.findall(key)]
    return any(_AS_A_WORD.fullmatch(word) or _AT_THE_END.fullmatch(word) for word in words)


def likely_labels(origin: Origin, parent: Pipe) -> LikelyLabels | None:
    """Return what looks for labels among images; None where nobody left that open."""
    opening = [pipe for pipe in walk(parent) if traits_of(pipe).opens]
    return LikelyLabels(origin) if any(getattr(p, "guesses", False) for p in opening) else None
