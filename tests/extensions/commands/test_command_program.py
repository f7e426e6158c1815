"""The program around the commands: packages of others, terminals, light imports."""

import io
import json
import os
import pty
import shlex
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import EntryPoint

import numpy as np
import pytest

import voxpipe.__main__ as program
from voxpipe.core.errors import UsageError, VoxpipeError
from voxpipe.first_use import extensions

COMMAND = '''
"""Count the voxels of a volume.

example: voxpipe count a.npy
"""
from voxpipe.extensions.commands.printing import print_json
from voxpipe.extensions.commands.targets import add_target, open_target


def add_arguments(parser):
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="mine")


def run(arguments):
    count = open_target(arguments.target, arguments).numpy().size
    print_json({"voxels": count, "mean": float("nan")}) if arguments.json else print(count)
    return 0
'''


@pytest.fixture
def others(tmp_path, monkeypatch):
    """A command of another package beside one that cannot be imported."""
    (tmp_path / "count_command.py").write_text(COMMAND)
    monkeypatch.syspath_prepend(str(tmp_path))
    points = {
        name: EntryPoint(name, module, "voxpipe.commands")
        for name, module in (("count", "count_command"), ("lost", "no_such_module"))
    }
    monkeypatch.setattr(program, "extensions", lambda group, are_modules: points)
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4)))
    # The module stays imported: entry points are loaded once in a process.
    return str(tmp_path / "a.npy")


def test_a_command_of_another_package(others, capsys):
    """Its options win over those of the program; JSON has no NaN."""
    assert program.main(["count", others]) == 0
    assert capsys.readouterr().out == "24\n"
    assert program.main(["count", others, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"voxels": 24, "mean": None}


def test_a_command_that_cannot_be_imported(others, capsys):
    """The others still run and are listed; the lost one is named with its package."""
    with pytest.warns(UserWarning, match="lost = no_such_module"), pytest.raises(SystemExit):
        program.main(["--help"])
    assert "count      Count the voxels of a volume\n" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        program.main(["lost"])
    assert ended.value.code == 2
    assert "the command lost cannot be imported" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UsageError("no", do="so"), 2),
        (VoxpipeError("no", do="so"), 1),
        (OSError("no"), 1),
        (BrokenPipeError("no"), 1),  # of a socket, while the output is open
    ],
)
def test_errors_have_a_status_and_a_document(others, monkeypatch, capsys, error, status):
    """One line on stderr, and one document on stdout."""
    import count_command

    def fail(arguments):
        raise error

    monkeypatch.setattr(count_command, "run", fail)
    assert program.main(["count", others, "--json"]) == status
    told = capsys.readouterr()
    assert told.err.startswith("voxpipe: ")
    document = json.loads(told.out)["error"]
    assert document == {
        "type": type(error).__name__,
        "message": "no",
        "do": getattr(error, "do", ""),
    }


def test_a_terminal_gets_a_table_of_rich(tmp_path, monkeypatch):
    """And no colour codes where TERM is dumb."""
    pytest.importorskip("rich")
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4)))
    monkeypatch.setenv("COLUMNS", "100")
    texts = {}
    for term in ("xterm", "dumb"):
        monkeypatch.setenv("TERM", term)
        main_end, other_end = pty.openpty()
        # The terminal holds the whole table until it is read.
        opened = os.fdopen(other_end, "w", encoding="utf-8")
        with opened as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            assert program.main(["info", str(tmp_path / "a.npy")]) == 0
        parts = []
        with suppress(OSError):  # the other end is closed
            while part := os.read(main_end, 65536):
                parts.append(part)
        os.close(main_end)
        texts[term] = b"".join(parts).decode()
    assert "│ shape" in texts["xterm"]
    assert "\nshape " in texts["dumb"]


