"""Errors in words of the command line, and options that no format has."""

import ast
import contextlib
import io
import json
import pickle
import re
import sys

import numpy as np
import pytest
from checkout import ROOT, package_dir

from voxpipe.__main__ import main, parser
from voxpipe.core.cures import Argument, Cure, cure
from voxpipe.core.errors import BadHeader, UnknownName
from voxpipe.extensions.commands.cures import in_options, reader_options
from voxpipe.volumes import close_volumes

MATRIX = "[[x, 0, 0, 0], [0, y, 0, 0], [0, 0, z, 0], [0, 0, 0, 1]]"
PLACE, OBJECT = "predict m.pt a.nii", "predict m.pt train.py:pipe"


@pytest.mark.parametrize(
    ("line", "text", "own"),
    [
        (PLACE, "Give another place, or ⟦overwrite=True⟧.", "Give another place, or --overwrite."),
        (PLACE, 'Give ⟦output="sigmoid"⟧.', "Give --result sigmoid."),
        (PLACE, "Give ⟦batch_size=2⟧ or ⟦num_workers=0⟧.", "Give --batch 2 or --workers 0."),
        (PLACE, "Pass ⟦allow_gaps=True⟧ to go on.", "Pass --reader allow_gaps=true to go on."),
        (PLACE, "Leave ⟦time=⟧ out.", "Leave --reader time= out."),
        (PLACE, "Write ⟦where={'EchoTime': 5.0}⟧.", "Write --reader 'where={\"EchoTime\": 5.0}'."),
        (PLACE, 'Name them, ⟦open_volume(axes="zyx")⟧.', "Name them, --reader axes=zyx."),
        (PLACE, "Check the ⟦storage_options⟧.", "Check the --storage-options."),
        (PLACE, "Write padding='constant' beside it.", "Write padding='constant' beside it."),
        (PLACE, 'from_manifest(..., follow="anywhere")', 'from_manifest(..., follow="anywhere")'),
        (OBJECT, "Pass ⟦affine=⟧ or ⟦overwrite=True⟧.", "Pass affine= or --overwrite."),
        ("index a", "Leave ⟦statistics=True⟧.", "Leave statistics=True."),
        ("index a", "Give ⟦statistics=False⟧.", "Give --no-statistics."),
        (
            PLACE,
            "Write ⟦optional=('lab',)⟧ or ⟦labels=('a', 'b c')⟧.",
            "Write --optional lab or --labels a 'b c'.",
        ),
        ("check a", "⟦voxels=True⟧ reads them.", "--voxels reads them."),
        ("convert a b", "Give ⟦patch=⟧ or ⟦chunk=64⟧.", "Give --patch or --chunk 64."),
        ("bench a", "Give a smaller ⟦patch⟧.", "Give a smaller --patch."),
        (PLACE, "Pass ⟦affine=numpy.diag([x, y, z, 1])⟧.", f"Pass --reader 'affine={MATRIX}'."),
    ],
)
def test_a_cure_names_options(line, text, own):
    """Those of the command; arguments of a chain of the user stay as they are."""
    arguments, _ = parser().parse_known_args(line.split())
    made = cure(text)

    assert in_options(arguments, made) == own
    assert in_options(arguments, pickle.loads(pickle.dumps(made))) == own
    assert in_options(arguments, "First. " + made + " Last.") == f"First. {own} Last."
    assert in_options(arguments, own) == own
    assert str(BadHeader("It is bad", do=made)) == f"It is bad\n  {made}"
    assert in_options(arguments, str(BadHeader("It is bad", do=made))).endswith(own)


@pytest.mark.parametrize("name", ["a{time=3}b", "{overwrite=True}", "a{patch}b", "{z}={t}"])
def test_names_of_files_are_no_arguments(name, tmp_path, capsys):
    """A path stays as it is: in errors, in warnings and in what a command prints."""
    path = str(tmp_path / name / "none.nii")

    assert path in str(BadHeader(f"{path} is bad", do=f"Look at {path}."))
    assert main(["info", path])
    assert path in capsys.readouterr().err
    assert main(["convert", path, str(tmp_path / name)])
    assert path in capsys.readouterr().err


def parsed(command):
    """Return the parsed arguments of a command, with as many places as it needs."""
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            return parser().parse_known_args([command, "a"])[0]
        except SystemExit:
            return parser().parse_known_args([command, "a", "b"])[0]


# All that open volumes: they keep their actions for cures.
COMMANDS = [name for name in sorted(parser().points) if hasattr(parsed(name), "actions")]


def test_commands_that_open_volumes_have_their_options():
    """Each takes ``--reader`` and ``--storage-options``."""
    assert {"convert", "info", "preview", "replay"} <= {*COMMANDS}
    for command in COMMANDS:
        assert {"reader", "storage_options"} <= {one.dest for one in parsed(command).actions}


# Functions of which no command has the arguments: pipes, and functions for Python alone.
OTHERS = ("extensions/bridges", "extensions/commands", "extensions/recipes", "extensions/torchdata")
OTHERS += ("extensions/cluster", "extensions/microscopy/from_ome.py", "volumes/conversion/save.py")
# Arguments of pipes that have the name of an option, or that are functions in Python.
OF_PIPES = {"dtype", "shape", "offset", "label", "reader", "statistics", "timeout", "key", "files"}
OF_PIPES |= {"destination", "axis_map", "channels", "io", "keys", "kind", "override", "policies"}


def options_of_commands():
    """Return the names of the arguments of Python for which commands have options."""
    names = reader_options()
    for command in COMMANDS:
        for action in parsed(command).actions:
            names |= {action.dest} if action.option_strings else set()
    return names - OF_PIPES


