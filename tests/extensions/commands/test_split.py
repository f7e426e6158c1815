"""Folds: groups stay together, classes are even, and our sources read the file."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.extensions.commands.split import folds_of


def names_of(count):
    return [f"case{number:03}" for number in range(count)]


@given(st.integers(2, 7), st.lists(st.sampled_from("abc"), min_size=7, max_size=60))
def test_classes_are_even(count, classes):
    """Sizes, and the numbers of each class, differ by one at most."""
    folds = folds_of(names_of(len(classes)), count, 3, classes=classes)

    sizes = Counter(folds)
    assert max(sizes.values()) - min(sizes[n] for n in range(count)) <= 1
    for kind in set(classes):
        per_fold = Counter(fold for fold, one in zip(folds, classes, strict=True) if one == kind)
        numbers = [per_fold[n] for n in range(count)]
        assert max(numbers) - min(numbers) <= 1


@given(st.integers(2, 4), st.lists(st.integers(0, 11), min_size=12, max_size=60), st.booleans())
def test_no_group_is_in_two_folds(count, groups, has_classes):
    """Whatever the sizes of the groups; no fold is empty."""
    groups = [*range(12), *groups]
    classes = ["ab"[number % 2] for number in groups] if has_classes else None
    folds = folds_of(names_of(len(groups)), count, 1, groups=groups, classes=classes)

    by_group = {}
    for group, fold in zip(groups, folds, strict=True):
        by_group.setdefault(group, set()).add(fold)
    assert all(len(some) == 1 for some in by_group.values())
    assert {*folds} == {*range(count)}


def test_groups_of_one_class_are_even():
    """Twenty patients of two scans and two diagnoses in five folds: four and four each."""
    groups = [number // 2 for number in range(40)]
    classes = [group % 2 for group in groups]
    folds = folds_of(names_of(40), 5, groups=groups, classes=classes)

    assert set(Counter(zip(folds, classes, strict=True)).values()) == {4}


def test_the_order_of_cases_changes_nothing():
    """The seed does."""
    names = names_of(30)
    order = np.random.default_rng(1).permutation(30).tolist()
    folds = folds_of(names, 5, 7)

    assert folds_of([names[n] for n in order], 5, 7) == [folds[n] for n in order]
    assert folds_of(names, 5, 8) != folds


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ["case,image,patient,age"]
    for number in range(8):
        np.save(f"c{number}.npy", np.zeros((2, 2, 2), np.int16))
        rows.append(f"c{number},c{number}.npy,p{number // 2},{40 + number}")
    (tmp_path / "cases.csv").write_text("\n".join(rows))
    return tmp_path


def test_from_decathlon_reads_the_lists(folder, capsys):
    """Training and validation together are all cases, with their columns."""
    assert main(["split", "cases.csv", "--folds", "4", "--group", "patient"]) == 0

    assert "part='train_0'" in capsys.readouterr().out
    for fold in range(4):
        parts = [
            [sample.case for sample in vp.from_decathlon("split.json", part=f"{part}_{fold}")]
            for part in ("train", "val")
        ]
        assert sorted(parts[0] + parts[1]) == [f"c{n}" for n in range(8)]
        assert len(parts[1]) == 2
    samples = list(vp.from_decathlon("split.json").open_volume())
    assert samples[3]["age"] == 43
    assert samples[0]["image"].volume.shape == (1, 2, 2, 2)
    assert {sample["fold"] for sample in samples} == {0, 1, 2, 3}


def test_splits_of_nnunet(folder):
    """Names only, which ``from_nnunet(splits=)`` reads."""
    assert main(["split", "cases.csv", "--folds", "2", "--format", "nnunet", "-o", "s.json"]) == 0

    splits = json.loads((folder / "s.json").read_text())
    assert [{*split} for split in splits] == [{"train", "val"}] * 2
    assert sorted(splits[0]["train"] + splits[0]["val"]) == [f"c{n}" for n in range(8)]


def test_a_manifest_with_columns_of_a_table(folder, capsys):
    """The table names the cases."""
    assert main(["index", ".", "-o", "m.json", "--no-statistics"]) == 0
    columns = ["--group", "patient", "--table", "cases.csv"]
    capsys.readouterr()
    assert main(["split", "m.json", "--folds", "4", *columns, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert {len(document[f"val_{fold}"]) for fold in range(4)} == {2}
    assert document["val_0"][0]["patient"] == document["val_0"][1]["patient"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--folds", "9"], "8 cases cannot be divided into 9 folds"),
        (["--folds", "5", "--group", "patient"], "4 groups cannot be divided"),
        (["--group", "patien"], "Did you mean patient?"),
    ],
)
def test_splits_that_cannot_be(folder, capsys, arguments, words):
    """One sentence each."""
    assert main(["split", "cases.csv", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_another_split_is_not_replaced_unasked(folder, capsys):
    """The same one is."""
    assert main(["split", "cases.csv"]) == 0
    assert main(["split", "cases.csv"]) == 0
    assert main(["split", "cases.csv", "--seed", "1"]) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert main(["split", "cases.csv", "--seed", "1", "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("vp.Volume(f'c{n}.npy', channels=[0])", "some of its channels"),
        ("vp.Volume('time.ome.zarr', time=n)", "time="),
        ("vp.Volume(f'c{n}.npy', affine=np.eye(4))", "affine"),
        ("vp.Volume(f'c{n}.npy', reader=print)", "reader"),
        ("vp.Volume(np.zeros((2, 2, 2)))", "without a path"),
        ("np.zeros((2, 2, 2))", "ndarray"),
        ("[f'c{n}.npy', vp.Volume('a.h5', dataset='ct')]", "dataset='ct'"),
    ],
)
def test_a_list_of_paths_holds_no_other_values(folder, capsys, value, words):
    """Case and key are named; lists of names divide such cases."""
    name = f"chain_{abs(hash(value))}"
    text = f"import numpy as np, voxpipe as vp\ncases = [{{'image': {value}}} for n in range(4)]"
    (folder / f"{name}.py").write_text(text)
    assert main(["split", f"{name}.py:cases", "--folds", "2"]) == 1

    told = capsys.readouterr().err
    assert words in told
    assert "image is" in told
    assert "--format names" in told
    assert not (folder / "split.json").exists()
    assert main(["split", f"{name}.py:cases", "--folds", "2", "--format", "names"]) == 0
    split = json.loads((folder / "split.json").read_text())
    assert len({*split["train_0"], *split["val_0"]}) == 4


def test_volumes_of_a_path_alone_are_paths(folder):
    """Lists of channels, too."""
    text = "import pathlib, voxpipe as vp\nplaces = [f'c{n}.npy' for n in range(4)]\n"
    text += "cases = [{'image': vp.Volume(p), 'more': [vp.Volume(p), p], 'kept': vp.Volume([p, p]),"
    text += " 'file': pathlib.Path(p)} for p in places]"
    (folder / "paths_chain.py").write_text(text)
    assert main(["split", "paths_chain.py:cases", "--folds", "2"]) == 0

    case = json.loads((folder / "split.json").read_text())["training"][1]
    place = str(folder / "c1.npy")
    assert (case["image"], case["file"]) == (place, place)
    assert case["more"] == case["kept"] == [place, place]


def test_time_points_of_an_image_in_several_folds_are_named(tmp_path, monkeypatch, capsys):
    """Validation would have images of training; a group keeps them together."""
    zarr = pytest.importorskip("zarr")
    axes = [{"name": "t", "type": "time"}, *({"name": a, "type": "space"} for a in "zyx")]
    scale = [{"type": "scale", "scale": [1, 1, 1, 1]}]
    for name in ("a", "b"):
        group = zarr.open_group(tmp_path / "images" / f"{name}.zarr", mode="w", zarr_format=3)
        group.create_array("0", data=np.zeros((4, 2, 2, 2), np.uint8))
        datasets = [{"path": "0", "coordinateTransformations": scale}]
        images = [{"axes": axes, "datasets": datasets}]
        group.attrs["ome"] = {"version": "0.5", "multiscales": images}
    (tmp_path / "p.py").write_text("import voxpipe as vp\npipe = vp.from_ome('images')\n")
    monkeypatch.chdir(tmp_path)
    names = ["split", "p.py:pipe", "--folds", "2", "--format", "names", "--overwrite"]

    assert main(names) == 0
    assert "are in several folds" in (shown := capsys.readouterr().err)
    assert "--group image" in shown
    assert main([*names, "--group", "image"]) == 0
    assert capsys.readouterr().err == ""
    folds = json.loads((tmp_path / "split.json").read_text())
    assert [{name[0] for name in folds[f"val_{n}"]} in ({"a"}, {"b"}) for n in (0, 1)] == [True] * 2


def test_one_group_has_no_folds(tmp_path, monkeypatch, capsys):
    """The cure is another group."""
    (tmp_path / "one.py").write_text(
        "import numpy as np, voxpipe as vp\n"
        "cases = [{'case': name, 'image': np.zeros((2, 2, 2)), 'who': 1} for name in 'ab']\n"
        "pipe = vp.from_cases(cases)\n"
    )
    monkeypatch.chdir(tmp_path)

    line = "split one.py:pipe --folds 2 --format names --group who"

    assert main(line.split()) == 2

    assert "Give several groups." in capsys.readouterr().err


def test_functions_right_after_the_source_change_the_cases(tmp_path, monkeypatch, capsys):
    """A function may add the column of a group, or leave cases out."""
    (tmp_path / "mapped.py").write_text(
        "import numpy as np, voxpipe as vp\n"
        "def add(sample):\n"
        "    return sample.with_data(specimen=sample.case[0])\n"
        "names = 'a1 a2 b1 b2 c'.split()\n"
        "cases = [{'case': name, 'image': np.zeros((2, 2, 2))} for name in names]\n"
        "pipe = vp.from_cases(cases).filter(lambda s: s.case != 'c').map(add).open_volume()\n"
    )
    monkeypatch.chdir(tmp_path)
    line = "split mapped.py:pipe --folds 2 --format names --group specimen --json"

    assert main(line.split()) == 0

    folds = json.loads(capsys.readouterr().out)
    assert {tuple(sorted(folds[f"val_{n}"])) for n in (0, 1)} == {("a1", "a2"), ("b1", "b2")}
