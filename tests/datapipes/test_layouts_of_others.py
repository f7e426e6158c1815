"""Sources that know a layout: what is found, how cases are called, what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import LeadsOutside, SampleError, VolumeNotFound
from voxpipe.extensions.bridges.layouts import split_in_five


def nifti(path: Path, value: int = 1) -> Path:
    """Write a tiny volume that holds one value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(np.full((3, 4, 5), value, np.uint8), np.eye(4)), path)
    return path


def write(path: Path, document: Any) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def voxels(pipe: Any, keys: Any = None) -> dict[str, dict[str, list[int]]]:
    """Return the values of every volume, a number for each channel, by case."""
    return {
        sample.case: {
            key: sample[key].realize()[:, 0, 0, 0].astype(int).tolist()
            for key in sample
            if hasattr(sample[key], "realize")
        }
        for sample in pipe.open_volume(keys=keys)
    }


@pytest.fixture
def decathlon(tmp_path: Path) -> Path:
    entries = []
    for n in (1, 2):
        nifti(tmp_path / "imagesTr" / f"la_{n}.nii.gz", n)
        nifti(tmp_path / "labelsTr" / f"la_{n}.nii.gz", n + 10)
        (tmp_path / "imagesTr" / f"._la_{n}.nii.gz").write_bytes(b"\0\5\x16\7")
        for dot in ("", "._"):
            pair = {key: f"./{key}sTr/{dot}la_{n}.nii.gz" for key in ("image", "label")}
            entries.append(pair)
    nifti(tmp_path / "imagesTs" / "la_9.nii.gz", 9)
    test = ["./imagesTs/la_9.nii.gz"]
    return write(tmp_path / "dataset.json", {"training": entries, "test": test, "numTest": 1})


def test_decathlon_without_macos_files(decathlon: Path) -> None:
    """Training and test; what begins with ._ is nobody's case."""
    assert voxels(vp.from_decathlon(decathlon)) == {
        "la_1": {"image": [1], "label": [11]},
        "la_2": {"image": [2], "label": [12]},
    }
    assert voxels(vp.from_decathlon(decathlon, part="test")) == {"la_9": {"image": [9]}}


def test_a_decathlon_that_is_not_there_says_what_is(decathlon: Path) -> None:
    """Another list, another file, something else than JSON."""
    with pytest.raises(SampleError, match=r"(?s)no list 'validation'.*'training', 'test'"):
        vp.from_decathlon(decathlon, part="validation")
    with pytest.raises(VolumeNotFound, match=r"elsewhere\.json"):
        vp.from_decathlon(decathlon.with_name("elsewhere.json"))
    with pytest.raises(SampleError, match="is no JSON"):
        vp.from_decathlon(write(decathlon.with_name("broken.json"), "{"))


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl"])
def test_columns_are_keys(tmp_path: Path, kind: str) -> None:
    """Paths as seen from the table, numbers as numbers, words as words, nothing for nothing."""
    nifti(tmp_path / "scans" / "a.nii.gz", 3)
    nifti(tmp_path / "b.nii", 4)
    rows = [
        {"case": "anna", "image": "scans/a.nii.gz", "age": 61, "site": "St. Mary"},
        {"case": "bert", "image": str(tmp_path / "b.nii"), "age": 40.5},
    ]
    columns = ["case", "image", "age", "site"]
    if kind in ("csv", "tsv"):
        mark = "," if kind == "csv" else "\t"
        lines = [mark.join(columns)]
        lines += [mark.join(str(row.get(column, "")) for column in columns) for row in rows]
        text = "\ufeff" + "\n".join(lines)
    elif kind == "jsonl":
        text = "\n".join(map(json.dumps, rows))
    else:
        text = json.dumps(rows)
    place = tmp_path / f"cases.{kind}"
    place.write_text(text, "utf-8")

    samples = {sample.case: sample for sample in vp.from_table(place)}

    assert (samples["anna"]["age"], samples["bert"]["age"]) == (61, 40.5)
    assert samples["anna"]["site"] == "St. Mary"
    assert "site" not in samples["bert"]
    found = voxels(vp.from_table(place), keys=["image"])
    assert found == {"anna": {"image": [3]}, "bert": {"image": [4]}}


