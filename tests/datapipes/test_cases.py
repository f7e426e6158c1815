import contextlib
import errno
import glob
import json
import math
import os
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import (
    BadManifest,
    PatchSizeError,
    SampleError,
    VolumeNotFound,
    VolumeReadError,
)
from voxpipe.core.suggest import path_hint
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.storage.remote import Globs


def files_below(folder, *names):
    """Make empty files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def folders(tmp_path):
    """Two cases in a folder each, one with an extra file."""
    for name in ("anna", "berta"):
        folder = tmp_path / "train" / name
        folder.mkdir(parents=True)
        for file in ("ct.nii", "seg.nii"):
            (folder / file).touch()
    (tmp_path / "train" / "anna" / "notes.txt").touch()
    (tmp_path / "train" / "berta" / "ct.nii.zarr").mkdir()
    (tmp_path / "train" / "anna" / "ct.nii.zarr").mkdir()
    return tmp_path


def found(pipe):
    return [(s.case, s.identity, dict(s)) for s in pipe]


def test_one_case_per_folder(folders):
    """A glob of folders and a file name per key; cases are sorted by name."""
    base = folders / "train"

    cases = found(vp.list_cases(f"{base}/*/", image="ct.nii", label="seg.nii"))

    assert cases == [
        (name, (n,), {"image": f"{base}/{name}/ct.nii", "label": f"{base}/{name}/seg.nii"})
        for n, name in enumerate(("anna", "berta"))
    ]


def test_a_zarr_folder_is_a_volume(folders):
    """What stands in a case's folder may be a folder itself, and the name a pattern."""
    cases = found(vp.list_cases(f"{folders}/train/*/", image="*.zarr"))

    assert [data["image"].rsplit("/", 2)[1:] for _, _, data in cases] == [
        ["anna", "ct.nii.zarr"],
        ["berta", "ct.nii.zarr"],
    ]


