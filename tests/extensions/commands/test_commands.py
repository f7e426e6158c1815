"""Each command: its result, its document, its exit status, and no traceback."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys

import nibabel
import numpy as np
import pytest
from checkout import ROOT
from disks import NOBODY, open_folder, without_permission

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.first_use import extensions
from voxpipe.volumes import close_volumes

COMMANDS = sorted(extensions("commands", are_modules=True))
CHAIN = """
import torch
import voxpipe as vp

def pipe():
    cases = vp.list_cases("scans/*/", image="ct.nii.gz", label="seg.nii.gz").shuffle()
    patches = cases.open_volume().lazy_patch(8, samples_per_volume=2)
    return patches.rotate((-15, 15)).batch_patches(2)

def model(batch):
    return torch.cat([450 - batch, batch - 450], 1)

class Net(torch.nn.Module):
    def forward(self, batch):
        return torch.cat([450 - batch, batch - 450], 1)

number = 3
"""


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Six cases of a scan and a label, a table of them, and a chain."""
    folder = tmp_path_factory.mktemp("commands")
    random, rows = np.random.default_rng(0), ["case,image,patient,kind"]
    for number in range(6):
        place = folder / "scans" / f"c{number}"
        place.mkdir(parents=True)
        for name, most in (("ct.nii.gz", 900), ("seg.nii.gz", 3)):
            array = random.integers(0, most, (12, 12, 10)).astype(np.int16)
            nibabel.save(nibabel.Nifti1Image(array, np.diag([1.0, 2, 3, 1])), place / name)
        rows.append(f"c{number},scans/c{number}/ct.nii.gz,p{number // 2},{'ab'[number % 2]}")
    (folder / "cases.csv").write_text("\n".join(rows))
    (folder / "my_chain.py").write_text(CHAIN)
    yield folder
    close_volumes()
    sys.modules.pop("my_chain", None)


