"""Volume, the backend registry, one file per format."""

from typing import TYPE_CHECKING

from ..first_use import at_first_use
from ..first_use import list_names as _list_names
from . import formats as _formats
from .axis_map import AxisMap as AxisMap
from .backend import Backend as Backend
from .header import Header as Header
from .registry import add_formats as _add_formats
from .session import close_volumes as close_volumes
from .volume import Volume as Volume
from .voxels import Voxels as Voxels

if TYPE_CHECKING:
    from .exported_names import *  # noqa: F403
_add_formats(_list_names(_formats.__name__, _formats.__path__, "FORMATS"))
_HOMES = {
    "catalog.catalog": "Finding PartialIndex describe_each "
    "describe_volume entries_of serve sources_of",
    "catalog.find": "cases_without_label find_by_folder find_volumes is_glob is_volume "
    "matches_volumes",
    "catalog.manifest": "Entry Manifest is_by_columns read_manifest write_entries",
    "catalog.whole_pass": "Statistics volume_histogram volume_statistics",
    "chunks.ranged_chunks": "Decoder custom_decoders register_decoder unregister_decoder",
    "conversion.convert": "convert",
    "conversion.save": "save",
    "formats.range_backend": "ByteRange RangeBackend",
    "formats.raw": "RawHeader fastest_first open_raw",
    "formats.stored_file": "FilesBackend Format StoredFile",
    "scheme": "AccessHint",
    "registry": "BackendRequest custom_backends is_picture register_backend resolve_backend "
    "unregister_backend",
}
__getattr__, __dir__ = at_first_use(globals(), _HOMES)
