"""Predictions of time points in one group of OME-Zarr, read back by zarr-python."""

import sys

import fsspec
import numpy as np
import pytest
import torch
import zarr
from ome_files import write_image, write_plate

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.core.errors import DestinationExists, SampleError, VolumeError

VOXELS = np.random.default_rng(0).integers(0, 100, (3, 2, 2, 20, 300)).astype("u1")
WINDOW = {"patch": (150, 20, 2), "overlap": 0.0}


def bright(batch):
    """Return two classes: the first channel below and above 50."""
    return torch.cat([torch.full_like(batch[:, :1], 50.5), batch[:, :1]], 1)


@pytest.fixture
def image(tmp_path):
    """Return the path of an image (t, c, z, y, x)."""
    return write_image(tmp_path / "a.ome.zarr", VOXELS, "tczyx", 3, sizes={"t": 5})


def test_times_become_one_label_group(image):
    """It has the axes of the image without c, levels and a place in the list of labels."""
    place = f"{image}/labels/bright"
    results = vp.predict(bright, vp.from_ome(image).open_volume(), place, **WINDOW)

    group = zarr.open_group(place, mode="r")
    expected = (VOXELS[:, 0] > 50).astype("u1")
    np.testing.assert_array_equal(group["0"][...], expected)
    np.testing.assert_array_equal(group["1"][...], expected[:, ::2, ::2, ::2])
    (multiscale,) = group.attrs["ome"]["multiscales"]
    assert [axis["name"] for axis in multiscale["axes"]] == [*"tzyx"]
    assert {"name": "t", "type": "time", "unit": "second"} in multiscale["axes"]
    (first, *_), *_ = (one["coordinateTransformations"] for one in multiscale["datasets"])
    assert first["scale"] == [5.0, 0.5, 0.5, 0.5]
    assert sorted(path.name for path in (group.store.root.parent).iterdir()) == [
        "bright",
        "zarr.json",
    ]
    for time in range(3):
        label = results[f"a t{time}"].numpy()
        np.testing.assert_array_equal(label[0].T, expected[time])
    for sample in vp.from_ome(image, label="bright").open_volume():
        assert sample["label"].shape == (1, 300, 20, 2)
    with pytest.raises(DestinationExists):
        vp.predict(bright, vp.from_ome(image).open_volume(), place, **WINDOW)


def test_left_out_times_are_zero_and_channels_stay(image):
    """A filter leaves times out; shares have an axis of channels."""
    some = vp.from_ome(image).filter(lambda sample: sample["ome"]["time"] != 1)
    with pytest.raises(VolumeError, match="labels are whole numbers"):
        vp.predict(bright, some.open_volume(), f"{image}/labels/x", output="softmax", **WINDOW)
    place = f"{image}/../some.ome.zarr"
    results = vp.predict(bright, some.open_volume(), place, output="softmax", **WINDOW)

    assert [*results] == ["a t0", "a t2"]
    array = zarr.open_array(f"{place}/0", mode="r")
    assert array.shape == (3, 2, *VOXELS.shape[2:])
    assert not array[1].any()
    np.testing.assert_allclose(array[2].sum(0), 1, rtol=1e-5)


def test_images_of_a_plate_have_groups_of_their_own(tmp_path):
    """``{image}`` is the path of an image; one file of several results is refused at once."""
    root = str(tmp_path / "plate.zarr")
    write_plate(root, 3, ["A/1", "B/2"], 1, VOXELS[:2, :1, :, :, :20], "tczyx")
    cases = vp.from_ome(root).open_volume()
    model = {"patch": (20, 20, 2), "overlap": 0.0}

    vp.predict(bright, cases, f"{root}/{{image}}/labels/bright", **model)

    for place in ("A/1/0", "B/2/0"):
        label = zarr.open_array(f"{root}/{place}/labels/bright/0", mode="r")
        assert label.shape == (2, 2, 20, 20)

    def never(batch):
        raise AssertionError

    places = {f"{root}/A/1/0/labels/b": "{image}", str(tmp_path / "b.nii.gz"): "{case}"}
    for place, field in places.items():
        text = f"the results of two cases would be(?s:.*)Write {field}"
        with pytest.raises(DestinationExists, match=text):
            vp.predict(never, cases, place, **model)
    renamed = cases.map(lambda sample: sample.replace(case=f"x {sample.case}"))
    with pytest.raises(SampleError, match="none of from_ome"):
        vp.predict(bright, renamed, f"{root}/{{image}}/labels/c", **model)


def test_the_command_writes_one_group_of_all_times(image, tmp_path, monkeypatch, capsys):
    """As vp.predict() does; a field {image} needs a chain of images."""
    text = "import torch, voxpipe\nfrom pathlib import Path\n"
    text += f"pipe = voxpipe.from_ome({image!r}).open_volume()\n"
    text += "def bright(batch): return torch.cat([batch[:, :1] * 0 + 50.5, batch[:, :1]], 1)\n"
    (tmp_path / "my_movie_net.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    line = "predict my_movie_net.py:bright my_movie_net.py:pipe --patch 150 20 2 --overlap 0 -o"

    assert main([*line.split(), f"{image}/labels/command"]) == 0
    np.save("a.npy", VOXELS[0, 0])
    assert main(["predict", "my_movie_net.py:bright", "a.npy", "-o", "{image}.zarr"]) == 2

    written = zarr.open_array(f"{image}/labels/command/0", mode="r")
    np.testing.assert_array_equal(written[...], VOXELS[:, 0] > 50)
    assert "from_ome()" in capsys.readouterr().err


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_times_are_joined_in_a_bucket(tmp_path, zarr_format):
    """By the process that holds the lease; labels of both versions are read at the URL."""
    labels = {"old": (VOXELS[:, 0] // 2, "tzyx")}
    write_image(tmp_path / "b.zarr", VOXELS, "tczyx", zarr_format, labels)
    root = f"memory://joined-times-{zarr_format}"
    fsspec.core.url_to_fs(root)[0].put(str(tmp_path), root.removeprefix("memory:/"), recursive=True)
    url = f"{root}/b.zarr"
    place = f"{url}/labels/bright" if zarr_format == 3 else f"{root}/bright.ome.zarr"
    cases = vp.from_ome(url, label="old").open_volume()

    for sample in cases:
        old = sample["label"].realize()[0].T
        np.testing.assert_array_equal(old, VOXELS[sample["ome"]["time"], 0] // 2)
    results = vp.predict(bright, cases, place, key="image", **WINDOW)

    for time in range(3):
        found = results[f"b t{time}"].numpy()[0].T
        np.testing.assert_array_equal(found, VOXELS[time, 0] > 50)
    with pytest.raises(DestinationExists):
        vp.predict(bright, cases, place, key="image", **WINDOW)
    vp.predict(bright, cases, place, key="image", overwrite=True, **WINDOW)
