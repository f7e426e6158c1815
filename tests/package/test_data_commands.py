"""``voxpipe convert``, ``index`` and ``check``: what they write, say and return."""

import os
import shlex
import sys

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.dataloader2 import volumes_of
from voxpipe.storage.location import file_system
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
    assert ": zarr, chunks 4x4x4, 2 shards 8x8x8 written" in capsys.readouterr().out
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


def test_a_number_that_is_none_is_told_once(folder, capsys):
    """Of the command, not of each volume that it is about."""
    with pytest.raises(SystemExit):
        main(["convert", f"{folder}/in", f"{folder}/out", "--patch", "0"])

    assert capsys.readouterr().err.count("--patch: 0 is not above 0") == 1


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
    assert main(["index", f"{folder}/in", "-o", f"{folder}/m.json"]) == 0

    assert "2 cases, 4 volumes" in capsys.readouterr().out
    entries = read_manifest(folder / "m.json").entries
    assert [(e.case, e.key, e.kind) for e in entries][:2] == [
        ("a", "ct", "intensity"),
        ("a", "label", "label"),
    ]
    assert entries[0].statistics.maximum == 479
    assert len(vp.from_manifest(folder / "m.json")) == 2


def test_patterns_choose_the_volumes(folder, capsys):
    """As in list_cases()."""
    arguments = ["index", f"{folder}/in/*/", "image=ct.nii.gz", "-o", f"{folder}/m.json"]

    assert main([*arguments, "--no-statistics"]) == 0
    assert [e.key for e in read_manifest(folder / "m.json").entries] == ["image", "image"]
    assert read_manifest(folder / "m.json").entries[0].statistics is None
    assert main(["index", f"{folder}/in/*/", "ct.nii.gz"]) == 2
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


def test_a_table_of_cases_is_checked(folder, capsys):
    """One line for each finding, from headers alone: not there, on other grids."""
    affine, zeros = np.diag([1.0, 1, 2, 1]), np.zeros((6, 8, 10), np.float32)
    nibabel.save(nibabel.Nifti1Image(zeros, affine), folder / "in" / "other.nii")
    table = folder / "cases.csv"
    sound = "image,label,age\nin/a/ct.nii.gz,in/a/label.nii,61\n"
    table.write_text(sound)
    assert main(["check", str(table), "--workers", "1"]) == 0
    assert capsys.readouterr().out == "2 checked, 0 bad\n"

    table.write_text(f"{sound}in/b/ct.nii.gz,in/none.nii,7\nin/b/ct.nii.gz,in/other.nii,8\n")
    assert main(["check", str(table), "--workers", "1"]) == 1
    missing, grids, *sizes, summary = capsys.readouterr().out.splitlines()
    assert "VolumeNotFound: there is no file" in missing
    assert "affine" in grids
    assert summary == "6 checked, 2 bad"
    assert any("1 x 1 x 2" in line for line in sizes)


def test_a_label_that_a_row_lacks_is_told(folder, capsys):
    """By the name of its file, where the table names no cases."""
    for case in "cde":
        image = nibabel.load(folder / "in" / "a" / "label.nii")
        nibabel.save(image, folder / "in" / f"{case}.nii")
    rows = ["age\timage\tlabel", *(f"7\tin/{n}.nii\tin/a/label.nii" for n in "de"), "7\tin/c.nii"]
    (folder / "cases.tsv").write_text("\n".join(rows))
    assert main(["check", str(folder / "cases.tsv"), "--workers", "1"]) == 1
    assert "c/label: MissingLabel: case c has no 'label'" in capsys.readouterr().out


def test_a_glob_without_quotes_is_explained(folder, capsys):
    """The shell then gives folders where patterns are expected."""
    assert main(["check", f"{folder}/in/a", f"{folder}/in/b"]) == 2
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


@pytest.mark.parametrize("command", ["convert", "index", "check", "bench"])
def test_help_tells(command, tmp_path, monkeypatch, capsys):
    """Each command says what it is for and what it takes, with an example that works."""
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])

    assert caught.value.code == 0
    told = capsys.readouterr().out
    assert f"usage: voxpipe {command}" in told
    program, *arguments = shlex.split(told.rpartition("example: ")[2])
    assert [program, arguments[0]] == ["voxpipe", command]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scans" / "anna").mkdir(parents=True)
    image = nibabel.Nifti1Image(np.zeros((9, 9, 9), np.uint8), np.eye(4))
    for name in ("ct.nii.gz", "seg.nii.gz"):
        nibabel.save(image, tmp_path / "scans" / "anna" / name)
    quickly = ["--workers", "0", "--seconds", "0.01", "--patch", "8"] if command == "bench" else []
    assert main([*arguments, *quickly]) == 0
    close_volumes()


