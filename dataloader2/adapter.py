"""torchdata's place for the adapters."""

from ..adapters import Adapter, Shuffle

__all__ = ["Adapter", "Shuffle"]