def test_one_case_per_pattern(tmp_path):
    """Without a folder, the star of each key's pattern is the case."""
    for name in ("images/a_0000.nii", "images/b_0000.nii", "labels/a.nii", "labels/b.nii"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    pipe = vp.list_cases(
        image=str(tmp_path / "images/*_0000.nii"), label=str(tmp_path / "labels/*.nii")
    )

    assert [(case, data["label"][-5:]) for case, _, data in found(pipe)] == [
        ("a", "a.nii"),
        ("b", "b.nii"),
    ]


def test_a_bucket_by_url():
    """Cases of an fsspec URL keep their protocol."""
    import fsspec

    fs = fsspec.filesystem("memory")
    for name in ("x", "y"):
        fs.pipe_file(f"/scans/{name}/ct.nii", b"")

    cases = found(vp.list_cases("memory://scans/*/", image="ct.nii"))
    fs.rm("/scans", recursive=True)

    assert [(case, data["image"]) for case, _, data in cases] == [
        ("x", "memory:///scans/x/ct.nii"),
        ("y", "memory:///scans/y/ct.nii"),
    ]


@pytest.fixture
def listed(monkeypatch):
    """Folders in the order in which they are listed; an entry that is asked for stat() fails."""
    folders, scan = [], os.scandir

    @contextlib.contextmanager
    def scandir(folder):
        folders.append(str(folder))
        with scan(folder) as entries:
            yield [SimpleNamespace(name=one.name, is_dir=one.is_dir) for one in entries]

    monkeypatch.setattr(os, "scandir", scandir)
    return folders


def test_each_pass_lists_once_and_late(folders, listed):
    """Nothing is listed before the first iteration, and once for all keys in each."""
    pipe = vp.list_cases(f"{folders}/train/*/", image="ct.nii", label="seg.nii")
    assert listed == []
    for passes in (1, 2):
        assert len(list(pipe)) == len(pipe) == 2
        assert len(listed) == 3 * passes


def test_only_folders_that_the_pattern_matches_are_listed(tmp_path, listed):
    """Other folders are not listed, and no file is opened."""
    names = [f"sub-{n}/{kind}/{kind}.nii" for n in range(3) for kind in ("anat", "func", "dwi")]
    files_below(tmp_path, *names, *(f"raw/{n}/deep/x" for n in range(50)))
    patterns = {"image": "anat/anat.nii", "other": "dwi/*.nii"}

    assert len(list(vp.list_cases(f"{tmp_path}/sub-*/", **patterns))) == 3
    names = [os.path.relpath(folder, tmp_path) for folder in listed]
    cases = [f"sub-{n}" for n in range(3)]
    assert sorted(names) == sorted(
        [".", *cases, *(f"{case}/{kind}" for case in cases for kind in ("anat", "dwi"))]
    )


@pytest.mark.parametrize(
    "pattern",
    [
        *("*", "*/", "**", "**/", "**/*.nii", "*/**", "*/**/*.nii", "p?/*.nii", "[pq]1/ct.nii"),
        *("*/sub/ct.nii", "p1/**/ct.nii", "link/*", "no/*", "no/**", "*/*/", "*/no"),
        *("p1/ct.nii/*", "**/sub/*", "?[[]a]/*", "p1/../*/ct.nii", "*/./ct.nii", ".h*/*"),
    ],
)
def test_a_pattern_matches_on_a_disk_as_for_fsspec(tmp_path, pattern):
    """Hidden files, links to nothing, stars for folders, brackets, dots."""
    from fsspec.implementations.local import LocalFileSystem

    names = ("p1/ct.nii", "p1/sub/ct.nii", "q1/.ct.nii", ".h/ct.nii", "z[a]/ct.nii", "top.nii")
    files_below(tmp_path / "data", *names)
    (tmp_path / "data" / "broken").symlink_to(tmp_path / "nowhere")
    full = f"{tmp_path}/data/{pattern}"
    _, _, matches = Globs({}).match(full)

    assert list(matches) == LocalFileSystem().glob(full)


@pytest.mark.parametrize("pattern", ["*/ct.nii", "l*/ct.nii", "*/", "link/*", "l*/*/ct.nii"])
def test_links_to_folders_are_entered(tmp_path, pattern):
    """As by the module glob: cases are often links to a store of scans."""
    files_below(tmp_path, "data/p1/ct.nii", "elsewhere/ct.nii", "elsewhere/sub/ct.nii")
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    full = f"{tmp_path}/data/{pattern}"

    assert [*Globs({}).match(full)[2]] == [name.rstrip("/") for name in sorted(glob.glob(full))]


def test_a_link_that_leads_nowhere_hides_no_case(tmp_path):
    """Nor one to itself: the other cases of the folder are there."""
    files_below(tmp_path, *(f"{n}/ct.nii" for n in range(8)))
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")

    assert len(list(vp.list_cases(f"{tmp_path}/*/", image="ct.nii"))) == 8


def test_two_stars_enter_no_links(tmp_path):
    """A link to a folder above would go round in circles."""
    files_below(tmp_path, "data/p1/ct.nii")
    (tmp_path / "data" / "p1" / "up").symlink_to(tmp_path / "data")

    found = Globs({}).match(f"{tmp_path}/data/**/ct.nii")[2]

    assert [os.path.relpath(name, tmp_path) for name in found] == ["data/p1/ct.nii"]


def test_a_folder_that_cannot_be_read_is_no_empty_folder(tmp_path, monkeypatch):
    """A disk that fails is reported; folders without access are left out."""
    files_below(tmp_path, "a/ct.nii", "b/ct.nii")
    scan = os.scandir
    error = PermissionError(errno.EACCES, "Permission denied")

    def scandir(folder):
        if str(folder).rstrip("/").endswith("b"):
            raise error
        return scan(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    pipe = vp.list_cases(f"{tmp_path}/*/", image="ct.nii")
    assert [sample.case for sample in pipe] == ["a"]
    error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(VolumeReadError, match="b failed: Input/output error"):
        list(pipe)


def test_a_case_without_a_volume_is_named(folders):
    """The error names the case, the key and the user's line."""
    (folders / "train" / "berta" / "seg.nii").unlink()
    pipe = vp.list_cases(f"{folders}/train/*/", image="ct.nii", label="seg.nii")

    with pytest.raises(VolumeNotFound, match=r"case berta has no label \(seg.nii\)") as e:
        list(pipe)

    assert "test_cases.py" in str(e.value)


def test_nothing_found_shows_the_patterns(tmp_path):
    """No match names what was looked for."""
    with pytest.raises(VolumeNotFound, match=r"image='ct.nii'"):
        list(vp.list_cases(f"{tmp_path}/*/", image="ct.nii"))


def test_two_volumes_for_one_key(folders):
    """A pattern that fits two files of a case is refused with both."""
    with pytest.raises(SampleError, match=r"two volumes for image="):
        list(vp.list_cases(f"{folders}/train/*/", image="*.nii"))


@pytest.mark.parametrize("wrong", [{}, {"image": "no/star.nii"}, {"image": "**/two/*.nii"}])
def test_patterns_are_checked_at_construction(wrong):
    """A pattern per key, with a star that stands for a name where there is no folder."""
    with pytest.raises(ValueError, match=r"pattern|one \*"):
        vp.list_cases(**wrong)


def test_given_cases_carry_their_names_and_numbers():
    """The key "case" names a case; numbers and words travel along."""
    cases = [{"case": "c7", "image": np.zeros((2, 2, 2)), "age": 61}, {"image": "b/scan.nii.gz"}]

    samples = list(vp.from_cases(cases))

    assert [s.case for s in samples] == ["c7", "scan"]
    assert samples[0]["age"] == 61


def test_what_is_no_mapping_is_refused_with_its_place():
    """A list of paths is not a list of cases."""
    with pytest.raises(SampleError, match="case 0 is a str"):
        list(vp.from_cases(["a.nii"]))


@pytest.mark.parametrize("count", [1000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_cases_cost_no_file_access(count, monkeypatch):
    """Opening and patching them touches no file."""
    import builtins
    import io
    import os

    def refuse(*args, **kwargs):
        raise AssertionError(f"file access: {args}")

    cases = [{"image": f"/no/where/{n}.nii.gz"} for n in range(count)]
    pipe = vp.from_cases(cases).open_volume().lazy_patch(8).rotate((-5, 5))
    for module, name in [(builtins, "open"), (io, "open"), (os, "stat"), (os, "open")]:
        monkeypatch.setattr(module, name, refuse)

    samples = sum(1 for _ in pipe)
    monkeypatch.undo()

    assert samples == count


def touched(folder, *names):
    """Make empty files and return the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_hidden_files_are_no_cases(tmp_path):
    """Some systems write ``._ct.nii`` beside each file; a folder may be hidden, too."""
    touched(tmp_path, "ct/a.nii", "ct/._a.nii", ".trash/ct/b.nii")

    assert [s.case for s in vp.list_cases(image=f"{tmp_path}/ct/*.nii")] == ["a"]
    assert [s.case for s in vp.list_cases(f"{tmp_path}/*/", image="*.nii")] == ["ct"]
    hidden = vp.list_cases(f"{tmp_path}/.trash/*/", image="*.nii")
    assert [s.case for s in hidden] == ["ct"], "a pattern that writes the dot means it"


def test_stars_behind_one_word_stand_for_one_text(tmp_path):
    """BIDS repeats the subject; a copy in another subject's folder is no case."""
    touched(
        tmp_path,
        "sub-01/anat/sub-01_T1w.nii.gz",
        "sub-02/anat/sub-02_T1w.nii.gz",
        "sub-02/anat/sub-01_T1w.nii.gz",
        "masks/sub-01.nii.gz",
        "masks/sub-02.nii.gz",
    )

    pipe = vp.list_cases(
        image=f"{tmp_path}/sub-*/anat/sub-*_T1w.nii.gz", label=f"{tmp_path}/masks/sub-*.nii.gz"
    )

    assert [(s.case, s["image"][-21:]) for s in pipe] == [
        ("01", "anat/sub-01_T1w.nii.gz"[-21:]),
        ("02", "anat/sub-02_T1w.nii.gz"[-21:]),
    ]
    assert "sub-02/anat/sub-02" in list(pipe)[1]["image"]


def test_other_stars_name_the_case_together(tmp_path):
    """Subjects and their sessions; and BraTS, whose files are called as their folder."""
    touched(tmp_path, "sub-1/ses-a/ct.nii", "sub-1/ses-b/ct.nii", "x/x_t1.nii", "y/y_t1.nii")

    sessions = vp.list_cases(image=f"{tmp_path}/sub-*/ses-*/ct.nii")
    repeated = vp.list_cases(image=f"{tmp_path}/*/*_t1.nii")

    assert [s.case for s in sessions] == ["1/a", "1/b"]
    assert [s.case for s in repeated] == ["x", "y"]


def scan(folder, kind, subject, session, run):
    name = f"sub-{subject}_ses-{session}_run-{run}_{kind}.nii"
    touched(folder, f"sub-{subject}/ses-{session}/{name}")


def scans(folder, kind):
    return f"{folder}/sub-*/ses-*/sub-*_ses-*_run-*_{kind}.nii"


def test_numbers_that_are_alike_all_stand_in_the_name(tmp_path):
    """Subject 1, session 2, run 1 is another scan than run 2, and than run 2 of session 1."""
    for numbers in ((1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 2, 2), (2, 1, 1)):
        scan(tmp_path, "T1w", *numbers)

    cases = [s.case for s in vp.list_cases(image=scans(tmp_path, "T1w"))]

    assert cases == ["1/1/1", "1/1/2", "1/2/1", "1/2/2", "2/1/1"]


def test_a_scan_never_gets_the_label_of_another(tmp_path):
    """Run 1 has no label, and run 2 has nothing else."""
    scan(tmp_path, "T1w", 1, 2, 1)
    scan(tmp_path, "seg", 1, 2, 2)
    patterns = {"image": scans(tmp_path, "T1w"), "label": scans(tmp_path, "seg")}

    pipe = vp.list_cases(**patterns, optional=("image", "label"))

    assert [(s.case, *s) for s in pipe] == [("1/2/1", "image"), ("1/2/2", "label")]
    with pytest.raises(VolumeNotFound, match=r"case 1/2/1 has no label"):
        list(vp.list_cases(**patterns))


def test_a_file_that_is_called_as_its_folder_is_named_once(tmp_path):
    """Below any number of folders; the labels of all may lie in one."""
    touched(tmp_path, "1/1/1_t1.nii", "1/2/2_t1.nii", "2/1/1_t1.nii", "1/1/2_t1.nii")
    touched(tmp_path, "x/x_t1.nii", "labels/x.nii")

    deep = vp.list_cases(image=f"{tmp_path}/*/*/*_t1.nii")
    pairs = vp.list_cases(image=f"{tmp_path}/*/*_t1.nii", label=f"{tmp_path}/labels/*.nii")

    assert [s.case for s in deep] == ["1/1", "1/1/2", "1/2", "2/1"]
    assert [(s.case, *s) for s in pairs] == [("x", "image", "label")]


@pytest.mark.parametrize(
    ("files", "pattern", "expected"),
    [
        (["a/t1_.nii", "a/t1_x.nii"], "*/t1_*.nii", ["a", "a/x"]),
        (["sub-1/ses-/ct.nii", "sub-1/ses-b/ct.nii"], "sub-*/ses-*/ct.nii", ["1", "1/b"]),
        (["sub-/ses-b/ct.nii"], "sub-*/ses-*/ct.nii", ["b"]),
        (["a/s_b_r_.nii", "a/s__r_b.nii"], "*/s_*_r_*.nii", ["a//b", "a/b"]),
    ],
)
def test_a_star_that_stands_for_nothing_adds_nothing(tmp_path, files, pattern, expected):
    """A name has no slash at either end."""
    touched(tmp_path, *files)

    pipe = vp.list_cases(image=f"{tmp_path}/{pattern}")

    assert [s.case for s in pipe] == expected


def test_a_case_of_which_nothing_is_told_is_called_by_its_file(tmp_path):
    """One name of no letters would be that of every such case."""
    touched(tmp_path, "scan_.nii", "scan_1.nii")

    assert [s.case for s in vp.list_cases(image=f"{tmp_path}/scan_*.nii")] == ["1", "scan_"]


def test_stars_that_never_agree_are_told(tmp_path):
    """Files are there, and none is a case."""
    touched(tmp_path, "sub-1/sub-2.nii")

    with pytest.raises(VolumeNotFound, match=r"1 file matches .* different texts"):
        list(vp.list_cases(image=f"{tmp_path}/sub-*/sub-*.nii"))


def test_a_case_may_lack_an_optional_key(tmp_path):
    """Its sample comes without it; a key that is not optional is still an error."""
    touched(tmp_path, "a/t1.nii", "a/flair.nii", "b/t1.nii")
    patterns = {"t1": "t1.nii", "flair": "flair.nii"}

    pipe = vp.list_cases(f"{tmp_path}/*/", **patterns, optional="flair")

    assert [sorted(s) for s in pipe] == [["flair", "t1"], ["t1"]]
    assert pipe.describe().endswith("optional=('flair',))")
    with pytest.raises(VolumeNotFound, match=r"case b has no flair.*\n.*\n.*optional="):
        list(vp.list_cases(f"{tmp_path}/*/", **patterns, optional=()))
    with pytest.raises(ValueError, match=r"optional='t2' is none of the keys: t1, flair"):
        vp.list_cases(f"{tmp_path}/*/", **patterns, optional=("t2",))


@pytest.mark.parametrize(
    "pipe",
    [
        lambda opened: opened.resample_to("flair"),
        lambda opened: opened.resample_to("t1", keys="flair"),
        lambda opened: opened.stack(("t1", "flair"), "image"),
        lambda opened: opened.unstack("flair", ("flair0",)),
        lambda opened: opened.normalize(keys="flair"),
        lambda opened: opened.normalize(inside="flair").realize(),
        lambda opened: opened.lazy_patch(2, mask="flair"),
        lambda opened: opened.lazy_patch(2, weights="flair"),
        lambda opened: opened.foreground_crop("flair"),
        lambda opened: opened.rotate(5, mode={"flair": "nearest"}),
        lambda opened: opened.flush(keys="flair"),
        lambda opened: opened.cache(keys="flair"),
        lambda opened: opened.lazy_patch(2).batch_patches(2),
    ],
    ids=range(13),
)
def test_a_pipe_that_names_an_optional_key_says_the_way_out(pipe):
    """Where a case lacks it: fill it in, or leave the case out."""
    volume = np.ones((4, 4, 4), np.uint8)
    cases = vp.from_cases([{"t1": volume, "flair": volume}, {"t1": volume}])

    with pytest.raises((SampleError, PatchSizeError)) as caught:
        list(pipe(cases.open_volume(labels=("flair",))))

    assert "If only some cases have 'flair' (optional=" in caught.value.do
    assert ".filter(lambda sample: 'flair' in sample)" in caught.value.do
    list(pipe(cases.filter(has_flair).open_volume(labels=("flair",))))


def has_flair(sample):
    return "flair" in sample


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"optinal": "flair"}, "did you mean optional="),
        ({"optionals": ("flair",)}, "did you mean optional="),
        ({"optional": "flai"}, "did you mean optional='flair'"),
        ({"optional": "flair?"}, "did you mean optional='flair'"),
        ({"storage_option": {"anon": True}}, "did you mean storage_options="),
        ({"flair?": "flair.nii"}, "did you mean optional='flair'"),
    ],
)
def test_optional_written_otherwise_is_told(given, message):
    """Any other argument is a key with its pattern."""
    with pytest.raises((TypeError, ValueError), match=message):
        vp.list_cases("*/", **{"t1": "t1.nii", "flair": "flair.nii"} | given)


