"""torchdata's place for what goes with datapipes: streams, drawings, page-locked memory."""

from torch.utils.data.datapipes.utils.common import StreamWrapper as StreamWrapper

from ..iter.files.streams import janitor
from ..iter.stack.pin_memory import pin_memory_fn
from .drawn import to_graph

__all__ = ["janitor", "pin_memory_fn", "to_graph"]