@pytest.fixture(autouse=True)
def here(scans, monkeypatch):
    monkeypatch.chdir(scans)
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def document(capsys):
    """Return a function that runs a command with ``--json``: its status and document."""

    def run(*arguments):
        status = main([*map(str, arguments), "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


def test_every_command_has_a_module():
    """The help of the program lists the commands of the issue."""
    wanted = "info check index convert bench explain graph predict replay split cache doctor demo"
    assert {*wanted.split()} <= {*COMMANDS}


def test_help_lists_every_command(capsys):
    """A line each, from the docstring of its module."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])

    assert ended.value.code == 0
    lines = capsys.readouterr().out.split("commands:\n")[1].split("\n\noptions")[0].splitlines()
    assert [line.split()[0] for line in lines] == COMMANDS
    assert all(len(line.split()) > 2 for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command, capsys):
    """Of this command, which its own parser accepts."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])

    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--json" in text
    assert "exit status: 0 good" in text
    assert shlex.split(text.rpartition("example: ")[2])[:2] == ["voxpipe", command]


def test_every_option_is_explained():
    """Options of several commands have one meaning of their values."""
    by_option = {}
    for command in COMMANDS:
        place = argparse.ArgumentParser()
        extensions("commands", are_modules=True)[command].load().add_arguments(place)
        for action in place._actions:
            assert action.help
            if action.option_strings:
                by_option.setdefault(action.option_strings[-1], []).append(action)
    for option in ("--reader", "--storage-options", "--option", "--optional"):
        assert len({action.help for action in by_option[option]}) == 1
    for option in ("--reader", "--labels", "--seed", "--overwrite", "--batch"):
        assert len({action.metavar for action in by_option[option]}) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_option_is_wrong_use(command, capsys):
    """Status 2, the usage on stderr, and the error as a document."""
    with pytest.raises(SystemExit) as ended:
        main([command, "--nonsense", "--json"])

    assert ended.value.code == 2
    told = capsys.readouterr()
    assert f"usage: voxpipe {command}" in told.err or "unrecognized" in told.err
    assert json.loads(told.out)["error"]["type"] == "UsageError"


@pytest.mark.parametrize(
    "arguments",
    [
        "info none.nii",
        "explain none.nii",
        "graph none.py:pipe",
        "graph no_such_module:pipe",
        "graph my_chain:number",
        "explain my_chain.py:nothing",
        "split none.csv",
        "replay none.json",
        "predict none.pt scans/c0/ct.nii.gz",
        "predict my_chain.py:model none.nii",
        "predict my_chain.py:number scans/c0/ct.nii.gz",
        "check none",
        "index none",
        "convert none.nii out.zarr",
        "bench none",
        "info empty",
        "explain empty",
        "split empty",
        "predict my_chain.py:model empty -o {case}.nii.gz",
        "info my_chain.py",
    ],
)
def test_a_wrong_path_is_one_error(arguments, scans, document, capsys):
    """Missing files and names, empty folders, files of no format: status 1 and a document.

    Wrong objects and modules have status 2.
    """
    (scans / "empty").mkdir(exist_ok=True)

    status, result = document(*arguments.split())

    is_wrong_use = re.search(":(number|nothing|pipe)", arguments)
    assert status == (2 if is_wrong_use else 1)
    assert result["error"]["message"]
    assert "Traceback" not in capsys.readouterr().err


def test_a_folder_without_permission(document, capsys):
    """Reading and writing: the error names the place, in one sentence."""
    with open_folder() as folder:
        os.symlink(os.path.abspath("scans/c0/ct.nii.gz"), folder / "a.nii.gz")
        np.save(folder / "b.npy", np.zeros((4, 4, 4), np.int16))
        (folder / "locked").mkdir()
        (folder / "bad.nii").write_bytes(b"x")
        assert document("explain", folder / "bad.nii")[0] == 1
        with without_permission(folder):
            os.seteuid(0) if os.getuid() == 0 else None
            (folder / "locked").chmod(0)
            os.seteuid(NOBODY) if os.getuid() == 0 else None
            for command in ("info", "check", "index", "explain", "split"):
                status, result = document(command, folder / "locked")
                assert (status, result["error"]["type"]) == (1, "AccessDenied")
            assert document("info", folder / "a.nii.gz")[0] == 1
            target = folder / "split.json"
            assert document("split", folder, "--folds", "2", "-o", target)[0] == 1
            assert document("graph", folder / "b.npy", "-o", folder / "g.svg.md")[0] == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_closed_pipe_ends_quietly():
    """As after ``| head``: the status of SIGPIPE, and nothing on stderr."""
    program = "import sys, voxpipe.__main__ as m; sys.exit(m.main(['cache']))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, timeout=60
    )
    os.close(write)

    assert (done.returncode, done.stderr) == (141, b"")


def test_info_of_several_volumes(document, capsys):
    """A folder, patterns, a table, a chain; a broken one gives status 1 and is named."""
    for target in (["scans"], ["scans/*/", "image=ct.nii.gz"], ["cases.csv"], ["my_chain.py:pipe"]):
        status, result = document("info", *target)
        assert status == 0
        assert {volume["case"] for volume in result["volumes"]} == {f"c{n}" for n in range(6)}
    assert main(["info", "scans"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == [
        *("c0", "ct", "nifti-gz", "1x12x12x10")
    ]


def test_info_of_some_channels(tmp_path, document):
    """Codec, levels and reader are those of the file below the view of its channels."""
    voxels = np.zeros((2, 4, 8, 8), np.uint8)
    vp.save(tmp_path / "a.ome.zarr", voxels, affine=np.eye(4))
    whole, part = (
        document("info", tmp_path / "a.ome.zarr", *more)[1]
        for more in ((), ("--reader", "channels=[1]"))
    )

    assert part["shape"][0] == 1
    for fact in ("codec", "levels", "reader", "stored_bytes"):
        assert part[fact] == whole[fact]


def test_info_says_which_of_several_is_broken(tmp_path, document):
    """The others are shown."""
    np.save(tmp_path / "a.npy", np.zeros((4, 4, 4)))
    (tmp_path / "b.npy").write_bytes(b"nothing")

    status, result = document("info", tmp_path)

    assert status == 1
    assert [one["case"] for one in result["volumes"]] == ["a"]
    assert [one["case"] for one in result["bad"]] == ["b"]


def test_check_index_and_convert_take_objects_and_lists(tmp_path, document):
    """A chain up to its volumes, a table, a manifest, a list of Decathlon."""
    assert document("check", "my_chain.py:pipe")[1]["checked"] == 12
    status, result = document("index", "my_chain.py:pipe", "-o", tmp_path / "m.json")
    assert (status, result["cases"], result["volumes"]) == (0, 6, 12)
    for source in ("cases.csv", tmp_path / "m.json"):
        status, result = document("convert", source, tmp_path / "out", "--overwrite")
        assert status == 0
        assert {one["source"] for one in result["converted"]} >= {
            os.path.abspath("scans/c0/ct.nii.gz")
        }
    assert (tmp_path / "out" / "c0.nii.zarr").is_dir()
    assert (tmp_path / "out" / "c0" / "label.nii.zarr").is_dir()
    assert document("split", "cases.csv", "-o", tmp_path / "split.json")[0] == 0
    assert len(document("info", tmp_path / "split.json")[1]["volumes"]) == 6


def test_explain_and_graph_show_a_chain(document):
    """As the loader's own methods do."""
    status, result = document("explain", "my_chain.py:pipe")
    assert status == 0
    assert "lazy_patch(8, samples_per_volume=2)" in result["explain"]
    assert {*result["schemes"]} == {"image", "label"}
    for form, begin in (("mermaid", "flowchart TD"), ("dot", "digraph {")):
        status, result = document("graph", "my_chain.py:pipe", "--format", form)
        assert status == 0
        assert result["graph"].startswith(begin)


def test_graph_writes_the_language_of_the_file(tmp_path, capsys):
    """A fenced block in Markdown, and DOT by its suffix."""
    for name, begin in (("g.md", "```mermaid\nflowchart"), ("g.dot", "digraph {")):
        assert main(["graph", "my_chain.py:pipe", "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(begin)
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / n) for n in ("g.md", "g.dot")]


def test_graph_as_svg_needs_graphviz(document, monkeypatch):
    """And says how it is installed."""
    monkeypatch.setenv("PATH", "")

    status, result = document("graph", "my_chain.py:pipe", "--format", "svg")

    assert status == 1
    assert "apt install graphviz" in result["error"]["do"]


@pytest.mark.parametrize("model", ["function", "class", "script", "exported"])
def test_predict_runs_each_kind_of_model(model, tmp_path, document):
    """The result is that of the function, on the stored grid."""
    import torch

    if model in ("function", "class"):
        name = {"function": "my_chain.py:model", "class": "my_chain.py:Net"}[model]
    else:
        sys.path.insert(0, os.getcwd())
        net, example = __import__("my_chain").Net(), torch.zeros(1, 1, 12, 12, 10)
        name = str(tmp_path / ("net.pt" if model == "script" else "net.pt2"))
        if model == "script":
            torch.jit.save(torch.jit.trace(net, example), name)
        else:
            torch.export.save(torch.export.export(net, (example,)), name)
    place = tmp_path / "out.nii.gz"

    status, result = document("predict", name, "scans/c0/ct.nii.gz", "-o", place)

    assert status == 0
    assert result["results"][0]["path"] == str(place)
    expected = nibabel.load("scans/c0/ct.nii.gz").get_fdata() > 450
    np.testing.assert_array_equal(nibabel.load(place).get_fdata() > 0, expected)


def test_predict_writes_a_file_for_each_case(tmp_path, document):
    """``{case}`` is needed for that; an existing result is not replaced unasked."""
    target = ["my_chain.py:model", "scans/*/", "image=ct.nii.gz", "--patch", "12"]
    assert document("predict", *target, "-o", tmp_path / "a.nii.gz")[0] == 2
    arguments = ["predict", *target, "-o", tmp_path / "{case}.nii.gz"]
    status, result = document(*arguments)
    assert status == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"c{n}.nii.gz" for n in range(6)]
    status, result = document(*arguments)
    assert (status, result["error"]["type"]) == (1, "DestinationExists")
    assert document(*arguments, "--overwrite")[0] == 0


@pytest.fixture
def records(scans, tmp_path):
    """The state after two batches, and the meta of the third one."""
    sys.path.insert(0, str(scans))
    with vp.DataLoader2(__import__("my_chain").pipe(), seed=5) as loader:
        batches = iter(loader)
        next(batches), next(batches)
        (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
        batch = next(batches)
        (tmp_path / "meta.json").write_text(json.dumps(batch["meta"]))
    return tmp_path, batch


def test_replay_makes_a_batch_again(records, document):
    """From a state the next batch, from a meta that of its number, and by plans alone."""
    folder, batch = records
    mean = pytest.approx(float(batch["image"].double().mean()))
    chain = ["--pipe", "my_chain.py:pipe"]
    for arguments in (
        [folder / "state.json", *chain],
        [folder / "state.json", *chain, "--batch", 2],
        [folder / "meta.json", *chain, "--batch", 2],
        [folder / "meta.json"],
    ):
        status, result = document("replay", *arguments)
        assert status == 0
        assert result["arrays"][0]["mean"] == mean
        assert [one["case"] for one in result["meta"]] == [one["case"] for one in batch["meta"]]
    labels = result["arrays"][1]
    assert labels["mean"] == pytest.approx(float(batch["label"].double().mean()))


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ("state.json", 2),
        ("meta.json --batch 2", 2),
        ("meta.json --pipe my_chain.py:pipe", 2),
        ("meta.json --pipe my_chain.py:pipe --batch 1", 1),
        ("state.json --pipe my_chain.py:pipe --batch 999", 1),
        ("state.json --pipe my_chain.py:number", 2),
    ],
)
def test_replay_refuses_what_does_not_fit(records, document, arguments, status):
    """A chain and a number are needed, and other draws are no success."""
    folder, _ = records
    first, *rest = arguments.split()

    assert document("replay", folder / first, *rest)[0] == status


def test_replay_draws_a_picture(records, document):
    """The batch, as ``vp.show()`` draws it."""
    pytest.importorskip("matplotlib")
    folder, _ = records

    assert document("replay", folder / "meta.json", "--preview", folder / "a.png")[0] == 0
    assert (folder / "a.png").read_bytes().startswith(b"\x89PNG")


def test_cache_shows_clears_and_limits(tmp_path, document):
    """Files of others in the folder stay."""
    names = [f"{n:032x}.nii" for n in range(4)]
    (tmp_path / "statistics").mkdir()
    for number, name in enumerate([*names, "statistics/a.json", "mine.nii", "notes.txt"]):
        (tmp_path / name).write_bytes(bytes(1000))
        os.utime(tmp_path / name, (number, number))

    status, result = document("cache", "--folder", tmp_path)
    assert (status, result["bytes"]) == (0, 5000)
    assert [(kind["kind"], kind["entries"]) for kind in result["kinds"]] == [
        *(("decoded volumes", 4), ("statistics", 1))
    ]
    result = document("cache", "--folder", tmp_path, "--limit", "2000")[1]
    assert (result["removed"], result["bytes"]) == (3, 2000)
    assert not (tmp_path / names[0]).exists()  # the oldest goes first
    assert (tmp_path / names[3]).exists()
    assert document("cache", "--folder", tmp_path, "--clear")[1]["bytes"] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.nii", "notes.txt", "statistics"]


def test_doctor_names_the_fix_of_a_lack(document, monkeypatch):
    """A missing extra is no failure, a bad setting is one."""
    from voxpipe.extensions.commands import doctor

    monkeypatch.setattr(doctor, "_version_of", lambda name: "" if name == "h5py" else "1")
    status, result = document("doctor")
    by_name = {fact["name"]: fact for fact in result["facts"]}
    assert (status, result["ok"]) == (0, True)
    assert by_name["h5py"]["fix"] == "pip install voxpipe[formats]"
    assert {"kernel", "codecs", "cores", "/dev/shm", "open files", "CUDA", "ray"} <= {*by_name}
    monkeypatch.setenv("VOXPIPE_REMOTE", "nonsense")
    status, result = document("doctor")
    assert (status, result["ok"]) == (1, False)


def test_doctor_without_the_kernel_names_one_fix(document, monkeypatch):
    """No warning of the kernel interrupts the table, and no codec is decoded by it."""
    from voxpipe.spatial.resampling import native_resampler
    from voxpipe.volumes.chunks import native_chunks

    for module in (native_resampler, native_chunks):
        monkeypatch.setattr(module, "native_library", lambda *a, **k: (None, "it was not built"))
        module._library.cache_clear()
    try:
        result = document("doctor")[1]
    finally:
        for module in (native_resampler, native_chunks):
            module._library.cache_clear()

    by_name = {fact["name"]: fact for fact in result["facts"]}
    assert (by_name["kernel"]["state"], result["ok"]) == ("lacks", True)
    assert "--no-cache-dir" in by_name["kernel"]["fix"]
    assert (
        by_name["codecs"]["value"] == "decoded by the kernel: none; one by one: blosc, zstd, blosc2"
    )


@pytest.mark.slow
def test_demo_shows_each_step(tmp_path, document):
    """In less than a minute; the batches of workers are those of one process."""
    status, result = document("demo", "--folder", tmp_path / "scans", "--workers", "1")

    assert status == 0
    texts = [step["result"] for step in result["steps"]]
    assert "equal, bit for bit" in texts[3]
    assert "the same one" in texts[4]
    assert "100.00 %" in texts[5]


def test_an_interrupted_file_is_absent(tmp_path, monkeypatch, capsys):
    """Status 130, and neither the file nor a part of it."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("voxpipe.storage.disk_cache.os.fsync", interrupt)
    for line in ("graph my_chain.py:pipe -o g.dot", "split scans --folds 2 -o s.json"):
        *words, name = line.split()
        assert main([*words, str(tmp_path / name)]) == 130
    assert list(tmp_path.iterdir()) == []
    assert "stopped" in capsys.readouterr().err


def test_an_interrupted_import_has_no_traceback(monkeypatch, capsys):
    """Commands are imported when they are given."""

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("voxpipe.__main__.load", interrupt)
    assert main(["info", "none.nii"]) == 130
    assert capsys.readouterr().err == "voxpipe: stopped.\n"


def test_log_lines_of_libraries_stay_away(tmp_path, warm_python):
    """An error names what tifffile logged, and its lines are not printed."""
    tifffile = pytest.importorskip("tifffile")
    tifffile.imwrite(tmp_path / "a.tif", np.ones((4, 5, 6), np.uint8), photometric="minisblack")
    data = bytearray((tmp_path / "a.tif").read_bytes())
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        tags = file.pages[0].tags
        places = {"a": tags["ImageWidth"].offset, "b": tags["ResolutionUnit"].offset}
    for name, place in places.items():
        own = bytearray(data)
        own[place + 2 : place + 4] = (113).to_bytes(2, "little")  # a type that does not exist
        (tmp_path / f"{name}.tif").write_bytes(own)
    code = "import sys, voxpipe.__main__ as m; sys.exit(m.main(sys.argv[1:]))"
    done = warm_python.run(code, "check", str(tmp_path), "--workers", "1")

    assert "invalid data type 113" in done.stdout
    assert done.stdout.endswith("2 checked, 1 bad\n")
    assert done.stderr == "voxpipe: headers only; --voxels also finds damage inside of files\n"


def test_keys_of_documents_are_those_of_the_docs(tmp_path, document):
    """Each command that ends at once."""
    table = (ROOT / "docs" / "command-line.md").read_text().split("| command | keys |")[1]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", table, re.MULTILINE))
    assert rows.keys() == {*COMMANDS}
    out = tmp_path / "out"
    for line in (
        "info scans/c0/ct.nii.gz",
        "index scans -o " + str(tmp_path / "m.json"),
        f"convert scans/c0/ct.nii.gz {out}.nii.zarr",
        "bench scans --patch 4 --workers 0 --seconds 0.01",
        "explain my_chain.py:pipe",
        "graph my_chain.py:pipe",
        f"preview scans/c0/ct.nii.gz -o {out}.html",
        f"cache --folder {tmp_path}",
        "doctor",
    ):
        keys = document(*line.split())[1].keys()
        names = set(re.findall(r"`(\w+)`", rows[line.split()[0]]))
        some = {"info": {"volumes", "bad"}}.get(line.split()[0], set())
        assert names - some <= keys
        assert some or keys == names


def test_a_run_that_goes_on_prints_like_paths(scans, tmp_path, monkeypatch, capsys):
    """Of results of an earlier run, and of new ones."""
    monkeypatch.chdir(scans)
    place = os.path.relpath(tmp_path / "{case}.nii.gz")
    line = ["predict", "my_chain.py:Net", "scans/*/ct.nii.gz", "-o", place, "--patch", "12"]
    line += ["--run", "r41", "--json"]
    assert main(line) == 0
    first = {row["path"] for row in json.loads(capsys.readouterr().out)["results"]}
    (tmp_path / "c0.nii.gz").unlink(missing_ok=True)
    assert main(line) == 0
    again = {row["path"] for row in json.loads(capsys.readouterr().out)["results"]}
    assert first == again
    assert all(map(os.path.isabs, again))


@pytest.mark.parametrize("patch", [("4", "6", "5"), ("4",)])
def test_the_patch_of_a_forecast_has_one_number_or_one_for_each_axis(tmp_path, capsys, patch):
    np.save(tmp_path / "a.npy", np.zeros((8, 9, 10), np.uint8))
    settings = ["--batch", "1", "--samples", "1", "--workers", "0", "--seconds", "0.05"]
    assert main(["bench", str(tmp_path), *settings, "--json", "--patch", *patch]) == 0
    assert json.loads(capsys.readouterr().out)["forecasts"][0]["patches_per_second"] > 0
    assert main(["bench", str(tmp_path), "--patch", "1", "2", "3", "4"]) == 2
    assert "--patch takes one number to three, got 4" in capsys.readouterr().err
