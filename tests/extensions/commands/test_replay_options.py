"""Replays of a meta open each file with the options of the run, against tifffile."""

import json
import re
import sys
import warnings

import numpy as np
import pytest
import tifffile

import voxpipe as vp
from voxpipe.__main__ import main, parser
from voxpipe.core.cures import cure
from voxpipe.extensions.commands.cures import Origin
from voxpipe.extensions.commands.printing import warnings_as_remarks
from voxpipe.extensions.commands.targets import Target


@pytest.fixture(autouse=True)
def _forget():
    yield
    sys.modules.pop("own41", None)


STATE = {"next_batch": 0, "epoch": 0}


@pytest.fixture
def movie(tmp_path):
    voxels = np.arange(3 * 2 * 4 * 6 * 8, dtype=np.uint16).reshape(3, 2, 4, 6, 8)
    tifffile.imwrite(tmp_path / "a.ome.tif", voxels, metadata={"axes": "TCZYX"})
    return str(tmp_path / "a.ome.tif"), voxels


def record_of(movie, folder, **options):
    chain = vp.from_cases([{"image": movie}]).open_volume(**options).to_axes("zyx")
    batch = next(iter(vp.DataLoader2(chain.lazy_patch((2, 3, 4)).batch_patches(1), seed=1)))
    (folder / "meta.json").write_text(json.dumps(batch["meta"]))
    return str(folder / "meta.json"), batch["image"]


def test_a_time_is_replayed(movie, tmp_path, capsys):
    """With its mean, and the record names it."""
    record, image = record_of(movie[0], tmp_path, time=2)
    assert main(["replay", record, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["arrays"]
    assert row["mean"] == float(image.numpy().mean())
    assert image.numpy().min() >= movie[1][2].min()


@pytest.mark.filterwarnings("ignore:times-and-channels")
def test_other_shapes_are_refused(movie, tmp_path, capsys):
    """Chosen channels, and an earlier record without its options; --reader gives them."""
    record, _ = record_of(movie[0], tmp_path, time=2, channels=[1])
    assert main(["replay", record]) != 0
    assert "opens with the shape (2, 8, 6, 4), and the record is of (1," in capsys.readouterr().err
    record, image = record_of(movie[0], tmp_path, time=1)
    (meta,) = json.loads((tmp_path / "meta.json").read_text())
    del meta["sources"]["image"]["options"]
    (tmp_path / "meta.json").write_text(json.dumps([meta]))
    assert main(["replay", record]) != 0
    capsys.readouterr()
    assert main(["replay", record, "--reader", "time=1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["arrays"]
    assert row["mean"] == float(image.numpy().mean())


CHAIN = """
import voxpipe as vp
pipe = vp.from_cases([{"image": "a.npy"}]).open_volume()
pipe = pipe.lazy_patch(8).batch_patches(1)
"""


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("line", ["replay state.json --pipe own41.py:pipe", "bench own41.py:pipe"])
def test_a_chain_has_its_own_words(line, tmp_path, monkeypatch, capsys):
    """An error of it names no option, and a warning the line of the user, in every command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    np.save("a.npy", np.zeros((4, 4, 4)))
    (tmp_path / "own41.py").write_text(CHAIN)
    (tmp_path / "state.json").write_text(json.dumps(STATE))
    arguments, _ = parser().parse_known_args(line.split())
    Target("own41.py:pipe", arguments)

    assert arguments.origin is Origin.USER_CHAIN
    with warnings_as_remarks(arguments):
        warnings.warn(
            cure("Pass ⟦affine=⟧ or ⟦labels=('a',)⟧.\n  at .lazy_patch(4) own41.py:3"), stacklevel=1
        )
    assert capsys.readouterr().err.splitlines() == [
        "voxpipe: Pass affine= or labels=('a',).",
        "  at .lazy_patch(4) own41.py:3",
    ]


def test_options_of_volumes_do_not_go_with_a_chain(tmp_path, monkeypatch, capsys):
    """And a folder is no record."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own41.py").write_text(CHAIN)
    (tmp_path / "state.json").write_text(json.dumps(STATE))
    assert main(["replay", "state.json", "--pipe", "own41.py:pipe", "--reader", "time=1"]) == 2
    assert "--reader does not go with own41.py:pipe" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["replay", "empty"]) == 1
    assert "Give the JSON file of a state." in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_preview_prints_warnings_as_remarks(tmp_path, monkeypatch, capsys):
    """Without the line of Python that warned."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    np.save("a.npy", np.zeros((4, 4, 4)))
    (tmp_path / "own41.py").write_text(CHAIN)
    assert main(["preview", "own41.py:pipe", "-o", "p.html"]) == 0
    first, place = capsys.readouterr().err.splitlines()
    assert first.startswith("voxpipe: a volume is smaller than the patch (8, 8, 8)")
    assert re.fullmatch(r"  at \.lazy_patch\(8\) +own41\.py:4", place)
