"""Among how many processes a graph is divided: a count, and beside it whether they take turns."""

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp


def kept(number):
    return number >= 0


def service_and_work(order):
    service = vp.MultiProcessingReadingService(3, order=order)
    return service, service.distribute(IterableWrapper(range(9)).sharding_filter().filter(kept))


@pytest.mark.parametrize(("order", "as_ready"), [("plan", False), ("as_ready", True)])
def test_a_count_is_no_sign_of_an_order(order, as_ready):
    """How items come is a field of what is run."""
    service, work = service_and_work(order)

    assert (service.shares(work), work.as_ready) == (3, as_ready)


@pytest.mark.parametrize(("order", "saved"), [("plan", 3), ("as_ready", -3)])
def test_saved_states_stay_as_they_are(order, saved):
    """Those of former versions are loaded: they tell both in one number."""
    pipe = IterableWrapper(range(9)).sharding_filter().filter(kept)
    with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(3, order=order)) as loader:
        state = loader.state_dict()

        assert state["shares"] == saved
        loader.load_state_dict(state)
