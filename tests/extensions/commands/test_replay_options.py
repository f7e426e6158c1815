"""Replays of a meta open each file with the options of the run, against tifffile."""

import json

import numpy as np
import pytest
import tifffile

import voxpipe as vp
from voxpipe.__main__ import main


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
