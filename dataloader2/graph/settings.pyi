"""The names of voxpipe.dataloader2.graph.settings by table, written by tools/write_chained_forms.py."""

from voxpipe.reading_services.torchdata_service import set_datapipes_seed as set_datapipes_seed, set_graph_random_seed as set_graph_random_seed

__all__: list[str] = ['set_datapipes_seed', 'set_graph_random_seed']
