"""The names of voxpipe.datapipes.map by table, written by tools/write_chained_forms.py."""

from voxpipe.extensions.torchdata.map_pipe import InMemoryCacheHolder, IterToMapConverter, UnZipper

__all__: list[str] = ['InMemoryCacheHolder', 'IterToMapConverter', 'UnZipper']
