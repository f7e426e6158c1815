"""``recache()`` changes where voxels are read from, and no batch."""

import nibabel
import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.core.errors import BadSetting, GraphError, SampleError
from voxpipe.volumes import close_volumes

pytest.importorskip("zarr")


@pytest.fixture
def folder(tmp_path):
    for n in range(3):
        (tmp_path / f"p{n}").mkdir()
        voxels = np.random.default_rng(n).integers(0, 99, (20, 21, 22)).astype(np.int16)
        image = nibabel.Nifti1Image(voxels, np.diag([1, 2, 3, 1.0]))
        nibabel.save(image, tmp_path / f"p{n}" / "ct.nii.gz")
        nibabel.save(image, tmp_path / f"p{n}" / "seg.nii")
    yield tmp_path
    close_volumes()


def opened(folder):
    return vp.list_cases(f"{folder}/p*/", image="ct.nii.gz", seg="seg.nii").open_volume()


def batches(pipe, service=None):
    pipe = pipe.lazy_patch(8, samples_per_volume=2).augment(rotate=20, flip=0.5).batch_patches(2)
    loader = vp.DataLoader2(pipe, [vp.FuseSpatial()], service)
    loader.seed(5)
    found = [(b["image"].clone(), b["seg"].clone()) for b in loader]
    loader.shutdown()
    return found


def test_batches_are_the_same(folder):
    """Bit for bit, from a first pass that converts and a second that does not, in workers."""
    expected = batches(opened(folder))
    pipe = opened(folder).recache(chunk=8, directory=folder / "cache")
    service = vp.MultiProcessingReadingService(num_workers=2)

    for found in (batches(pipe, service), batches(pipe)):
        for (image, seg), (image_2, seg_2) in zip(expected, found, strict=True):
            assert torch.equal(image, image_2)
            assert torch.equal(seg, seg_2)
    assert len(list((folder / "cache").glob("*.zarr"))) == 6


def test_copies_can_be_made_ahead(folder):
    """Then no worker converts."""
    pipe = opened(folder).recache(chunk=8, directory=folder / "cache", keys="image")
    seen = []

    assert pipe.prepare(progress=lambda done, total: seen.append((done, total))) == 6
    assert seen[-1] == (6, 6)
    assert len(list((folder / "cache").glob("*.zarr"))) == 3


def test_explain_names_it(folder):
    """The chain as written says where voxels come from."""
    pipe = opened(folder).recache(chunk=8, directory=folder / "cache")

    assert "recache(chunk=8" in pipe.lazy_patch(8).batch_patches(2).explain()
    assert not (folder / "cache").exists()


def test_it_comes_before_anything_is_moved(folder):
    """Else the plan would speak of another volume."""
    pipe = opened(folder).lazy_patch(8).recache()

    with pytest.raises(SampleError, match=r"right after open_volume") as caught:
        next(iter(pipe))
    assert "test_recache.py" in str(caught.value)


def test_a_copy_keeps_the_grid_that_resample_to_gave(tmp_path, monkeypatch):
    """Volumes on two grids, brought together, then copied."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    paths = {}
    for key, size in (("ct", 16), ("pet", 8)):
        array = np.arange(size**3, dtype=np.int16).reshape((size,) * 3)
        affine = np.diag([16 / size] * 3 + [1.0])
        nibabel.save(nibabel.Nifti1Image(array, affine), tmp_path / f"{key}.nii.gz")
        paths[key] = str(tmp_path / f"{key}.nii.gz")
    brought = vp.from_cases([paths]).open_volume().resample_to("ct")
    here, there = next(iter(brought)), next(iter(brought.recache(8)))

    for key in paths:
        assert there[key].shape == here[key].shape == (1, 16, 16, 16)
        assert np.array_equal(there[key].realize(), here[key].realize())


def test_a_file_url_is_the_folder_that_it_names(folder, tmp_path, monkeypatch):
    """Wherever a folder or a URL is given: nothing is made below the folder that one works in."""
    monkeypatch.setenv("VOXPIPE_CACHE", f"file://{tmp_path}/own")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    url = f"file://{tmp_path}"
    whole = f"{url}/p0/ct.nii.gz"

    for pipe in (
        opened(folder).recache(chunk=8, directory=f"{url}/copies"),
        opened(folder).recache(chunk=8),
        opened(folder).cache(f"{url}/kept"),
    ):
        for sample in pipe.lazy_patch(4):
            sample["image"].realize()
    made = vp.convert(whole, f"{url}/one.nii.zarr", chunk=8)
    vp.index(f"{url}/p1", f"{url}/manifest.json")

    assert len(list((tmp_path / "copies").glob("*.zarr"))) == 3
    assert len(list((tmp_path / "own" / "converted").glob("*.zarr"))) == 3
    assert len(list((tmp_path / "kept").glob("*.zarr"))) == 3
    assert (tmp_path / "one.nii.zarr").is_dir()
    assert np.array_equal(vp.Volume(made.location).numpy(), vp.Volume(whole).numpy())
    manifest = vp.from_manifest(f"{url}/manifest.json").open_volume()
    assert {patch.shape for sample in manifest for patch in sample.values()} == {(1, 20, 21, 22)}
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("command", ["convert", "index", "check"])
def test_commands_take_file_urls(folder, tmp_path, monkeypatch, command, capsys):
    """A folder, and a file that is no volume, as by its path."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "notes.txt").write_text("none")
    out = {"convert": ["out"], "index": ["-o", "out"], "check": []}[command]
    out = [text.replace("out", f"file://{tmp_path}/out") for text in out]

    assert main([command, f"file://{tmp_path}/p0", *out]) == 0
    assert main([command, f"file://{tmp_path}/notes.txt", *out]) == 1

    assert "notes.txt" in capsys.readouterr().err
    assert list((tmp_path / "work").iterdir()) == []
    assert (tmp_path / "out").exists() == (command != "check")


@pytest.mark.parametrize("url", ["s3://bucket/copies", "memory://copies"])
def test_copies_are_on_a_local_disk(folder, url, monkeypatch):
    """A bucket is refused where it is written, with the pipe that writes to one."""
    with pytest.raises(GraphError, match=r"recache(.|\n)*\.cache\(URL\)") as caught:
        opened(folder).recache(directory=url)
    assert "test_recache.py" in str(caught.value)
    monkeypatch.setenv("VOXPIPE_CACHE", url)
    with pytest.raises(BadSetting, match=r"VOXPIPE_CACHE is .*local disk"):
        next(iter(opened(folder).recache()))["image"].realize()
