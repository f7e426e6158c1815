"""A prediction of several outputs that was killed goes on where it was."""

import json
import os
import signal

import numpy as np
from killed_runs import windows_run
from window_models import Heads

import voxpipe as vp

SHAPE, WINDOWS, LAYER = (24, 16, 32), 5 * 3 * 7, 5 * 3


def predict_windows(counts, source, folder, last):
    """Predict here; send how many windows were run, or end by SIGKILL in window ``last``."""
    model = Heads()

    def watch(module, _):
        if module.windows == last - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    if last:
        model.register_forward_pre_hook(watch)
    places = {"a_seg": f"{folder}/seg.nii.gz", "b_map": f"{folder}/map.nii.zarr"}
    vp.predict(
        model, source, places, patch=8, run="a", memory_bytes=20_000, progress=False,
        output={"a_seg": "argmax", "b_map": "logits"},
    )  # fmt: skip
    counts.send(model.windows)


def run(scan, folder, last=0):
    """Predict in another process; return how many windows it ran, None if it was killed."""
    return windows_run(predict_windows, scan, folder, last, is_killed=bool(last))


def test_a_killed_run_goes_on(tmp_path):
    """Both results are those of one go; less than a layer of windows comes again."""
    scan = tmp_path / "scan.npy"
    np.save(scan, np.random.default_rng(0).normal(size=SHAPE).astype(np.float32))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    assert run(scan, whole) == WINDOWS

    last = 4 * LAYER + 7
    run(scan, killed, last)
    state = json.loads((killed / ".map.nii.zarr.part" / "state.json").read_text())
    assert state["size"] == [4, 4, 4]
    again = run(scan, killed)

    assert WINDOWS - (last - 1) <= again < WINDOWS - (last - 1) + LAYER
    for name in ("seg.nii.gz", "map.nii.zarr"):
        assert (vp.Volume(killed / name).numpy() == vp.Volume(whole / name).numpy()).all()
    assert vp.Volume(whole / "map.nii.zarr").shape == (2, 12, 8, 16)
    assert run(scan, killed) == 0  # they are there