def test_a_question_mark_makes_no_key_optional(folders):
    """It stands for one character, as in any pattern."""
    told = r"did you mean optional='flair'"

    with pytest.raises(VolumeNotFound, match=told):
        list(vp.list_cases(f"{folders}/train/*/", image="ct.nii", flair="flair.nii?"))
    with pytest.raises(VolumeNotFound, match=told):
        list(vp.list_cases(f"{folders}/train/*/", flair="flair.nii?"))
    found = list(vp.list_cases(f"{folders}/train/*/", image="ct.ni?"))
    assert [sample.case for sample in found] == ["anna", "berta"]


def test_a_batch_of_cases_with_different_keys_is_refused(tmp_path):
    """Where a batch needs every key of every case, the error says which lacks which."""
    cases = [{"t1": np.zeros((4, 4, 4)), "flair": np.zeros((4, 4, 4))}, {"t1": np.zeros((4, 4, 4))}]
    pipe = vp.from_cases(cases).open_volume().lazy_patch((2, 2, 2)).batch_patches(2)

    with pytest.raises(PatchSizeError, match=r"case 1 has \[.t1.\]"):
        list(pipe)


def test_a_folder_in_place_of_a_glob_is_told(folders):
    """The glob of its folders is what was meant, if it finds something."""
    with pytest.raises(VolumeNotFound, match=r"Did you mean '.*/train/\*/'\?"):
        list(vp.list_cases(f"{folders}/train", image="ct.nii"))
    with pytest.raises(VolumeNotFound, match=r"train has no 'mr.nii'; it has 'anna', 'berta'"):
        list(vp.list_cases(f"{folders}/train", image="mr.nii"))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (lambda f: vp.list_cases(f"{f}/trian/*/", image="ct.nii"), "has no 'trian'; did you mean"),
        (lambda f: vp.list_cases(image=f"{f}/trian/*/ct.nii"), "has no 'trian'; did you"),
        (lambda f: vp.list_cases(f"{f}/train/*/", image="cta.nii"), "anna has no 'cta.nii'; did"),
        (lambda f: vp.from_cases([{"image": f"{f}/trian/anna/ct.nii"}]), "has no 'trian'; did"),
        (
            lambda f: vp.from_cases([{"image": f"{f}/train/anna/ct.zarr"}]),
            "did you mean 'ct.nii.zarr'?",
        ),
        (lambda f: vp.from_cases([{"image": f"{f}/train/anna/ct.nii/0"}]), "ct.nii is a file"),
    ],
)
def test_explain_says_where_a_path_leads_nowhere(folders, source, told):
    """The folder that is there, what is not in it, and what was meant; of loaders, too."""
    pipe = source(folders).open_volume().lazy_patch(1).batch_patches(1)

    assert told in pipe.explain()
    with vp.DataLoader2(pipe) as loader:
        assert told in loader.explain()
    with pytest.raises(VolumeNotFound, match=told):
        next(iter(pipe))


