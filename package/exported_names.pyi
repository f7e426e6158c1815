"""The names of voxpipe, written by tools/write_chained_forms.py."""

from .adapters import Adapter, FuseSpatial, Lint, OnError, Profile, Timeout, register_lint_rule
from .core import Grid, Region, Sample, Stream, errors
from .core.errors import VoxpipeError
from .dataloader2 import DataLoader2, check, index
from .datapipes import DataPipe, ShuffleSpec, explain, lazy
from .datapipes.chain_json import chain_from_json, chain_to_json
from .datapipes.iter import from_cases, from_decathlon, from_manifest, from_table, list_cases
from .extensions.bridges.interop import from_node, to_dataset, to_node
from .extensions.bridges.layouts import from_bids, from_dicom, from_nnunet
from .extensions.bridges.training_loops import VoxpipeDataModule
from .extensions.cluster.ray_service import RayReadingService
from .extensions.formats.raw_frames import raw_volume
from .extensions.microscopy.from_ome import from_ome
from .prediction.predict import predict
from .reading_services import DistributedReadingService, MultiProcessingReadingService, ThreadReadingService
from .spatial import LazyPatch, Policy, SpatialPlan
from .volumes import AxisMap, Backend, Decoder, Header, Volume, Voxels, convert, register_backend, register_decoder, save

__all__: list[str] = ['Adapter', 'AxisMap', 'Backend', 'DataLoader2', 'DataPipe', 'Decoder', 'DistributedReadingService', 'FuseSpatial', 'Grid', 'Header', 'LazyPatch', 'Lint', 'MultiProcessingReadingService', 'OnError', 'Policy', 'Profile', 'RayReadingService', 'Region', 'Sample', 'ShuffleSpec', 'SpatialPlan', 'Stream', 'ThreadReadingService', 'Timeout', 'Volume', 'Voxels', 'VoxpipeDataModule', 'VoxpipeError', 'chain_from_json', 'chain_to_json', 'check', 'convert', 'errors', 'explain', 'from_bids', 'from_cases', 'from_decathlon', 'from_dicom', 'from_manifest', 'from_nnunet', 'from_node', 'from_ome', 'from_table', 'index', 'lazy', 'list_cases', 'predict', 'raw_volume', 'register_backend', 'register_decoder', 'register_lint_rule', 'save', 'to_dataset', 'to_node']
