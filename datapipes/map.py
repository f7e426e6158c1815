"""Map-style pipes: torch's own, and those of extensions at their first use."""

from torch.utils.data import MapDataPipe as MapDataPipe
from torch.utils.data.datapipes.map import *  # noqa: F403

from ..first_use import at_first_use, names_at

_POINTS = names_at("datapipes.map")
_TORCH = "Batcher Concater MapDataPipe Mapper SequenceWrapper Shuffler Zipper"
__all__ = sorted([*_TORCH.split(), *_POINTS])
__getattr__, __dir__ = at_first_use(globals(), {}, points=_POINTS)