def test_what_git_annex_has_not_fetched_is_told(tmp_path):
    """A link that leads nowhere is no file, and something is there."""
    (tmp_path / "ct.nii").symlink_to("../.git/annex/objects/x")

    with pytest.raises(VolumeNotFound, match=r"is a link to ../.git/annex/objects/x, which is not"):
        vp.Volume(tmp_path / "ct.nii").numpy()


def test_layouts_of_others_say_it_too(folders):
    """Each when it looks for its first file."""
    place = folders / "trian"
    calls = [
        *[(vp.from_nnunet, place), (vp.from_dicom, place), (vp.from_table, place / "a.csv")],
        (vp.from_decathlon, place / "dataset.json"),
    ]
    for source, path in calls:
        with pytest.raises(VolumeNotFound, match=r"has no 'trian'; did you mean 'train'\?"):
            source(path)
    with pytest.raises(VolumeNotFound, match="has no 'trian'"):
        vp.from_bids(place, image="T1w")


def test_another_number_is_another_case(folders):
    """Nothing is guessed where numbers alone differ."""
    for number in (1, 12):
        (folders / f"ct_{number}.nii").touch()

    assert path_hint(folders / "ct_2.nii").endswith("; it has 'ct_1.nii', 'ct_12.nii', 'train'")


