"""Folders that are given as ``file://`` URLs, by functions, pipes and commands."""

import numpy as np
import pytest
from scenes import write_scans

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.core.errors import BadSetting
from voxpipe.volumes import close_volumes

pytest.importorskip("zarr")


@pytest.fixture
def folder(tmp_path):
    write_scans(tmp_path)
    yield tmp_path
    close_volumes()


def opened(folder):
    return vp.list_cases(f"{folder}/p*/", image="ct.nii.gz", seg="seg.nii").open_volume()


def test_a_file_url_is_the_folder_that_it_names(folder, tmp_path, monkeypatch):
    """Wherever a folder or a URL is given: nothing is made below the folder that one works in."""
    monkeypatch.setenv("VOXPIPE_CACHE", f"file://{tmp_path}/own")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    url = f"file://{tmp_path}"
    whole = f"{url}/p0/ct.nii.gz"

    for pipe in (
        opened(folder),  # decoded into the cache
        opened(folder).cache(f"{url}/kept"),
    ):
        for sample in pipe.lazy_patch(4):
            sample["image"].realize()
    made = vp.convert(whole, f"{url}/one.nii.zarr", chunk=8)
    vp.index(f"{url}/p1", f"{url}/manifest.json")

    assert len(list((tmp_path / "own").glob("*.nii"))) == 3
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
def test_the_cache_is_on_a_local_disk(folder, url, monkeypatch):
    """A bucket is refused."""
    monkeypatch.setenv("VOXPIPE_CACHE", url)
    with pytest.raises(BadSetting, match=r"VOXPIPE_CACHE is .*local disk"):
        next(iter(opened(folder)))["image"].realize()


def test_a_file_url_with_this_host(folder):
    """``localhost`` is this machine (RFC 8089), in a pattern and for one file."""
    url = f"file://localhost{folder}"

    assert vp.Volume(f"{url}/p0/ct.nii.gz").shape == (1, 20, 21, 22)
    assert len(list(opened(url))) == len(list(opened(folder))) == 3
    assert (
        len(vp.check(url, num_workers=1).findings)
        == len(vp.check(folder, num_workers=1).findings)
        == 6
    )
    assert len(vp.check(f"{url}/p*/ct.nii.gz", num_workers=1).findings) == 3
