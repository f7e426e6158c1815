"""A loader under Accelerate: the end of an epoch, and the items that fill its last batch."""

import os
import warnings
from functools import partial

import pytest
import torch
from ranks import run_ranks

import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper

accelerate = pytest.importorskip("accelerate")


def loader_of(count, size=2, service=None):
    """Return a loader of the numbers below ``count`` in batches of ``size``."""
    return vp.DataLoader2(numbers(count).batch(size).map(torch.tensor), None, service, seed=7)


def numbers(count):
    return IterableWrapper(range(count))


def torchs(count, size=2):
    return torch.utils.data.DataLoader(range(count), batch_size=size)


@pytest.fixture
def accelerator():
    """Return an Accelerator that steps after three batches; later tests have none."""
    from accelerate.state import AcceleratorState, GradientState

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=3)
    yield accelerator
    accelerator.free_memory()  # it holds loaders
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def steps(accelerator, loader, each=lambda: None):
    """Return after which batches of an epoch the optimizer steps."""
    model = torch.nn.Linear(1, 1)
    seen = []
    for _ in loader:
        with accelerator.accumulate(model):
            seen.append(accelerator.sync_gradients)
            each()
    return seen


# Groups of three: the last of an epoch of five has two batches.
EPOCH = [False, False, True, False, True]


@pytest.mark.parametrize("make", [loader_of, torchs])
def test_the_last_group_of_an_epoch_steps(accelerator, make):
    """In every epoch; the next one begins a group of its own."""
    loader = accelerator.prepare(make(9))

    assert [steps(accelerator, loader) for _ in range(2)] == [EPOCH, EPOCH]
    assert not accelerator.gradient_state.in_dataloader


def test_a_loader_that_is_not_prepared(accelerator):
    """prepare() returns it as it is, so that both are the same."""
    assert steps(accelerator, loader_of(9)) == EPOCH


@pytest.mark.parametrize("make", [loader_of, torchs])
def test_a_loop_inside_a_loop(accelerator, make):
    """A validation inside the training changes none of its steps, from its first to last batch."""
    loader, inner = accelerator.prepare(make(9), make(4))
    ends = []

    def validate():
        ends.append([accelerator.gradient_state.end_of_dataloader for _ in inner])

    assert steps(accelerator, loader, validate) == EPOCH
    assert ends == [[False, True]] * 5


class Stop(Exception):
    """Raised by a training step."""


def breaks(loader):
    for _ in loader:
        break


def fails(loader):
    for _ in loader:
        raise Stop


def raises(loader):
    with pytest.raises(Stop):
        fails(loader)


def pauses(loader):
    batches = iter(loader)
    batches.limit(1)
    assert len(list(batches)) == 1


@pytest.mark.parametrize("leave", [breaks, raises, pauses])
def test_a_loop_that_is_left_inside_a_loop(accelerator, leave):
    """The outer loop is the innermost again, so that its last group steps."""
    inner = loader_of(4)

    assert steps(accelerator, loader_of(9), lambda: leave(inner)) == EPOCH
    leave(inner)
    assert not accelerator.gradient_state.in_dataloader


def test_workers_threads_and_pipes_after_them(accelerator):
    """The end of the epoch is known wherever batches are made."""
    services = vp.MultiProcessingReadingService(1, "fork"), vp.ThreadReadingService(2)
    for service in services:
        chain = numbers(9).batch(2).map(torch.tensor).prefetch(2).to_device("cpu")
        with vp.DataLoader2(chain, None, service) as loader:
            assert steps(accelerator, loader) == EPOCH


def test_an_epoch_without_a_batch(accelerator):
    """It ends, and leaves nothing in Accelerate's state."""
    assert list(loader_of(0)) == []
    assert not accelerator.gradient_state.in_dataloader


def noted(made, number):
    made.append(number)
    return number


def at_most(most, number):
    if number > most:
        raise ValueError(f"{number} is above {most}")
    return number


