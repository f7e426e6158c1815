"""``voxpipe info`` and ``check`` on every reference file, sound and broken."""

import json

import numpy as np
import pytest
from medical_files import warm
from reference_files import LOCAL_ONLY, REFERENCES, collect, local, remote

from voxpipe.__main__ import main
from voxpipe.volumes import close_volumes

# Movies are opened whole: the warning has tests of its own.
pytestmark = pytest.mark.filterwarnings("ignore:times-and-channels")

nibabel = pytest.importorskip("nibabel")
collect()
# Facts of files whose library states them.
CODECS = {
    "nii.gz": "gzip",
    "nrrd, bzip2": "bzip2",
    "mha, compressed": "zlib",
    "zarr v3, sharded": "zstd",
    "NIfTI-Zarr of v2": "blosc (lz4)",
    "tiff, strips": "adobe_deflate",
    "hdf5, chunks, big-endian": "gzip, shuffle",
    "b2nd, three axes": "blosc2 (zstd)",
    "npy, booleans": "none",
}
# The library that each format needs, by its registration.
LIBRARIES = {
    "blosc2": "by blosc2",
    "dicom": "by pydicom",
    "hdf5": "by h5py",
    "minc": "by nibabel",
    "simpleitk": "by SimpleITK",
    "tiff": "by tifffile",
}


@pytest.fixture(scope="module", autouse=True)
def writer_is_warm():
    """Nothing that GDCM keeps open counts as left behind."""
    warm()
    yield
    close_volumes()


def options_of(case):
    return [t for key, value in case.options.items() for t in ("--reader", f"{key}={value}")]


@pytest.mark.parametrize("name", REFERENCES)
def test_info_of_every_reference(name, tmp_path, capsys):
    """Shape, type, orientation and codec are those of the writer; nothing is unknown."""
    case = local(name, tmp_path)

    assert main(["info", str(case.source), *options_of(case), "--json"]) == 0

    facts = json.loads(capsys.readouterr().out)
    assert facts["shape"] == list(case.array.shape)
    assert facts["channels"] == case.array.shape[0]
    assert np.dtype(facts["disk_dtype"]) == case.disk_dtype
    assert facts["dtype"] == str(case.array.dtype)
    assert facts["orientation"] == "".join(nibabel.aff2axcodes(case.affine))
    np.testing.assert_allclose(facts["affine"], case.affine, rtol=1e-6, atol=1e-6)
    assert facts["codec"] == CODECS.get(name, facts["codec"]) != ""
    assert facts["stored_bytes"] > 0
    assert facts["levels"] >= 1
    assert facts["format"]
    assert facts["reader"].startswith("voxpipe.")
    assert facts["reader"].endswith(LIBRARIES.get(facts["format"], ""))
    assert facts["read_bytes"] > 0
    assert facts["scheme"]


@pytest.mark.parametrize("name", [n for n in REFERENCES if n not in LOCAL_ONLY])
def test_info_of_every_reference_by_url(name, tmp_path, capsys):
    """The same facts, in words."""
    case = remote(name, tmp_path)

    assert main(["info", str(case.source), *options_of(case)]) == 0

    words = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines()[:12])
    assert words["shape"] == f"{'x'.join(map(str, case.array.shape))} (C, I, J, K)"
    assert words["orientation"] == "".join(nibabel.aff2axcodes(case.affine))


def test_check_names_exactly_the_broken(tmp_path, capsys):
    """Twenty sound files and twenty broken ones, of several formats."""
    array = np.arange(480, dtype=np.int16).reshape(6, 8, 10)
    names = {}
    for number in range(40):
        suffix = ("nii", "nii.gz", "npy", "mgz")[number % 4]
        folder = tmp_path / f"case{number:02}"
        folder.mkdir()
        path = folder / f"ct.{suffix}"
        if suffix == "npy":
            np.save(path, array)
        elif suffix == "mgz":
            nibabel.save(nibabel.MGHImage(array, np.eye(4)), path)
        else:
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)
        if number >= 20:
            content = path.read_bytes()
            broken = {0: content[: len(content) // 2], 1: b"", 2: content[:40] + b"\xff" * 60}
            path.write_bytes(broken[number % 3])
            names[folder.name] = path.name

    status = main(["check", str(tmp_path), "--voxels", "--json"])

    document = json.loads(capsys.readouterr().out)
    assert status == 1
    assert document["checked"] == 40
    assert {finding["case"] for finding in document["bad"]} == {*names}
    assert len(document["bad"]) == 20
