"""The names of voxpipe.datapipes.map by table, written by tools/write_chained_forms.py."""

from torch.utils.data import MapDataPipe
from torch.utils.data.datapipes.map import Batcher, Concater, Mapper, SequenceWrapper, Shuffler, Zipper
from voxpipe.extensions.torchdata.map_pipe import InMemoryCacheHolder, IterToMapConverter, UnZipper

__all__: list[str] = ['Batcher', 'Concater', 'InMemoryCacheHolder', 'IterToMapConverter', 'MapDataPipe', 'Mapper', 'SequenceWrapper', 'Shuffler', 'UnZipper', 'Zipper']
