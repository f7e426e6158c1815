"""Value ops: they change the values of a patch, and not its place.

A file ends with its ops, ``OPS = (Posterize,)``: names here, and chained forms by ``name``.
"""

from typing import TYPE_CHECKING, Any

from ..first_use import export as _export
from ..first_use import list_names as _listed
from .normalize import normalize as normalize
from .value_op import AffineValueOp as AffineValueOp
from .value_op import Epilogue as Epilogue
from .value_op import Facts as Facts
from .value_op import Params as Params
from .value_op import RandomValueOp as RandomValueOp
from .value_op import RecordedStatistics as RecordedStatistics
from .value_op import ValueOp as ValueOp
from .value_op import VolumeStatistics as VolumeStatistics
from .value_step import ValueStep as ValueStep

OPS: tuple[Any, ...] = tuple(_listed(__name__, __path__, "OPS"))
"""The ops that have chained forms."""

if TYPE_CHECKING:
    from .exported_ops import *  # noqa: F403  (written by tools/write_chained_forms.py)
_export(globals(), OPS)
