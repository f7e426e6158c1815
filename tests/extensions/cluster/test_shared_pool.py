"""Ranks of one job share actors: batches stay the same, and all actors end with the last rank."""

import os
import subprocess
import sys
import threading
import time

import pytest
from checkout import ROOT
from ranks import run_ranks
from test_cluster_matrix import chain, digest

import voxpipe as vp

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own files
    pytest.mark.filterwarnings("ignore::voxpipe.core.errors.IdleWorkers"),  # on a busy machine
]


def wait_for(condition, seconds=10.0):
    """Return whether a condition holds within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    return condition()


def shared(count):
    return vp.RayReadingService(count, local_workers=0, pool="shared")


def pausing(batches, seconds):
    """Yield batches, with a pause after the second one."""
    for number, batch in enumerate(batches):
        if number == 2:
            threading.Event().wait(seconds)
        yield batch


def two_ways(rank, address, pause):
    """Return the digests of this rank's part, in its process and with shared actors, and pids."""
    import ray

    ray.init(address, log_to_driver=False, configure_logging=False, _node_ip_address="127.0.0.2")
    digests, pids = [], set()
    for inner in (vp.reading_services.InProcessReadingService(), shared(2)):
        ranks = vp.DistributedReadingService()
        both = vp.reading_services.SequentialReadingService(ranks, inner)
        with vp.DataLoader2(chain(size=4), None, both, seed=7) as loader:
            first = digest(loader)
            # The second rank makes most batches after the end of the first one's connection.
            second = pausing(loader, pause if rank and digests else 0.0)
            digests += [(first, digest(second))]
            if len(digests) == 2:
                pids = {worker.process.pid for worker in loader.reading_service._pool.workers}
    ray.shutdown()
    return digests, pids


def test_two_ranks_have_the_same_actors_and_their_own_batches(cluster):
    """The second rank goes on after the end of the first."""
    every = run_ranks(2, two_ways, cluster.address, 6.0)

    assert all(digests[0] == digests[1] for digests, _ in every)
    assert every[0][0][0] != every[1][0][0]
    assert every[0][1] & every[1][1]
    pids = every[0][1] | every[1][1]
    assert len(pids) <= 2
    assert wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
