"""torchdata's place for what workers do with a graph."""

from .worker import WorkerInfo, process_init_fn, process_reset_fn

__all__ = ["WorkerInfo", "process_init_fn", "process_reset_fn"]
