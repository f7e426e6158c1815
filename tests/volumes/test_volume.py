"""The handle itself: laziness, names, copies, files that change."""

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nifti_files import AFFINE, numbered, write_nifti

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import CorruptVolume, VolumeError, VolumeNotFound
from voxpipe.storage import location
from voxpipe.storage.location import public_name
from voxpipe.volumes import Volume, close_volumes


def test_a_missing_file_is_found_out_late_and_named(tmp_path):
    """Making the volume is fine; the first question names the path."""
    volume = Volume(tmp_path / "none.nii.gz", kind="label")

    assert volume.name == str(tmp_path / "none.nii.gz")
    with pytest.raises(VolumeNotFound, match=r"none\.nii\.gz"):
        _ = volume.shape
    with pytest.raises(VolumeNotFound, match=r"none\.nii\.gz"):
        volume.read(Region((0, 0, 0), (1, 1, 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "mask"}, "kind is one of 'intensity', 'label', got 'mask'"),
        ({"affine": np.eye(3)}, "4x4"),
        ({"affine": np.full((4, 4), np.nan)}, "finite"),
    ],
)
def test_senseless_arguments_are_refused_at_construction(options, message):
    """What the arguments show is refused where the user wrote it."""
    with pytest.raises(ValueError, match=message):
        Volume("a.nii", **options)


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("scans/a.nii", "scans/a.nii"),
        ("s3://bucket/a.nii.zarr", "s3://bucket/a.nii.zarr"),
        ("https://me:secret@host:8080/a.nii?X-Amz-Signature=secret", "https://host:8080/a.nii"),
        ("simplecache::s3://key:secret@bucket/a.nii", "simplecache::s3://bucket/a.nii"),
        ("https://host/a.nii#secret", "https://host/a.nii"),
    ],
)
def test_names_hold_no_credentials(location, name):
    """Neither the name nor the repr shows user, password or query."""
    volume = Volume(location, storage_options={"secret": "secret"})

    assert volume.name == name
    assert "secret" not in repr(volume)
    # Debuggers and test reports print what is inside, too.
    assert "secret" not in repr(vars(volume))
    assert "secret" not in repr(volume._source.options.request(uri=location, source=location))


@given(st.text(max_size=30))
def test_public_names_are_stable(text):
    """Cleaning twice is cleaning once, for any text."""
    assert public_name(public_name(text)) == public_name(text)


def test_remote_errors_hold_no_credentials():
    """What a file system raises is told without its secrets, and not chained to them."""
    with (
        pytest.raises(VolumeError, match="OSError: 403 for https://host/a") as caught,
        location.remote_errors("https://host/a"),
    ):
        raise OSError("403 for https://me:secret@host/a?X-Amz-Signature=secret")

    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_the_header_is_read_once_and_shared(tmp_path):
    """Many volumes of one file parse its header once, and reading counts what it touches."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7, 2)))
    before = IO_COUNTERS.snapshot()

    volumes = [Volume(path), Volume(str(path)), pickle.loads(pickle.dumps(Volume(path)))]
    shapes = {volume.shape for volume in volumes}
    assert (IO_COUNTERS - before).headers == 1
    assert (IO_COUNTERS - before).reads == 0
    volumes[0].read(Region((1, 1, 1), (3, 4, 5)))
    volumes[1][0, :2].numpy()

    assert shapes == {(2, 5, 6, 7)}
    spent = IO_COUNTERS - before
    # The part that was read is a volume in memory, and reading it counts as well.
    assert (spent.reads, spent.headers) == (3, 1)
    assert spent.bytes_read == 2 * (2 * 2 * 3 * 4) + 2 * (2 * 6 * 7) + 2 * (2 * 6 * 7)


def test_a_header_travels_and_is_not_read_again(tmp_path):
    """The other process answers about geometry without touching the file."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    volume = Volume(path)
    assert volume.shape == (1, 5, 6, 7)
    state = pickle.dumps(volume)
    close_volumes()
    path.unlink()

    there = pickle.loads(state)

    assert there.shape == (1, 5, 6, 7)
    assert there.affine.tolist() == AFFINE.tolist()
    with pytest.raises(VolumeNotFound):
        there.numpy()


