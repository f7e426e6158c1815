"""The names of voxpipe.dataloader2.shuffle_spec by table, written by tools/write_chained_forms.py."""

from voxpipe.datapipes.shuffle_plans import ShuffleSpec as ShuffleSpec

__all__: list[str] = ['ShuffleSpec']
