"""The traits and origins of torch's own pipes, for the rewrites and the cut."""

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
from .forms import Form

# The chained forms of torch's that warn of a function that cannot be pickled.
_WARN = ("map", "filter", "collate")
# torch warns at once. Whether the function has to be pickled is known and reported later.
_TORCH_ON_LAMBDAS = "(Lambda|Local) function is not supported"


# torch's own pipes that only move items: order, combine, divide, gather by key.
_MOVERS = (
    *("ConcaterIterDataPipe", "DemultiplexerIterDataPipe", "ForkerIterDataPipe"),
    *("GrouperIterDataPipe", "IterableWrapperIterDataPipe", "MultiplexerIterDataPipe"),
    *("SamplerIterDataPipe", "ShufflerIterDataPipe", "UnBatcherIterDataPipe"),
    *("ZipperIterDataPipe", "FileListerIterDataPipe", "SequenceWrapperMapDataPipe"),
    *("_ChildDataPipe", "_DemultiplexerIterDataPipe", "_ForkerIterDataPipe"),
)


# The table for torch's pipes; any other pipe may do anything. A filter may drop items and a shuffle
# remembers them, so neither is per item. Before voxels they run in the planner; after voxels the
# graph cannot be cut. An open file cannot be sent to a worker.
for names, traits in (
    (("MapperIterDataPipe", "CollatorIterDataPipe"), Traits(per_item=True, runs_user_code=True)),
    (("FilterIterDataPipe",), Traits(runs_user_code=True, filters=True)),
    (("ShardingFilterIterDataPipe",), Traits(shards=True)),
    (("FileOpenerIterDataPipe",), Traits(per_item=True, voxels=True)),
    (_MOVERS, Traits()),
):
    for name in names:
        register_traits(name, lambda pipe, traits=traits: traits)  # type: ignore[misc]
register_traits(
    "BatcherIterDataPipe", lambda pipe: Traits(group=pipe.batch_size, drop_last=pipe.drop_last)
)


def _make_at(
    kind: type, name: str, make: Callable[..., Any], parent: Any, *args: Any, **kwargs: Any
) -> Any:
    """Return the pipe of ``make``, with its place in the user's code; ``kind`` is its class."""
    if name in _WARN and any(isinstance(pipe, DataPipe) for pipe in walk(parent)):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_TORCH_ON_LAMBDAS, category=UserWarning)
            result = make(parent, *args, **kwargs)
    else:
        result = make(parent, *args, **kwargs)
    # If there are several children, their shared pipe runs the function.
    pipe = result[0].main_datapipe if isinstance(result, list) else result
    values = tuple(arg for arg in args if not is_pipe(arg))
    pipe.origin = caller(call_text(name, values, kwargs))
    return result


# Replace the entries of torch's table of chained forms by functions that make the same pipe. Chains
# of torch's pipes alone keep torch's warnings.
for name, function in list(IterDataPipe.functions.items()):
    kind: Any = getattr(function, "args", (object,))[0]
    is_known = getattr(function, "func", None) is _make_at
    if kind.__module__.startswith("torch.utils.data.datapipes.iter.") and not is_known:
        maker = Form.of(name, functools.partial(_make_at, kind, name, function))
        IterDataPipe.register_function(name, maker)


def refuse(patches: Sequence[Any], *, collate_fn_map: Any = None) -> NoReturn:
    """Refuse to stack patches without voxels."""
    msg = f"collate() needs voxels, and those of {patches[0]!r} are not read yet"
    do = "Put .batch_patches(n) in the place of .batch(n).collate(): it reads them, straight "
    raise SampleError(msg, do=f"{do}into the batch.")


default_collate_fn_map[LazyPatch] = refuse


RANKS, WORKERS = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING
LEVELS = (RANKS, WORKERS)


def division_levels(pipe: Any) -> tuple[Any, ...]:
    """Return the levels at which a pipe divides."""
    if not hasattr(type(pipe), "apply_sharding"):
        return ()
    group = getattr(pipe, "sharding_group_filter", None)
    if group is None or group == SHARDING_PRIORITIES.DEFAULT:
        return LEVELS
    return (group,)
