"""Adapters: each rewrites a graph before it runs."""

from .adapter import Adapter
from .eager import Eager
from .fuse_spatial import FuseSpatial
from .lint import Lint, Mistake
from .on_error import OnError, policy_of
from .profile import MemoryProfile, Profile
from .shuffle import Shuffle
from .timeout import Limits, Timeout, limits_of

__all__ = [
    "Adapter",
    "Eager",
    "FuseSpatial",
    "Limits",
    "Lint",
    "MemoryProfile",
    "Mistake",
    "OnError",
    "Profile",
    "Shuffle",
    "Timeout",
    "limits_of",
    "policy_of",
]
