"""Contracts of plug-ins, as pytest classes: backends, stores, decoders, ops and services.

The ``test`` extra installs pytest.
"""

from typing import TYPE_CHECKING

from ..first_use import at_first_use

if TYPE_CHECKING:
    from .exported_names import *  # noqa: F403  (written by tools/write_chained_forms.py)

# Imported at first use: the child process of a store's contract needs neither pytest nor torch,
# whose import takes a second.
_HOMES = {
    "adapter_contract": "AdapterContract",
    "decoder_contract": "DecoderCase DecoderContract",
    "op_contract": "SpatialOpContract ValueOpContract",
    "service_contract": "PoolContract ServiceContract",
    "store_contract": "BackendContract RangeContract StoreCase StoreContract",
}
__getattr__, __dir__ = at_first_use(globals(), _HOMES)
