"""The names of voxpipe.testing, written by tools/write_chained_forms.py."""

from .adapter_contract import AdapterContract
from .decoder_contract import DecoderCase, DecoderContract
from .op_contract import SpatialOpContract, ValueOpContract
from .service_contract import PoolContract, ServiceContract
from .store_contract import BackendContract, RangeContract, StoreCase, StoreContract

__all__: list[str] = ['AdapterContract', 'BackendContract', 'DecoderCase', 'DecoderContract', 'PoolContract', 'RangeContract', 'ServiceContract', 'SpatialOpContract', 'StoreCase', 'StoreContract', 'ValueOpContract']