def test_what_may_be_left_out_is_not_required(capsys):
    """Patterns need not be there; the data are."""
    with pytest.raises(SystemExit):
        main(["check"])
    assert capsys.readouterr().err.endswith("required: DATA\n")


def test_options_of_the_format_are_those_of_open_volume(tmp_path, capsys):
    """A file of two data sets can be indexed, checked and converted once one is named."""
    h5py = pytest.importorskip("h5py")
    values = np.arange(512, dtype="i2").reshape(8, 8, 8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["ct"], file["other"] = values, values + 1
    source, named = str(tmp_path / "a.h5"), ["--reader", "dataset=other"]
    manifest = str(tmp_path / "manifest.json")

    assert main(["index", source, "-o", manifest]) == 1
    assert "dataset=" in capsys.readouterr().err
    assert main(["index", source, "-o", manifest, *named]) == 0
    (case,) = vp.from_manifest(manifest)
    np.testing.assert_array_equal(case["image"].numpy()[0], values + 1)
    assert main(["check", source, "--voxels", *named]) == 0
    assert main(["check", source]) == 1
    assert main(["convert", source, f"{tmp_path}/b.nii.zarr", *named]) == 0
    np.testing.assert_array_equal(vp.Volume(f"{tmp_path}/b.nii.zarr").numpy()[0], values + 1)

    capsys.readouterr()
    assert main(["check", manifest, *named]) == 2
    assert "Leave --reader out" in capsys.readouterr().err


@pytest.fixture
def bids(tmp_path):
    """Three subjects of one T1w image each, below a folder that only a star names."""
    for number in range(3):
        anat = tmp_path / "bids" / f"sub-0{number}" / "anat"
        anat.mkdir(parents=True)
        image = nibabel.Nifti1Image(np.zeros((4, 5, 6), np.int16), np.eye(4))
        nibabel.save(image, anat / f"sub-0{number}_T1w.nii.gz")
    yield tmp_path / "bids"
    close_volumes()


def keys_of(manifest):
    """Return case and key of the entries of a manifest."""
    return [(entry.case, entry.key) for entry in read_manifest(manifest).entries]


def test_a_starred_pattern_of_volumes_is_that_of_the_images(bids, tmp_path, capsys):
    """What ``image=PATTERN`` finds, in both commands and in Python."""
    pattern, manifest = f"{bids}/sub-*/anat/sub-*_T1w.nii.gz", str(tmp_path / "m.json")

    assert main(["check", pattern, "--workers", "1"]) == 0
    assert "3 checked, 0 bad" in capsys.readouterr().out
    assert main(["index", pattern, "-o", manifest, "--no-statistics"]) == 0
    assert keys_of(manifest) == [("00", "image"), ("01", "image"), ("02", "image")]


@pytest.mark.parametrize("pattern", ["in/*/", "in/*", "in/[ab]", "in/?/", "**/in/*/"])
def test_a_starred_pattern_of_folders_is_all_cases_below(folder, pattern):
    """Named and keyed as below the folder that holds them."""
    manifest = f"{folder}/m.json"
    (folder / "in" / "notes.txt").write_text("no volume")

    assert main(["index", f"{folder}/{pattern}", "-o", manifest, "--no-statistics"]) == 0
    above = "in/" if pattern.startswith("**") else ""
    assert keys_of(manifest) == [
        (f"{above}{case}", key) for case in ("a", "b") for key in ("ct", "label")
    ]


def test_stars_that_name_folders_and_volumes_leave_none_out(folder):
    """A volume beside folders is a case of its own; one of two stars is found at any depth."""
    image = nibabel.Nifti1Image(np.zeros((4, 5, 6), np.int16), np.eye(4))
    nibabel.save(image, folder / "in" / "c.nii")

    for pattern in ("in/*", "in/**/*.nii*"):
        assert len(volumes_of(f"{folder}/{pattern}")) == 5


def test_convert_takes_a_starred_pattern(folder):
    """Folders and volumes alike; names stay those below the first star."""
    assert main(["convert", f"{folder}/in/*/ct.nii.gz", f"{folder}/out"]) == 0
    assert main(["convert", f"{folder}/in/a*/", f"{folder}/all"]) == 0

    written = sorted(str(p.relative_to(folder)) for p in folder.glob("*/*/*.zarr"))
    assert written == [
        "all/a/ct.nii.zarr",
        "all/a/label.nii.zarr",
        "out/a/ct.nii.zarr",
        "out/b/ct.nii.zarr",
    ]


@pytest.mark.parametrize("pattern", ["x*/", "*/pet.nii.gz"])
def test_a_starred_pattern_that_finds_nothing_says_so(folder, pattern, capsys):
    """And how a key is given, which may have been meant."""
    for command in ("check", "index"):
        assert main([command, f"{folder}/in/{pattern}"]) == 1
        told = capsys.readouterr().err
        assert f"nothing matches {folder}/in/{pattern}" in told
        assert "did you mean image=" in told


def test_a_name_that_holds_a_star_is_no_pattern(folder):
    """What is there by that name is meant."""
    os.rename(folder / "in" / "a", folder / "in" / "[a]*")

    assert len(volumes_of(f"{folder}/in/[a]*")) == 2


def test_stars_below_a_url(capsys):
    """Folders and volumes of a bucket are found as local ones are."""
    files = file_system("memory://starred", {})[0]
    image = nibabel.Nifti1Image(np.zeros((4, 5, 6), np.int16), np.eye(4))
    for case in ("a", "b"):
        files.pipe_file(f"/starred/{case}/ct.nii", image.to_bytes())
    try:
        for pattern, keys in (("*/", ["a/ct", "b/ct"]), ("*/ct.nii", ["a/image", "b/image"])):
            found = volumes_of(f"memory://starred/{pattern}")
            assert [f"{case}/{key}" for case, key, _ in found] == keys
        assert main(["check", "memory://starred/c*/"]) == 1
        assert "nothing matches memory://starred/c*/" in capsys.readouterr().err
    finally:
        files.rm("/starred", recursive=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["{in}/*/", "-o", "{m}", "image=ct.nii.gz", "label=label.nii"],
        ["-o", "{m}", "{in}/*/", "image=ct.nii.gz", "--no-statistics", "label=label.nii"],
        ["{in}/*/", "image=ct.nii.gz", "--labels", "label", "label=label.nii", "-o", "{m}"],
        ["image={in}/*/ct.nii.gz", "-o", "{m}", "label={in}/*/label.nii"],
    ],
)
def test_patterns_may_come_after_options(folder, arguments):
    """Wherever they stand, also after an option that takes several values."""
    places = {"{in}": f"{folder}/in", "{m}": f"{folder}/m.json"}
    for short, place in places.items():
        arguments = [argument.replace(short, place) for argument in arguments]

    assert main(["index", *arguments]) == 0

    assert keys_of(f"{folder}/m.json") == [
        (case, key) for case in ("a", "b") for key in ("image", "label")
    ]
    kinds = {entry.key: entry.kind for entry in read_manifest(folder / "m.json").entries}
    assert kinds == {"image": "intensity", "label": "label"}


