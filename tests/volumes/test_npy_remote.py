"""``.npy`` behind a URL, in ranges."""

import fsspec
import numpy as np
import pytest
from nifti_files import AFFINE, numbered

from voxpipe.core.errors import BadHeader, TruncatedVolume, UnknownFormat
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume


def put(array, folder, name="a.npy", cut=None, **options):
    """Save with NumPy, copy to fsspec's memory file system, return the URL."""
    np.save(folder / name, array, **options)
    data = (folder / name).read_bytes()[:cut]
    key = f"/remote/{folder.name}-{name}"
    fsspec.filesystem("memory").pipe_file(key, data)
    return f"memory:/{key}"


class TestRemoteNpy(StoreContract):
    spawnable = False  # fsspec's memory file system

    @pytest.fixture(params=["C", "F"])
    def case(self, tmp_path, request):
        array = numbered((2, 5, 6, 7), ">i2")
        url = put(np.array(array, order=request.param), tmp_path)
        return StoreCase(url, array.astype("i2"), AFFINE, {"affine": AFFINE})


class TestRemotePlane(StoreContract):
    spawnable = False

    @pytest.fixture(params=["C", "F"])
    def case(self, tmp_path, request):
        array = numbered((5, 6), np.float32)
        url = put(np.array(array, order=request.param), tmp_path)
        return StoreCase(url, array[None, :, :, None], np.eye(4))


def test_a_region_is_a_part_of_the_file(tmp_path, monkeypatch):
    """Only the rows of a region are asked for, and those that lie together at once."""
    array = numbered((4, 300, 400, 30), np.int32)  # 1.4 MB between two rows of channels
    volume = Volume(put(array, tmp_path))
    assert volume.shape == array.shape
    asked = []
    system = type(fsspec.filesystem("memory"))
    real = system.cat_file

    def spy(self, path, start=None, end=None, **options):
        asked.append(end - start)
        return real(self, path, start=start, end=end, **options)

    monkeypatch.setattr(system, "cat_file", spy)

    part = volume[:, 3, 5:7]

    assert part.numpy().tolist() == array[:, 3:4, 5:7].tolist()
    assert asked == [2 * 30 * 4] * 4


def test_what_is_no_sound_array(tmp_path):
    """Too short, objects, something else: as for a local file."""
    array = numbered((4, 5, 6))
    with pytest.raises(TruncatedVolume, match=r"a\.npy holds"):
        _ = Volume(put(array, tmp_path, cut=-1)).shape
    with pytest.raises(BadHeader, match=r"b\.npy has no sound"):
        _ = Volume(put(array, tmp_path, "b.npy", cut=20)).shape
    objects = np.array([[{}]], dtype=object)
    with pytest.raises(UnknownFormat, match=r"c\.npy holds object"):
        _ = Volume(put(objects, tmp_path, "c.npy", allow_pickle=True)).shape
    with pytest.raises(BadHeader, match="5 axes"):
        _ = Volume(put(numbered((1, 2, 1, 2, 1)), tmp_path, "d.npy")).shape
