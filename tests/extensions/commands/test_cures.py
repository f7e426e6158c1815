"""Errors in words of the command line, and options that no format has."""

import json
import sys

import numpy as np
import pytest

from voxpipe.__main__ import main, parser
from voxpipe.extensions.commands.cures import in_options
from voxpipe.volumes import close_volumes

PLACE, OBJECT = "predict m.pt a.nii", "predict m.pt train.py:pipe"


@pytest.mark.parametrize(
    ("line", "cure", "own"),
    [
        (PLACE, "Give another place, or overwrite=True.", "Give another place, or --overwrite."),
        (PLACE, 'Give output="sigmoid".', "Give --result sigmoid."),
        (PLACE, "Give batch_size=2 or num_workers=0.", "Give --batch 2 or --workers 0."),
        (PLACE, "Pass allow_gaps=True to go on.", "Pass --reader allow_gaps=true to go on."),
        (PLACE, "Leave time= out.", "Leave --reader time= out."),
        (PLACE, "Write where={'EchoTime': 5.0}.", "Write --reader 'where={\"EchoTime\": 5.0}'."),
        (PLACE, 'Name them, open_volume(axes="zyx").', "Name them, --reader axes=zyx."),
        (PLACE, "Check the storage_options.", "Check the --storage-options."),
        (PLACE, "Write padding='constant' beside it.", "Write padding='constant' beside it."),
        (PLACE, 'from_manifest(..., follow="anywhere")', 'from_manifest(..., follow="anywhere")'),
        (OBJECT, "Pass affine= or overwrite=True.", "Pass affine= or --overwrite."),
        ("index a", "Leave statistics=True, or statistics=False.", None),
        (
            PLACE,
            "Write optional=('lab',) or labels=('a', 'b c').",
            "Write --optional lab or --labels a 'b c'.",
        ),
        ("check a", "voxels=True reads them.", "--voxels reads them."),
        ("convert a b", "Give patch= or chunk=64.", "Give --patch or --chunk 64."),
    ],
)
def test_a_cure_names_options(line, cure, own):
    """Those of the command; arguments of a chain of the user stay as they are."""
    arguments, _ = parser().parse_known_args(line.split())

    text = in_options(arguments, cure)

    assert text == (own or "Leave statistics=True, or --no-statistics.")
    assert in_options(arguments, text) == text


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
