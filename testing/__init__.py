"""Contracts and fakes, for ourselves and for plug-ins."""

from .spatial_op_contract import SpatialOpContract
from .store_contract import StoreCase, StoreContract

__all__ = ["SpatialOpContract", "StoreCase", "StoreContract"]
