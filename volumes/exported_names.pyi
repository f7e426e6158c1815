"""The names of voxpipe.volumes, written by tools/write_chained_forms.py."""

from .catalog.catalog import Finding as Finding, PartialIndex as PartialIndex, describe_each as describe_each, describe_volume as describe_volume, entries_of as entries_of, serve as serve, sources_of as sources_of
from .catalog.find import cases_without_label as cases_without_label, find_by_folder as find_by_folder, find_volumes as find_volumes, is_glob as is_glob, is_volume as is_volume, matches_volumes as matches_volumes
from .catalog.manifest import Entry as Entry, Manifest as Manifest, is_by_columns as is_by_columns, read_manifest as read_manifest, write_entries as write_entries
from .catalog.whole_pass import Statistics as Statistics, volume_histogram as volume_histogram, volume_statistics as volume_statistics
from .chunks.ranged_chunks import Decoder as Decoder, custom_decoders as custom_decoders, register_decoder as register_decoder, unregister_decoder as unregister_decoder
from .conversion.convert import convert as convert
from .conversion.save import save as save
from .formats.range_backend import ByteRange as ByteRange, RangeBackend as RangeBackend
from .formats.raw import RawHeader as RawHeader, fastest_first as fastest_first, open_raw as open_raw
from .formats.stored_file import FilesBackend as FilesBackend, Format as Format, StoredFile as StoredFile
from .registry import BackendRequest as BackendRequest, custom_backends as custom_backends, is_picture as is_picture, register_backend as register_backend, resolve_backend as resolve_backend, unregister_backend as unregister_backend
from .scheme import AccessHint as AccessHint

__all__: list[str] = ['AccessHint', 'BackendRequest', 'ByteRange', 'Decoder', 'Entry', 'FilesBackend', 'Finding', 'Format', 'Manifest', 'PartialIndex', 'RangeBackend', 'RawHeader', 'Statistics', 'StoredFile', 'cases_without_label', 'convert', 'custom_backends', 'custom_decoders', 'describe_each', 'describe_volume', 'entries_of', 'fastest_first', 'find_by_folder', 'find_volumes', 'is_by_columns', 'is_glob', 'is_picture', 'is_volume', 'matches_volumes', 'open_raw', 'read_manifest', 'register_backend', 'register_decoder', 'resolve_backend', 'save', 'serve', 'sources_of', 'unregister_backend', 'unregister_decoder', 'volume_histogram', 'volume_statistics', 'write_entries']
