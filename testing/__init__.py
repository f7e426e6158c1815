"""Contracts for plug-ins, as pytest classes: what a backend, store, decoder, op or service must do.

pytest comes with the ``test`` extra only.
"""

from typing import TYPE_CHECKING

from ..first_use import at_first_use

if TYPE_CHECKING:
    from .exported_names import *  # noqa: F403  (written by tools/write_chained_forms.py)

# Imported at first use: the child that a store's contract spawns needs neither pytest nor what the
# other contracts are about, of which torch alone takes a second.
_HOMES = {
    "adapter_contract": "AdapterContract",
    "decoder_contract": "DecoderCase DecoderContract",
    "op_contract": "SpatialOpContract ValueOpContract",
    "range_store_contract": "RANGE_OBJECTS RangeStoreContract",
    "service_contract": "ServiceContract",
    "store_contract": "BackendContract StoreCase StoreContract",
}
__getattr__, __dir__ = at_first_use(globals(), _HOMES)
