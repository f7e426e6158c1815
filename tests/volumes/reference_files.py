"""A list of small stored volumes that other libraries wrote, and what reading them must give.

Add a format by decorating a function in any module ``*_files.py`` of this folder::

    @reference("mine, big-endian")
    def mine(folder):
        ...
        return Reference(folder / "a.mine", array, affine)

Every test of all formats then runs on it: the store contract, locally and behind a URL, and damage.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import numpy as np

from voxpipe.testing import StoreCase

REFERENCES: dict[str, Callable[[Path], "Reference"]] = {}
LOCAL_ONLY = set()
"""Names of those that are not read by URL."""


@dataclass(frozen=True)
class Reference:
    """One volume in one or more files of a folder."""

    path: Path
    """What a user gives to ``Volume``."""
    array: np.ndarray
    """All values, (C, I, J, K), in the type that reads return."""
    affine: np.ndarray
    """4x4, voxel index to world millimetres."""
    header: tuple[str, int] = ("", 0)
    """Name and length of the part that is a header, if it is not the beginning of ``path``."""
    disk_dtype: str = ""
    """Type as stored, where it is not that of ``array``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of ``Volume``."""
    tables: bool = False
    """Whether the header says where voxels lie or how they are decoded.

    A wrong byte there may then lead to other voxels without anybody being able to tell.
    """


def reference(name, *, local_only=False):
    """Put a function of a folder into the list."""

    def put(function):
        assert name not in REFERENCES
        REFERENCES[name] = function
        if local_only:
            LOCAL_ONLY.add(name)
        return function

    return put


def collect():
    """Import every module that adds to the list; return it."""
    for module in sorted(Path(__file__).parent.glob("*_files.py")):
        if not module.stem.startswith("test_"):
            importlib.import_module(module.stem)
    return REFERENCES


def contents(folder):
    """Return all files below a folder: bytes by their path in it."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


def case_at(source, found, **options):
    """Return the store case of a reference that lies at ``source``."""
    disk_dtype = np.dtype(found.disk_dtype or found.array.dtype)
    return StoreCase(
        source, found.array, found.affine, {**found.options, **options}, disk_dtype=disk_dtype
    )


def local(name, folder):
    """Return the case of a reference file on a local disk."""
    found = REFERENCES[name](folder)
    return case_at(found.path, found)


def remote(name, folder):
    """Return the case of a reference file, and those beside it, behind a URL."""
    found = REFERENCES[name](folder)
    system = fsspec.filesystem("memory")
    # A name of its own: what is cached of one test may not help another.
    place = f"/references/{folder.name}-{abs(hash(name))}"
    for file, content in contents(folder).items():
        system.pipe(f"{place}/{file}", content)
    return case_at(f"memory:/{place}/{found.path.relative_to(folder).as_posix()}", found)