def test_help_imports_no_heavy_library():
    """All commands are imported for it."""
    code = "import sys, voxpipe.__main__ as m\ntry: m.main(['--help'])\nexcept SystemExit: pass\n"
    code += "heavy = {'torch', 'zarr', 'nibabel', 'matplotlib', 'rich', 'fsspec', 'tqdm'}\n"
    code += "sys.exit(str(heavy & {*sys.modules}) if heavy & {*sys.modules} else 0)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert "commands:" in done.stdout


@pytest.mark.parametrize("arguments", [["infoo", "--json"], ["--json"], ["count", "--js"]])
def test_wrong_use_is_a_document_too(others, capsys, arguments):
    """For unknown commands, and without one."""
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)

    assert ended.value.code == 2
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "UsageError"


def test_help_as_a_word_and_without_a_command(capsys):
    """As in git; without a command the help is on stderr, with the status of wrong use."""
    for arguments, mark in ((["help"], "commands:"), (["help", "info"], "usage: voxpipe info")):
        with pytest.raises(SystemExit) as ended:
            program.main(arguments)
        assert ended.value.code == 0
        assert mark in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        program.main([])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert (told.out, "commands:" in told.err) == ("", True)


@pytest.mark.parametrize("arguments", [["infoo"], ["help", "infoo"], ["exlpain"]])
def test_a_command_that_does_not_exist(capsys, arguments):
    """The closest one is named."""
    with pytest.raises(SystemExit) as ended:
        program.main(arguments)
    assert ended.value.code == 2
    near = "explain" if "exlpain" in arguments else "info"
    assert f"did you mean {near}?" in capsys.readouterr().err


def test_what_an_encoding_lacks_is_escaped(others, monkeypatch, tmp_path):
    """By backslashes in text, and as JSON does it in documents."""
    np.save(tmp_path / "n\N{LATIN SMALL LETTER E WITH ACUTE}.npy", np.zeros((2, 2, 2)))
    for arguments, mark in (([], "n\\xe9.npy"), (["--json"], "n\\u00e9.npy")):
        file = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, encoding="ascii"))
        monkeypatch.setattr(program, "extensions", extensions)
        place = str(tmp_path / "n\N{LATIN SMALL LETTER E WITH ACUTE}.npy")
        assert program.main(["info", place, *arguments]) == 0
        assert mark in file.getvalue().decode("ascii")


def test_an_output_that_cannot_be_written_is_one_error():
    """A closed one, and a full disk: status 1 and no traceback."""
    command = f"{sys.executable} -m voxpipe cache"
    for redirection, unbuffered in ((">&-", ""), (">/dev/full", ""), ("--help >/dev/full", "1")):
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(
            ["sh", "-c", f"{command} {redirection}"],
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            env=environment,
        )
        assert done.returncode == 1
        assert done.stderr.startswith("voxpipe: the output cannot be written: ")
        assert len(done.stderr.splitlines()) == 2


def test_errors_of_the_system_have_a_cure(others, capsys, monkeypatch):
    """One line more, also in the document."""
    import count_command

    error = FileNotFoundError(2, "No such file or directory", "out/a.json")
    monkeypatch.setattr(count_command, "run", lambda _: (_ for _ in ()).throw(error))

    assert program.main(["count", others, "--json"]) == 1
    told = capsys.readouterr()
    assert told.err.splitlines()[1] == "  Check the path, or create its folder first."
    assert json.loads(told.out)["error"]["do"] == "Check the path, or create its folder first."


