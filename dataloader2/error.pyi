"""The names of voxpipe.dataloader2.error by table, written by tools/write_chained_forms.py."""

from voxpipe.dataloader2.iterator import PauseIteration as PauseIteration

__all__: list[str] = ['PauseIteration']