@pytest.mark.parametrize("left", [["-o", "m.json", "more"], ["--speed", "9"], ["--speed=9"]])
def test_other_leftovers_are_refused_as_ever(folder, left, capsys):
    """A word after an option, an option that is none; in a command without patterns, too."""
    for command in (["index", f"{folder}/in"], ["convert", f"{folder}/in", "out"]):
        with pytest.raises(SystemExit) as caught:
            main([*command, *left])
        assert caught.value.code == 2
        assert "unrecognized arguments: " in capsys.readouterr().err


def test_keys_that_a_case_may_lack_are_optional(folder, capsys):
    """As ``optional=`` of ``list_cases()``; without patterns they would speak of nothing."""
    (folder / "in" / "b" / "label.nii").unlink()
    patterns = [f"{folder}/in/*/", "image=ct.nii.gz", "label=label.nii"]
    to = ["-o", f"{folder}/m.json", "--no-statistics"]

    assert main(["index", *patterns, *to]) == 1
    assert main(["index", patterns[0], "--optional", "label", *patterns[1:], *to]) == 0
    assert keys_of(f"{folder}/m.json") == [("a", "image"), ("a", "label"), ("b", "image")]
    assert main(["check", *patterns, "--workers", "1", "--optional", "label"]) == 0
    assert "3 checked, 0 bad" in capsys.readouterr().out
    assert main(["check", *patterns, "--optional", "labl"]) == 2
    assert "did you mean --optional label?" in capsys.readouterr().err
    assert main(["index", f"{folder}/in", "--optional", "label"]) == 2
    assert "--optional needs patterns" in capsys.readouterr().err


