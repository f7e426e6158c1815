"""Targets of commands: objects of Python, broken models, and records that are none."""

import json
import re
import sys
import zipfile

import numpy as np
import pytest

import voxpipe as vp
import voxpipe.__main__ as program
from voxpipe.extensions.commands.cache import _entries
from voxpipe.storage.disk_cache import RESULTS, cache_directory, results_folder
from voxpipe.volumes import close_volumes

CHAIN = """
import numpy as np
import voxpipe as vp

number = 5
volume = vp.Volume("a.npy")
cases = [{"case": name, "image": "a.npy"} for name in "abcd"]
pipe = vp.from_cases(cases).open_volume().lazy_patch(4).batch_patches(1)

def loader():
    return vp.DataLoader2(pipe)

def needs(x, y):
    return x
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", np.zeros((6, 6, 6), np.int16))
    (tmp_path / "objects38.py").write_text(CHAIN)
    (tmp_path / "part38").mkdir()
    (tmp_path / "part38" / "lost.py").write_text("import no_such_thing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    close_volumes()
    sys.modules.pop("objects38", None)


@pytest.fixture
def told(capsys):
    """Return a function that runs a command: its status and what it prints."""

    def run(line):
        try:
            status = program.main(line.split())
        except SystemExit as ended:
            status = ended.code
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


@pytest.mark.parametrize(
    "line",
    [
        *(f"{name} objects38.py:number" for name in ["info", "preview", "check", "index", "split"]),
        *(f"{name} objects38.py:number" for name in ["explain", "graph", "bench"]),
        "convert objects38.py:number x.zarr",
        "predict objects38.py:number a.npy",
        "predict objects38.py:needs objects38.py:number",
        "info no_such_module:pipe",
        "info objects38.py:nothing",
        "info objects38.py:needs",
        "predict objects38.py:missing a.npy",
    ],
)
def test_a_wrong_object_is_wrong_use_in_every_command(told, line):
    """Its cure names the types that the command takes."""
    status, text = told(line)

    assert status == 2
    assert re.search("Name a (pipe, a DataLoader2, a volume|module of torch)", text)
    assert "raised at" not in text


def test_a_function_with_arguments_is_named_with_its_line(told, tmp_path):
    """Also one of classes, which a model may be."""
    (tmp_path / "objects38.py").write_text(f"{CHAIN}\nclass Net:\n    def __init__(self, a): 0\n")
    for line in ("info objects38.py:needs", "predict objects38.py:Net a.npy"):
        _, text = told(line)
        assert re.search(r"cannot be called without arguments: .*objects38\.py:\d+", text)


def test_a_module_that_cannot_be_imported_is_named_with_its_line(told):
    """A module of a package is imported as a whole."""
    status, text = told("info part38.lost:pipe")

    assert status == 1
    assert re.search(r"No module named 'no_such_thing' \(at .*lost\.py:1\)", text)


@pytest.mark.parametrize(
    "line",
    [
        *(
            f"bench objects38.py:{name} --{option} 2"
            for name in ("pipe", "loader")
            for option in ("patch", "batch", "samples")
        ),
        *(f"{name} objects38.py:pipe --reader axes=xyz" for name in ("info", "check", "index")),
        *(f"{name} objects38.py:loader --labels seg" for name in ("explain", "graph", "split")),
        "preview objects38.py:pipe image=a.npy",
        "info objects38.py:cases --optional image",
        "info objects38.py:volume --reader axes=xyz",
        "convert objects38.py:pipe x --reader axes=xyz",
        "check m.json --reader axes=xyz",
    ],
)
def test_an_option_that_the_code_gives_itself_is_wrong_use(told, line):
    """Also one of a manifest; nothing is read and nothing written."""
    if "m.json" in line:
        assert told("index a.npy -o m.json --no-statistics")[0] == 0
    status, text = told(line + " --json")
    error = json.loads(text.partition("\n")[0])["error"]

    option = next(word for word in line.split()[2:] if "=" in word or word.startswith("-"))
    assert (status, error["type"]) == (2, "UsageError")
    assert (option if option.startswith("-") else "KEY=PATTERN") in error["message"] + error["do"]
    assert "eave" in error["do"]


def test_cases_that_are_not_open_take_options_of_volumes(told):
    """Their volumes are opened by the command."""
    status, text = told("info objects38.py:cases --reader axes=xyz --labels image --json")
    assert (status, len(json.loads(text)["volumes"])) == (0, 4)


ENDS = """import argparse
import sys
def makes():
    sys.exit('no GPU')