def test_names_of_cases_stay_what_they_are(tmp_path: Path) -> None:
    """Numbers are what is written as one: no zeros in front, no underscores; names never."""
    place = tmp_path / "cases.csv"
    text = (
        'case,id,visit,age,note\r\n007,2019_01,0012,-6.5e1,"two\nlines"\r\n1e3,1_000,12,0,nan\r\n'
    )
    place.write_bytes(text.encode("utf-8-sig"))

    first, second = vp.from_table(place)

    assert (first.case, second.case) == ("007", "1e3")
    assert [first[key] for key in ("id", "visit", "age", "note")] == [
        "2019_01", "0012", -65.0, "two\nlines"
    ]  # fmt: skip
    assert dict(second) == {"id": "1_000", "visit": 12, "age": 0}


@pytest.mark.parametrize("cell", ["n/a", "N/A", "nan", "NaN", "<NA>", " n/a ", "#N/A"])
@pytest.mark.parametrize("name", ["cases.tsv", "cases.csv", "cases.json", "cases.jsonl"])
def test_cells_for_missing_values_are_empty(tmp_path: Path, cell: str, name: str) -> None:
    """BIDS writes ``n/a``, and pandas reads each of these as missing."""
    pandas = pytest.importorskip("pandas")
    nifti(tmp_path / "a.nii", 1)
    separator = "\t" if name.endswith("tsv") else ","
    rows = [{"case": "x", "image": "a.nii", "age": "5", "seg": "a.nii"}]
    rows.append({"case": "y", "image": cell, "age": cell, "seg": "a.nii"})
    text = "\n".join(separator.join(row) for row in [rows[0], *(row.values() for row in rows)])
    if "json" in name:
        text = "\n".join(map(json.dumps, rows)) if name.endswith("l") else json.dumps(rows)
    else:
        table = pandas.read_csv(io.StringIO(text), sep=separator, skipinitialspace=True)
        assert table.isna().sum().sum() == 2 or cell != cell.strip()
    (tmp_path / name).write_text(text + "\n")

    first, second = vp.from_table(tmp_path / name).open_volume()

    assert [*first] == ["image", "age", "seg"]
    assert (second.case, [*second]) == ("y", ["seg"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a.nii.gz,b.nii.gz\nc.nii.gz,d.nii.gz\n", "names a file, a.nii.gz, and not the columns"),
        ("case,image,image\na,b,c\n", "several columns 'image'"),
        ("case,image\na,b\nc,d,e\n", "line 3 of .*cases.csv has 3 cells for 2 columns"),
        ("case,image\n\xff", "is not in UTF-8"),
    ],
)
def test_tables_that_are_none_are_refused(tmp_path: Path, text: str, says: str) -> None:
    """What a spreadsheet may do to a table is said, with the line."""
    (tmp_path / "cases.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(SampleError, match=says):
        vp.from_table(tmp_path / "cases.csv")


def test_the_separator_of_other_countries(tmp_path: Path) -> None:
    """A semicolon where a comma is part of numbers; cells at the end may be missing."""
    (tmp_path / "cases.csv").write_text("case;site;age\r\nx;here;5\r\n;;\r\ny;there\r\n")

    first, second = vp.from_table(tmp_path / "cases.csv")

    assert (first.case, dict(first)) == ("x", {"site": "here", "age": 5})
    assert (second.case, dict(second)) == ("y", {"site": "there"})


def test_lines_of_json_are_numbered(tmp_path: Path) -> None:
    """The line that is none is named."""
    (tmp_path / "cases.jsonl").write_text('{"image": "a.nii"}\n\n{"image": }\n')
    with pytest.raises(SampleError, match=r"line 3 of .*cases\.jsonl is no JSON"):
        vp.from_table(tmp_path / "cases.jsonl")


def test_lists_of_channels_in_a_table(tmp_path: Path) -> None:
    """Several files are the channels of one volume."""
    for n in (1, 2):
        nifti(tmp_path / f"c{n}.nii", n)
    place = write(tmp_path / "cases.json", [{"image": ["c1.nii", "c2.nii"]}])

    assert voxels(vp.from_table(place)) == {"c1": {"image": [1, 2]}}


def test_a_list_behind_a_url_names_what_lies_below_it() -> None:
    """Nothing on this machine's disk, and nothing on another host."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for number, name in enumerate(("/etc/hosts.nii", "../up.nii", "http://other/x.nii")):
        memory.pipe(f"/lists/{number}.json", json.dumps([{"image": name}]).encode())
        with pytest.raises(LeadsOutside, match="does not lie below it"):
            vp.from_table(f"memory://lists/{number}.json")
    memory.pipe("/lists/good.json", json.dumps([{"image": "x/a.nii"}]).encode())
    (sample,) = vp.from_table("memory://lists/good.json")

    assert sample["image"] == "memory://lists/x/a.nii"


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for n in range(6):
        for channel in (0, 1):
            nifti(tmp_path / "imagesTr" / f"c_{n}_{channel:04d}.nii.gz", 10 * n + channel)
        nifti(tmp_path / "labelsTr" / f"c_{n}.nii.gz", n + 100)
    for channel in (0, 1):
        nifti(tmp_path / "imagesTs" / f"t_0_{channel:04d}.nii.gz", channel)
    (tmp_path / "imagesTr" / "._c_0_0000.nii.gz").write_bytes(b"x")
    document = {"channel_names": {"0": "T1", "1": "T2"}, "file_ending": ".nii.gz"}
    write(tmp_path / "dataset.json", document)
    return tmp_path


def test_nnunet_s_raw_dataset(raw: Path) -> None:
    """Channels together or apart, training or test."""
    every = voxels(vp.from_nnunet(raw))
    apart = voxels(vp.from_nnunet(raw, separate_channels=True))

    assert every["c_3"] == {"image": [30, 31], "label": [103]}
    assert apart["c_3"] == {"image_0000": [30], "image_0001": [31], "label": [103]}
    assert len(every) == 6
    assert voxels(vp.from_nnunet(raw, part="test")) == {"t_0": {"image": [0, 1]}}


def test_images_without_the_number_of_a_channel(raw: Path) -> None:
    """As Decathlon's are called."""
    for path in (raw / "imagesTr").iterdir():
        path.rename(path.with_name(path.name.replace("_000", "-")))

    with pytest.raises(VolumeNotFound, match=r"(?s)no file CASE_0000.*, but .*from_decathlon"):
        vp.from_nnunet(raw)


def test_nnunet_s_splits(raw: Path) -> None:
    """Those of the file if there is one, else the five that nnU-Net makes."""
    first = {
        part: list(voxels(vp.from_nnunet(raw, fold=0, part=part))) for part in ("train", "val")
    }
    assert first == {"train": ["c_0", "c_1", "c_2", "c_4"], "val": ["c_3", "c_5"]}

    write(raw / "splits_final.json", [{"train": ["c_5", "c_0"], "val": ["c_1"]}])
    assert list(voxels(vp.from_nnunet(raw, fold=0))) == ["c_5", "c_0"]
    with pytest.raises(SampleError, match="no split 1 in"):
        vp.from_nnunet(raw, fold=1)
    other = write(raw / "other.json", [{"train": ["c_7"], "val": []}])
    with pytest.raises(SampleError, match="cases that are not there: c_7"):
        vp.from_nnunet(raw, fold=0, splits=other)


def test_a_fold_is_a_number_or_its_text(raw: Path) -> None:
    """nnU-Net's command line passes ``"0"``."""
    folds = [[sample.case for sample in vp.from_nnunet(raw, fold=fold)] for fold in (0, "0")]

    assert folds[0] == folds[1]


def test_endings_that_no_file_has_are_named(raw: Path) -> None:
    """An empty source would train on nothing."""
    document = json.loads((raw / "dataset.json").read_text())
    write(raw / "dataset.json", {**document, "file_ending": ".nrrd"})
    with pytest.raises(VolumeNotFound, match=r"imagesTr .* has no file that ends in \.nrrd"):
        vp.from_nnunet(raw)


def test_the_split_in_five_is_scikit_learn_s() -> None:
    """KFold(5, shuffle=True, random_state=12345) of scikit-learn 1.7, which nnU-Net asks."""
    recorded = {
        5: [[0], [4], [3], [1], [2]],
        7: [[3, 6], [0, 4], [1], [5], [2]],
        13: [[0, 7, 9], [3, 6, 10], [8, 11, 12], [1, 4], [2, 5]],
    }
    for count, held in recorded.items():
        names = [f"{n:02d}" for n in range(count)]
        splits = split_in_five(names)
        assert [[int(n) for n in one["val"]] for one in splits] == held
        assert all(sorted(one["train"] + one["val"]) == names for one in splits)
    with pytest.raises(SampleError, match="cannot be split"):
        split_in_five(["a"])


def test_what_a_raw_dataset_lacks_is_named(raw: Path) -> None:
    """A channel, a label, a part that there is not."""
    (raw / "imagesTr" / "c_2_0001.nii.gz").unlink()
    with pytest.raises(VolumeNotFound, match=r"case c_2 has c_2_0000, and dataset\.json 2"):
        vp.from_nnunet(raw)
    nifti(raw / "imagesTr" / "c_2_0001.nii.gz")
    (raw / "labelsTr" / "c_4.nii.gz").unlink()
    with pytest.raises(VolumeNotFound, match="case c_4 has no label"):
        vp.from_nnunet(raw)
    with pytest.raises(SampleError, match="part is 'train'"):
        vp.from_nnunet(raw, part="validation")


def test_a_dataset_that_lists_its_files(raw: Path) -> None:
    """nnU-Net's "dataset" entry, whose paths are as seen from the file."""
    nifti(raw / "elsewhere" / "x.nii.gz", 5)
    listed = {"x": {"images": ["elsewhere/x.nii.gz"], "label": "labelsTr/c_0.nii.gz"}}
    write(raw / "dataset.json", {"dataset": listed, "file_ending": ".nii.gz"})

    assert voxels(vp.from_nnunet(raw)) == {"x": {"image": [5], "label": [100]}}


def test_a_file_names_no_secrets_of_the_environment(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nnU-Net's own folders stand in paths of dataset.json; other variables stay names."""
    monkeypatch.setenv("nnUNet_raw", str(raw.parent))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    image = f"${{nnUNet_raw}}/{raw.name}/imagesTr/a_0000.nii.gz"
    listed = {"one": {"images": [image], "label": "$AWS_SECRET_ACCESS_KEY.nii.gz"}}
    write(raw / "dataset.json", {"dataset": listed, "file_ending": ".nii.gz"})

    (case,) = vp.from_nnunet(raw)

    assert case["image"] == str(raw / "imagesTr" / "a_0000.nii.gz")
    assert case["label"].endswith("$AWS_SECRET_ACCESS_KEY.nii.gz")


@pytest.fixture
def bids(tmp_path: Path) -> Path:
    for n in ("01", "02"):
        nifti(tmp_path / f"sub-{n}/anat/sub-{n}_T1w.nii.gz", int(n))
        below = tmp_path / "derivatives" / "fmriprep" / f"sub-{n}" / "anat"
        nifti(below / f"sub-{n}_desc-preproc_T1w.nii.gz", 10 + int(n))
        nifti(below / f"sub-{n}_dseg.nii.gz", 20 + int(n))
        nifti(below / f"sub-{n}_space-MNI_desc-preproc_T1w.nii.gz", 30 + int(n))
        nifti(below / f"sub-{n}_space-MNI_dseg.nii.gz", 40 + int(n))
    return tmp_path


def test_bids_by_space_and_entities(bids: Path) -> None:
    """Raw and derived; one space at a time; a file without the entity where no other fits."""
    derived = vp.from_bids(bids / "derivatives", image="T1w", label="dseg", space="MNI")
    native = vp.from_bids(bids, image="T1w", label="dseg", where={"desc": "preproc"})

    assert voxels(derived)["01"] == {"image": [31], "label": [41]}
    assert voxels(native)["02"] == {"image": [12], "label": [22]}
    with pytest.raises(SampleError, match=r"case 01 has 2 files for image.*desc-preproc"):
        vp.from_bids(bids, image="T1w", label="dseg")


def test_bids_indices_are_numbers(tmp_path: Path) -> None:
    """``run-01`` is run 1, as the standard lets everyone pad."""
    for run in ("01", "02"):
        nifti(tmp_path / "sub-a" / "anat" / f"sub-a_run-{run}_T1w.nii.gz", int(run))

    assert voxels(vp.from_bids(tmp_path, image="T1w", where={"run": "2"})) == {"a": {"image": [2]}}
    assert voxels(vp.from_bids(tmp_path, image="T1w", where={"run": 1})) == {"a": {"image": [1]}}
    nifti(tmp_path / "sub-a" / "anat" / "sub-a_T1w.nii.gz", 3)
    assert voxels(vp.from_bids(tmp_path, image="T1w", where={"run": None})) == {"a": {"image": [3]}}
    with pytest.raises(SampleError, match=r"no file .* has the entity 'rum'") as error:
        vp.from_bids(tmp_path, image="T1w", where={"rum": 1})
    assert "Did you mean 'run'?" in str(error.value)
    with pytest.raises(VolumeNotFound, match="in the space 'MNI'") as missing:
        vp.from_bids(tmp_path, image="T1w", space="MNI")
    assert "other spaces are there (image: None): give space={}." in str(missing.value)


def test_bids_spaces_of_each_key(tmp_path: Path) -> None:
    """A scan without the entity pairs with its mask in ``space-orig``; the error says how."""
    scan = tmp_path / "sub-01" / "anat" / "sub-01_T1w.nii.gz"
    mask = tmp_path / "derivatives" / "fs" / "sub-01" / "sub-01_space-orig_dseg.nii.gz"
    for path in (scan, mask):
        path.parent.mkdir(parents=True)
        nifti(path, 1)

    (case,) = vp.from_bids(tmp_path, image="T1w", label="dseg", space={"label": "orig"})

    assert (case["image"], case["label"]) == (str(scan), str(mask))
    for space in (None, "orig"):
        with pytest.raises(VolumeNotFound, match=r"give space=\{'label': 'orig'\}"):
            vp.from_bids(tmp_path, image="T1w", label="dseg", space=space)
    with pytest.raises(SampleError, match="no keys here"):
        vp.from_bids(tmp_path, image="T1w", space={"labl": "orig"})


def test_bids_sessions_are_cases(tmp_path: Path) -> None:
    """A case lacks a key, or may; a suffix that there is not is a guess away."""
    for session in ("a", "b"):
        nifti(tmp_path / f"sub-01/ses-{session}/anat/sub-01_ses-{session}_T1w.nii.gz")
    nifti(tmp_path / "sub-01/ses-a/anat/sub-01_ses-a_FLAIR.nii.gz", 7)

    pipe = vp.from_bids(tmp_path, image="T1w", flair="FLAIR", optional="flair")
    assert voxels(pipe) == {"01/a": {"image": [1], "flair": [7]}, "01/b": {"image": [1]}}
    with pytest.raises(VolumeNotFound, match="case 01/b has no flair"):
        vp.from_bids(tmp_path, image="T1w", flair="FLAIR")
    with pytest.raises(VolumeNotFound, match="Did you mean 'T1w'"):
        vp.from_bids(tmp_path, image="T1W")


def test_sources_of_others_run_in_loaders_with_states(raw: Path) -> None:
    """They plan as any source does, say what they are, and tell another dataset by its hash."""
    pipe = vp.from_nnunet(raw).open_volume().lazy_patch(2).batch_patches(2)
    loader = vp.DataLoader2(pipe, None, seed=1)
    it = iter(loader)
    next(it)
    state = loader.state_dict()
    rest = [batch["image"].sum().item() for batch in it]
    again = vp.DataLoader2(pipe, None, seed=1)
    again.load_state_dict(state)

    assert [batch["image"].sum().item() for batch in again] == rest
    assert "from_nnunet('" in pipe.explain()
    assert "6 cases" in pipe.explain()


@pytest.mark.parametrize("name", ["cases.json", "cases.jsonl", "dataset.json"])
def test_lists_that_are_nested_without_end_are_refused(tmp_path: Path, name: str) -> None:
    """Deeper than Python follows: said in a sentence, as of any other text that is no JSON."""
    place = tmp_path / name
    place.write_text("[" * 200_000)

    source = vp.from_decathlon if name == "dataset.json" else vp.from_table
    with pytest.raises(SampleError, match="is no JSON"):
        source(place)


@pytest.mark.parametrize("splits", [[7], [{}], [{"train": 3}]])
def test_splits_that_are_none_are_refused(raw: Path, splits: Any) -> None:
    """They come from files of others: what is wrong is said, not a KeyError."""
    write(raw / "splits_final.json", splits)

    with pytest.raises(SampleError, match="has no list 'train'"):
        vp.from_nnunet(raw, fold=0)


@pytest.mark.parametrize("entry", [3, {}, {"images": ["a.nii.gz"]}])
def test_cases_without_files_are_refused(raw: Path, entry: Any) -> None:
    """So are entries of "dataset" that name no images or no label."""
    write(raw / "dataset.json", {"dataset": {"x": entry}, "file_ending": ".nii.gz"})

    with pytest.raises(SampleError, match="has no images and label"):
        vp.from_nnunet(raw)
