"""The names of voxpipe.testing, written by tools/write_chained_forms.py."""

from .adapter_contract import AdapterContract as AdapterContract
from .decoder_contract import DecoderCase as DecoderCase, DecoderContract as DecoderContract
from .op_contract import SpatialOpContract as SpatialOpContract, ValueOpContract as ValueOpContract
from .service_contract import PoolContract as PoolContract, ServiceContract as ServiceContract
from .store_contract import BackendContract as BackendContract, RangeContract as RangeContract, StoreCase as StoreCase, StoreContract as StoreContract

__all__: list[str] = ['AdapterContract', 'BackendContract', 'DecoderCase', 'DecoderContract', 'PoolContract', 'RangeContract', 'ServiceContract', 'SpatialOpContract', 'StoreCase', 'StoreContract', 'ValueOpContract']
