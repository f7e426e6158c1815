"""The names of voxpipe.dataloader2.graph.utils by table, written by tools/write_chained_forms.py."""

from voxpipe.graph.rewrite import find_dps as find_dps, list_dps as list_dps, remove_dp as remove_dp, replace_dp as replace_dp

__all__: list[str] = ['find_dps', 'list_dps', 'remove_dp', 'replace_dp']
