"""A file in a bucket that is written again while it is read: told, and never mixed."""

import os
import pickle

import nibabel
import numpy as np
import pytest
import zarr

from voxpipe.core import Region
from voxpipe.core.errors import VolumeChanged
from voxpipe.volumes import Volume, close_volumes

PART = Region((0, 0, 0), (12, 10, 9))


def written(path, suffix, value):
    array = np.full((20, 20, 20), value, np.int16)
    if suffix == ".nii":
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)
    elif suffix == ".npy":
        np.save(path, array)
    elif suffix == ".tif":
        pytest.importorskip("tifffile").imwrite(path, array, rowsperstrip=5, compression="zlib")
    elif suffix == ".h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file.create_dataset("a", data=array, chunks=(5, 5, 5), compression="gzip")
    else:
        with zarr.storage.ZipStore(path, mode="w") as store:
            made = zarr.create_array(store, shape=array.shape, chunks=(5, 20, 20), dtype="i2")
            made[...] = array
    # As many bytes as before, at another time: that is another ETag.
    os.utime(path, ns=(value * 10**9, value * 10**9))


@pytest.mark.parametrize("suffix", [".nii", ".npy", ".tif", ".h5", ".zarr.zip"])
def test_a_file_that_is_written_again_is_told(server, client, suffix):
    """A read after that raises, and says what to do; a new volume reads the new version."""
    path, url = server.bucket / f"a{suffix}", f"s3://bucket/a{suffix}"
    written(path, suffix, 1)
    volume = Volume(url, storage_options=server.storage_options)
    assert (volume.read(Region((0, 0, 0), (1, 1, 1))).array == 1).all()
    written(path, suffix, 2)

    with pytest.raises(VolumeChanged, match="was written again since") as caught:
        volume.read(Region((8, 8, 8), (20, 20, 20)))

    assert url in str(caught.value)
    again = Volume(url, storage_options=server.storage_options)
    assert (again.read(PART).array == 2).all()


def test_processes_that_open_two_versions_are_told_apart(server, client):
    """One that opens the file later than the first, for the same epoch, raises after its patch."""
    written(server.bucket / "a.nii", ".nii", 1)
    volume = Volume("s3://bucket/a.nii", storage_options=server.storage_options)
    assert (volume.read(PART).array == 1).all()
    volume.refuse_change()
    travels = pickle.dumps(volume)
    written(server.bucket / "a.nii", ".nii", 2)
    close_volumes()  # as in a process that has not opened it yet
    elsewhere = pickle.loads(travels)
    elsewhere.read(PART)

    with pytest.raises(VolumeChanged, match="since it was opened for this epoch"):
        elsewhere.refuse_change()

    anew = pickle.loads(pickle.dumps(elsewhere.opened_anew("a pass")))
    assert (anew.read(PART).array == 2).all()
    anew.refuse_change()


def test_what_was_asked_for_ahead_is_told_by_the_read(server, client):
    """The version is that of the header for what is fetched early too."""
    written(server.bucket / "a.nii", ".nii", 1)
    volume = Volume("s3://bucket/a.nii", storage_options=server.storage_options)
    volume.shape  # noqa: B018
    written(server.bucket / "a.nii", ".nii", 2)

    ticket = volume.prefetch(PART)

    with pytest.raises(VolumeChanged, match="was written again since"):
        volume.read(PART)
    ticket.close()
