"""A list of small stored volumes that other libraries wrote, and what reading them must give.

Add a format by decorating a function in any module ``*_files.py`` of this folder::

    @reference("mine, big-endian")
    def mine(folder):
        ...
        return Reference(folder / "a.mine", array, affine)
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REFERENCES: dict[str, Callable[[Path], "Reference"]] = {}


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


def reference(name):
    """Put a function of a folder into the list."""

    def put(function):
        assert name not in REFERENCES
        REFERENCES[name] = function
        return function

    return put


def collect():
    """Import every module that adds to the list; return it."""
    for module in sorted(Path(__file__).parent.glob("*_files.py")):
        if not module.stem.startswith("test_"):
            importlib.import_module(module.stem)
    return REFERENCES
