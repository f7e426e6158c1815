"""Let the patches of several visits take turns, so that each worker can keep regions of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar

from ..core import Sample
from ..core.errors import PatchSizeError
from ..graph import Pipe, Traits
from ..spatial.ops.sizes import whole_number
from .datapipe import DataPipe, length_of, wrong_item
from .forms import chained


@chained("interleave")
class Interleave(DataPipe):
    """Let the patches of several visits to volumes take turns, some of each at a time.

    Put it after ``lazy_patch(samples_per_volume=...)``, with ``each`` the size of a batch: every
    batch then holds patches of one visit, neighbouring batches those of different visits. A
    worker is given the batches of the same visits as long as that keeps no other one waiting,
    so a chunk is decoded in one process. Which batches there are, and in which order, depends on
    the chain alone, not on the number of workers. Nothing is read: descriptions wait.

    Parameters
    ----------
    visits
        Visits that are under way at once: the number of workers, or a multiple of it.
    each
        Patches of one visit before it is the next one's turn.

    Raises
    ------
    PatchSizeError
        At construction, for numbers below 1.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> cases = [{"case": name, "image": np.zeros((8, 8, 8))} for name in "abc"]
    >>> pipe = from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=4)
    >>> [patch.case for patch in pipe.interleave(visits=2, each=2)]
    ['a', 'a', 'b', 'b', 'a', 'a', 'b', 'b', 'c', 'c', 'c', 'c']
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, parent: Pipe, visits: int, each: int = 1) -> None:
        super().__init__()
        self.parent = parent
        try:
            self.visits = whole_number("visits", visits, least=1)
            self.each = whole_number("each", each, least=1)
        except PatchSizeError as error:
            raise error.at(self.origin)  # noqa: B904

    def __iter__(self) -> Iterator[Sample]:
        """Yield every sample of the parent, in turns."""
        coming = self._visits()
        lanes = list(islice(coming, self.visits))
        turn = 0
        while lanes:
            lane = lanes[turn]
            for _ in range(min(self.each, len(lane))):
                yield lane.popleft()
            if not lane:
                # The next visit takes the place of the one that is over, so that whoever had that
                # gets this.
                following = next(coming, None)
                if following is None:
                    del lanes[turn]
                    turn -= 1
                else:
                    lanes[turn] = following
            turn = (turn + 1) % max(1, len(lanes))

    def _visits(self) -> Iterator[deque[Sample]]:
        """Yield what comes one after another of the same case."""
        held: deque[Sample] = deque()
        for sample in self.parent:
            if not isinstance(sample, Sample):
                raise wrong_item(self, sample, "a sample", "Put interleave() after lazy_patch().")
            if held and held[0].identity[:1] != sample.identity[:1]:
                yield held
                held = deque()
            held.append(sample)
        if held:
            yield held

    def __len__(self) -> int:
        """Return the parent's length; TypeError if that has none."""
        return length_of(self, self.parent)
