"""Adapters: each rewrites a graph before it runs."""

from .adapter import Adapter, Annotation, note_of
from .eager import Eager
from .fuse import FuseReads, FuseSpatial
from .lint import Lint, Mistake
from .on_error import OnError
from .override import Override, Shuffle
from .prefetch import Prefetch
from .profile import MemoryProfile, Profile
from .runtime import Hints, Runtime
from .timeout import CacheTimeout, Limits, Timeout

__all__ = [
    "Adapter",
    "Annotation",
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
    "note_of",
]
