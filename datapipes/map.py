"""Map-style pipes: torch's own, and those of extensions at their first use."""

from typing import TYPE_CHECKING

from torch.utils.data import MapDataPipe as MapDataPipe
from torch.utils.data.datapipes.map import *  # noqa: F403

from ..first_use import at_first_use, names_at

if TYPE_CHECKING:
    from .names_of_map import *  # noqa: F403

_POINTS = names_at("datapipes.map")
_TORCH = "Batcher Concater MapDataPipe Mapper SequenceWrapper Shuffler Zipper"
__all__ = sorted([*_TORCH.split(), *_POINTS])
__getattr__, __dir__ = at_first_use(globals(), {}, points=_POINTS)
