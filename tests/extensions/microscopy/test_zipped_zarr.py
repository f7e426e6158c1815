"""Label groups, levels and plates of OME-Zarr in a zip archive."""

import os
import re
import shutil

import fsspec
import numpy as np
import pytest
import torch
import zarr
from ome_files import set_ome, write_image, write_plate
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core.errors import UnknownFormat, VolumeNotFound

IMAGE = np.arange(2 * 4 * 6 * 5, dtype=np.uint16).reshape(2, 4, 6, 5)
LABEL = (IMAGE[0] % 3).astype(np.uint8)


def upload(path, folder):
    """Copy an archive into memory, and return its URL."""
    url = f"memory://zipped-{folder.name}/{os.path.basename(path)}"
    with open(path, "rb") as file:
        fsspec.filesystem("memory").pipe(url.partition(":/")[2], file.read())
    return url


def archive(folder, suffix):
    """Zip a folder, and return the archive."""
    packed = shutil.make_archive(str(folder), "zip", folder)
    return shutil.move(packed, f"{folder}{suffix}")


def with_levels(path, version=3):
    """Write an image of two levels with the labels nuclei of two levels."""
    write_image(path, IMAGE, "czyx", version, {"nuclei": (LABEL, "zyx")})
    for place, voxels in (("", IMAGE), ("/labels/nuclei", LABEL)):
        group = zarr.open_group(f"{path}{place}", mode="a")
        add_array(group, "1", data=voxels[..., ::2, ::2])
        key = dict(group.attrs)
        image = key.get("ome", key)["multiscales"][0]
        scale = [1.0] * (voxels.ndim - 3) + [0.5, 1.0, 1.0]
        step = {"type": "scale", "scale": scale}
        image["datasets"].append({"path": "1", "coordinateTransformations": [step]})
        set_ome(group, {"multiscales": [image]})
    return path


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("suffix", [".ozx", ".zarr.zip"])
@pytest.mark.parametrize("is_far", [False, True])
def test_labels_and_levels(tmp_path, suffix, version, is_far):
    path = archive(with_levels(tmp_path / "a", version), suffix)
    path = upload(path, tmp_path) if is_far else path
    for level in (0, 1):
        image, label = (
            voxels[..., :: level + 1, :: level + 1].T for voxels in (IMAGE, LABEL[None])
        )
        image, label = (np.moveaxis(voxels, -1, 0) for voxels in (image, label))
        volume = vp.Volume(path, label="nuclei", level=level)
        np.testing.assert_array_equal(volume.numpy(), label)
        assert volume.kind == "label"
        ((sample),) = vp.from_ome(path, label="nuclei", level=level).open_volume()
        assert sample.case == "a"
        np.testing.assert_array_equal(sample["image"].realize(), image)
        np.testing.assert_array_equal(sample["label"].realize(), label)
    with pytest.raises(VolumeNotFound, match=r"no label group 'nucleus'(?s:.*)mean 'nuclei'"):
        vp.Volume(path, label="nucleus").shape  # noqa: B018  reading the property opens it


@pytest.mark.parametrize("suffix", [".ozx", ".zarr.zip"])
@pytest.mark.parametrize("is_far", [False, True])
def test_a_path_inside_of_an_archive(tmp_path, suffix, is_far):
    path = archive(with_levels(tmp_path / "a"), suffix)
    path = upload(path, tmp_path) if is_far else path
    np.testing.assert_array_equal(vp.Volume(f"{path}/labels/nuclei").numpy()[0], LABEL.T)
    np.testing.assert_array_equal(
        vp.Volume(f"{path}/1", axes="czyx").numpy(), np.moveaxis(IMAGE[..., ::2, ::2].T, -1, 0)
    )
    with pytest.raises(VolumeNotFound, match="no zarr group or array 'labels/other'"):
        vp.Volume(f"{path}/labels/other").shape  # noqa: B018  reading the property opens it
    with pytest.raises(VolumeNotFound, match="there is no file"):
        vp.from_ome(tmp_path / "none.ozx")
    with pytest.raises(VolumeNotFound, match="there is no file"):
        vp.Volume(tmp_path / "none.ozx", label="nuclei").probe()


