"""The samplers of a loader: what training frameworks tell the number of the epoch, and ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph import Traits, traits_of, walk

if TYPE_CHECKING:
    from ..dataloader2 import DataLoader2


class EpochSetter:
    """Passes ``set_epoch`` on, and leaves a loader alone that is there already.

    Lightning and others call it before every epoch, also before the one in whose middle a state
    was loaded: that place must not be lost.
    """

    def __init__(self, loader: DataLoader2) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of ``epoch``; one that was begun and not used is meant, too.

        Lightning asks for the iterator of the first epoch before it says which that is.
        """
        if not self._loader.is_before(epoch):
            self._loader.set_epoch(epoch)

    @property
    def batch_size(self) -> int:
        """Items that the chain gathers in a batch; 1 where it gathers none."""
        return max(1, self._last_gathering.group)

    @property
    def drop_last(self) -> bool:
        """Whether a last, smaller batch is left out."""
        return self._last_gathering.drop_last

    @property
    def _last_gathering(self) -> Traits:
        gathering = [t for t in map(traits_of, walk(self._loader.datapipe)) if t.group]
        return gathering[-1] if gathering else Traits()
