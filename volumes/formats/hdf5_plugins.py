"""Filters of HDF5 that come in a package of their own: zstd, blosc, bitshuffle and others.

They are registered by ``import hdf5plugin`` in each process that reads, and workers do not import
what the script of the user imports. So it is imported here when a dataset needs it.
"""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from ...core.errors import MissingDependency

# Of the registry of the HDF Group; those in hdf5plugin.
_NAMES = {
    307: "bzip2",
    32001: "blosc",
    32004: "lz4",
    32008: "bitshuffle",
    32013: "zfp",
    32015: "zstd",
    32017: "sz",
    32018: "fcidecomp",
    32024: "sz3",
    32026: "blosc2",
    32028: "sperr",
}


def absent_filters(dataset: Any) -> list[str]:
    """Return the filters of a dataset that HDF5 does not have, after it was offered more."""
    absent = _absent(dataset)
    if absent:
        with contextlib.suppress(ImportError):
            importlib.import_module("hdf5plugin")  # registers its filters
        absent = _absent(dataset)
    return [f"{_NAMES[code]} ({code})" if code in _NAMES else str(code) for code in absent]


def missing_filter(dataset: Any, name: str) -> MissingDependency | None:
    """Return the error of a dataset that cannot be decoded for want of a filter, if that is it."""
    absent = absent_filters(dataset)
    if not absent:
        return None
    return MissingDependency(
        f"decoding {name} needs the HDF5 filter {', '.join(absent)}, which is not installed.",
        do="pip install hdf5plugin (voxpipe imports it), or set HDF5_PLUGIN_PATH to the filter.",
    )


def _absent(dataset: Any) -> list[int]:
    from h5py import h5z

    plan = dataset.id.get_create_plist()
    codes = [plan.get_filter(n)[0] for n in range(plan.get_nfilters())]
    return [code for code in codes if not h5z.filter_avail(code)]
