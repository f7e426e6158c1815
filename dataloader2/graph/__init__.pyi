"""The names of voxpipe.dataloader2.graph by table, written by tools/write_chained_forms.py."""

from . import settings as settings, utils as utils
from voxpipe.graph.rewrite import DataPipe as DataPipe, DataPipeGraph as DataPipeGraph, find_dps as find_dps, list_dps as list_dps, remove_dp as remove_dp, replace_dp as replace_dp, traverse_dps as traverse_dps
from voxpipe.reading_services.torchdata_service import set_datapipes_seed as set_datapipes_seed, set_graph_random_seed as set_graph_random_seed

__all__: list[str] = ['DataPipe', 'DataPipeGraph', 'find_dps', 'list_dps', 'remove_dp', 'replace_dp', 'set_datapipes_seed', 'set_graph_random_seed', 'settings', 'traverse_dps', 'utils']
