"""The names of voxpipe.dataloader2.adapter by table, written by tools/write_chained_forms.py."""

from voxpipe.adapters import Adapter as Adapter
from voxpipe.extensions.torchdata.adapters import CacheTimeout as CacheTimeout, Shuffle as Shuffle

__all__: list[str] = ['Adapter', 'CacheTimeout', 'Shuffle']
