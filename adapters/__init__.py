"""Adapters: each rewrites a graph before it runs."""

from .adapter import Adapter
from .eager import Eager
from .fuse import FuseReads, FuseSpatial
from .lint import Lint, Mistake
from .on_error import OnError, policy_of
from .override import Override, Shuffle
from .prefetch import Prefetch
from .profile import MemoryProfile, Profile
from .runtime import Hints, Runtime, hints_of
from .timeout import CacheTimeout, Limits, Timeout, limits_of

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
