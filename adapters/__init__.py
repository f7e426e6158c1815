"""Adapters: each rewrites a graph before it runs."""

from .adapter import Adapter
from .cache_timeout import CacheTimeout
from .eager import Eager
from .fuse_reads import FuseReads
from .fuse_spatial import FuseSpatial
from .lint import Lint, Mistake
from .on_error import OnError, policy_of
from .override import Override
from .prefetch import Prefetch
from .profile import MemoryProfile, Profile
from .runtime import Hints, Runtime, hints_of
from .shuffle import Shuffle
from .timeout import Limits, Timeout, limits_of

__all__ = [
    "Adapter",
    "CacheTimeout",
    "Eager",
    "FuseReads",
    "FuseSpatial",
    "Hints",
    "Limits",
    "Lint",
    "MemoryProfile",
    "Mistake",
    "OnError",
    "Override",
    "Prefetch",
    "Profile",
    "Runtime",
    "Shuffle",
    "Timeout",
    "hints_of",
    "limits_of",
    "policy_of",
]
