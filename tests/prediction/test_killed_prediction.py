"""A prediction that was killed goes on where it was."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from killed_runs import windows_run

import voxpipe as vp
from voxpipe.volumes.conversion import volume_file

SHAPE = (24, 20, 32)
WINDOWS = 5 * 4 * 7  # with half of each shared
LAYER = 5 * 4


@pytest.fixture
def scan(tmp_path):
    path = tmp_path / "scan.npy"
    np.save(path, np.random.default_rng(0).normal(size=SHAPE).astype(np.float32))
    return path


def predict_windows(counts, source, result, last, way):
    """Predict here; send how many windows were run, or end by SIGKILL in window ``last``."""
    count = 0

    class Windows(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            nonlocal count
            if function is torch.conv3d:
                count += len(args[0])
                if count == last:
                    os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **(kwargs or {}))

    torch.manual_seed(0)
    network = torch.nn.Conv3d(1, 3, 3, padding=1)
    chain = vp.from_cases([{"image": str(source), "case": "a"}]).open_volume()
    if way == "rows":
        volume_file._LONG = 1  # as in files of a usual size
    if way == "spacing":
        chain = chain.spacing(1.0)
    with Windows():
        own = {"memory_bytes": 20_000, "run": "a", "progress": False}
        vp.predict(network, chain, result, patch=8, **own)
    counts.send(count)


def run(scan, result, last=0, way="straight"):
    """Predict in another process; return how many windows it ran, None if it was killed."""
    return windows_run(predict_windows, scan, result, last, way, is_killed=bool(last))


@pytest.mark.parametrize(
    ("name", "way"), [("a.nii.zarr", "straight"), ("a.nii.gz", "straight"), ("a.nii.gz", "spacing")]
)
def test_no_more_than_one_layer_is_run_again(scan, tmp_path, name, way):
    """The same voxels as in one go; of what was done, less than a layer of windows comes again."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    whole, killed = tmp_path / "whole" / name, tmp_path / "killed" / name
    assert run(scan, whole, way=way) == WINDOWS

    last = 4 * LAYER + 7
    run(scan, killed, last, way)
    again = run(scan, killed, way=way)

    assert WINDOWS - (last - 1) <= again < WINDOWS - (last - 1) + LAYER
    assert (vp.Volume(killed).numpy() == vp.Volume(whole).numpy()).all()
    assert [path.name for path in killed.parent.iterdir()] == [name]
    assert run(scan, killed, way=way) == 0  # it is there


def test_rows_that_were_not_whole_are_there(scan, tmp_path):
    """In the last row of windows each is the last of a plane, after which a checkpoint is kept."""
    whole, killed = tmp_path / "a.nii", tmp_path / "b.nii"
    assert run(scan, whole) == WINDOWS

    run(scan, killed, WINDOWS - 1, "rows")
    assert run(scan, killed) in (2, 3)  # with the one that was being added

    assert (vp.Volume(killed).numpy() == vp.Volume(whole).numpy()).all()


@pytest.mark.slow
def test_what_does_not_fit_begins_anew(scan, tmp_path):
    """Another scan, or a state that somebody changed, is not continued."""
    result = tmp_path / "a.nii.gz"
    run(scan, result, 3 * LAYER)
    state = tmp_path / ".a.nii.gz.part" / "state.json"
    assert json.loads(state.read_text())["channels"] == 3
    state.write_text(state.read_text()[:-20])
    assert run(scan, result) == WINDOWS

    result.unlink()
    run(scan, result, 3 * LAYER)
    np.save(scan, np.load(scan) + 1)
    assert run(scan, result) == WINDOWS


def test_another_model_is_not_continued(scan, tmp_path):
    """A result of other weights at the place is refused."""
    model = torch.nn.Conv3d(1, 2, 1)
    first = vp.predict(model, scan, tmp_path / "a.nii", patch=8, run="a").numpy().copy()
    torch.nn.init.constant_(model.weight, 0.5)
    with pytest.raises(FileExistsError, match="there already"):
        vp.predict(model, scan, tmp_path / "a.nii", patch=8, run="a")
    assert (vp.Volume(tmp_path / "a.nii").numpy() == first).all()
