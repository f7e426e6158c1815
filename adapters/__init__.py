"""Adapters: each rewrites a graph before it runs."""

from .adapter import Adapter
from .cache_timeout import CacheTimeout
from .eager import Eager
from .fuse_spatial import FuseSpatial
from .lint import Lint, Mistake
from .profile import Profile
from .shuffle import Shuffle
from .timeout import Limits, Timeout, limits_of

__all__ = [
    "Adapter",
    "CacheTimeout",
    "Eager",
    "FuseSpatial",
    "Limits",
    "Lint",
    "Mistake",
    "Profile",
    "Shuffle",
    "Timeout",
    "limits_of",
]
