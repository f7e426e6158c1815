"""Seeds for the pipes of a graph: some the same on every worker and rank, some its own."""

from __future__ import annotations

from typing import Any

from ..core.validate import validate_int
from ..reading_services.replica import MAX_SEED, SeedGenerator

__all__ = ["SeedGenerator", "dist_share_seed"]


def dist_share_seed(seed: int, process_group: Any = None) -> int:
    """Return the seed of rank 0 of a ``torch.distributed`` group, on every rank of it."""
    import torch
    import torch.distributed as dist

    seed = validate_int("seed", seed, least=0, below=MAX_SEED)
    # Tensors have signed integers: the upper half of the seeds is below zero in between.
    tensor = torch.tensor(seed - MAX_SEED // 2, dtype=torch.int64, device="cpu")
    source = 0 if process_group is None else dist.get_global_rank(process_group, 0)
    dist.broadcast(tensor, src=source, group=process_group)
    return int(tensor.item()) + MAX_SEED // 2
