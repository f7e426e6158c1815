"""The names of voxpipe.dataloader2.utils by table, written by tools/write_chained_forms.py."""

from . import worker as worker
from voxpipe.reading_services.replica import WorkerInfo as WorkerInfo
from voxpipe.reading_services.torchdata_service import process_init_fn as process_init_fn, process_reset_fn as process_reset_fn

__all__: list[str] = ['WorkerInfo', 'process_init_fn', 'process_reset_fn', 'worker']
