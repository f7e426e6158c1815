"""The names of voxpipe.volumes, written by tools/write_chained_forms.py."""

from .catalog.catalog import CatalogVolumes, Finding, PartialIndex, catalog_volume, describe_each, describe_volume, entries_of, serve
from .catalog.find import cases_without_label, find_by_folder, find_volumes, is_glob, is_volume, matches_volumes
from .catalog.manifest import Entry, Manifest, is_by_columns, read_manifest, write_entries
from .catalog.whole_pass import Statistics, volume_histogram, volume_statistics
from .chunks.ranged_chunks import Decoder, custom_decoders, register_decoder, unregister_decoder
from .conversion.convert import convert
from .conversion.save import save
from .formats.range_backend import ByteRange, RangeBackend
from .formats.raw import RawHeader, fastest_first, open_raw
from .formats.stored_file import FilesBackend, Format, StoredFile
from .registry import BackendRequest, custom_backends, register_backend, resolve_backend, unregister_backend
from .scheme import AccessHint

__all__: list[str] = ['AccessHint', 'BackendRequest', 'ByteRange', 'CatalogVolumes', 'Decoder', 'Entry', 'FilesBackend', 'Finding', 'Format', 'Manifest', 'PartialIndex', 'RangeBackend', 'RawHeader', 'Statistics', 'StoredFile', 'cases_without_label', 'catalog_volume', 'convert', 'custom_backends', 'custom_decoders', 'describe_each', 'describe_volume', 'entries_of', 'fastest_first', 'find_by_folder', 'find_volumes', 'is_by_columns', 'is_glob', 'is_volume', 'matches_volumes', 'open_raw', 'read_manifest', 'register_backend', 'register_decoder', 'resolve_backend', 'save', 'serve', 'unregister_backend', 'unregister_decoder', 'volume_histogram', 'volume_statistics', 'write_entries']
