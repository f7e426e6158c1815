"""Volume, the backend registry, one file per format."""

from ..first_use import export as _export
from ..first_use import list_names as _list_names
from . import formats as _formats
from .axis_map import AxisMap as AxisMap
from .backend import Backend as Backend
from .catalog.catalog import Finding as Finding
from .catalog.catalog import catalog_volume as catalog_volume
from .catalog.catalog import describe_volume as describe_volume
from .catalog.catalog import index_cases as index_cases
from .catalog.catalog import serve as serve
from .catalog.find import cases_without_label as cases_without_label
from .catalog.find import find_by_folder as find_by_folder
from .catalog.find import find_volumes as find_volumes
from .catalog.find import is_glob as is_glob
from .catalog.find import is_volume as is_volume
from .catalog.find import matches_volumes as matches_volumes
from .catalog.manifest import Entry as Entry
from .catalog.manifest import Manifest as Manifest
from .catalog.manifest import read_manifest as read_manifest
from .catalog.manifest import write_manifest as write_manifest
from .catalog.whole_pass import Statistics as Statistics
from .catalog.whole_pass import volume_histogram as volume_histogram
from .catalog.whole_pass import volume_statistics as volume_statistics
from .chunks.ranged_chunks import Decoder as Decoder
from .chunks.ranged_chunks import custom_decoders as custom_decoders
from .chunks.ranged_chunks import register_decoder as register_decoder
from .chunks.ranged_chunks import unregister_decoder as unregister_decoder
from .conversion.convert import convert as convert
from .conversion.save import save as save
from .formats.raw import RawHeader as RawHeader
from .formats.raw import open_raw as open_raw
from .formats.stored_file import FilesBackend as FilesBackend
from .formats.stored_file import Format as Format
from .formats.stored_file import StoredFile as StoredFile
from .header import Header as Header
from .registry import BackendRequest as BackendRequest
from .registry import add_formats as _add_formats
from .registry import custom_backends as custom_backends
from .registry import register_backend as register_backend
from .registry import resolve_backend as resolve_backend
from .registry import unregister_backend as unregister_backend
from .session import close_volumes as close_volumes
from .volume import Volume as Volume
from .voxels import Voxels as Voxels

_add_formats(_list_names(_formats.__name__, _formats.__path__, "FORMATS"))
_export(globals())
