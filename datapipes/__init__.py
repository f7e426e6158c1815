"""Data pipes."""

# No logic here: the modules ``iter`` and ``map`` hide the built-ins of these names here.
# torch's, which torchdata offers here as well.
from torch.utils.data import DataChunk as DataChunk
from torch.utils.data import functional_datapipe as functional_datapipe

from ..first_use import export as _export
from . import foreign as _foreign  # noqa: F401  (tells the graph what torch's pipes do)
from . import iter as _iter  # noqa: F401  (registers the chained forms)
from . import map as map
from . import utils as utils
from .cost import explain as explain
from .datapipe import DataPipe as DataPipe
from .datapipe import PerItem as PerItem
from .forms import chained_form as chained_form
from .forms import register_extensions as _register_extensions
from .op_pipe import lazy as lazy
from .shuffle_plans import ShuffleReport as ShuffleReport
from .shuffle_plans import ShuffleSpec as ShuffleSpec
from .shuffle_plans import shuffle_report as shuffle_report

_register_extensions()
_export(globals())