def texts_of_cures(tree):
    """Yield the strings of a module that are cures or warnings."""
    for node in ast.walk(tree):
        parts = []
        if isinstance(node, ast.Call):
            parts = [word.value for word in node.keywords if word.arg == "do"]
            if getattr(node.func, "attr", getattr(node.func, "id", "")) == "warn":
                parts += node.args
        elif isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = {one.id for target in targets for one in ast.walk(target) if hasattr(one, "id")}
            parts = [node.value] if names & {"do", "text"} else []
        for part in parts:
            for one in ast.walk(part):
                if isinstance(one, ast.JoinedStr):
                    yield "".join(str(getattr(each, "value", "value")) for each in one.values)
                elif isinstance(one, ast.Constant) and str(one.value).strip() != "optional=":
                    yield str(one.value)


MARK = re.compile("⟦[^⟦⟧]*⟧?")
CALL = re.compile(r"[\w.]+\((?:[^()]|\([^()]*\))*\)?")  # has the arguments of its own function


def test_every_cure_names_arguments_as_data():
    """Of each option of each command, so that the command can name its option instead."""
    named = re.compile(rf"(?<![-.\w])({'|'.join(options_of_commands())})=")
    found = []
    for file in ROOT.rglob("*.py"):
        place = file.relative_to(ROOT).as_posix()
        if place.partition("/")[0] in package_dir().values() and not place.startswith(OTHERS):
            for text in texts_of_cures(ast.parse(file.read_text(encoding="utf-8"))):
                found += [(place, text)] if named.search(CALL.sub("", MARK.sub("", text))) else []

    assert not found, "\n".join(map(str, found))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_named_in_place_of_its_argument(command):
    """A flag with the value that it sets, any other option without one."""
    arguments = parsed(command)
    for action in arguments.actions:
        if action.option_strings and action.dest not in ("help", "reader"):
            value = action.const if action.nargs == 0 else None
            text = Cure(Argument(action.dest, value, "the argument"))
            flag = next(flag for flag in action.option_strings if flag.startswith("--"))
            assert in_options(arguments, "Give " + text) == f"Give {flag}"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("a.npy", "cases/b.npy", "cases/c.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / name, np.zeros((4, 4, 4), np.float32))
    (tmp_path / "my_cure_net.py").write_text("def model(batch): return batch\n")
    yield tmp_path
    close_volumes()


@pytest.mark.parametrize("option", ["foo=1", "level=3"])
@pytest.mark.parametrize(
    "line",
    [
        *("info a.npy", "info cases", "check a.npy --workers 1", "index a.npy -o m.json"),
        *("convert a.npy b.nii.zarr", "bench a.npy --workers 0 --patch 2", "explain a.npy"),
        *("graph a.npy", "split cases --folds 2 -o s.json", "predict my_cure_net.py:model a.npy"),
        *("preview a.npy -o a.html", "convert cases out"),
    ],
)
def test_an_unknown_option_of_a_format_is_wrong_use(here, capsys, line, option):
    """In every command with ``--reader``, before anything is written."""
    if line.startswith(("graph", "split")):  # they open no volume, so its format is unknown
        option = "foo=1"
    assert main([*line.split(), "--reader", option, "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["type"] == "UsageError"
    assert repr(option.partition("=")[0]) in error["message"]
    assert not [*here.glob("*.nii*"), *here.glob("*.json"), *here.glob("*.html")]


def test_one_volume_is_opened_by_its_options(here, capsys):
    """``explain`` and ``graph`` take them too."""
    h5py = pytest.importorskip("h5py")
    with h5py.File("a.h5", "w") as file:
        file["x"], file["y"] = np.zeros((4, 4, 4)), np.zeros((5, 5, 5))

    for command in ("info", "explain", "graph"):
        assert main([command, "a.h5", "--reader", "dataset=y", "--reader", "axes=zyx"]) == 0
    assert "5x5x5" in capsys.readouterr().out


def test_a_finding_names_the_option(here, capsys):
    """On a plain line and in the document."""
    tifffile = pytest.importorskip("tifffile")
    (here / "gap").mkdir()
    for number in (1, 2, 4):
        tifffile.imwrite(here / f"gap/z{number}.tif", np.ones((5, 6), np.uint8))

    for line in ("info gap", "check gap --workers 1", "explain gap", "convert gap g.nii.zarr"):
        assert main(line.split()) == 1
        told = capsys.readouterr()
        assert "pass --reader allow_gaps=true" in told.out + told.err
        assert "allow_gaps=True" not in told.out + told.err
    assert main(["info", "gap", "--reader", "allow_gaps=true"]) == 0


def test_an_option_that_no_volume_has_keeps_its_cure(tmp_path, capsys):
    """In the document of every command; a cure of a chain is none of the command."""
    for name in "ab":
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "ct.npy", np.zeros((4, 4, 4)))
    for command in ("check", "index", "info", "convert"):
        rest = ["-o", str(tmp_path / "m.json")] * (command == "index")
        rest += [str(tmp_path / "out")] * (command == "convert")
        assert main([command, str(tmp_path), *rest, "--reader", "dataset=x", "--json"]) == 2
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["do"].startswith("Leave --reader dataset= out, or write one")
        assert error["message"].endswith("unknown option 'dataset'; its format has: axes")


def test_an_unknown_name_carries_its_argument():
    """Also to another process."""
    error = pickle.loads(pickle.dumps(UnknownName("No.", do="Leave ⟦time=⟧ out.", argument="time")))
    assert (error.argument, error.do) == ("time", "Leave time= out.")
