"""Contracts and fakes, for ourselves and for plug-ins."""

from .spatial_op_contract import SpatialOpContract

__all__ = ["SpatialOpContract"]
