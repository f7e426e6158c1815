"""The names of voxpipe.datapipes.map by table, written by tools/write_chained_forms.py."""

from torch.utils.data import MapDataPipe as MapDataPipe
from torch.utils.data.datapipes.map import Batcher as Batcher, Concater as Concater, Mapper as Mapper, SequenceWrapper as SequenceWrapper, Shuffler as Shuffler, Zipper as Zipper
from voxpipe.extensions.torchdata.map_pipe import InMemoryCacheHolder as InMemoryCacheHolder, IterToMapConverter as IterToMapConverter, UnZipper as UnZipper

__all__: list[str] = ['Batcher', 'Concater', 'InMemoryCacheHolder', 'IterToMapConverter', 'MapDataPipe', 'Mapper', 'SequenceWrapper', 'Shuffler', 'UnZipper', 'Zipper']