def test_batches_whose_items_all_fail_at_the_end(accelerator):
    """The last batch that has items is the last of the epoch."""
    chain = numbers(9).map(partial(at_most, 4)).batch(1).collate(torch.tensor)
    loader = vp.DataLoader2(chain, vp.OnError(budget=4, errors=ValueError))

    assert steps(accelerator, loader) == EPOCH
    assert len(loader.failures) == 4


def test_an_error_comes_after_the_batch_before_it(accelerator):
    """Reading one batch ahead loses none, and an epoch that fails has no end."""
    batches = iter(vp.DataLoader2(numbers(9).map(partial(at_most, 4)).batch(2)))

    for expected in ([0, 1], [2, 3]):
        assert next(batches) == expected
        assert not accelerator.gradient_state.end_of_dataloader
    with pytest.raises(ValueError, match="5 is above 4"):
        next(batches)
    assert not accelerator.gradient_state.in_dataloader


def test_a_state_counts_no_batch_that_is_read_ahead(accelerator):
    """It goes on with the batch after the last one that the loop has had."""
    loader = loader_of(9)
    for batch in loader:
        state = loader.state_dict()
        if batch.tolist() == [2, 3]:
            break
    loader.load_state_dict(state)

    assert state["next_batch"] == 2
    assert [batch.tolist() for batch in loader] == [[4, 5], [6, 7], [8]]


def test_a_chain_inside_a_loader_of_torchs(accelerator):
    """Only the outer loader is seen: it reads ahead itself."""
    data = vp.to_dataset(numbers(9).batch(2).map(torch.tensor), seed=7)
    loader = accelerator.prepare(torch.utils.data.DataLoader(data, batch_size=None))

    assert steps(accelerator, loader) == EPOCH


def test_without_an_accelerator_nothing_is_read_ahead():
    """Accelerate may be imported by another package."""
    made = []
    loader = vp.DataLoader2(numbers(4).map(partial(noted, made)))

    assert next(iter(loader)) == 0
    assert loader.datapipe.fn.args == ([0],)


def gathered(rank, world, cases):
    """Return items that a rank gathers, and warnings, by (chain, fill, loader of torch?)."""
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ.update(own, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # the group is there
    accelerator = accelerate.Accelerator(cpu=True)
    found = []
    for chain, uneven in cases:
        if uneven is None:
            loader = torch.utils.data.DataLoader(range(chain), batch_size=2)
        else:
            loader = vp.DataLoader2(chain, None, vp.DistributedReadingService(60.0, uneven=uneven))
        loader, numbers_seen = accelerator.prepare(loader), []
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for batch in loader:
                numbers_seen += accelerator.gather_for_metrics(torch.as_tensor(batch)).tolist()
        found.append((numbers_seen, [str(w.message) for w in told if "fill" in str(w.message)]))
    return found


def few(number):
    return number < 5


@pytest.mark.slow  # three seconds of imports in each process
@pytest.mark.usefixtures("started_store")
def test_two_ranks_gather_each_item_once():
    """As with a loader of torch, for each fill of the last batch; unknown numbers give warnings."""
    planned = {size: numbers(9).batch(size).collate(torch.tensor) for size in (1, 4)}
    filtered = numbers(9).filter(few).batch(4).collate(torch.tensor)
    single = numbers(5).map(torch.tensor)
    in_full = numbers(8).batch(4).collate(torch.tensor)
    cases = [
        (9, None),
        (planned[4], "pad"),
        (planned[4], "wrap"),
        (planned[4], "drop"),
        (planned[1], "pad"),
        (filtered, "pad"),
        (in_full, "pad"),
        (single, "pad"),
    ]
    first, second = run_ranks(2, gathered, 2, cases)

    assert first == second
    expected = [[*range(9)]] * 3 + [[*range(8)], [*range(9)], [*range(5)], [*range(8)]]
    assert first[:-1] == [(numbers, []) for numbers in expected]
    assert first[-1][0] == [0, 1, 2, 3, 4, 4]
    assert "number is unknown" in first[-1][1][0]
