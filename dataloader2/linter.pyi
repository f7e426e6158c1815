"""The names of voxpipe.dataloader2.linter by table, written by tools/write_chained_forms.py."""

from voxpipe.adapters.lint import _check_shuffle_before_sharding as _check_shuffle_before_sharding

__all__: list[str] = ['_check_shuffle_before_sharding']
