"""The names of voxpipe, written by tools/write_chained_forms.py."""

from .adapters import Adapter as Adapter, FuseSpatial as FuseSpatial, Lint as Lint, OnError as OnError, Profile as Profile, Timeout as Timeout, register_lint_rule as register_lint_rule
from .core import Grid as Grid, Region as Region, Sample as Sample, Stream as Stream, errors as errors
from .core.errors import VoxpipeError as VoxpipeError
from .dataloader2 import DataLoader2 as DataLoader2, check as check, index as index
from .datapipes import DataPipe as DataPipe, ShuffleSpec as ShuffleSpec, explain as explain, lazy as lazy
from .datapipes.chain_json import chain_from_json as chain_from_json, chain_to_json as chain_to_json
from .datapipes.iter import from_cases as from_cases, from_decathlon as from_decathlon, from_manifest as from_manifest, from_table as from_table, list_cases as list_cases
from .extensions.bridges.interop import from_node as from_node, to_dataset as to_dataset, to_node as to_node
from .extensions.bridges.layouts import from_bids as from_bids, from_dicom as from_dicom, from_nnunet as from_nnunet
from .extensions.bridges.training_loops import VoxpipeDataModule as VoxpipeDataModule
from .extensions.cluster.ray_service import RayReadingService as RayReadingService
from .extensions.formats.raw_frames import raw_volume as raw_volume
from .extensions.microscopy.from_ome import from_ome as from_ome
from .extensions.pictures.figures import show as show
from .extensions.pictures.viewers import view as view
from .extensions.pictures.watch import watch as watch
from .prediction.predict import predict as predict
from .reading_services import DistributedReadingService as DistributedReadingService, MultiProcessingReadingService as MultiProcessingReadingService, ThreadReadingService as ThreadReadingService
from .spatial import LazyPatch as LazyPatch, Policy as Policy, SpatialPlan as SpatialPlan
from .volumes import AxisMap as AxisMap, Backend as Backend, Decoder as Decoder, Header as Header, Volume as Volume, Voxels as Voxels, convert as convert, register_backend as register_backend, register_decoder as register_decoder, save as save

__all__: list[str] = ['Adapter', 'AxisMap', 'Backend', 'DataLoader2', 'DataPipe', 'Decoder', 'DistributedReadingService', 'FuseSpatial', 'Grid', 'Header', 'LazyPatch', 'Lint', 'MultiProcessingReadingService', 'OnError', 'Policy', 'Profile', 'RayReadingService', 'Region', 'Sample', 'ShuffleSpec', 'SpatialPlan', 'Stream', 'ThreadReadingService', 'Timeout', 'Volume', 'Voxels', 'VoxpipeDataModule', 'VoxpipeError', 'chain_from_json', 'chain_to_json', 'check', 'convert', 'errors', 'explain', 'from_bids', 'from_cases', 'from_decathlon', 'from_dicom', 'from_manifest', 'from_nnunet', 'from_node', 'from_ome', 'from_table', 'index', 'lazy', 'list_cases', 'predict', 'raw_volume', 'register_backend', 'register_decoder', 'register_lint_rule', 'save', 'show', 'to_dataset', 'to_node', 'view', 'watch']
