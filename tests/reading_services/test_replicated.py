"""Graphs that cannot be cut: each worker runs the whole graph on its share."""

import numpy as np
import pytest
import torch
from scenes import same, write_cases

import voxpipe as vp
from voxpipe.core.errors import IdleWorkers

pytestmark = pytest.mark.filterwarnings(
    # forking with threads of torch around is what these tests ask for
    "ignore:This process.*is multi-threaded:DeprecationWarning"
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"), count=5)


def is_bright(sample):
    return bool(sample["image"].float().mean() > -50)


def filtered(cases, shard):
    """A filter on voxels: no plan can know what it keeps."""
    pipe = vp.from_cases(cases).shuffle()
    pipe = pipe.sharding_filter() if shard else pipe
    pipe = pipe.open_volume().lazy_patch(6, samples_per_volume=3).rotate((-15, 15))
    return pipe.realize().filter(is_bright).batch_patches(1)


def batches_of(cases, workers, shard=True, epochs=1, method="fork"):
    service = vp.MultiProcessingReadingService(workers, method)
    with vp.DataLoader2(filtered(cases, shard), None, service, seed=7) as it:
        return [list(it) for _ in range(epochs)]


def by_identity(batches):
    return {str(b["meta"][0]["identity"]): b for b in batches}


def test_explain_says_why(cases):
    """The pipe that prevents the cut is named, and what happens instead."""
    service = vp.MultiProcessingReadingService(2)
    text = vp.DataLoader2(filtered(cases, True), None, service).explain()
    alone = vp.DataLoader2(filtered(cases, False), None, service).explain()

    assert "not split: realize() needs voxels, and filter(is_bright test_replicated.py:" in text
    assert "each of 2 workers runs the whole graph on its share" in text
    assert "one worker runs the whole graph; add .sharding_filter()" in alone


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_shares_add_up_to_the_whole(cases, workers):
    """Any number of workers delivers the same items, each once, with the same voxels."""
    (expected,) = batches_of(cases, 0)

    (batches,) = batches_of(cases, workers)

    assert len(batches) == len(expected) > 5
    assert by_identity(batches).keys() == by_identity(expected).keys()
    for name, batch in by_identity(batches).items():
        assert same([batch], [by_identity(expected)[name]])


def test_without_a_sharding_filter_one_worker_keeps_the_order(cases):
    """A graph that does not shard runs once, in the order of one process."""
    expected = batches_of(cases, 0, shard=False, epochs=2)

    with pytest.warns(IdleWorkers) as told:
        batches = batches_of(cases, 3, shard=False, epochs=2, method="forkserver")
    text = str(told[0].message)
    assert len(told) == 1  # in two epochs
    assert "3 workers were asked for and 1 works" in text
    assert "filter(is_bright test_replicated.py:" in text

    assert same(batches[0], expected[0])
    assert same(batches[1], expected[1])
    assert not same(batches[0], batches[1])


def test_resuming_gives_the_rest(cases):
    """There is no plan to skip in, so batches are made and dropped, but the rest is right."""
    (whole,) = batches_of(cases, 2)
    service = vp.MultiProcessingReadingService(2, "fork")
    with vp.DataLoader2(filtered(cases, True), None, service, seed=7) as it:
        batches = iter(it)
        next(batches), next(batches), next(batches)
        state = it.state_dict()

    with vp.DataLoader2(filtered(cases, True), None, service, seed=7) as it:
        it.load_state_dict(state)

        assert same(list(it), whole[3:])


def fail_late(sample):
    if sample.identity == (2, 1):
        raise ValueError("this one")
    return True


def test_an_error_in_a_replica_arrives(cases):
    """A failing filter raises here, as itself."""
    pipe = vp.from_cases(cases).sharding_filter().open_volume().lazy_patch(6, samples_per_volume=3)
    pipe = pipe.realize().filter(fail_late)

    service = vp.MultiProcessingReadingService(2, "fork")
    with (
        vp.DataLoader2(pipe, None, service, seed=7) as it,
        pytest.raises(ValueError, match="this one"),
    ):
        list(it)


def test_a_graph_of_other_pipes_needs_no_volumes():
    """A plain torch chain runs too: everything is planned here, items in order."""
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(range(20)).shuffle().map(torch.tensor).batch(4).collate()
    service = vp.MultiProcessingReadingService(2, "fork")
    with vp.DataLoader2(pipe, None, service, seed=7) as it, vp.DataLoader2(pipe, seed=7) as here:
        batches, expected = list(it), list(here)

    assert [b.tolist() for b in batches] == [b.tolist() for b in expected]
    assert sorted(np.concatenate(batches).tolist()) == list(range(20))
