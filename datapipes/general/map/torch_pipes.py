"""torch's own map-style pipes, under the names of torchdata."""

from torch.utils.data import MapDataPipe as MapDataPipe
from torch.utils.data.datapipes.map import Batcher as Batcher
from torch.utils.data.datapipes.map import Concater as Concater
from torch.utils.data.datapipes.map import Mapper as Mapper
from torch.utils.data.datapipes.map import SequenceWrapper as SequenceWrapper
from torch.utils.data.datapipes.map import Shuffler as Shuffler
from torch.utils.data.datapipes.map import Zipper as Zipper