def test_a_folder_of_bids_is_indexed_by_what_is_common(bids, tmp_path):
    """The key is the suffix that all subjects share."""
    manifest = str(tmp_path / "m.json")

    assert main(["index", str(bids), "-o", manifest, "--no-statistics"]) == 0
    assert keys_of(manifest) == [(f"sub-0{n}/anat", "T1w") for n in range(3)]


def test_keys_that_differ_in_every_case_are_refused(tmp_path, capsys):
    """No chain could use such a manifest; one sentence says what to give."""
    image = nibabel.Nifti1Image(np.zeros((4, 5, 6), np.int16), np.eye(4))
    for name in ("p1/scan71.nii", "p2/scan72.nii"):
        (tmp_path / name).parent.mkdir()
        nibabel.save(image, tmp_path / name)
    manifest = tmp_path / "m.json"

    assert main(["index", str(tmp_path), "-o", str(manifest)]) == 1

    told = capsys.readouterr().err
    assert "no two cases share a key: p1 has scan71, p2 has scan72" in told
    assert f'"image={tmp_path}/p*/scan*.nii"' in told
    assert not manifest.exists()
    assert main(["check", str(tmp_path), "--workers", "1"]) == 0


def test_likely_labels_are_told_in_words_of_the_command(folder, capsys, recwarn):
    """One line for a key, without a line of code; ``--labels`` answers it in both commands."""
    for case in ("a", "b"):
        os.rename(folder / "in" / case / "ct.nii.gz", folder / "in" / case / "gt.nii.gz")
    check = ["check", f"{folder}/in", "--workers", "1"]
    index = ["index", f"{folder}/in", "--no-statistics", "-o", f"{folder}/m.json"]

    for command in (check, index):
        assert main(command) == 0
        told = capsys.readouterr().err
        assert told.count("gt: LikelyLabel: ") == 1
        assert "--labels label gt" in told
        assert "--labels label;" in told or "--labels label." in told
        assert not any(word in told for word in ("open_volume", ".py", "main", "vp."))
        for labels in (["gt", "label"], ["label"]):
            assert main([*command, "--labels", *labels]) == 0
            assert "LikelyLabel" not in capsys.readouterr().err
    assert not list(recwarn)

    assert main(["check", f"{folder}/m.json", "--labels", "gt"]) == 2
    assert "Leave --labels out" in capsys.readouterr().err


@pytest.mark.parametrize("workers", [["0"], ["0", "1"]])
def test_a_folder_is_measured_and_rates_are_forecast(folder, capsys, workers):
    """The parts of a patch, then a row for each number of workers."""
    few = ["--patch", "4", "--batch", "2", "--samples", "2", "--seconds", "0.01"]
    assert main(["bench", f"{folder}/in", *few, "--labels", "label", "--workers", *workers]) == 0

    told = capsys.readouterr()
    rows = [line.split() for line in told.out.splitlines() if line]
    assert {"planning", "fetch", "decode", "kernel", "rest"} <= {row[0] for row in rows}
    assert [row[1] for row in rows if row[0] == "kernel"] == ["ct", "label"]
    assert [row[0] for row in rows[-len(workers) :]] == workers
    assert "volumes were made readable first" in told.err


def test_threads_are_forecast_too(folder, capsys):
    """Without workers they are what is measured, beside workers they follow from these."""
    few = ["--patch", "4", "--batch", "2", "--samples", "2", "--seconds", "0.01"]
    for workers in "0", "1":
        command = ["bench", f"{folder}/in", *few, "--labels", "label", "--workers", workers]
        assert main([*command, "--threads", "1", "2"]) == 0
        rows = [line.split() for line in capsys.readouterr().out.splitlines() if line]
        makers = [row[:2] for row in rows[[row[0] for row in rows].index("workers") + 1 :]]
        # A line about the lock follows where any time of it was found, which patches so small hide.
        assert [count for _, count in makers[1:3]] == ["1", "2"]
        assert [place for place, _ in makers[:3]] == [workers, "here", "here"]
        assert "transport" in [row[0] for row in rows]


@pytest.mark.parametrize("wrong", [["--workers", "-1"], ["--threads", "0"]])
def test_numbers_of_makers_are_checked(folder, capsys, wrong):
    """With the option and what is asked for, not with a traceback."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", f"{folder}/in", *wrong])

    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert wrong[0] in told
    assert f"{wrong[1]} is not" in told


CHAINS = """
import voxpipe as vp

def chain():
    cases = vp.list_cases({folder!r}, image="ct.nii.gz")
    return cases.open_volume().lazy_patch(3, samples_per_volume=4).batch_patches(1)