@pytest.mark.parametrize(
    "arguments",
    [
        "info a.npy --reader foo=1",
        "info a.npy extra",
        "predict my_net.py:model a.npy --overlap 1.5",
        "predict my_net.py:model a.npy -o q.xyz",
        "predict my_net.py:model a.npy -o {nope}.nii.gz",
        "preview a.npy -o x.foo",
        "preview a.npy -o nodir/x.png",
        "graph a.npy -o g.xyz",
        "graph a.npy -o g.svg --format dot",
        "graph a.npy -o folder.md",
        "split . --folds 2 -o s.csv",
        "split . --folds 2 -o nodir/s.json",
        "index a.npy -o m.xyz",
        "index a.npy -o nodir/m.json",
        "replay a.json --preview x.gif",
        "convert a.npy x.nii",
        "convert a.npy x.xyz",
        "convert '' x.nii.zarr",
        "info ''",
        "check ''",
        "split a.npy --folds 2",
        "split . --folds 104",
        "split . --folds 2 --group nope",
        "explain my_net.py:nope",
        "explain my_net.py:number",
        "demo --folder .",
        "predict net.pt2 a.npy --patch 6",
    ],
)
def test_wrong_use_has_its_status(tmp_path, monkeypatch, capsys, arguments):
    """Status 2 and a document, before anything is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in "ab":
        np.save(f"{name}.npy", np.zeros((4, 4, 4), np.float32))
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "my_net.py").write_text("number = 3\ndef model(batch): return batch\n")
    sys.modules.pop("my_net", None)
    if "net.pt2" in arguments:
        torch = pytest.importorskip("torch")
        net, example = torch.nn.Conv3d(1, 1, 3, padding=1), torch.zeros(1, 1, 8, 8, 8)
        torch.export.save(torch.export.export(net, (example,)), "net.pt2")
    before = {*os.listdir()}
    try:
        status = program.main([*shlex.split(arguments), "--json"])
    except SystemExit as ended:
        status = ended.code
    told = capsys.readouterr()

    assert status == 2
    assert json.loads(told.out)["error"]["type"] == "UsageError"
    assert {*os.listdir()} - {"__pycache__"} == before


def test_a_file_of_python_is_no_volume(tmp_path, capsys):
    """The name of an object lacks."""
    (tmp_path / "train.py").write_text("pipe = 1")

    assert program.main(["explain", str(tmp_path / "train.py")]) == 1
    assert "train.py:pipe." in capsys.readouterr().err


def test_a_folder_of_planes_is_one_volume(tmp_path, monkeypatch, capsys):
    """In every command, and so is a pattern; one with a gap is bad. Other TIFFs are cases."""
    tifffile = pytest.importorskip("tifffile")
    monkeypatch.chdir(tmp_path)
    for folder, names in (("planes", "z1 z2 z3"), ("gap", "z1 z2 z4"), ("cases", "anna ben")):
        (tmp_path / folder).mkdir()
        for name in names.split():
            tifffile.imwrite(f"{folder}/{name}.tif", np.ones((5, 6), np.uint8))

    def document(*arguments):
        status = program.main([*arguments, "--json"])
        return status, json.loads(capsys.readouterr().out)

    for place in ("planes", "planes/", "planes/z{z}.tif"):
        status, facts = document("info", place)
        assert (status, facts["shape"]) == (0, [1, 6, 5, 3])
        assert facts["format"] in ("tiff-folder", "tiff-sequence")
    status, result = document("check", "planes", "--workers", "1")
    assert (status, result["checked"]) == (0, 1)
    status, result = document("check", "gap", "--workers", "1")
    assert (status, result["checked"], len(result["bad"])) == (1, 1, 1)
    assert document("info", "gap")[1]["error"]["type"] == "VolumeNotFound"
    assert len(document("info", "cases")[1]["volumes"]) == 2
    status, result = document("convert", "planes/z{z}.tif", "p.nii.zarr")
    assert (status, len(result["converted"])) == (0, 1)


@pytest.mark.filterwarnings("ignore:times-and-channels")
def test_info_names_channels_and_time_points(tmp_path, capsys):
    """Of OME-TIFF; names in words and as a list."""
    tifffile = pytest.importorskip("tifffile")
    for name, axes, shape in (("c", "CZYX", (2, 3, 8, 9)), ("t", "TZYX", (4, 3, 8, 9))):
        about = {"axes": axes}
        if name == "c":
            about["Channel"] = {"Name": ["DAPI", "GFP"]}
        tifffile.imwrite(tmp_path / f"{name}.ome.tif", np.ones(shape, np.uint8), metadata=about)
    place = str(tmp_path / "c.ome.tif")

    assert program.main(["info", place]) == 0
    assert "2 (DAPI, GFP)" in capsys.readouterr().out
    assert program.main(["info", place, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["channel_names"], facts["times"]) == (["DAPI", "GFP"], None)
    assert program.main(["info", str(tmp_path / "t.ome.tif"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["times"] == 4


@pytest.mark.parametrize("name", ["a.pt", "old.pth", "a.pkl", "a.pt2", "a.onnx", "a.py", "junk.pt"])
def test_a_file_that_is_no_model(tmp_path, capsys, name):
    """Its kind, the reason, and the three kinds of models, in two sentences."""
    torch = pytest.importorskip("torch")
    place = tmp_path / name
    np.save(tmp_path / "a.npy", np.zeros((4, 4, 4), np.float32))
    if name in ("a.py", "a.onnx", "junk.pt"):
        place.write_text("hello")
    else:
        torch.save({"w": torch.zeros(1)}, place, _use_new_zipfile_serialization=name[0] == "a")

    assert program.main(["predict", str(place), str(tmp_path / "a.npy"), "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert "miniz" not in error["message"]
    if name in ("a.pt", "old.pth", "a.pkl", "a.pt2"):
        assert "is a pickle" in error["message"]
        assert "run any code" in error["message"]
    if name != "a.py":
        assert all(each in error["do"] for each in ("jit.save", "export.save", "module:NAME"))


def test_one_prediction_names_its_case(tmp_path, monkeypatch, capsys):
    """As in the destination; also of a volume that Python made."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    np.save("anna.npy", np.zeros((4, 4, 4), np.float32))
    text = "import numpy, voxpipe\ndef model(batch): return batch.repeat(1, 2, 1, 1, 1)\n"
    text += "one = voxpipe.Volume(numpy.zeros((4, 4, 4)), affine=numpy.eye(4))\n"
    (tmp_path / "my_case_net.py").write_text(text)
    for target, case in (("anna.npy", "anna"), ("my_case_net.py:one", "0")):
        line = f"predict my_case_net.py:model {target} --patch 4 -o {{case}}.nii.gz --json"
        assert program.main(line.split()) == 0
        (row,) = json.loads(capsys.readouterr().out)["results"]
        assert row["case"] == case
        assert row["path"].endswith(f"{case}.nii.gz")


