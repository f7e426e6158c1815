"""torchdata's functions on graphs: nested dicts of pipes, changed in place.

For code that was written for torchdata. What they are made of, and what leaves the given pipes
alone, is :mod:`voxpipe.graph`.
"""

from .settings import set_datapipes_seed, set_graph_random_seed
from .utils import (
    DataPipe,
    DataPipeGraph,
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    traverse_dps,
)

__all__ = [
    "DataPipe",
    "DataPipeGraph",
    "find_dps",
    "list_dps",
    "remove_dp",
    "replace_dp",
    "set_datapipes_seed",
    "set_graph_random_seed",
    "traverse_dps",
]
