"""Contracts and fakes, for ourselves and for plug-ins."""

from .range_store_contract import RANGE_OBJECTS, RangeStoreContract
from .spatial_op_contract import SpatialOpContract
from .store_contract import StoreCase, StoreContract
from .value_op_contract import ValueOpContract

__all__ = [
    "RANGE_OBJECTS",
    "RangeStoreContract",
    "SpatialOpContract",
    "StoreCase",
    "StoreContract",
    "ValueOpContract",
]