def test_a_file_written_again_is_read_anew(tmp_path):
    """A new volume of a path sees the new file, although the old one is still open."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    old = Volume(path)
    assert old.shape == (1, 5, 6, 7)
    path.unlink()  # a mapped file must not be cut short
    write_nifti(path, numbered((2, 3, 4)))

    assert Volume(path).shape == (1, 2, 3, 4)
    with pytest.raises(CorruptVolume, match="changed since its header was read"):
        old.read(Region((0, 0, 0), (2, 2, 2)))


def test_a_file_that_was_only_touched_stays_readable(tmp_path):
    """Another time of writing alone is no reason to stop."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    volume = Volume(path)
    assert volume.shape == (1, 5, 6, 7)
    os.utime(path, ns=(1, 1))
    close_volumes()

    assert volume.numpy()[0, 1, 0, 0] == 42


def test_relative_paths_stay_where_they_were(tmp_path, monkeypatch):
    """A worker in another directory opens the same file."""
    write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    monkeypatch.chdir(tmp_path)
    volume = Volume("a.nii")
    monkeypatch.chdir("/")

    assert volume.shape == (1, 5, 6, 7)
    assert volume.name == "a.nii"


def test_a_part_is_independent_of_its_parent(tmp_path):
    """A part owns its voxels, keeps scaling and kind, and says where it is from."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)), scaling=(2.0, 1.0))
    assert Volume(path, kind="label")[0, 1:3, ::-1, -1].kind == "label"
    volume = Volume(path)

    part = volume[0, 1:3, ::-1, -1]

    assert part.name == f"{path}[0:1, 1:3, 5:-1:-1, 6:7]"
    assert (part.disk_dtype, part.dtype) == (np.dtype("i2"), np.dtype("f4"))
    assert part.read(Region((0, 0, 0), (2, 6, 1))).slope == 2.0
    assert not np.shares_memory(part.numpy(), volume.read(Region((0, 0, 0), (5, 6, 7))).array)
    assert not volume.is_loaded
    part_of_part = part[:, 1, 2]
    expected = volume.numpy()[:, 2:3, 3:4, 6:7]
    assert part_of_part.numpy().tolist() == expected.tolist()
    place = part_of_part.affine @ [0, 0, 0, 1]
    np.testing.assert_allclose(place, volume.affine @ [2, 3, 6, 1])


def test_copies_share_the_source():
    """Copying a volume copies no voxels; a deep copy has a tensor of its own."""
    volume = Volume(numbered((4, 5, 6))).load()

    shallow, deep = copy.copy(volume), copy.deepcopy(volume)

    assert shallow.data is volume.data
    assert deep.is_loaded
    deep.data[...] = -1
    assert volume.data.min() == 0
    whole = Region.of_shape(volume.spatial_shape)
    assert np.shares_memory(deep.read(whole).array, volume.read(whole).array)


def test_the_affine_of_the_user_has_the_word(tmp_path):
    """An affine that is given replaces the stored one, in parts as well."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))

    volume = Volume(path, affine=np.diag([2.0, 2.0, 2.0, 1.0]))

    assert volume.spacing == (2, 2, 2)
    assert volume[:, 1].affine[:3, 3].tolist() == [2, 0, 0]
    assert volume.grid.shape == (5, 6, 7)
    with pytest.raises(ValueError, match="read-only"):
        volume.affine[0, 0] = 1


def test_reading_needs_no_torch(tmp_path):
    """Header, regions and values of .nii, .npy and arrays work where torch cannot be imported."""
    write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    np.save(tmp_path / "a.npy", numbered((5, 6, 7)))
    program = """
import sys
sys.modules["torch"] = None
import numpy as np
from voxpipe.core import Region
from voxpipe.volumes import Volume, volume_statistics
for source in (sys.argv[1], sys.argv[2], np.load(sys.argv[2])):
    volume = Volume(source, affine=np.eye(4))
    region = Region((0, 0, 0), volume.spatial_shape)
    print(volume.read(region).values().sum(), volume[:, 1].numpy().sum())
    print(volume_statistics(volume).count)
"""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(
        [*command, tmp_path / "a.nii", tmp_path / "a.npy"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )

    total, plane = numbered((5, 6, 7)).sum(), numbered((5, 6, 7))[1].sum()
    assert done.stdout.split() == [str(total), str(plane), "210"] * 3


def test_constructing_imports_nothing_heavy():
    """A list of a million volumes costs no import of zarr, nibabel or fsspec."""
    program = """
import sys
from voxpipe.volumes import Volume
[Volume(name, storage_options={"a": 1}) for name in ("a.nii", "s3://b/c.zarr", "d.nii.gz")]
print([name for name in ("torch", "zarr", "nibabel", "fsspec") if name in sys.modules])
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.strip() == "[]"
