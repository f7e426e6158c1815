"""limit, pause, resume, from_state and the sampler that frameworks talk to."""

import pytest
from scenes import full_chain, same
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import StateMismatch
from voxpipe.dataloader2 import PauseIteration


def loader_of(cases, workers=0):
    service = vp.MultiProcessingReadingService(workers)
    return vp.DataLoader2(full_chain(cases, samples=4, batch=2), None, service, seed=7)


@pytest.fixture(scope="module")
def whole(cases):
    with loader_of(cases) as loader:
        return list(loader), list(loader)


def numbers(count=5):
    return vp.DataLoader2(IterableWrapper(range(count)))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_comes_in_parts_is_what_comes_at_once(cases, whole, workers):
    """A limit holds again after each resume; no batch is lost or doubled in between."""
    with loader_of(cases, workers) as loader:
        batches = iter(loader)
        batches.limit(4)
        parts = [list(batches)]
        while len(parts[-1]) == 4:
            batches.resume()
            parts.append(list(batches))

        assert [len(part) for part in parts] == [4, 2]
        assert same([batch for part in parts for batch in part], whole[0])
        assert same(list(loader), whole[1])


def test_a_limit_is_set_and_taken_away_at_any_time():
    """It counts from the call."""
    batches = iter(numbers(8))
    next(batches)
    batches.limit(1)

    assert list(batches) == [1]
    batches.limit(3)
    batches.resume()
    assert list(batches) == [2, 3, 4]
    batches.limit(None)
    batches.resume()
    assert list(batches) == [5, 6, 7]


def test_a_paused_iterator_hands_out_nothing_until_it_is_resumed():
    """Any number of times; the epoch has not ended."""
    batches = iter(numbers())
    next(batches)
    batches.pause()

    for _ in range(2):
        with pytest.raises(PauseIteration):
            next(batches)
    batches.resume()

    assert list(batches) == [1, 2, 3, 4]


def test_resuming_what_runs_is_told():
    """It does nothing, and probably means that a limit was forgotten."""
    batches = iter(numbers())

    with pytest.warns(UserWarning, match="is not paused"):
        batches.resume()

    assert list(batches) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "2"])
def test_a_limit_is_a_count(limit):
    """Zero would never hand out anything."""
    with pytest.raises((ValueError, TypeError), match="num_batches"):
        iter(numbers()).limit(limit)


def test_a_state_of_a_paused_iterator_is_where_it_stands(cases, whole):
    """Pausing is no end of an epoch."""
    with loader_of(cases, 2) as loader:
        batches = iter(loader)
        batches.limit(3)
        list(batches)
        state = loader.state_dict()

    chain = full_chain(cases, samples=4, batch=2)
    with vp.DataLoader2.from_state(state, chain) as resumed:
        assert same(list(resumed), whole[0][3:])


def test_from_state_refuses_what_belongs_elsewhere(cases):
    """As load_state_dict does."""
    with loader_of(cases) as loader:
        state = loader.state_dict()

    with pytest.raises(StateMismatch, match="graph"):
        vp.DataLoader2.from_state(state, full_chain(cases, samples=4, batch=3))


def test_a_framework_sets_the_epoch(cases, whole):
    """Before every epoch, by number."""
    with loader_of(cases) as loader:
        loader.sampler.set_epoch(0)
        first = list(loader)
        loader.sampler.set_epoch(1)

        assert same(first, whole[0])
        assert same(list(loader), whole[1])


def test_setting_the_epoch_keeps_the_place_in_it(cases, whole):
    """A state was loaded, then the framework says which epoch begins: the same."""
    with loader_of(cases) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        loader.load_state_dict(state)
        loader.sampler.set_epoch(0)

        assert same(list(loader), whole[0][1:])
        loader.sampler.set_epoch(1)
        assert same(list(loader), whole[1])


def test_an_iterator_that_is_not_begun_follows_the_epoch(cases, whole):
    """Frameworks ask for it first and say which epoch it is for afterwards."""
    with loader_of(cases) as loader:
        batches = iter(loader)
        loader.sampler.set_epoch(1)

        assert same(list(batches), whole[1])
        assert loader.state_dict()["epoch"] == 2
