"""torchdata's place for the adapters."""

from ..adapters import Adapter, CacheTimeout, Shuffle

__all__ = ["Adapter", "CacheTimeout", "Shuffle"]
