"""The names of voxpipe.testing, written by tools/write_chained_forms.py."""

from .adapter_contract import AdapterContract
from .decoder_contract import DecoderCase, DecoderContract
from .op_contract import SpatialOpContract, ValueOpContract
from .range_store_contract import RANGE_OBJECTS, RangeStoreContract
from .service_contract import ServiceContract
from .store_contract import BackendContract, StoreCase, StoreContract

__all__: list[str] = ['AdapterContract', 'BackendContract', 'DecoderCase', 'DecoderContract', 'RANGE_OBJECTS', 'RangeStoreContract', 'ServiceContract', 'SpatialOpContract', 'StoreCase', 'StoreContract', 'ValueOpContract']
