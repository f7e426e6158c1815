"""What profiles tell of waits, bytes and memory, in every process."""

import json
import os

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.counters import PipeCounts
from voxpipe.core.memory import MemorySampler, resident_bytes


def chain():
    cases = [{"image": np.zeros((8, 8, 8), np.uint8)} for _ in range(8)]
    return vp.from_cases(cases).open_volume().lazy_patch(4).batch_patches(2)


def rows_of(profile):
    return {row["pipe"].split("(")[0]: row for row in json.loads(json.dumps(profile.to_json()))}


@pytest.mark.parametrize("workers", [0, 2])
def test_bytes_and_memory_come_from_the_processes_that_made_them(workers):
    """Batches weigh what their voxels weigh; planning is this process, realizing the workers'."""
    profile = vp.Profile()
    service = vp.MultiProcessingReadingService(workers)
    with vp.DataLoader2(chain(), [profile], service, seed=7) as loader:
        list(loader)

    rows = rows_of(profile)
    assert rows["lazy_patch"]["bytes_out"] == 0
    assert rows["batch_patches"]["bytes_out"] == 8 * 4**3
    pids = set(rows["batch_patches"]["resident"])
    assert pids if workers else pids <= {str(os.getpid())}
    assert not (workers and str(os.getpid()) in pids)
    assert all(held > 2**20 for row in rows.values() for held in row["resident"].values())


def test_a_pipe_waits_for_what_comes_before_it():
    """What a pipe waited is what those above it took; a source waits for nothing."""
    profile = vp.Profile()
    with vp.DataLoader2(chain(), [profile], seed=7) as loader:
        list(loader)

    rows = rows_of(profile)
    assert rows["from_cases"]["wait"] == 0
    above = rows["from_cases"]["seconds"]
    assert rows["open_volume"]["wait"] == pytest.approx(above, rel=1e-6)
    assert "wait" in profile.table().splitlines()[0]
    assert str(profile) == profile.table()


def test_entries_of_processes_are_merged_by_process():
    """The most of each process is kept; sums are sums."""
    entry = PipeCounts(1, 1.0, wait=0.5, bytes_out=3, resident={1: 10, 2: 5})
    entry.add(PipeCounts(1, 1.0, wait=0.25, bytes_out=4, resident={2: 7, 3: 1}))

    assert (entry.wait, entry.bytes_out) == (0.75, 7)
    assert entry.resident == {1: 10, 2: 7, 3: 1}


def test_memory_is_read_from_time_to_time():
    """Two readings at once are one; the process holds something."""
    sampled = MemorySampler(every=3600)

    assert sampled.read()[os.getpid()] > 2**20
    assert sampled.read() == {}
    assert resident_bytes() > 2**20
