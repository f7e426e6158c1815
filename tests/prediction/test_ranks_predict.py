"""Ranks share the windows of a volume, and the first one has the result."""

import multiprocessing
import os
import signal
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist

import voxpipe as vp

SECONDS = 120


def rank_of_two(rank, folder, source, last, pipe):
    """Predict in a process of its own; send how many windows the model saw, or the error."""
    warnings.simplefilter("error", UserWarning)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2)
    seen = []

    def model(batch):
        seen.append(len(batch))
        if (rank, len(seen)) == (0, last):
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.cat([torch.zeros_like(batch), batch], 1)

    volume, how = f"{folder}/a.npy", {"patch": 4}
    if source == "loader":
        chain = vp.from_cases([{"image": volume}]).open_volume().lazy_patch(4, sampling="grid")
        volume, how = vp.DataLoader2(chain.batch_patches(1)), {}
    place = f"{folder}/a.nii.zarr"
    try:
        result = vp.predict(model, volume, place, run="positive", progress=False, **how)
        pipe.send([sum(seen), result is None])
    except Exception as error:
        pipe.send(str(error))
    dist.destroy_process_group()


def start(folder, source="file", last=0):
    """Start two ranks, of which the first ends by SIGKILL in its ``last`` window."""
    (folder / "ranks").unlink(missing_ok=True)
    context = multiprocessing.get_context("forkserver")
    ranks = []
    for rank in range(2):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=rank_of_two, args=(rank, str(folder), source, last, theirs), daemon=True
        )
        process.start()
        theirs.close()
        ranks.append((process, ours))
    return ranks


def answers_of(ranks):
    """Return the result of each rank, once all have ended."""
    answers = []
    try:
        for process, pipe in ranks:
            assert pipe.poll(SECONDS), "a rank did not answer"
            answers.append(pipe.recv())
            process.join(SECONDS)
            assert process.exitcode == 0
    finally:
        end(ranks)
    return answers


def end(ranks):
    for process, pipe in ranks:
        pipe.close()
        process.kill()
        process.join()


def test_two_ranks_share_the_windows(tmp_path):
    """Every window is run once, by one of them; the volume is that of one process."""
    array = np.random.default_rng(0).normal(size=(9, 8, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)

    assert answers_of(start(tmp_path)) == [[18, False], [18, True]]
    assert (vp.Volume(tmp_path / "a.nii.zarr").numpy()[0] == (array > 0)).all()
    assert answers_of(start(tmp_path)) == [[0, False], [0, True]]  # it is there


@pytest.mark.slow
def test_two_ranks_go_on_after_a_kill(tmp_path):
    """Neither of them runs again what was finished with its layer."""
    array = np.random.default_rng(0).normal(size=(24, 8, 8)).astype(np.float32)
    np.save(tmp_path / "a.npy", array)
    count, layer, last = 11 * 3 * 3, 3 * 3, 30
    killed = start(tmp_path, last=last)
    killed[0][0].join(SECONDS)
    assert killed[0][0].exitcode == -signal.SIGKILL
    end(killed)  # the second would wait for the first one

    again = sum(windows for windows, _ in answers_of(start(tmp_path)))

    done = 2 * (last - 1)
    assert count - done <= again < count - done + 2 * layer
    assert (vp.Volume(tmp_path / "a.nii.zarr").numpy()[0] == (array > 0)).all()


def test_a_loader_that_every_rank_runs_whole(tmp_path):
    """It is refused: nothing divides it, so each window would be run by each rank."""
    np.save(tmp_path / "a.npy", np.zeros((8, 8, 8), np.float32))
    for answer in answers_of(start(tmp_path, "loader")):
        assert "each of 2 ranks would run all windows of the loader" in answer