@pytest.mark.parametrize("command", ["info", "demo"])
@pytest.mark.parametrize("option", ["", "--json"])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_failed_write_is_one_sentence(monkeypatch, capsys, command, option):
    """Wherever the output is written: a long document, or a step of the demo."""

    def run(_):
        sys.stdout.write("x" * (20_000 if command == "info" else 1))
        sys.stdout.flush()
        return 0

    monkeypatch.setattr(import_module(f"voxpipe.extensions.commands.{command}"), "run", run)
    descriptor = os.open("/dev/full", os.O_WRONLY)
    output = io.TextIOWrapper(io.FileIO(descriptor, "w"), write_through=True)
    monkeypatch.setattr(sys, "stdout", output)
    status = program.main([command, *(["a"] * (command == "info")), *option.split()])
    with suppress(OSError):
        output.close()

    assert status == 1
    assert capsys.readouterr().err == (
        "voxpipe: the output cannot be written: No space left on device.\n"
        "  Free some space, or choose another disk.\n"
    )


def test_writes_are_noted_for_one_command(capsys):
    """The output is as before, after it."""
    before = sys.stdout.write
    assert program.main(["cache", "--json"]) == 0
    assert sys.stdout.write == before


@pytest.mark.parametrize(
    ("name", "near"), [("nosuch", None), ("benhc", "bench"), ("doc", "doctor")]
)
def test_only_a_close_command_is_suggested(capsys, name, near):
    """In help, too."""
    for line in ([name], ["help", name]):
        with pytest.raises(SystemExit):
            program.main(line)
        text = capsys.readouterr().err
        assert (f"did you mean {near}?" if near else "voxpipe --help lists") in text
