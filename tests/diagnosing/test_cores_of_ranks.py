"""Ranks on one machine share its cores: a diagnosis advises for one of them."""

import numpy as np
import pytest
import torch.distributed as dist

import voxpipe as vp
from voxpipe.diagnosing import Effort
from voxpipe.diagnosing.cost_model import (
    LAUNCHERS,
    CostModel,
    LoaderFacts,
    Measurement,
    ranks_beside,
)
from voxpipe.diagnosing.diagnosis import judge
from voxpipe.diagnosing.measurement import Subject, diagnose
from voxpipe.reading_services import distributed
from voxpipe.reading_services.planner import DeliveredBatches

RANKS = 4


@pytest.fixture
def no_launcher(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def rank_of_four(monkeypatch, no_launcher):
    """Make this process one of four ranks; a diagnosis asks no other."""
    monkeypatch.setattr(distributed, "is_started", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: RANKS)


def diagnosed(cores):
    pipe = vp.from_cases([{"image": np.zeros((8, 8, 8), np.float32)}] * 4).open_volume()
    pipe = pipe.lazy_patch(4, samples_per_volume=4).batch_patches(RANKS)
    service = vp.DistributedReadingService()
    return diagnose(Subject(pipe, service, 0, 0, DeliveredBatches()), Effort(2, 0.001), None, cores)


@pytest.mark.parametrize(("local", "own"), [("", 4), ("2", 8), ("4", 4), ("9", 4), ("two", 4)])
def test_a_rank_has_its_share_of_the_cores(rank_of_four, monkeypatch, local, own):
    """Of those of its machine, by what the launcher says; nonsense of it is not believed."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", local)

    assert diagnosed(cores=16).facts.cores == own


def test_one_process_has_all_cores(no_launcher):
    """A launcher's word alone makes no ranks."""
    assert ranks_beside(1, {"LOCAL_WORLD_SIZE": "8"}) == 1
    assert diagnosed(cores=16).facts.cores == 16


def test_every_rank_has_a_core(rank_of_four):
    """Also where there are more ranks than cores."""
    assert diagnosed(cores=2).facts.cores == 1


def test_the_advice_says_whose_cores_they_are():
    """What it advises fits beside the other ranks."""
    costs = CostModel(items=1.0, fetch=1.0, decode=1.0, kernels={"image": 8.0}, rest=1.0)
    facts = LoaderFacts(workers=2, cores=4, ranks=4)
    advice = judge(Measurement(costs, facts), 0.01).advice

    assert "num_workers=4): on 4 cores for each of 4 ranks it is forecast" in advice
