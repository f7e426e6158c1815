"""Data pipes."""

# No logic here: the modules ``iter`` and ``map`` hide the built-ins of these names here.
# torch's, which torchdata offers here as well.
from torch.utils.data import DataChunk as DataChunk
from torch.utils.data import functional_datapipe as functional_datapipe

from . import foreign as _foreign  # noqa: F401  (tells the graph what torch's pipes do)
from . import general as _general  # noqa: F401  (registers the chained forms of its pipes)
from . import iter as _iter  # noqa: F401  (registers the chained forms)
from . import map as map
from . import utils as utils
from .cost import explain
from .datapipe import DataPipe, PerItem
from .forms import chained
from .shuffle_plans import ShuffleReport, ShuffleSpec, shuffle_report

__all__ = [
    "DataPipe",
    "PerItem",
    "ShuffleReport",
    "ShuffleSpec",
    "chained",
    "explain",
    "shuffle_report",
]
