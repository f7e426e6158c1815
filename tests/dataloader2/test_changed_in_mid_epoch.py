"""Volumes that are written again, or removed, while an epoch reads them: told, never mixed."""

import os
import shutil
import time
from functools import partial

import h5py
import nibabel
import numpy as np
import pytest
import zarr

import voxpipe as vp
from voxpipe.core.errors import VolumeChanged, VolumeNotFound
from voxpipe.storage.file_reader import LocalRanges
from voxpipe.volumes.formats import stored_file

# More batches of a case than are made ahead.
CASES, SAMPLES, SHAPE = 3, 40, (12, 12, 12)


def write_nii(path, value):
    nibabel.save(nibabel.Nifti1Image(np.full(SHAPE, value, np.int16), np.eye(4)), path)


def write_zarr(path, value):
    array = zarr.create_array(path, shape=SHAPE, chunks=(4, 4, 4), dtype="i2", overwrite=True)
    array[...] = value


def replace(path):
    write_nii(path.with_name("new.nii"), 2)
    os.replace(path.with_name("new.nii"), path)


def overwrite(path):
    with open(path, "r+b") as file:
        file.seek(352)
        file.write(np.full(SHAPE, 2, np.int16).tobytes())


def write_chunks(path):
    zarr.open_array(path, mode="r+")[...] = 2


def remove_chunks(path):
    shutil.rmtree(path / "c")
    # Linux stamps folders by a clock that ticks every few milliseconds: here that of the epoch.
    os.utime(path, ns=(time.time_ns(),) * 2)


def replace_by_older(path):
    """As ``rsync -a``, ``cp -p`` and ``tar x`` do: files keep their time of writing."""
    write_zarr(path.with_name("new.zarr"), 2)
    for file in path.rglob("0"):
        if file.is_file():
            other = path.with_name("new.zarr") / file.relative_to(path)
            os.utime(other, ns=(10**18, 10**18))
            os.replace(other, file)


def replace_alike(path):
    """By a file of the same size and time of writing."""
    when = path.stat().st_mtime_ns
    write_nii(path.with_name("new.nii"), 2)
    os.utime(path.with_name("new.nii"), ns=(when, when))
    os.replace(path.with_name("new.nii"), path)


def write_hdf5(path, value, how):
    """Write a file of which the numbers lie in another one, beside it."""
    numbers = np.full(SHAPE, value, np.int16)
    with h5py.File(path.with_suffix(".source"), "w") as file:
        if how == "link to chunks":
            file.create_dataset("d", data=numbers, chunks=(4, 4, 4))
        else:
            file["d"] = numbers
    with h5py.File(path, "w") as file:
        if how == "virtual":
            layout = h5py.VirtualLayout(SHAPE, "i2")
            layout[:] = h5py.VirtualSource(path.with_suffix(".source").name, "d", SHAPE)
            file.create_virtual_dataset("d", layout)
        elif how == "external":
            numbers.tofile(path.with_suffix(".source"))
            place = (str(path.with_suffix(".source")), 0, h5py.h5f.UNLIMITED)
            file.create_dataset("d", SHAPE, "i2", external=[place])
        else:
            file["d"] = h5py.ExternalLink(path.with_suffix(".source").name, "d")


def replace_source(path, how):
    write_hdf5(path.with_name("new.h5"), 2, how)
    os.replace(path.with_name("new.source"), path.with_suffix(".source"))


def lead_elsewhere(path):
    """The file of the numbers stays as it is; the one that names it leads to another one."""
    write_hdf5(path.with_name(f"{path.stem}-new.h5"), 2, "link")
    os.replace(path.with_name(f"{path.stem}-new.h5"), path)


def hdf5(how, change=None):
    return ".h5", partial(write_hdf5, how=how), change or partial(replace_source, how=how)


def remove_folder(path):
    """Remove it at once: a folder without its metadata would be another case."""
    os.rename(path, path.with_suffix(".gone"))
    shutil.rmtree(path.with_suffix(".gone"))


CHANGES = {
    "source of a virtual dataset": hdf5("virtual"),
    "external numbers": hdf5("external"),
    "what a link leads to": hdf5("link"),
    "chunks that a link leads to": hdf5("link to chunks"),
    "where a link leads to": hdf5("link", lead_elsewhere),
    "replaced alike": (".nii", write_nii, replace_alike),
    "chunks replaced by older ones": (".zarr", write_zarr, replace_by_older),
    "replaced": (".nii", write_nii, replace),
    "overwritten": (".nii", write_nii, overwrite),
    "removed": (".nii", write_nii, os.unlink),
    "zarr written again": (".zarr", write_zarr, lambda path: write_zarr(path, 2)),
    "zarr removed": (".zarr", write_zarr, remove_folder),
    "chunks written again": (".zarr", write_zarr, write_chunks),
    "chunks removed": (".zarr", write_zarr, remove_chunks),
}


def patches_of(batches, seen):
    for batch in batches:
        for image, meta in zip(batch["image"], batch["meta"], strict=True):
            seen.setdefault(meta["case"], set()).update(np.unique(image.numpy()).tolist())


# What is there is no whole version, neither the old one nor the new one.
MIXED = ("chunks removed", "chunks replaced by older ones")
TRIED = [(how, 0) for how in CHANGES]
TRIED += [(how, 2) for how in ("replaced", "overwritten", "zarr removed")]


