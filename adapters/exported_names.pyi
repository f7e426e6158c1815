"""The names of extensions in voxpipe.adapters, written by tools/write_chained_forms.py."""

from ..extensions.recipes.axes import ToAxes as ToAxes
from ..extensions.torchdata.adapters import CacheTimeout as CacheTimeout, Shuffle as Shuffle
from ..extensions.torchdata.runtime import Runtime as Runtime

__all__: list[str] = ['CacheTimeout', 'Runtime', 'Shuffle', 'ToAxes']
