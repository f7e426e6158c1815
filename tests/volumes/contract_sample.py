"""Which tests of the store contract run on which reference, and which of them are slow.

Decided here and nowhere else. Every test on every reference in every place is 2900 tests, most
of which ask the same lines of code again: a shape, an affine and the order of bytes are a
matter of the *file*; threads, forks, pickles and descriptors are a matter of the *backend*, one
class for all files that it opens. So:

- what depends on the file runs on every reference, on the local disk (by URL, ``test_references``
  reads each whole and in part: there, the bytes come another way to the same parser);
- what depends on the backend runs on ``REPRESENTATIVES``, which open each class of backend, in
  every place: ``test_every_backend_is_represented`` fails where one is missing;
- each day (the tests that are not slow) only ``QUICK`` runs: one of each kind of file whose own
  test module has no contract. Slow in any case are a spawned child, which takes seconds to
  import what it needs, and 10 000 volumes in turn.

The classes of the other modules follow the same rules: ``slow_in_contracts`` finds their slow
tests.
"""

import pytest
from reference_files import LOCAL_ONLY, REFERENCES

from voxpipe.testing import BackendContract, StoreContract

OF_THE_FILE = frozenset(
    {
        "test_the_header_is_right",
        "test_the_stored_type_is_told",
        "test_the_header_is_plain_data",
        "test_all_values_are_right",
        "test_random_regions_are_right",
        "test_indexing_keeps_axes_and_place",
    }
)
"""Tests whose answer depends on what the file says; all others depend on who reads it."""

ALWAYS_SLOW = frozenset({"test_a_spawned_child_reads", "test_ten_thousand_volumes_in_turn"})
"""Tests that take seconds for each reference."""

REPRESENTATIVES = (
    "zarr v3, sharded",
    "zarr in a zip",
    "tiff, as it is, big-endian",
    "OME-TIFF, tiles",
    "hdf5, in one piece",
    "hdf5, chunks, big-endian",
    # By URL, h5py decodes what has filters that are not ours.
    "hdf5, check sums",
    "b2nd, as nnU-Net's",
    "npy, Fortran order, big-endian",
    "nii, complex64",
    "nrrd, list last, gzip",
    "mhd, a list of planes",
    # The same backend as the one before, but its voxels come out of many files,
    "mhd, a pattern of compressed planes",
    # and out of libraries with threads and state of their own.
    "vtk",
    "dicom",
)
"""One reference for each class of backend, locally and by URL."""

QUICK = frozenset(
    {
        "nii, RGB24",
        "nii, complex64",
        "hdr and img of NIfTI-2, big-endian, by the .img",
        "Analyze of SPM, moved by a .mat",
        "nrrd, big-endian, RAS",
        "nrrd, list last, gzip",
        "mhd, a list of planes",
        "mha, vectors",
        "mhd, a pattern of compressed planes",
        "vtk",
        "dicom",
    }
)
"""References of every day."""

IN_TURN = 10_000
"""Volumes that are opened in turn."""

FEWER_IN_TURN = {"dicom": 2_000}
"""A series is a folder, of which every file is opened: these are as many files and more."""


def references_of(test, place):
    """Return the references on which a test of the contract runs, slow ones marked.

    Parameters
    ----------
    test
        Name of the test.
    place
        ``"local"``, ``"url"`` or ``"bucket"``.
    """
    names = REFERENCES if place == "local" and test in OF_THE_FILE else REPRESENTATIVES
    return [
        pytest.param(name, marks=() if _is_quick(test, place, name) else pytest.mark.slow)
        for name in names
        if place == "local" or name not in LOCAL_ONLY
    ]


def _is_quick(test, place, name):
    return place == "local" and name in QUICK and test not in ALWAYS_SLOW


def slow_in_contracts(items):
    """Yield the tests of other modules that depend on the backend and repeat what a quick one does.

    The first parameter of the fixture ``case`` represents the backend. A spawned child reads the
    first class of a module. Variants of a ``BackendContract`` are backends of their own.
    """
    spawned = {}
    for item in items:
        kind = getattr(item, "cls", None)
        if kind is None or not issubclass(kind, StoreContract) or hasattr(kind, "place"):
            continue
        name = item.originalname
        is_first = getattr(item, "callspec", None) is None or not item.callspec.indices.get("case")
        if name in ALWAYS_SLOW and kind.spawnable:
            is_first = is_first and spawned.setdefault(item.path, kind) is kind
        elif issubclass(kind, BackendContract):
            continue
        if name in vars(StoreContract) and name not in OF_THE_FILE and not is_first:
            yield item
