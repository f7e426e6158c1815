"""The demo from end to end on a head of a few voxels, with batches cut by numpy."""

import itertools

import numpy as np
import pytest
import torch
import zarr
from demo import Source, run
from demo_data import CLASSES, VARIANTS, Head, prepare
from demo_plots import Viewable

SIDE = 16


@pytest.fixture
def head():
    """Two bright blocks, one of each tissue, in the dark."""
    label = np.zeros((48, 48, 40), np.uint8)
    label[20:34, 24:36, 6:30] = 1
    label[34:44, 24:36, 6:30] = 2
    return Head((label * 120).astype(np.uint8), label, np.eye(4))


def read(path):
    """Return one stored array as float32, without voxpipe."""
    return np.asarray(zarr.open_array(str(path / "0"), mode="r")[:])


def batches(cases, held_out):
    """Return one batch with the same corner of each case."""
    corner = (slice(4, 4 + SIDE),) * 3
    chosen = [case for case in cases if case.held_out == held_out]
    image = np.stack([read(c.image)[corner][None] / 4095 for c in chosen]).astype(np.float32)
    label = np.stack([read(c.label)[corner][None] for c in chosen])
    return [{"image": torch.from_numpy(image), "label": torch.from_numpy(label)}]


def test_the_demo_runs_to_its_end(head, tmp_path, capsys):
    """Data, pictures, report and Dice are there, the source is closed, the bar was shown."""
    said, closed = [], []
    variants = [v for v in VARIANTS if v.suffix == ".nii.zarr"]

    def source(cases):
        shown = Viewable("patch", *(np.zeros((8, 8, 8)),) * 2)
        return Source(
            training=batches(cases, held_out=False) * 5,
            # The patches that were trained on: this asks of the demo, not of the network.
            held_out=batches(cases, held_out=False),
            preview=lambda: [shown, shown],
            report=lambda: "what reading has cost",
            close=lambda: closed.append(True),
        )

    result = run(
        tmp_path,
        source,
        seconds=20.0,
        cases=lambda folder: prepare(folder, variants, head),
        say=said.append,
        # Each look at the clock takes half a second, so that twenty batches fit.
        clock=itertools.count(0.0, 0.5).__next__,
    )

    made = {f.name for f in tmp_path.iterdir()}
    assert made == {"data", "loss.png", "preview.png", "prediction.png"}
    assert (closed, said[1]) == ([True], "what reading has cost")
    assert "held out (1)" in said[2]
    assert (result.history.patches, result.history.waiting_share) == (40, 0.5)
    assert all(result.after[v] > max(0.6, result.before[v]) for v in CLASSES)
    assert "Training: 100%" in capsys.readouterr().err


def test_a_source_is_closed_when_training_fails(head, tmp_path):
    """No worker outlives an error."""
    closed = []

    def broken(cases):
        bad = {"image": torch.zeros(1, 1, 8, 8, 8), "label": torch.zeros(1, 1, 4, 4, 4)}
        return Source([bad], [bad], list, str, lambda: closed.append(True))

    with pytest.raises(ValueError, match="one shape"):
        run(tmp_path, broken, seconds=1, cases=lambda f: prepare(f, VARIANTS[:1], head))

    assert closed == [True]
