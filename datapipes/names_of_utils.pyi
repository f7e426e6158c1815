"""The names of voxpipe.datapipes.utils by table, written by tools/write_chained_forms.py."""

from voxpipe.extensions.torchdata.main_process import pin_memory_fn as pin_memory_fn
from voxpipe.extensions.torchdata.streams import janitor as janitor

__all__: list[str] = ['janitor', 'pin_memory_fn']
