"""Datasets of filters that HDF5 does not bring along: named, and looked for in hdf5plugin."""

import sys

import numpy as np
import pytest

from voxpipe.core.errors import CorruptVolume, MissingDependency
from voxpipe.extensions.formats import hdf5_chunks
from voxpipe.volumes import Volume, close_volumes

h5py = pytest.importorskip("h5py")
OF_NOBODY = 31999
"""The HDF Group has given this number to no filter."""


@pytest.fixture(autouse=True)
def nothing_stays_open():
    yield
    close_volumes()


@pytest.fixture
def written(tmp_path):
    """A file whose one chunk went through a filter that is not here."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((2, 2, 2))
        plan.set_filter(OF_NOBODY, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((2, 2, 4))
        made = h5py.h5d.create(file.id, b"ct", h5py.h5t.STD_I16LE, space, plan)
        plain = np.arange(8, dtype="<i2").tobytes()
        made.write_direct_chunk((0, 0, 0), plain, filter_mask=1)  # this chunk went round it
        made.write_direct_chunk((0, 0, 2), b"squeezed", filter_mask=0)
    return tmp_path / "a.h5"


@pytest.mark.parametrize("remote", [False, True])
def test_a_filter_that_is_not_installed_is_named(written, remote):
    path = written.as_uri() if remote else written
    volume = Volume(path)

    with pytest.raises(MissingDependency, match=f"filter {OF_NOBODY}.*\\n.*install hdf5plugin"):
        volume.numpy()

    np.testing.assert_array_equal(volume[..., :2].numpy().ravel(), np.arange(8))


def test_the_package_of_filters_is_imported_where_one_is_missing(written, tmp_path, monkeypatch):
    """In whichever process reads: a worker does not import what the script imports."""
    (tmp_path / "hdf5plugin.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hdf5plugin", raising=False)

    Volume(written)[..., :2].numpy()

    assert sys.modules.pop("hdf5plugin").__file__ == str(tmp_path / "hdf5plugin.py")


def test_filters_that_h5py_brings_are_there(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("ct", (2, 2, 2), "<i2", chunks=(2, 2, 2), compression="lzf")
        assert hdf5_chunks.absent_filters(made.id.get_create_plist()) == []


def test_damage_is_still_damage(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("ct", (2, 2, 2), "<i2", chunks=(2, 2, 2), compression="lzf")
        made.id.write_direct_chunk((0, 0, 0), b"no lzf")

    with pytest.raises(CorruptVolume):
        Volume(tmp_path / "a.h5").numpy()
