"""Folders that are given as ``file://`` URLs, by functions, pipes and commands."""

import gc
import re
import zipfile

import fsspec
import nibabel
import numpy as np
import pytest
from scenes import write_scans

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.core.errors import BadSetting, SampleError, VolumeNotFound, VolumeReadError
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
    out = {"convert": ["out"], "index": ["-o", "out.json"], "check": []}[command]
    out = [text.replace("out", f"file://{tmp_path}/out") for text in out]

    assert main([command, f"file://{tmp_path}/p0", *out]) == 0
    assert main([command, f"file://{tmp_path}/notes.txt", *out]) == 1

    assert "notes.txt" in capsys.readouterr().err
    assert list((tmp_path / "work").iterdir()) == []
    assert [path.exists() for path in tmp_path.glob("out*")] == [True] * (command != "check")


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


URLS = ["file://{}/a.nii", "memory://case/a.nii", "simplecache::memory://case/a.nii",
        "zip://a.nii::file://{}/a.zip"]  # fmt: skip


@pytest.fixture
def archives():
    """Close the archives that fsspec keeps open for the process."""
    yield
    close_volumes()
    for name in ("zip", "tar"):
        fsspec.get_filesystem_class(name).clear_instance_cache()
    gc.collect()


@pytest.mark.parametrize("url", URLS)
@pytest.mark.usefixtures("archives")
def test_schemes_ignore_case(url, tmp_path):
    """RFC 3986: the voxels, the token and the identity of a case are those of lower case."""
    nibabel.save(nibabel.Nifti1Image(np.ones((4, 4, 4), np.int16), np.eye(4)), tmp_path / "a.nii")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "a.nii", "a.nii")
    fsspec.filesystem("memory").pipe("/case/a.nii", (tmp_path / "a.nii").read_bytes())
    url = url.format(tmp_path)
    upper = re.sub(r"\b[a-z]+://|^simplecache", lambda match: match[0].upper(), url)
    lower, other = vp.Volume(url), vp.Volume(upper)

    assert other.numpy().sum() == 64
    assert (other.token, other.name) == (lower.token, lower.name)
    hashes = {vp.from_cases([{"image": place}]).data_hash() for place in (url, upper)}
    assert len(hashes) == 1


@pytest.mark.parametrize("name", ["a.nii.gz", "a.mgz", "a.img"])
@pytest.mark.usefixtures("archives")
def test_the_path_in_an_archive_names_the_format(name, tmp_path):
    """Also whether it is compressed, and which file of a pair it is."""
    kind = nibabel.MGHImage if name.endswith("mgz") else nibabel.Nifti1Image
    kind = nibabel.Nifti1Pair if name.endswith("img") else kind
    voxels = np.arange(60, dtype=np.int16).reshape(3, 4, 5)
    nibabel.save(kind(voxels, np.eye(4)), tmp_path / name)
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.write(tmp_path / name, name)
        if name == "a.img":
            archive.write(tmp_path / "a.hdr", "a.hdr")

    volume = vp.Volume(f"zip://{name}::file://{tmp_path}/b.zip")

    assert np.array_equal(volume.numpy()[0], voxels)


def test_listings_and_destinations_ignore_the_case_of_schemes(tmp_path):
    """Of local files and of buckets; a destination is no folder with the name of a scheme."""
    image = nibabel.Nifti1Image(np.ones((4, 4, 4), np.int16), np.eye(4))
    nibabel.save(image, tmp_path / "a.nii")
    fsspec.filesystem("memory").pipe("/cases/p1/a.nii", (tmp_path / "a.nii").read_bytes())
    vp.convert(f"FILE://{tmp_path}/a.nii", f"File://{tmp_path}/b.zarr")

    (sample,) = vp.list_cases("Memory://cases/*/", image="a.nii")
    assert sample["image"].startswith("memory://")
    assert len(list(vp.list_cases(f"FILE://{tmp_path}", image="*.nii"))) == 1
    assert vp.Volume(tmp_path / "b.zarr").shape == (1, 4, 4, 4)
    with pytest.raises(SampleError, match="a scheme and a single slash"):
        vp.Volume("S3:/bucket/a.nii")


LOST = {
    "reference://": "file of references .*lost",
    "zip://a.nii": "archive .*lost",
    "tar://a.nii": "archive .*lost",
}