def test_a_folder_of_many_cases_is_told(tmp_path):
    """One folder is one case; a pattern with a star is the way to a folder of many."""
    touched(tmp_path, "a.nii", "b.nii")

    with pytest.raises(SampleError, match=r"two volumes .*\n.*\n.*leave the folder out"):
        list(vp.list_cases(tmp_path, image="*.nii"))


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_a_cell_that_is_too_long(tmp_path, name):
    """A cell without its end quote, or a file of another kind, is refused with the table's name."""
    separator = "\t" if name == "t.tsv" else ","
    (tmp_path / name).write_text(f"case{separator}image\na{separator}{'x' * 200_000}\n")
    with pytest.raises(SampleError, match=f"{name} is no table: field larger"):
        list(vp.from_table(tmp_path / name))


@pytest.mark.parametrize("pattern", ["./ct.npy", ".//ct.npy", "././ct.npy", Path("./ct.npy")])
def test_a_pattern_may_begin_with_a_dot(tmp_path, pattern):
    """It has the cases and the settings of the pattern without the dot, as ``ls`` has."""
    for name in ("a", "b"):
        (tmp_path / name / ".x").mkdir(parents=True)
        for file in ("ct.npy", ".x/seg.npy"):
            np.save(tmp_path / name / file, np.zeros((2, 2, 2)))
    usual = vp.list_cases(f"{tmp_path}/*/", image="ct.npy", seg=".x/seg.npy")
    other = vp.list_cases(f"{tmp_path}/*/", image=pattern, seg="./.x/./seg.npy")

    assert [s.case for s in other] == [s.case for s in usual] == ["a", "b"]
    assert (other.settings(), other.data_hash()) == (usual.settings(), usual.data_hash())
    assert len(vp.list_cases(image=tmp_path / "*" / "ct.npy")) == 2