@pytest.mark.parametrize(("how", "workers"), TRIED)
def test_no_epoch_mixes_two_versions(tmp_path, how, workers):
    """It ends with the case that changed; the next one has the new version of all that is there."""
    suffix, write, change = CHANGES[how]
    paths = [tmp_path / f"case{n}{suffix}" for n in range(CASES)]
    for path in paths:
        write(path, 1)
    options = {"dataset": "d"} if suffix == ".h5" else {}
    images = [vp.Volume(p, **options) if options else str(p) for p in paths]
    cases = [{"case": p.stem, "image": image} for p, image in zip(paths, images, strict=True)]
    pipe = vp.from_cases(cases)
    pipe = pipe.open_volume().lazy_patch(4, samples_per_volume=SAMPLES).batch_patches(2)
    service = vp.MultiProcessingReadingService(workers, "fork" if workers else None)
    seen = {}
    with vp.DataLoader2(pipe, None, service, seed=7) as loader:
        batches = iter(loader)
        patches_of([next(batches)], seen)
        for path in paths:
            change(path)
        # A worker that opens one only now finds nothing.
        gone = (VolumeChanged, VolumeNotFound) if "removed" in how and workers else VolumeChanged
        text = "since it was opened for this epoch|removed since it was opened|there is no folder"
        with pytest.raises(gone, match=text) as told:
            patches_of(batches, seen)
        assert told.value.case in [p.stem for p in paths]
        assert all(len(values) == 1 for values in seen.values()), seen
        if all(p.exists() for p in paths) and how not in MIXED:
            anew = {}
            patches_of(loader, anew)
            assert anew == {p.stem: {2} for p in paths}


def test_what_is_removed_after_a_read_is_not_called_empty(tmp_path, monkeypatch):
    """A removal comes between the read of chunks, equal to the fill value, and their listing."""
    path = tmp_path / "a.zarr"
    write_zarr(path, 1)
    volume, list_below = vp.Volume(path), LocalRanges.list

    def removed_and_listed(store):
        remove_folder(path)
        return list_below(store)

    monkeypatch.setattr(LocalRanges, "list", removed_and_listed)

    assert (volume.read(volume.grid.region).values() == 1).all()


def test_a_volume_that_is_kept_is_read_anew_in_each_epoch(tmp_path):
    """Between two epochs files may change, those of volumes that were made once too."""
    path = tmp_path / "a.nii"
    write_nii(path, 1)
    pipe = vp.from_cases([{"image": vp.Volume(path)}]).open_volume().lazy_patch(4).batch_patches(1)
    loader = vp.DataLoader2(pipe, seed=7)
    before = {}
    patches_of(loader, before)

    replace(path)
    after = {}
    patches_of(loader, after)

    assert [*before.values(), *after.values()] == [{1}, {2}]


def kept_volumes(path, other):
    """Return volumes that a script holds for all epochs, by how they are made."""
    gap = vp.AxisMap.missing("K", [SHAPE[2] - 1])
    return {
        "file": vp.Volume(path),
        "mapped": vp.Volume(path).with_axis_map(gap),
        "list": [path, other],
        "list, mapped": vp.Volume([path, other]).with_axis_map(gap),
        "list of volumes": [vp.Volume(path), vp.Volume(other)],
    }


KEPT = [*kept_volumes("a.nii", "b.nii")]


@pytest.mark.parametrize("after", ["statistics", "cache"])
@pytest.mark.parametrize("how", KEPT)
def test_what_is_made_of_a_volume_that_is_kept_is_made_anew(tmp_path, how, after):
    """Its statistics belong to the voxels that they are used for; so does what is cached."""
    path, other = str(tmp_path / "kept.nii"), str(tmp_path / "other.nii")
    ramp = np.arange(np.prod(SHAPE), dtype=np.int16).reshape(SHAPE)

    def write(array):
        for place in (path, other):
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), tmp_path / "new.nii")
            os.replace(tmp_path / "new.nii", place)

    write(ramp)
    image = kept_volumes(path, other)[how]
    pipe = vp.from_cases([{"image": image}]).open_volume()
    pipe = pipe.normalize() if after == "statistics" else pipe.spacing(2.0).cache(tmp_path)

    def largest():
        (sample,) = pipe
        return float(sample["image"].realize()[0].max())

    first = largest()
    assert first == largest() > 0
    write(ramp * 2)
    assert largest() == pytest.approx(first * (1 if after == "statistics" else 2), rel=1e-6)


@pytest.mark.parametrize("kind", ["ext4", "vfat"])
def test_a_file_of_the_same_size_and_times_is_another_where_numbers_stay(
    tmp_path, monkeypatch, kind
):
    """A copy put in its place within a tick of the clock; some file systems number files anew."""
    path, other = tmp_path / "a.raw", tmp_path / "b.raw"
    for one in (path, other):
        one.write_bytes(b"1234")
        os.utime(one, ns=(10**18, 10**18))
    file = stored_file.LocalStoredFile(str(path))
    monkeypatch.setattr(stored_file, "file_system_at", lambda place: kind)
    assert file.is_current

    os.replace(other, path)

    assert file.is_current == (kind == "vfat")
    assert not file.is_as_of(10**18)
