"""Map-style pipes, loaded at their first use."""

from typing import TYPE_CHECKING

from ..first_use import at_first_use

_NAMES = (
    "Batcher Concater InMemoryCacheHolder IterToMapConverter MapDataPipe Mapper "
    "SequenceWrapper Shuffler UnZipper Zipper"
)
if TYPE_CHECKING:
    from .general.map_pipe import *  # noqa: F403
__getattr__, __dir__ = at_first_use(globals(), {"general.map_pipe": _NAMES})
