"""A zarr without any chunk is all fill, and told once."""

import shutil
import time
import warnings

import numpy as np
import pytest
import zarr

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import CorruptVolume, EmptyVolume, VolumeChanged
from voxpipe.volumes import Volume, convert
from voxpipe.volumes.session import SESSION

FIRST, LAST = Region((0, 0, 0), (4, 4, 4)), Region((4, 4, 4), (8, 8, 8))


def made(path):
    return zarr.create_array(path, shape=(8, 8, 8), chunks=(4, 4, 4), dtype="i2", fill_value=3)


def told_of(volume, *regions):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        values = [volume.read(region).array for region in regions]
    return [w.category for w in told], [np.unique(v).tolist() for v in values]


def test_an_array_without_chunks_is_told_once(tmp_path):
    """However often it is read."""
    made(tmp_path / "a.zarr")

    told, values = told_of(Volume(tmp_path / "a.zarr"), FIRST, LAST, FIRST)

    assert told == [EmptyVolume]
    assert values == [[3]] * 3


def test_a_check_finds_images_without_chunks(tmp_path):
    """A mask may be zero everywhere, and its writer may leave out such chunks."""
    for case, key in (("a", "image"), ("a", "label"), ("b", "image")):
        made(tmp_path / case / f"{key}.zarr")
    zarr.open_array(tmp_path / "b" / "image.zarr")[0, 0, 0] = 1

    (bad,) = vp.check(tmp_path).bad
    assert (bad.case, bad.key, bad.error) == ("a", "image", "EmptyVolume")
    assert "image.zarr has metadata and not one chunk" in bad.reason


def test_a_region_of_fill_in_a_volume_is_not(tmp_path):
    """One chunk is enough, wherever it lies."""
    made(tmp_path / "a.zarr")[4:, 4:, 4:] = 9

    assert told_of(Volume(tmp_path / "a.zarr"), FIRST, LAST) == ([], [[3], [9]])


def test_an_image_that_lost_its_chunks_is_told(tmp_path):
    """The header of a NIfTI-Zarr is no chunk of it."""
    convert(Volume(np.ones((8, 8, 8), np.int16)), tmp_path / "a.nii.zarr", chunk=4)
    shutil.rmtree(tmp_path / "a.nii.zarr" / "0" / "c")
    with pytest.raises(CorruptVolume, match="is missing, and all were written"):
        Volume(tmp_path / "a.nii.zarr").read(FIRST)
    SESSION.handles.close()
    document = tmp_path / "a.nii.zarr" / "0" / "zarr.json"  # as of another writer
    document.write_text(document.read_text().replace('"complete": true', '"complete": false'))

    with pytest.warns(EmptyVolume, match="not one chunk"):
        Volume(tmp_path / "a.nii.zarr").read(FIRST)
    SESSION.handles.close()


def test_chunks_that_are_removed_after_it_was_opened_are_a_change(tmp_path, monkeypatch):
    """Only the next pass, which finds it so, calls it empty."""
    path, now = tmp_path / "a.zarr", time.time_ns
    made(path)[...] = 9
    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", lambda: now() - 10**9)  # file times are coarse
        volume = Volume(path).opened_anew("first")
        assert volume.shape == (1, 8, 8, 8)
    shutil.rmtree(path / "c")

    assert told_of(volume, FIRST) == ([], [[3]])
    with pytest.raises(VolumeChanged):
        volume.refuse_change()

    anew = volume.opened_anew("second")
    assert anew.shape == (1, 8, 8, 8)
    assert told_of(anew, FIRST, LAST) == ([EmptyVolume], [[3], [3]])
    anew.refuse_change()


def test_one_in_a_bucket_is_told(server, client):
    """By one listing, of what was read as fill."""
    made(server.bucket / "a.zarr")
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)

    assert told_of(volume, FIRST, LAST) == ([EmptyVolume], [[3], [3]])


@pytest.mark.parametrize(
    ("service", "adapters"),
    [
        (vp.reading_services.InProcessReadingService(prefetch_cnt=0), []),
        (vp.reading_services.InProcessReadingService(prefetch_cnt=2), []),
        (vp.reading_services.InProcessReadingService(prefetch_cnt=0), [vp.Timeout(item=60)]),
    ],
    ids=["here", "ahead", "watched"],
)
@pytest.mark.parametrize("ahead", [False, True], ids=["", "prefetch"])
def test_the_warning_names_your_line(tmp_path, service, adapters, ahead):
    """Where the loop or the chain was written, also if a thread of ours reads."""
    made(tmp_path / "a.zarr")
    cases = [{"image": str(tmp_path / "a.zarr")}] * 2
    pipe = vp.from_cases(cases).open_volume().lazy_patch(4).batch_patches(2)
    pipe = pipe.prefetch(2) if ahead else pipe

    with pytest.warns(EmptyVolume) as told, vp.DataLoader2(pipe, adapters, service) as loader:
        list(loader)

    assert [warning.filename for warning in told] == [__file__]