pipe = chain()
loader = vp.DataLoader2(pipe)

threads = vp.DataLoader2(chain(), None, vp.ThreadReadingService(2))
plans = vp.list_cases({folder!r}, image="ct.nii.gz")
nameless = chain().map(lambda batch: batch)

def with_argument(number):
    return pipe

def fails():
    raise OSError("no such\\ndisk")

def misspelt():
    return None.foo
"""


@pytest.mark.parametrize("name", ["chain", "pipe", "loader"])
def test_a_chain_of_the_users_is_measured(folder, capsys, monkeypatch, name):
    """A function that returns it, a pipe, or a loader with its own service."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "chains_of_mine", raising=False)
    file = folder / "chains_of_mine.py"
    file.write_text(CHAINS.format(folder=f"{folder}/in/*/"))

    assert main(["bench", f"{file}:{name}", "--workers", "0", "--seconds", "0.01"]) == 0
    assert "kernel image" in capsys.readouterr().out


@pytest.fixture
def bench(folder, capsys, monkeypatch):
    """Return what measures a chain of the user's, and returns its status and its words."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "chains_of_mine", raising=False)
    file = folder / "chains_of_mine.py"
    file.write_text(CHAINS.format(folder=f"{folder}/in/*/"))

    def run(name, *options):
        status = main(["bench", f"{file}:{name}", "--seconds", "0.01", *options])
        return status, capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("options", "counts"), [([], ["1", "2", "4"]), (["--threads", "3"], ["3"])]
)
def test_a_loader_with_threads_shows_their_rows(bench, options, counts):
    """By itself; with numbers given, rows of these."""
    rows = [line.split()[:2] for line in bench("threads", *options)[1].out.splitlines() if line]

    assert [row[1] for row in rows if row[0] == "here"] == counts


@pytest.mark.parametrize("option", ["--patch", "--batch", "--samples"])
def test_what_a_chain_says_itself_is_refused(bench, option):
    """Rather than left out of account without a word."""
    status, told = bench("pipe", option, "8")

    assert status == 2
    assert f"{option} is not of a chain of yours" in told.err


def test_a_chain_that_only_plans_is_told_so(bench):
    """Its figures are those of plans; and what makes batches is named."""
    status, told = bench("plans")

    assert status == 0
    assert "no voxel is read" in told.err
    assert "end the chain with .batch_patches(n)" in told.err


def test_functions_that_cannot_travel_leave_the_other_rows(bench, monkeypatch):
    """One process and threads, and why there are none of workers."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # it sends them by value
    status, told = bench("nameless")

    rows = [line.split()[:2] for line in told.out.splitlines() if line]
    assert status == 0
    assert [row for row in rows if row[0] in ("0", "here")] == [["0", "1"]] + [
        ["here", n] for n in ("1", "2")
    ]
    assert "no row of worker processes: map(<lambda>" in told.err


def test_too_much_memory_is_told_in_options_of_the_command(folder, capsys):
    """It has no worker_prefetch_cnt= and no memory_bytes=."""
    assert main(["bench", f"{folder}/in", "--labels", "label", "--patch", "9000"]) == 1

    told = capsys.readouterr().err
    assert "Give a smaller --patch or --batch, or fewer --workers." in told
    assert "memory_bytes=" not in told


@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        ("with_argument", 2, "cannot be called without arguments: missing a required argument"),
        ("with_argument", 2, " at {file}:"),
        ("fails", 1, "voxpipe: OSError: no such\n  raised at {file}:19\n"),
        (
            "misspelt",
            1,
            "voxpipe: AttributeError: 'NoneType' object has no attribute 'foo'\n  raised",
        ),
    ],
)
def test_a_chain_that_fails_is_told_in_a_line(folder, capsys, monkeypatch, name, status, told):
    """With its place, and no traceback."""
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "chains_of_mine", raising=False)
    file = folder / "chains_of_mine.py"
    file.write_text(CHAINS.format(folder=f"{folder}/in/*/"))

    assert main(["bench", f"{file}:{name}"]) == status
    said = capsys.readouterr().err
    assert told.format(file=file) in said
    assert "Traceback" not in said


def test_a_chain_that_is_not_there_is_named(folder, capsys, monkeypatch):
    """With the form that is understood."""
    monkeypatch.syspath_prepend(str(folder))

    assert main(["bench", f"{folder}/nothing.py:chain"]) == 2
    told = capsys.readouterr().err
    assert f"{folder}/nothing.py does not exist" in told
    assert "Write module:NAME or file.py:NAME" in told
