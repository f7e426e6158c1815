"""Zarr v2 written by hand, with whichever version of zarr-python is installed."""

import json
import sys

import fsspec
import numpy as np
import pytest
from nifti_files import numbered
from zarr_files import write_v2, write_v2_group

from voxpipe.core.errors import BadHeader, MissingDependency
from voxpipe.storage.file_reader import LocalRanges
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume
from voxpipe.volumes.formats import zarr_nodes

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
        node = zarr_nodes.open_ranges_node(LocalRanges(str(tmp_path / "a.zarr")), "a.zarr")
        return StoreCase(node, array[None], np.eye(4))


V3 = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [2, 2, 2],
    "data_type": "uint8",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2, 2]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [{"name": "bytes"}],
}


def write_v3(folder, **changes):
    """Write an array of eight numbers, in one chunk."""
    chunk = folder / "c" / "0" / "0" / "0"
    chunk.parent.mkdir(parents=True)
    chunk.write_bytes(bytes(range(8)))
    (folder / "zarr.json").write_text(json.dumps(V3 | changes))
    return folder


STRANGE = [{"name": "bytes"}, {"name": "their.codec"}]


def test_common_arrays_need_no_zarr(tmp_path, monkeypatch):
    """Version 2 and 3, arrays and groups are read where zarr-python is not installed."""
    monkeypatch.setitem(sys.modules, "zarr", None)
    array = numbered((2, 4, 6, 8), np.uint16)

    assert Volume(write_v3(tmp_path / "3.zarr")).numpy().ravel().tolist() == list(range(8))
    group = Volume(write_v2_group(tmp_path / "2.zarr", OME, _0=array))
    assert group.numpy().tolist() == array.transpose(0, 3, 2, 1).tolist()


def test_what_only_zarr_reads_says_so(tmp_path, monkeypatch):
    """A codec that is not ours asks for zarr-python."""
    volume = Volume(write_v3(tmp_path / "a.zarr", codecs=STRANGE))
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(MissingDependency, match=r"a\.zarr .*not installed"):
        _ = volume.shape


def test_a_codec_that_nobody_knows_names_the_array(tmp_path):
    """What zarr-python says of it is passed on, with the name of the array."""
    with pytest.raises(BadHeader, match=r"a\.zarr.*their\.codec"):
        _ = Volume(write_v3(tmp_path / "a.zarr", codecs=STRANGE)).shape
