"""Ranks share the windows of a volume, and the first one has the result."""

import json
import subprocess
import sys

import numpy as np

import voxpipe as vp

# Each rank tells how many windows its model saw.
SCRIPT = """
import json, os, signal, sys
import torch
import torch.distributed as dist
import voxpipe as vp

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
seen = []

def model(batch):
    seen.append(len(batch))
    if (rank, len(seen)) == (0, int(sys.argv[4])):
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.cat([torch.zeros_like(batch), batch], 1)

source = f"{folder}/a.npy"
if sys.argv[3] == "loader":
    chain = vp.from_cases([{"image": source}]).open_volume().lazy_patch(4, sampling="grid")
    source = vp.DataLoader2(chain.batch_patches(1))
how = {"run": "positive", "progress": False} | ({} if sys.argv[3] == "loader" else {"patch": 4})
result = vp.predict(model, source, f"{folder}/a.nii.zarr", **how)
print(json.dumps([sum(seen), result is None]))
dist.destroy_process_group()
"""


def start(folder, source="file", last=0):
    """Start two ranks, of which the first ends by SIGKILL in its ``last`` window."""
    (folder / "ranks").unlink(missing_ok=True)
    return [
        subprocess.Popen(
            [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for arguments in ((rank, folder, source, last) for rank in range(2))
    ]


def answers_of(processes):
    return [json.loads(process.communicate(timeout=120)[0]) for process in processes]


def test_two_ranks_share_the_windows(tmp_path):
    """Every window is run once, by one of them; the volume is that of one process."""
    array = np.random.default_rng(0).normal(size=(9, 8, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)

    assert answers_of(start(tmp_path)) == [[18, False], [18, True]]
    assert (vp.Volume(tmp_path / "a.nii.zarr").numpy()[0] == (array > 0)).all()
    assert answers_of(start(tmp_path)) == [[0, False], [0, True]]  # it is there


def test_two_ranks_go_on_after_a_kill(tmp_path):
    """Neither of them runs again what was finished with its layer."""
    array = np.random.default_rng(0).normal(size=(24, 8, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    count, layer, last = 11 * 3 * 3, 3 * 3, 30
    killed = start(tmp_path, last=last)
    assert killed[0].wait(120) == -9
    killed[1].kill()  # it would wait for the other one
    for process in killed:
        process.communicate()

    again = sum(windows for windows, _ in answers_of(start(tmp_path)))

    done = 2 * (last - 1)
    assert count - done <= again < count - done + 2 * layer
    assert (vp.Volume(tmp_path / "a.nii.zarr").numpy()[0] == (array > 0)).all()


def test_a_loader_that_every_rank_runs_whole(tmp_path):
    """It is refused: nothing divides it, so each window would be run by each rank."""
    np.save(tmp_path / "a.npy", np.zeros((8, 8, 8), np.float32))
    for process in start(tmp_path, "loader"):
        _, errors = process.communicate(timeout=120)
        assert b"each of 2 ranks would run all windows of the loader" in errors
