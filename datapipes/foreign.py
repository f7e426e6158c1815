"""What torch's own pipes do, for the rewrites and the cut, and where the user wrote them."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from torch.utils.data import IterDataPipe
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from ..core.call_site import call_text, caller
from ..core.errors import SampleError
from ..graph import Traits, is_pipe, register_traits, walk
from ..spatial import LazyPatch
from .datapipe import DataPipe

# The chained forms of torch's of which errors name the line, because they know it.
_KNOW_LINES = (
    *("batch", "collate", "concat", "demux", "filter", "fork", "groupby", "list_files", "map"),
    *("mux", "open_files", "read_from_stream", "routed_decode", "sharding_filter", "shuffle"),
    *("unbatch", "zip"),
)
# Those of them that warn of a function that cannot be pickled.
_WARN = ("map", "filter", "collate")
# torch says this at once. Whether the function has to travel is known later, and told then.
_TORCH_ON_LAMBDAS = "(Lambda|Local) function is not supported"


# Of torch's own pipes, those that only move items: order, combine, divide, gather by key.
_MOVERS = (
    *("ConcaterIterDataPipe", "DemultiplexerIterDataPipe", "ForkerIterDataPipe"),
    *("GrouperIterDataPipe", "IterableWrapperIterDataPipe", "MultiplexerIterDataPipe"),
    *("SamplerIterDataPipe", "ShufflerIterDataPipe", "UnBatcherIterDataPipe"),
    *("ZipperIterDataPipe", "FileListerIterDataPipe", "SequenceWrapperMapDataPipe"),
    *("_ChildDataPipe", "_DemultiplexerIterDataPipe", "_ForkerIterDataPipe"),
)


def register_torch_pipes() -> None:
    """Fill the table for torch's pipes; one that is not in it is taken to do anything."""
    # A filter may drop items and a shuffle remembers them, so neither is per item: before voxels
    # they run in the planner, after voxels the graph cannot be cut.
    for name in ("MapperIterDataPipe", "CollatorIterDataPipe"):
        register_traits(name, lambda pipe: Traits(per_item=True, runs_user_code=True))
    register_traits("FilterIterDataPipe", lambda pipe: Traits(runs_user_code=True, filters=True))
    register_traits(
        "BatcherIterDataPipe", lambda pipe: Traits(group=pipe.batch_size, drop_last=pipe.drop_last)
    )
    register_traits("ShardingFilterIterDataPipe", lambda pipe: Traits(shards=True))
    # An open file cannot travel to a worker.
    register_traits("FileOpenerIterDataPipe", lambda pipe: Traits(per_item=True, voxels=True))
    for name in _MOVERS:
        register_traits(name, lambda pipe: Traits())


def remember_lines() -> None:
    """Let torch's pipes know the line on which they were written."""
    # torch keeps a table of chained forms; the entries of these are replaced by ones that make the
    # very same pipe. What torch warns of is left as it is in chains of its pipes alone.
    for name in _KNOW_LINES:
        function: Any = IterDataPipe.functions[name]
        if getattr(function, "func", None) is not _written:
            kind = function.args[0]
            made = functools.partial(_written, kind, name, function)
            IterDataPipe.register_function(name, functools.update_wrapper(made, function))


def _written(
    kind: type, name: str, make: Callable[..., Any], parent: Any, *args: Any, **kwargs: Any
) -> Any:
    """Return what ``make`` makes, with where it was written; ``kind`` is its class."""
    if name in _WARN and any(isinstance(pipe, DataPipe) for pipe in walk(parent)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_TORCH_ON_LAMBDAS, category=UserWarning)
            made = make(parent, *args, **kwargs)
    else:
        made = make(parent, *args, **kwargs)
    # Of what has several children, the pipe that they share runs the function.
    pipe = made[0].main_datapipe if isinstance(made, list) else made
    shown = tuple(arg for arg in args if not is_pipe(arg))
    pipe.origin = caller(call_text(name, shown, kwargs))
    return made


register_torch_pipes()
remember_lines()


def refuse(patches: Sequence[Any], *, collate_fn_map: Any = None) -> NoReturn:
    """Refuse to stack patches without voxels."""
    raise SampleError(
        f"collate() needs voxels, and those of {patches[0]!r} are not read yet",
        do="Put .batch_patches(n) in the place of .batch(n).collate(): it reads them, straight "
        "into the batch.",
    )


default_collate_fn_map[LazyPatch] = refuse


RANKS, WORKERS = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING
LEVELS = (RANKS, WORKERS)


def levels_of(pipe: Any) -> tuple[Any, ...]:
    """Return the levels at which a pipe divides."""
    if not hasattr(type(pipe), "apply_sharding"):
        return ()
    group = getattr(pipe, "sharding_group_filter", None)
    if group is None or group == SHARDING_PRIORITIES.DEFAULT:
        return LEVELS
    return (group,)