def test_spellings_of_a_path_are_the_same_data(tmp_path, monkeypatch):
    """Relative, doubled slashes, dots, a home, a file URL; other files are other data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    spellings = ["a/ct.nii", "./a/ct.nii", "a//ct.nii", "a/./ct.nii", "b/../a/ct.nii", "~/a/ct.nii"]
    spellings += [f"{tmp_path}/a/ct.nii", f"{tmp_path}//a/ct.nii", f"file://{tmp_path}/a/ct.nii"]
    hashes = [vp.from_cases([{"image": one}]).data_hash() for one in spellings]
    others = ["b/ct.nii", "a/.ct.nii", "s3://a/ct.nii", "../a/ct.nii", "x:/a/ct.nii"]

    assert len({*hashes, vp.from_cases([{"image": Path("a/ct.nii")}]).data_hash()}) == 1
    assert len({hashes[0], *(vp.from_cases([{"image": o}]).data_hash() for o in others)}) == 6


EMPTY = ["", "  ", None, math.nan, np.float32("nan")]


def typed(value):
    """Return a value with its type, which NumPy 1.26 does not write."""
    return f"{type(value).__name__} {value!r}"


@pytest.mark.parametrize("empty", [*EMPTY, "pandas.NA", "pandas.NaT"], ids=typed)
@pytest.mark.parametrize("row", [0, 1])
def test_an_empty_value_among_volumes_is_refused(empty, row):
    """By row and key, also as a part of a list; other data may be empty, and no key is listed."""
    if isinstance(empty, str) and empty.startswith("pandas."):
        empty = getattr(pytest.importorskip("pandas"), empty.removeprefix("pandas."))
    scan = np.zeros((4, 4, 4))
    cases = [{"ct": "a.nii", "pet": scan, "age": None}, {"ct": "b.nii", "pet": scan, "age": 7}]
    for value in (empty, [scan, empty]):
        cases[row] = {"ct": value, "age": empty, "pet": scan}
        with pytest.raises(SampleError, match=f"'ct' is empty, .* in row {row} of the cases"):
            list(vp.from_cases(cases).open_volume())
    ages = [sample["age"] for sample in vp.from_cases(cases).open_volume(keys="pet")]
    assert len(ages) == 2


@pytest.mark.parametrize("empty", EMPTY, ids=typed)
@pytest.mark.parametrize("row", [0, 1, 2])
def test_an_empty_value_in_a_stream_is_refused_in_any_order(empty, row):
    """Its later cases are unknown, and the order of cases changes no answer."""
    scan = np.zeros((4, 4, 4))
    cases = [{"case": f"c{n}", "ct": scan, "pet": scan, "age": empty} for n in range(3)]
    assert len(list(IterableWrapper(cases).open_volume())) == 3
    for value in (empty, [scan, empty]):
        cases[row] |= {"pet": value}
        with pytest.raises(SampleError, match=r"(?s)'pet' is empty.*leave 'pet' out of"):
            list(IterableWrapper(cases).open_volume())
    cases[row].pop("pet")
    assert len(list(IterableWrapper(cases).open_volume())) == 3


@pytest.mark.parametrize("empty", EMPTY[:4], ids=repr)
def test_an_empty_place_in_a_list_of_cases_is_no_folder(empty, tmp_path):
    """Of Decathlon's lists and of manifests; an empty cell of a table is a key that is absent."""
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.eye(4)), tmp_path / "a.nii")
    rows = [{"image": "a.nii", "ct": "a.nii"}, {"image": empty, "ct": "a.nii"}]
    (tmp_path / "dataset.json").write_text(json.dumps({"training": rows}))
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    place = str(tmp_path / "a.nii")
    vp.index(vp.from_cases([{"image": place, "ct": place}]), tmp_path / "m.json")
    manifest = json.loads((tmp_path / "m.json").read_text())

    with pytest.raises(SampleError, match=r"'image' is empty, .* in row 1 of the cases"):
        list(vp.from_decathlon(tmp_path).open_volume())
    for nowhere in (empty, "a.nii\0"):
        manifest["cases"][0]["volumes"]["image"]["location"] = nowhere
        (tmp_path / "m.json").write_text(json.dumps(manifest))
        with pytest.raises(BadManifest, match=r"'image' of case a \(row 0\) .* its location is"):
            vp.from_manifest(tmp_path / "m.json")
    keys = [[*sample] for sample in vp.from_table(tmp_path / "rows.json").open_volume()]
    assert keys == [["image", "ct"], ["ct"]]
