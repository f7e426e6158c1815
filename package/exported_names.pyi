"""The names of voxpipe, written by tools/write_chained_forms.py."""

from .adapters import Adapter, FuseSpatial, Lint, OnError, Profile, Timeout
from .core import Grid, Region, Sample, Stream, errors
from .core.errors import VoxpipeError
from .dataloader2 import DataLoader2, check, index
from .datapipes import DataPipe, ShuffleSpec, explain, shuffle_report
from .datapipes.iter import from_cases, from_decathlon, from_manifest, from_table, list_cases
from .extensions.bridges.interop import from_node, to_dataset, to_node
from .extensions.bridges.layouts import from_bids, from_dicom, from_nnunet
from .extensions.bridges.lightning_data import VoxpipeDataModule
from .extensions.torchdata.adapters import CacheTimeout, Shuffle
from .prediction.predict import predict
from .reading_services import DistributedReadingService, InProcessReadingService, MultiProcessingReadingService, SequentialReadingService, ThreadReadingService
from .spatial import LazyPatch, Policy, SpatialPlan
from .volumes import AxisMap, Backend, BackendRequest, Decoder, Header, Volume, Voxels, convert, normalize_index, register_backend, register_decoder, resolve_backend, save, unregister_backend, unregister_decoder

__all__: list[str] = ['Adapter', 'AxisMap', 'Backend', 'BackendRequest', 'CacheTimeout', 'DataLoader2', 'DataPipe', 'Decoder', 'DistributedReadingService', 'FuseSpatial', 'Grid', 'Header', 'InProcessReadingService', 'LazyPatch', 'Lint', 'MultiProcessingReadingService', 'OnError', 'Policy', 'Profile', 'Region', 'Sample', 'SequentialReadingService', 'Shuffle', 'ShuffleSpec', 'SpatialPlan', 'Stream', 'ThreadReadingService', 'Timeout', 'Volume', 'Voxels', 'VoxpipeDataModule', 'VoxpipeError', 'check', 'convert', 'errors', 'explain', 'from_bids', 'from_cases', 'from_decathlon', 'from_dicom', 'from_manifest', 'from_nnunet', 'from_node', 'from_table', 'index', 'list_cases', 'normalize_index', 'predict', 'register_backend', 'register_decoder', 'resolve_backend', 'save', 'shuffle_report', 'to_dataset', 'to_node', 'unregister_backend', 'unregister_decoder']
