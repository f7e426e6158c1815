"""Volume, the backend registry, one file per format."""

from .axis_map import AxisMap
from .backend import Backend
from .catalog.catalog import Finding, catalogued, describe_volume, index_cases, serve
from .catalog.find import (
    cases_without_label,
    find_by_folder,
    find_volumes,
    is_glob,
    is_volume,
    matches_volumes,
)
from .catalog.manifest import Entry, Manifest, read_manifest, write_manifest
from .catalog.statistics import Statistics, volume_statistics
from .catalog.whole_pass import volume_histogram
from .chunks.decoders import Decoder, custom_decoders, register_decoder, unregister_decoder
from .conversion.convert import convert
from .conversion.recached import recached
from .header import Header
from .registry import (
    BackendRequest,
    custom_backends,
    register_backend,
    resolve_backend,
    unregister_backend,
)
from .session import close_volumes
from .volume import Volume
from .voxels import Voxels, normalize_index

__all__ = [
    "AxisMap",
    "Backend",
    "BackendRequest",
    "Decoder",
    "Entry",
    "Finding",
    "Header",
    "Manifest",
    "Statistics",
    "Volume",
    "Voxels",
    "cases_without_label",
    "catalogued",
    "close_volumes",
    "convert",
    "custom_backends",
    "custom_decoders",
    "describe_volume",
    "find_by_folder",
    "find_volumes",
    "index_cases",
    "is_glob",
    "is_volume",
    "matches_volumes",
    "normalize_index",
    "read_manifest",
    "recached",
    "register_backend",
    "register_decoder",
    "resolve_backend",
    "serve",
    "unregister_backend",
    "unregister_decoder",
    "volume_histogram",
    "volume_statistics",
    "write_manifest",
]
