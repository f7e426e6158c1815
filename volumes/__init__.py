"""Volume, the backend registry, one file per format."""

from . import builtin
from .convert import Converted, convert
from .handles import close_volumes
from .index import normalize_index
from .recached import recached
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
    "Converted",
    "Statistics",
    "Volume",
    "Voxels",
    "close_volumes",
    "convert",
    "custom_backends",
    "normalize_index",
    "recached",
    "register_backend",
    "resolve_backend",
    "unregister_backend",
    "volume_statistics",
]

builtin.register_builtin_backends()
