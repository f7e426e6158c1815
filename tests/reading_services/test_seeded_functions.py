"""Functions in the process of the loader: seeded for each item, and nobody else's draws move."""

import os
import random

import numpy as np
import pytest
import torch
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp

NUMBERS = [1, 2, 3, 4]
FACTOR = 3


def plus(number):
    return number + FACTOR


def sneaky(number):
    return plus(number) * jitter()


def jitter():
    return random.random()


def epoch(pipe, workers=0):
    service = vp.MultiProcessingReadingService(workers, multiprocessing_context="fork")
    with vp.DataLoader2(pipe, None, service, seed=3) as loader:
        return list(loader)


def test_numbers_stay_those_of_the_recorded_run():
    """Recorded; with workers, too."""
    pipe = IterableWrapper(NUMBERS).map(sneaky)

    assert epoch(pipe) == epoch(pipe, workers=2) == RECORDED
    assert epoch(IterableWrapper(NUMBERS).map(sneaky).shuffle()) == RECORDED_IN_THE_PLANNER


RECORDED = [1.151006376921777, 4.447669689807863, 1.1307747988907852, 3.3591647708959904]
RECORDED_IN_THE_PLANNER = [
    *(1.389710100001487, 4.13877888742478, 3.7498987592817032, 1.0137570170705426),
]


def first_of_a_set(number):
    return next(iter({"ct", "pet", "mr", "us", "xa", "cr"}))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [None, "random", "3"])
def test_spawned_workers_order_sets_alike(monkeypatch, seed):
    """Each would have a seed of its own for the hashes of strings."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    if seed is not None:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    service = vp.MultiProcessingReadingService(3, multiprocessing_context="spawn")

    with vp.DataLoader2(IterableWrapper(range(9)).map(first_of_a_set), None, service) as loader:
        assert len({*loader}) == 1

    assert os.environ.get("PYTHONHASHSEED") == seed


def test_generators_of_the_program_are_left_alone():
    """In the loop and after it."""
    for function in (plus, sneaky):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        expected = [random.random(), np.random.rand(), torch.rand(()).item()]
        random.seed(5), np.random.seed(5), torch.manual_seed(5)
        with vp.DataLoader2(IterableWrapper(NUMBERS).map(function), seed=1) as loader:
            next(iter(loader))
            assert [random.random(), np.random.rand(), torch.rand(()).item()] == expected


def fails(text):
    return int(text)


@pytest.mark.parametrize("size", [0, 2])
def test_an_error_names_its_pipe(size):
    """With the item, the pipe and its line; and what was made before it arrives."""
    pipe = IterableWrapper(["1", "2", "x", "4"]).map(fails)
    pipe = pipe.batch(size) if size else pipe

    with vp.DataLoader2(pipe, seed=1) as loader:
        running = iter(loader)
        first = [next(running) for _ in range(1 if size else 2)]
        with pytest.raises(ValueError, match="invalid literal") as caught:
            next(running)

    assert first == ([[1, 2]] if size else [1, 2])
    assert "map(fails)" in "".join(caught.value.__notes__)


def test_an_epoch_is_resumed_with_what_is_left():
    """From any place, with what the whole epoch has there."""
    pipe = IterableWrapper(range(10)).shuffle().map(plus).batch(3)
    whole = epoch(pipe)
    for taken in range(len(whole) + 1):
        with vp.DataLoader2(pipe, seed=3) as loader:
            running = iter(loader)
            first = [next(running) for _ in range(taken)]
            state = loader.state_dict()
        with vp.DataLoader2(pipe) as loader:
            loader.load_state_dict(state)
            assert first + (list(loader) if taken < len(whole) else []) == whole


def test_a_list_that_grows_counts_from_the_next_epoch_on():
    """The values of an epoch are those at its beginning, as torch's wrapper has it."""
    numbers = [1, 2]
    with vp.DataLoader2(IterableWrapper(numbers).map(abs)) as loader:
        found = []
        for number in loader:
            numbers.append(-number)
            found.append(number)
        again = list(loader)

    assert found == [1, 2]
    assert again == [1, 2, 1, 2]