"""


@pytest.mark.parametrize("command", ["info", "check", "bench", "predict", "replay"])
@pytest.mark.parametrize("name", ["pipe", "makes"])
def test_a_module_that_ends_the_program_is_an_error(told, tmp_path, command, name):
    """One sentence with the line of the user, and one document."""
    (tmp_path / "ends41.py").write_text(
        ENDS + "argparse.ArgumentParser().exit(3)" * (name == "pipe")
    )
    (tmp_path / "state.json").write_text('{"next_batch": 0, "epoch": 0}')
    rest = {"predict": " a.npy", "replay": ""}.get(command, "")
    first = "state.json --pipe " if command == "replay" else ""
    status, text = told(f"{command} {first}ends41.py:{name}{rest} --json")
    sys.modules.pop("ends41", None)

    document, _, remark = text.partition("\n")
    code, line = ("3", 5) if name == "pipe" else ("'no GPU'", 4)
    place = re.escape(f"by sys.exit({code}) (at {tmp_path / 'ends41.py'}:{line}).")
    assert (status, json.loads(document)["error"]["type"]) == (1, "SampleError")
    assert re.search(place, remark)
    assert re.search(place, json.loads(document)["error"]["message"])


def test_volumes_lists_and_loaders_are_targets(told):
    """Of bench the chain is the usual one; split finds the cases of a loader."""
    for name in ("volume", "cases"):
        status, text = told(f"bench objects38.py:{name} --patch 4 --seconds 0.05 --workers 0")
        assert (status, "patches/s" in text) == (0, True)
    for name in ("loader", "pipe", "cases"):
        status, text = told(f"split objects38.py:{name} --folds 2 --json")
        assert (status, len(json.loads(text)["training"])) == (0, 4)


@pytest.mark.parametrize("content", ["text", "zip", "cut"])
def test_a_broken_program_is_no_model(told, tmp_path, content):
    """Without log lines of torch and their tracebacks."""
    pytest.importorskip("torch")
    place = tmp_path / "net.pt2"
    place.write_text("hi")
    if content != "text":
        with zipfile.ZipFile(place, "w") as archive:
            archive.writestr("a.txt", "hi" * 99)
    if content == "cut":
        place.write_bytes(place.read_bytes()[:99])

    status, text = told("predict net.pt2 a.npy -o b.nii")

    assert status == 1
    assert text.startswith("voxpipe: net.pt2 is no model of TorchScript or torch.export: ")
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize("record", ['{"a": 1}', "[]", "[1, 2]", "{a"])
def test_a_file_that_is_no_record_is_named_at_once(told, tmp_path, record):
    """Before any chain is asked for."""
    (tmp_path / "record.json").write_text(record)

    status, text = told("replay record.json")

    assert status == 1
    assert "record.json is no " in text
    assert "Save loader.state_dict()" in text


def test_check_shows_sizes_of_voxels_without_a_unit(told, tmp_path):
    """If they differ: equal ones need no line."""
    nibabel = pytest.importorskip("nibabel")
    (tmp_path / "two").mkdir()
    for name, length in (("a", 1.0), ("b", 1.0)):
        image = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.diag([length] * 3 + [1]))
        nibabel.save(image, tmp_path / "two" / f"{name}.nii")
    same = vp.check("two", num_workers=1)
    image = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.diag([5.0, 5, 2.5, 1]))
    nibabel.save(image, tmp_path / "two" / "c.nii")

    _, text = told("check two --workers 1")

    assert str(same) == "2 checked, 0 bad"
    assert [*same.lengths["image"]] == ["1 x 1 x 1 (no unit of length)"]
    (line,) = (line for line in text.splitlines() if line.startswith("image: "))
    assert re.search(r"1 x 1 x 1 \(no unit of length\).*, 5 x 5 x 2.5 \(no unit", line)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("convert a.npy http://127.0.0.1:1/a.zarr", "convert cannot write to http"),
        ("index a.npy -o https://127.0.0.1:1/a.json", "index cannot write to https"),
        ("predict objects38.py:needs a.npy -o http://h/a.nii", "predict cannot write to http"),
        ("predict objects38.py:volume a.npy --key label", "one volume has the key image"),
        ("info --nonsense a.npy", "usage: voxpipe info "),
        ("info . image=a.npy --labels q", "--labels names 'q'"),
        ("info . image=a.npy --optional q", "--optional q is none of the keys"),
    ],
)
def test_wrong_use_names_its_option(told, monkeypatch, line, text):
    """With the usage of the command for an option that it lacks."""
    import voxpipe.extensions.commands.predict as predict

    monkeypatch.setattr(predict, "_model_of", lambda *_: None)

    status, result = told(line)

    assert status == 2
    assert text in result


def test_a_broken_file_is_an_error_of_explain(told, tmp_path):
    """With --json the document of an error; the text keeps the chain as written."""
    (tmp_path / "b.nii").write_text("none")

    status, text = told("explain b.nii --json")
    document = json.loads(text[text.index("{") : text.rindex("}") + 1])

    assert status == 1
    assert "b.nii holds 4 bytes" in document["error"]["message"]
    assert "as written" in told("explain b.nii")[1]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("target", ["a.npy", "objects38.py:volume", "objects38.py:cases"])
def test_bench_names_its_option_for_small_volumes(told, target):
    """No line of the command itself: its chain is none of the user."""
    _, text = told(f"bench {target} --patch 9 --seconds 0.05 --workers 0")

    assert "Give a smaller --patch" in text
    assert "at .lazy_patch" not in text


def test_findings_have_an_affine_of_four_rows(told, tmp_path):
    """As info prints it."""
    np.save(tmp_path / "bad.npy", np.full((4, 4, 4), np.nan))

    _, text = told("check bad.npy --voxels --workers 1 --json")

    (bad,) = json.loads(text[: text.rindex("}") + 1])["bad"]
    assert bad["affine"] == np.eye(4).tolist()


def test_help_of_predict_names_every_suffix(told):
    """Those of other packages too."""
    from voxpipe.first_use import extensions
    from voxpipe.volumes.conversion.volume_file import SUFFIXES

    _, text = told("predict --help")

    assert all(suffix in text for suffix in (".zarr", *SUFFIXES, *extensions("writers")))


def test_every_result_in_the_cache_is_listed(tmp_path, monkeypatch):
    """A keeper of results has a folder that the command knows."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path))
    for kind in RESULTS:
        results_folder(kind).mkdir(parents=True)
        (results_folder(kind) / "entry").write_bytes(b"1234")

    assert {entry.kind for entry in _entries(cache_directory())} == {*RESULTS}
    with pytest.raises(ValueError, match="none of RESULTS"):
        results_folder("thumbnails")


@pytest.mark.parametrize("kind", ["table", "decathlon"])
@pytest.mark.parametrize("command", ["check", "index", "info", "convert"])
def test_lists_in_json_are_targets_of_every_command(command, kind, tmp_path, capsys):
    """A table of JSON and a list of Decathlon's are no manifests of voxpipe."""
    np.save(tmp_path / "a.npy", np.zeros((4, 4, 4), np.float32))
    rows = [{"image": "a.npy"}]
    place = tmp_path / "dataset.json"
    place.write_text(json.dumps(rows if kind == "table" else {"training": rows}))
    rest = {"index": ["-o", str(tmp_path / "m.json")], "convert": [str(tmp_path / "new")]}

    assert program.main([command, str(place), *rest.get(command, [])]) == 0
    place.write_text("{}")
    assert program.main([command, str(place), *rest.get(command, [])])
    assert "no voxpipe manifest" in capsys.readouterr().err
