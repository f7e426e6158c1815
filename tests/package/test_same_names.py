"""Volumes that differ by their format only, single files, and names of other formats."""

import re

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.core.errors import DestinationExists, UnknownFormat
from voxpipe.volumes import Volume, close_volumes, convert, find_volumes, read_manifest

pytest.importorskip("zarr")


def saved(path, value=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.full((4, 5, 6), value, np.int16), np.eye(4)), path)


@pytest.fixture
def flat(tmp_path):
    """One stem, three formats, directly in a folder."""
    saved(tmp_path / "in" / "ct.nii", 1)
    saved(tmp_path / "in" / "ct.nii.gz", 2)
    np.save(tmp_path / "in" / "ct.npy", np.full((4, 5, 6), 3, np.int16))
    yield tmp_path
    close_volumes()


def test_volumes_of_one_stem_are_all_found(flat):
    """Each is a case of its own, with the same key."""
    found = find_volumes(flat / "in")

    assert found == {
        "ct": {"image": str(flat / "in" / "ct.nii")},
        "ct.nii.gz": {"image": str(flat / "in" / "ct.nii.gz")},
        "ct.npy": {"image": str(flat / "in" / "ct.npy")},
    }


def test_every_command_takes_all_of_one_stem(flat, capsys):
    """None is left out without a word."""
    assert main(["convert", f"{flat}/in", f"{flat}/out"]) == 0
    written = [vp.Volume(place)[0, 0, 0, 0].data.item() for place in _below(flat / "out")]
    assert sorted(written) == [1, 2, 3]

    assert main(["check", f"{flat}/in", "--workers", "1"]) == 0
    assert "3 checked, 0 bad" in capsys.readouterr().out
    assert main(["index", f"{flat}/in", "-o", f"{flat}/m.json", "--no-statistics"]) == 0
    assert len(read_manifest(flat / "m.json").entries) == 3


def _below(folder):
    return [volumes["image"] for volumes in find_volumes(folder).values()]


def test_two_files_of_a_pair_are_one_volume(tmp_path):
    """Alone and in the folder of a case."""
    image = nibabel.Nifti1Pair(np.zeros((4, 5, 6), np.int16), np.eye(4))
    (tmp_path / "p1").mkdir()
    for place in ("solo.img", "p1/ct.img"):
        nibabel.save(image, tmp_path / place)

    assert find_volumes(tmp_path) == {
        "p1": {"ct": str(tmp_path / "p1" / "ct.hdr")},
        "solo": {"image": str(tmp_path / "solo.hdr")},
    }


def test_two_volumes_for_one_destination_are_refused(tmp_path, capsys):
    """A key of one case, and another case: neither is written over the other."""
    saved(tmp_path / "in" / "a" / "b.nii")
    saved(tmp_path / "in" / "a" / "c.nii")
    saved(tmp_path / "in" / "a" / "b" / "image.nii")

    assert main(["convert", f"{tmp_path}/in", f"{tmp_path}/out"]) == 1

    assert "would both be written to" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_one_file_is_indexed(flat, capsys):
    """As ``voxpipe check`` takes one."""
    assert main(["index", f"{flat}/in/ct.nii.gz", "-o", f"{flat}/m.json"]) == 0

    assert "1 case, 1 volume" in capsys.readouterr().out
    [entry] = read_manifest(flat / "m.json").entries
    assert (entry.case, entry.key) == ("ct", "image")


def test_a_file_of_no_format_is_named(tmp_path, capsys):
    """It is no folder in which to look."""
    (tmp_path / "notes.txt").write_text("nothing")

    for command in ("check", "index"):
        assert main([command, f"{tmp_path}/notes.txt"]) == 1
        told = capsys.readouterr().err
        assert f"no backend opens {tmp_path}/notes.txt; installed: .zarr.zip" in told


KINDS = [("a.ims", "HDF5 of Imaris"), ("a.nc", "netCDF"), ("a.npz", "NumPy's archive")]


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_file_of_another_format_is_named(tmp_path, capsys, name, kind):
    """The first line names the format, in a command and for a volume."""
    place = tmp_path / name
    place.write_bytes(b"none")
    text = f"no backend opens {place}, a file of {kind}.\n"

    assert main(["check", str(place)]) == 1
    assert text in capsys.readouterr().err
    with pytest.raises(UnknownFormat, match=re.escape(text)):
        Volume(place).probe()


@pytest.mark.parametrize("name", ["out.nii.gz", "out.nii", "out.h5", "out.NPY"])
def test_a_name_of_another_format_is_refused(flat, name):
    """Nothing would open the folder by that name."""
    with pytest.raises(UnknownFormat, match=r"Call it .*out\.nii\.zarr"):
        convert(flat / "in" / "ct.nii", flat / name)

    assert not (flat / name).exists()


@pytest.mark.parametrize("name", ["out.zarr", "out", "ct_0.5mm", "out.ome.zarr"])
def test_other_names_are_taken(flat, name):
    """With zarr's suffix, without any, or with a number."""
    convert(flat / "in" / "ct.nii", flat / name)

    assert vp.Volume(flat / name).shape == (1, 4, 5, 6)


def test_a_command_speaks_of_its_own_option(flat, capsys):
    """And a function of its argument."""
    arguments = [f"{flat}/in/ct.nii", f"{flat}/out.nii.zarr"]
    convert(*arguments)

    assert main(["convert", *arguments, "--chunk", "2"]) == 1
    told = capsys.readouterr().err
    assert "--overwrite" in told
    assert "overwrite=True" not in told
    with pytest.raises(DestinationExists, match="overwrite=True"):
        convert(*arguments, chunk=2)
