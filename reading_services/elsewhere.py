"""Arguments of torch's ``DataLoader`` given out of habit, and what stands for them here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..core.call_site import shorten
from ..core.suggest import closest

_BATCH = ".batch_patches({value}) or .batch({value}) at the end of the chain"
_DROPS = ".batch_patches(..., drop_last={value}) or .batch(..., drop_last={value}) in the chain"
# Of the loader, or of the chain; those of the service under another name come first.
_STANDS = {
    "prefetch_factor": "worker_prefetch_cnt={value}",
    "in_order": 'order="plan" or order="as_ready"',
    "mp_context": "multiprocessing_context={value}",
    "pin_memory": "nothing, as batches of workers lie in page-locked memory once CUDA is in use",
    "pin_memory_device": ".to_device({value}) at the end of the chain",
    "batch_size": _BATCH,
    "drop_last": _DROPS,
    "collate_fn": ".batch(...).collate({value}) at the end of the chain",
    "shuffle": ".shuffle() in the chain",
    "sampler": ".shuffle() in the chain, whose order the loader's seed decides",
    "batch_sampler": ".shuffle() and .batch_patches(...) or .batch(...) in the chain",
    "generator": "DataLoader2(..., seed=...)",
    "seed": "DataLoader2(..., seed={value})",
    "timeout": "DataLoader2(..., [Timeout(item={value})])",
}


def refuse_unknown(kind: type, others: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for arguments that a service does not have.

    Parameters
    ----------
    kind
        The class of the service.
    others
        The arguments.

    Examples
    --------
    >>> class MyReadingService:
    ...     def __init__(self, num_workers=0, **others):
    ...         refuse_unknown(MyReadingService, others)
    >>> MyReadingService(timeout=60)
    Traceback (most recent call last):
        ...
    TypeError: MyReadingService has no timeout; give DataLoader2(..., [Timeout(item=60)])
    """
    for other, value in others.items():
        parameters = inspect.signature(kind).parameters.values()
        known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        stands = _STANDS.get(other, "").format(value=shorten(value))
        meant = [f"{close}={shorten(value)}" for close in closest(other, known, 0.6)]
        give = [f"give {told}" for told in [stands, *meant] if told]
        words = [*give, f"it takes {', '.join(known)}"]
        raise TypeError(f"{kind.__name__} has no {other}; {words[0]}")
