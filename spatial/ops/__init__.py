"""Spatial ops: each draws parameters and composes a plan; none moves a voxel.

A file ends with the ops that it offers, ``OPS = (Skew,)``: each is then a name of
``voxpipe.spatial``, and the chained form that its ``name`` says.
"""

from typing import Any

from ...first_use import list_names as _listed

OPS: tuple[Any, ...] = tuple(_listed(__name__, __path__, "OPS"))
"""The ops that have chained forms."""
__all__ = ["OPS"]
