"""Zarr v2 written by hand, with whichever version of zarr-python is installed."""

import sys

import fsspec
import numpy as np
import pytest
from nifti_files import numbered
from zarr_files import write_v2, write_v2_group

from voxpipe.core.errors import MissingDependency
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume, zarr_nodes

STEP = {"type": "scale", "scale": [1, 4, 3, 2]}
OME = {
    "multiscales": [
        {
            "axes": [{"name": axis} for axis in "czyx"],
            "datasets": [{"path": "0", "coordinateTransformations": [STEP]}],
        }
    ]
}


class TestArray(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7), ">i2")
        array[2:] = -1  # whole chunks of the fill value, which are not stored
        folder = write_v2(tmp_path / "a.zarr", array, (2, 4, 3), fill=-1)
        return StoreCase(folder, array[None].astype("i2"), np.eye(4))


class TestOmeGroup(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((2, 5, 6, 7), np.uint16)
        folder = write_v2_group(tmp_path / "a.ome.zarr", OME, _0=array)
        return StoreCase(folder, array.transpose(0, 3, 2, 1), np.diag([2.0, 3.0, 4.0, 1.0]))


class TestRemoteArray(StoreContract):
    spawnable = False  # fsspec's memory file system

    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        folder = write_v2(tmp_path / "a.zarr", array, (2, 4, 3))
        fsspec.filesystem("memory").put(str(folder), "/remote/by-hand.zarr", recursive=True)
        return StoreCase("memory://remote/by-hand.zarr", array[None], np.eye(4))


class TestObject(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7))
        write_v2(tmp_path / "a.zarr", array, (2, 4, 3))
        node = zarr_nodes.open_local_node(str(tmp_path / "a.zarr"), "a.zarr")
        return StoreCase(node, array[None], np.eye(4))


def test_v3_needs_zarr_3(tmp_path, monkeypatch):
    """Where only zarr 2 can be installed, a v3 array says what is missing."""
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "array"}')
    monkeypatch.setattr("zarr.__version__", "2.18.3")

    with pytest.raises(MissingDependency, match=r"v3, and zarr 2\.18\.3"):
        _ = Volume(tmp_path / "a.zarr").shape


def test_without_zarr(tmp_path, monkeypatch):
    """Where zarr is not installed, the message says what to install."""
    monkeypatch.setitem(sys.modules, "zarr", None)

    with pytest.raises(MissingDependency, match="needs zarr"):
        _ = Volume(write_v2(tmp_path / "a.zarr", numbered((2, 2, 2)), (1, 1, 1))).shape
