"""Volume, the backend registry, one file per format."""

from . import builtin
from .handles import close_volumes
from .index import normalize_index
from .registry import (
    BackendRequest,
    custom_backends,
    register_backend,
    resolve_backend,
    unregister_backend,
)
from .statistics import Statistics, volume_statistics
from .volume import Volume
from .voxels import Voxels

__all__ = [
    "BackendRequest",
    "Statistics",
    "Volume",
    "Voxels",
    "close_volumes",
    "custom_backends",
    "normalize_index",
    "register_backend",
    "resolve_backend",
    "unregister_backend",
    "volume_statistics",
]

builtin.register_builtin_backends()
