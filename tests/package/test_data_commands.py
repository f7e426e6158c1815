"""``voxpipe convert``, ``index`` and ``check``: what they write, say and return."""

import os

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.volumes import close_volumes, read_manifest

pytest.importorskip("zarr")


@pytest.fixture
def folder(tmp_path):
    for case in ("a", "b"):
        (tmp_path / "in" / case).mkdir(parents=True)
        image = nibabel.Nifti1Image(np.arange(480, dtype=np.int16).reshape(6, 8, 10), np.eye(4))
        for name in ("ct.nii.gz", "label.nii"):
            nibabel.save(image, tmp_path / "in" / case / name)
    yield tmp_path
    close_volumes()


def test_one_volume_is_converted(folder, capsys):
    """Chunks and shards are as asked for, and said."""
    place = str(folder / "out.nii.zarr")

    assert main(["convert", f"{folder}/in/a/ct.nii.gz", place, "--chunk", "4", "--shard", "8"]) == 0
    assert "chunks 4x4x4, 2 shards 8x8x8 written" in capsys.readouterr().out
    assert vp.Volume(place).chunks == (4, 4, 4)
    np.testing.assert_array_equal(
        vp.Volume(place).numpy(), vp.Volume(f"{folder}/in/a/ct.nii.gz").numpy()
    )


def test_a_folder_is_converted_and_again_nothing_is_done(folder, capsys):
    """Case by case, under the same names; a bad volume does not stop the others."""
    (folder / "in" / "b" / "ct.nii.gz").write_bytes(b"nothing")

    for _ in range(2):
        assert main(["convert", f"{folder}/in", f"{folder}/out"]) == 1
    told = capsys.readouterr()

    assert "1 of 4 volumes were not converted" in told.err
    assert "b/ct.nii.gz" in told.err
    assert told.out.count("were there") == 3
    written = sorted(p.relative_to(folder / "out") for p in (folder / "out").glob("*/*"))
    assert [str(p) for p in written] == ["a/ct.nii.zarr", "a/label.nii.zarr", "b/label.nii.zarr"]


def test_an_error_is_a_sentence(folder, capsys):
    """What is there is not overwritten, and the way out is named."""
    (folder / "out").mkdir()

    assert main(["convert", f"{folder}/in/a/ct.nii.gz", f"{folder}/out"]) == 1

    told = capsys.readouterr().err
    assert "voxpipe: " in told
    assert "is there already" in told
    assert "Traceback" not in told


def test_a_folder_is_indexed(folder, capsys):
    """Every volume that is found, labels known by their key."""
    assert main(["index", f"{folder}/in", "-o", f"{folder}/m.json", "--hash", "full"]) == 0

    assert "2 cases, 4 volumes" in capsys.readouterr().out
    entries = read_manifest(folder / "m.json").entries
    assert [(e.case, e.key, e.kind) for e in entries][:2] == [
        ("a", "ct", "intensity"),
        ("a", "label", "label"),
    ]
    assert entries[0].hash.startswith("blake2b:")
    assert entries[0].statistics.maximum == 479
    assert len(vp.from_manifest(folder / "m.json")) == 2


def test_patterns_choose_the_volumes(folder, capsys):
    """As in list_cases()."""
    arguments = ["index", f"{folder}/in/*/", "image=ct.nii.gz", "-o", f"{folder}/m.json"]

    assert main([*arguments, "--no-statistics"]) == 0
    assert [e.key for e in read_manifest(folder / "m.json").entries] == ["image", "image"]
    assert read_manifest(folder / "m.json").entries[0].statistics is None
    assert main(["index", f"{folder}/in/*/", "ct.nii.gz"]) == 1
    assert "KEY=PATTERN" in capsys.readouterr().err


def test_what_is_stale_is_named(folder, capsys):
    """A sound manifest returns 0, one with stale entries 1 and their names."""
    main(["index", f"{folder}/in", "-o", f"{folder}/m.json"])
    assert main(["check", f"{folder}/m.json", "--workers", "1"]) == 0
    os.utime(folder / "in" / "b" / "label.nii", ns=(1, 1))

    assert main(["check", f"{folder}/m.json", "--workers", "1"]) == 1
    told = capsys.readouterr().out
    assert "b/label: StaleEntry" in told
    assert "4 checked, 1 bad" in told


def test_one_volume_or_patterns_are_checked(folder, capsys):
    """As in ``voxpipe index``; volumes are counted, and a case that does not fit is told apart."""
    image = nibabel.Nifti1Image(np.zeros((6, 8, 9), np.int16), np.eye(4))
    nibabel.save(image, folder / "in" / "b" / "label.nii")

    assert main(["check", f"{folder}/in/a/ct.nii.gz", "--workers", "1"]) == 0
    assert "1 checked, 0 bad" in capsys.readouterr().out
    arguments = ["check", f"{folder}/in/*/", "image=ct.nii.gz"]
    assert main([*arguments, "--workers", "1"]) == 0
    told = capsys.readouterr()
    assert "2 checked, 0 bad" in told.out
    assert "--voxels also finds damage" in told.err
    assert main([*arguments, "label=label.nii", "--voxels"]) == 1
    told = capsys.readouterr()
    assert "4 checked, 1 bad" in told.out
    assert "b/label.nii. " in told.out
    assert "--voxels" not in told.err


def test_a_glob_without_quotes_is_explained(folder, capsys):
    """The shell then gives folders where patterns are expected."""
    assert main(["check", f"{folder}/in/a", f"{folder}/in/b"]) == 1
    assert "needs quotes" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--workers", "0"], ["--timeout", "0"], ["--timeout", "-1"]])
def test_numbers_that_cannot_be_are_refused(folder, capsys, wrong):
    """Instead of calling every volume bad."""
    with pytest.raises(SystemExit) as caught:
        main(["check", f"{folder}/in", *wrong])

    assert caught.value.code == 2
    assert wrong[1] in capsys.readouterr().err
    with pytest.raises(ValueError, match="timeout is a number of seconds above 0"):
        vp.check(f"{folder}/in", timeout=-1)


@pytest.mark.parametrize("command", ["convert", "index", "check"])
def test_help_tells(command, capsys):
    """Each command says what it is for and what it takes."""
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])

    assert caught.value.code == 0
    assert f"usage: voxpipe {command}" in capsys.readouterr().out


def test_options_of_the_format_are_those_of_open_volume(tmp_path, capsys):
    """A file of two data sets can be indexed, checked and converted once one is named."""
    h5py = pytest.importorskip("h5py")
    values = np.arange(512, dtype="i2").reshape(8, 8, 8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["ct"], file["other"] = values, values + 1
    source, named = str(tmp_path / "a.h5"), ["--reader", "dataset=other"]
    manifest = str(tmp_path / "manifest.json")

    assert main(["index", source, "-o", manifest]) == 1
    assert "Give dataset=" in capsys.readouterr().err
    assert main(["index", source, "-o", manifest, *named]) == 0
    (case,) = vp.from_manifest(manifest)
    np.testing.assert_array_equal(case["image"].numpy()[0], values + 1)
    assert main(["check", source, "--voxels", *named]) == 0
    assert main(["check", source]) == 1
    assert main(["convert", source, f"{tmp_path}/b.nii.zarr", *named]) == 0
    np.testing.assert_array_equal(vp.Volume(f"{tmp_path}/b.nii.zarr").numpy()[0], values + 1)

    capsys.readouterr()
    assert main(["check", manifest, *named]) == 1
    assert "Leave --reader out" in capsys.readouterr().err
