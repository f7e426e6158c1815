"""Adapters: each rewrites a graph before it runs."""

from .adapter import Adapter
from .eager import Eager
from .fuse_spatial import FuseSpatial
from .profile import Profile
from .timeout import Limits, Timeout, limits_of

__all__ = ["Adapter", "Eager", "FuseSpatial", "Limits", "Profile", "Timeout", "limits_of"]