@pytest.mark.parametrize("url", LOST)
@pytest.mark.parametrize("root", ["{}/lost.x", "memory://lost.x"])
@pytest.mark.parametrize("how", ["::", "fo"])
def test_a_lost_archive_is_named(url, root, how, tmp_path):
    """Not the place in it; the error says where the archive is written."""
    base = root.format(tmp_path)
    options = {"fo": base} if how == "fo" else {}
    volume = vp.Volume(url if options else f"{url}::{base}", storage_options=options)

    with pytest.raises(VolumeNotFound, match=LOST[url]) as info:
        _ = volume.shape
    assert "storage_options={'fo': 'FILE'}" in str(info.value)
    with pytest.raises(VolumeReadError, match=r"names no (archive|file of references)"):
        _ = vp.Volume(url).shape


@pytest.mark.usefixtures("archives")
@pytest.mark.parametrize("inside", ["a.zarr", "", "a.nii"])
def test_a_lost_archive_of_any_part_is_named(inside, tmp_path):
    """Of a file, of zarr, and of the root; a part that an archive lacks is named itself."""
    with pytest.raises(VolumeNotFound, match=r"the archive .*lost\.zip of zip://"):
        _ = vp.Volume(f"zip://{inside}::{tmp_path}/lost.zip").shape
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("other.txt", "text")
    if inside:
        with pytest.raises(VolumeReadError, match=f"zip://{inside}::.*a.zip( holds no zarr|)"):
            _ = vp.Volume(f"zip://{inside}::{tmp_path}/a.zip").shape


@pytest.mark.parametrize(
    ("name", "escape"),
    [
        ("a b.npy", "a%20b.npy"),
        ("a#b.npy", "a%23b.npy"),
        ("a#b.npy", "a#b.npy"),
        ("a?b.npy", "a%3Fb.npy"),
        ("a?b.npy", "a?b.npy"),
        ("100%.npy", "100%25.npy"),
        ("100%.npy", "100%.npy"),
        ("a%20b.npy", "a%2520b.npy"),
        ("a%20b.npy", "a%20b.npy"),  # as of fsspec, where no file has the decoded name
        ("\N{LATIN SMALL LETTER A WITH DIAERESIS}.npy", "%C3%A4.npy"),
        ("d e/a.npy", "d%20e/a.npy"),
    ],
)
@pytest.mark.parametrize("scheme", ["file://", "file://localhost", "FILE:"])
def test_escapes_of_a_file_url(tmp_path, name, escape, scheme):
    """Decoded as in any URL; a plain path with the same text stays as it is."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    np.save(tmp_path / name, np.ones((2, 3, 4)))

    assert vp.Volume(f"{scheme}{tmp_path}/{escape}").shape == (1, 2, 3, 4)
    assert vp.Volume(str(tmp_path / name)).shape == (1, 2, 3, 4)
    close_volumes()


def test_escapes_in_folders_patterns_and_archives(tmp_path):
    """Places to read, and a place to write."""
    (tmp_path / "d e").mkdir()
    np.save(tmp_path / "d e" / "a.npy", np.ones((2, 3, 4)))
    with zipfile.ZipFile(tmp_path / "d e" / "z.zip", "w") as archive:
        archive.write(tmp_path / "d e" / "a.npy", "a.npy")
    url = f"file://{tmp_path}/d%20e"

    (sample,) = vp.list_cases(image=f"{url}/*.npy").open_volume()
    assert sample["image"].shape == (1, 2, 3, 4)
    assert vp.Volume(f"zip://a.npy::{url}/z.zip").shape == (1, 2, 3, 4)
    vp.convert(f"{url}/a.npy", f"{url}/o%20o.nii.zarr")
    assert (tmp_path / "d e" / "o o.nii.zarr").is_dir()
    close_volumes()


def test_a_file_url_of_two_files_is_refused(tmp_path):
    """Neither of them is opened silently, and no character ends a name."""
    for name in ("a b.npy", "a%20b.npy"):
        np.save(tmp_path / name, np.ones((2, 3, 4)))

    with pytest.raises(SampleError, match="names two"):
        _ = vp.Volume(f"file://{tmp_path}/a%20b.npy").shape
    with pytest.raises(VolumeNotFound):
        _ = vp.Volume(f"file://{tmp_path}/a%00b.npy").shape
