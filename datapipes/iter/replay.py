"""Replay: what was drawn for one sample, done to others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import Sample
from ...core.errors import SampleError
from ...graph import Pipe
from ...spatial import LazyPatch
from ...spatial.lazy.replayed import replayed, streams_of
from ..datapipe import PerItem, chained, wrong_item


@chained("replay")
class Replay(PerItem):
    """Do to every sample what a record says, in the place of what it would draw.

    It stands after the pipes that it speaks of. For the same augmentation of another volume, of a
    prediction, or of a sample that somebody wants to see again.

    Parameters
    ----------
    draws
        By name of stream: ``batch["meta"][n]["draws"]``, or what became of that as JSON. Pipes that
        are not in it draw for themselves.

    Notes
    -----
    Of random numbers that belong to voxels (noise), their key is recorded. They come back where
    voxels lie alike, in patches and under keys of the same names; ops of your own do as well
    where they ask for ``facts.key_from`` a number that they drew.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> def chain(volume):
    ...     return from_cases([{"image": volume}]).open_volume().rotate((-15, 15))
    >>> first = next(iter(chain(np.zeros((8, 8, 8)))))["image"]
    >>> other = next(iter(chain(np.ones((8, 8, 8))).replay(first.draws)))["image"]
    >>> other.draws == first.draws
    True
    """

    def __init__(self, parent: Pipe, draws: Mapping[str, Any]) -> None:
        super().__init__(parent)
        if not isinstance(draws, Mapping) or not all(isinstance(name, str) for name in draws):
            msg = f"replay() takes a mapping from stream to parameters, got {draws!r}"
            raise SampleError(msg, do='Give it batch["meta"][0]["draws"].').at(self.origin)
        self.draws = dict(draws)

    def apply(self, item: Any) -> Sample:
        """Return the sample with the recorded parameters."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample", "Put replay() after the pipes it speaks of.")
        lazy = {key: thing for key, thing in item.items() if isinstance(thing, LazyPatch)}
        known = {name for patch in lazy.values() for name in streams_of(patch)}
        if unknown := sorted(set(self.draws) - known):
            msg = (
                f"replay() has a record of {', '.join(unknown)}, but the pipes before it are "
                f"{', '.join(sorted(known)) or 'none'}"
            )
            do = "Build the chain with the names that it had, or leave these out."
            raise SampleError(msg, do=do).at(self.origin, item.case)
        return item.with_data(**{key: replayed(patch, self.draws) for key, patch in lazy.items()})
