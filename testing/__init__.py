"""Contracts for plug-ins, as pytest classes: what a backend, store, decoder, op or service must do.

pytest comes with the ``test`` extra only.
"""

from typing import TYPE_CHECKING

from ..first_use import at_first_use

if TYPE_CHECKING:
    from .decoder_contract import DecoderCase, DecoderContract
    from .range_store_contract import RANGE_OBJECTS, RangeStoreContract
    from .service_contract import ServiceContract
    from .spatial_op_contract import SpatialOpContract
    from .store_contract import BackendContract, StoreCase, StoreContract
    from .value_op_contract import ValueOpContract

__all__ = [
    "RANGE_OBJECTS",
    "BackendContract",
    "DecoderCase",
    "DecoderContract",
    "RangeStoreContract",
    "ServiceContract",
    "SpatialOpContract",
    "StoreCase",
    "StoreContract",
    "ValueOpContract",
]

# Imported at first use: the child that a store's contract spawns needs neither pytest nor what the
# other contracts are about, of which torch alone takes a second.
_HOMES = {
    "decoder_contract": ("DecoderCase", "DecoderContract"),
    "range_store_contract": ("RANGE_OBJECTS", "RangeStoreContract"),
    "service_contract": ("ServiceContract",),
    "spatial_op_contract": ("SpatialOpContract",),
    "store_contract": ("BackendContract", "StoreCase", "StoreContract"),
    "value_op_contract": ("ValueOpContract",),
}
__getattr__, __dir__ = at_first_use(globals(), _HOMES)
