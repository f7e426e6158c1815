"""Contracts and fakes, for ourselves and for plug-ins."""

from .decoder_contract import DecoderCase, DecoderContract
from .range_store_contract import RANGE_OBJECTS, RangeStoreContract
from .spatial_op_contract import SpatialOpContract
from .store_contract import StoreCase, StoreContract

__all__ = [
    "RANGE_OBJECTS",
    "DecoderCase",
    "DecoderContract",
    "RangeStoreContract",
    "SpatialOpContract",
    "StoreCase",
    "StoreContract",
]