@pytest.mark.parametrize("is_far", [False, True])
def test_time_points_of_labels(tmp_path, is_far):
    """Each time point of an image has that of its label."""
    voxels = np.stack([IMAGE[:1], IMAGE[1:]])
    labels = np.stack([LABEL, LABEL + 1])
    write_image(tmp_path / "a", voxels, "tczyx", 3, {"nuclei": (labels, "tzyx")})
    path = archive(tmp_path / "a", ".ozx")
    path = upload(path, tmp_path) if is_far else path

    samples = [*vp.from_ome(path, label="nuclei").open_volume()]
    part = vp.Volume(f"{path}/labels/nuclei", time=1, kind="label")

    for number, sample in enumerate(samples):
        np.testing.assert_array_equal(sample["image"].realize()[0], voxels[number, 0].T)
        np.testing.assert_array_equal(sample["label"].realize()[0], labels[number].T)
    np.testing.assert_array_equal(part.numpy()[0], labels[1].T)


def test_plates_and_folders_of_archives(tmp_path):
    """Images of a zipped plate are cases, at a URL too."""
    plate = write_plate(tmp_path / "p", 3, ["A/1"], 2, IMAGE, "czyx", {"nuclei": (LABEL, "zyx")})
    path = archive(plate, ".ozx")
    shutil.rmtree(plate)
    archive(with_levels(tmp_path / "b"), ".zarr.zip")
    shutil.rmtree(tmp_path / "b")
    names = ["b", "p/A/1/0", "p/A/1/1"]
    samples = [*vp.from_ome(tmp_path, label="nuclei").open_volume()]
    assert [sample.case for sample in samples] == names
    np.testing.assert_array_equal(samples[2]["image"].realize()[0], IMAGE[0].T + 1)
    url = upload(path, tmp_path)
    far = [*vp.from_ome(url, label="nuclei").open_volume()]
    assert [sample.case for sample in far] == ["A/1/0", "A/1/1"]
    np.testing.assert_array_equal(far[1]["image"].realize()[0], IMAGE[0].T + 1)
    np.testing.assert_array_equal(far[1]["label"].realize()[0], LABEL.T)


def test_a_file_of_another_format_is_no_root(tmp_path):
    (tmp_path / "a.h5").touch()
    with pytest.raises(UnknownFormat, match=r"opens OME-Zarr(?s:.*)vp.from_cases"):
        vp.from_ome(tmp_path / "a.h5")


@pytest.mark.parametrize("place", ["a.zarr.zip", "a.ome.ozx", "a.zip", "a.ozx/labels/cells"])
@pytest.mark.parametrize("form", ["save", "convert", "predict"])
def test_nothing_is_written_into_an_archive(tmp_path, monkeypatch, place, form):
    """The error names the folder to write; nothing is made."""
    monkeypatch.chdir(tmp_path)
    values = np.zeros((4, 4, 4), np.uint8)
    np.save("image.npy", values)
    work = {
        "save": lambda: vp.save(place, values, affine=np.eye(4)),
        "convert": lambda: vp.convert("image.npy", place),
        "predict": lambda: vp.predict(torch.nn.Identity(), "image.npy", place, patch=4),
    }
    with pytest.raises(UnknownFormat, match="nothing is written into the archive a") as error:
        work[form]()
    assert re.search(r"Write a folder, a(\.ome)?\.zarr,", error.value.do)
    assert os.listdir() == ["image.npy"]


def test_a_folder_with_the_name_of_an_archive_is_a_folder(tmp_path):
    """Results in it are written."""
    (tmp_path / "unpacked.zip").mkdir()
    vp.save(tmp_path / "unpacked.zip" / "a.nii", np.ones((2, 2, 2), np.uint8), affine=np.eye(4))
    assert vp.Volume(tmp_path / "unpacked.zip" / "a.nii").numpy().sum() == 8
