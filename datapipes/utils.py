"""torchdata's place for what goes with datapipes: streams, drawings, page-locked memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.data.datapipes.utils.common import StreamWrapper as StreamWrapper

from ..first_use import at_first_use

if TYPE_CHECKING:
    from .general.device import pin_memory_fn
    from .general.streams import janitor
    from .general.to_graph import to_graph

_HOMES = {
    "general.streams": ("janitor",),
    "general.device": ("pin_memory_fn",),
    "general.to_graph": ("to_graph",),
}
__all__ = ["janitor", "pin_memory_fn", "to_graph"]
__getattr__, __dir__ = at_first_use(globals(), _HOMES)
