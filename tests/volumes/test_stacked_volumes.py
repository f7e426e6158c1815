"""A list of volumes on one grid is a volume of their channels."""

import os
import pickle

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import DestinationExists, GridMismatch, UnknownFormat, VolumeError
from voxpipe.volumes import AxisMap, Volume, close_volumes, volume_statistics

zarr = pytest.importorskip("zarr")
SHAPE = (6, 5, 4)
AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])


def written(path, values, affine=AFFINE, slope=None):
    """Write a NIfTI file, scaled if asked for, and return its path."""
    image = nibabel.Nifti1Image(values, affine)
    if slope is not None:
        image.header.set_slope_inter(slope, 0)
    nibabel.save(image, path)
    return str(path)


@pytest.fixture
def ramps(tmp_path):
    """Return two files of int16, 0 ... 119 and 1000 ... 1119."""
    ramp = np.arange(120, dtype=np.int16).reshape(SHAPE)
    return [written(tmp_path / f"r{n}.nii", ramp + np.int16(1000 * n)) for n in range(2)]


def test_channels_are_those_of_the_files_in_turn(ramps):
    """Values, grid and type; a part of it; the pickle of a few hundred bytes per file."""
    volume = Volume(ramps)

    assert volume.shape == (2, *SHAPE)
    assert (volume.dtype, volume.disk_dtype) == (np.int16, np.int16)
    assert (volume.affine == AFFINE).all()
    assert volume.numpy()[:, 0, 0, 0].tolist() == [0, 1000]
    assert volume[1, 2:3].numpy().ravel()[:2].tolist() == [1040, 1041]
    assert [part.name for part in volume.parts] == ramps
    travelled = pickle.loads(pickle.dumps(volume))
    assert (travelled.numpy() == volume.numpy()).all()
    assert travelled.token == volume.token
    assert volume.token != Volume(ramps[::-1]).token


@pytest.mark.parametrize(
    ("types", "common"),
    [
        (("u1", "i2"), "i2"),
        (("i2", "u2"), "i4"),
        (("i2", "f4"), "f4"),
        (("?", "u1"), "u1"),
        ((">i2", "<i2"), "i2"),
        (("i4", "f4"), "f8"),
    ],
)
def test_types_that_differ_have_the_type_that_holds_both(types, common):
    """What ``np.result_type`` says of the values; no value changes."""
    arrays = [np.arange(8).reshape(2, 2, 2).astype(name) for name in types]
    volume = Volume(arrays)

    assert volume.dtype == np.dtype(common)
    assert volume.numpy().dtype == np.dtype(common)
    assert (volume.numpy() == np.stack(arrays)).all()


def test_each_file_keeps_its_scaling(tmp_path):
    """Stored numbers that mean other things become values before they stand side by side."""
    ramp = np.arange(120, dtype=np.int16).reshape(SHAPE)
    files = [
        written(tmp_path / "half.nii", ramp * 0.5, slope=0.5),
        written(tmp_path / "plain.nii", ramp),
    ]
    expected = np.stack([nibabel.load(file).get_fdata() for file in files])

    assert np.allclose(Volume(files).numpy(), expected)


def test_grids_that_differ_are_named_with_the_distance(tmp_path, ramps):
    """Which files, and by how much; another shape is said as such."""
    moved = AFFINE.copy()
    moved[0, 3] = 1.5
    ramp = np.zeros(SHAPE, np.int16)
    aside = written(tmp_path / "aside.nii", ramp, moved)
    short = written(tmp_path / "short.nii", ramp[1:])

    with pytest.raises(GridMismatch, match=r"r0.nii and .*aside.nii .* lie 1.5 voxels apart"):
        _ = Volume([ramps[0], aside]).shape
    with pytest.raises(GridMismatch, match=r"different shapes, \(6, 5, 4\) and \(5, 5, 4\)"):
        _ = Volume([ramps[0], short]).shape


def test_what_is_no_list_of_volumes_is_refused(ramps):
    """A list of lists, and a list of nothing."""
    with pytest.raises(UnknownFormat, match="a list"):
        Volume([ramps])
    with pytest.raises(VolumeError, match="one path or more"):
        Volume([])


def test_statistics_are_of_all_channels_and_kept_by_content(ramps):
    """Mean and range over both files; a file that changes changes them."""
    found = volume_statistics(Volume(ramps))
    assert (found.minimum, found.maximum, found.count) == (0, 1119, 240)
    assert found.mean == pytest.approx(559.5)
    key = Volume(ramps).content_key
    assert key
    assert key == Volume(ramps).content_key
    assert key != Volume(ramps[::-1]).content_key

    nibabel.save(nibabel.Nifti1Image(np.full(SHAPE, 7, np.int16), AFFINE), ramps[1])
    os.utime(ramps[1], ns=(1, 1))
    close_volumes()

    assert Volume(ramps).content_key != key
    assert volume_statistics(Volume(ramps)).maximum == 119


def test_it_is_converted_as_one_volume(tmp_path, ramps):
    """One zarr of both channels; written again only after a file has changed."""
    place = tmp_path / "both.nii.zarr"

    first = vp.convert(ramps, place)
    again = vp.convert(Volume(ramps), place)
    os.utime(ramps[1], ns=(5, 5))

    assert (first.new_shards, again.new_shards, again.reused_shards) == (1, 0, 1)
    assert (Volume(place).numpy() == Volume(ramps).numpy()).all()
    with pytest.raises(DestinationExists):
        vp.convert(ramps, place)


def test_each_file_is_read_and_counted_by_itself(ramps):
    """Two reads of a region; one where one channel is asked for."""
    volume = Volume(ramps)
    region = Region((0, 0, 0), (2, 2, 2))
    _ = volume.shape

    before = IO_COUNTERS.snapshot()
    volume.read(region)
    both = IO_COUNTERS - before
    before = IO_COUNTERS.snapshot()
    shown = volume.with_axis_map(AxisMap.from_table("C", [1])).read(region)
    one = IO_COUNTERS - before

    assert (both.reads, both.bytes_read) == (2, 2 * 8 * 2)
    assert (one.reads, one.bytes_read) == (1, 8 * 2)
    assert shown.values()[0, 0, 0, 0] == 1000


def test_a_list_of_urls_reads_each_object_once(server, client):
    """Two arrays of a bucket: the chunks that a patch touches, of both, and no other."""
    for name in "ab":
        array = zarr.create_array(
            server.bucket / f"{name}.zarr", shape=(16, 16, 16), chunks=(8, 8, 8), dtype="i2"
        )
        array[...] = ord(name)
    urls = [f"s3://bucket/{name}.zarr" for name in "ab"]
    pipe = (
        vp.from_cases([{"image": urls}])
        .open_volume(storage_options=server.storage_options)
        .crop((0, 0, 8), (8, 8, 8))
        .batch_patches(1)
    )

    (batch,) = list(vp.DataLoader2(pipe))

    assert batch["image"].shape == (1, 2, 8, 8, 8)
    assert batch["image"][0, :, 0, 0, 0].tolist() == [97, 98]
    chunks = [line.key for line in server.requests if "/c/" in line.key]
    assert sorted(chunks) == ["bucket/a.zarr/c/0/0/1", "bucket/b.zarr/c/0/0/1"]
