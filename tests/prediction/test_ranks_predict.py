"""Ranks share the windows of a volume, and the first one has the result."""

import json
import subprocess
import sys

import numpy as np

import voxpipe as vp

# Each rank tells how many windows its model saw.
SCRIPT = """
import json, os, sys
import torch
import torch.distributed as dist
import voxpipe as vp

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
seen = []

def model(batch):
    seen.append(len(batch))
    return torch.cat([torch.zeros_like(batch), batch], 1)

result = vp.predict(model, f"{folder}/a.npy", f"{folder}/a.nii.zarr", patch=4, progress=False)
print(json.dumps([sum(seen), result is None]))
dist.destroy_process_group()
"""


def test_two_ranks_share_the_windows(tmp_path):
    """Every window is run once, by one of them; the volume is that of one process."""
    array = np.random.default_rng(0).normal(size=(9, 8, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)

    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), str(tmp_path)], stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    answers = [json.loads(process.communicate(timeout=120)[0]) for process in processes]

    assert answers == [[18, False], [18, True]]
    assert (vp.Volume(tmp_path / "a.nii.zarr").numpy()[0] == (array > 0)).all()
