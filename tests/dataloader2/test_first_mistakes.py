"""What somebody who comes from torchdata writes first is refused with what to write instead."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import GraphError
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService
from voxpipe.dataloader2.adapter import Adapter

WRAP = "Wrap it: IterableWrapper(...)"
SERVICE = "give it as reading_service=, after the chain"


def numbers():
    return IterableWrapper(range(4))


def forgets(graph):
    """Stand for an adapter without a return statement."""
    graph.map(str)


class Lengths(Adapter):
    """Stand for an adapter in torchdata's form."""

    def __call__(self, datapipe):
        return datapipe.map(str)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([1, 2, 3], WRAP),
        (TensorDataset(torch.arange(3)), WRAP),
        (MultiProcessingReadingService(2), SERVICE),
        (IterableWrapper, "Give a pipe, and not its class: IterableWrapperIterDataPipe(...)"),
        (None, "Begin a chain with"),
    ],
)
def test_what_is_no_chain_is_told_with_what_to_write(given, told):
    """A list is wrapped, a service is the third argument."""
    with pytest.raises(GraphError) as e:
        DataLoader2(given)

    assert told in str(e.value)


def test_an_adapter_that_returns_nothing_is_named():
    """The adapter is at fault, and not the chain."""
    with pytest.raises(GraphError, match="the adapter forgets returned None"):
        DataLoader2(numbers(), [forgets])


def test_an_adapter_in_the_form_of_torchdata_runs():
    """A subclass of Adapter that has __call__ alone."""
    assert list(DataLoader2(numbers(), [Lengths()])) == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"batch_size": 4}, r"DataLoader2 has no batch_size; give \.batch\(4\) at the end"),
        ({"drop_last": True}, r"\.batch\(..., drop_last=True\)"),
        ({"collate_fn": list}, r"\.batch\(...\)\.collate\(...\)"),
    ],
)
def test_batches_of_plain_items_are_made_by_batch(arguments, told):
    """There is no batch of patches where there are no volumes."""
    with pytest.raises(TypeError, match=told):
        DataLoader2(numbers(), **arguments)


@pytest.mark.parametrize("rest", [(), (MultiProcessingReadingService(2),)])
def test_the_call_of_torchdata_with_a_state_is_told_to_give_the_chain(rest):
    """A state holds no chain here."""
    with pytest.raises(TypeError, match="a state holds no chain; give the one that it was taken"):
        DataLoader2.from_state({}, *rest)


def test_the_chain_of_a_loader_can_be_looked_at():
    """As it runs: a copy, after the adapters."""
    pipe = numbers()
    loader = DataLoader2(pipe, [Lengths()])

    assert list(loader.datapipe) == ["0", "1", "2", "3"]
    assert loader.datapipe is not pipe


def test_what_is_no_adapter_is_refused_when_it_is_set():
    """Before the epoch in which it would be called."""
    loader = DataLoader2(numbers())
    with pytest.raises(TypeError, match="called with the graph and returns one, got 3"):
        loader.adapters = [3]


@pytest.mark.parametrize("seconds", ["5", None, True])
def test_a_timeout_that_is_no_number_is_a_sentence(seconds):
    """With the argument and the value."""
    with pytest.raises(TypeError, match=f"positive number of seconds, got item={seconds!r}"):
        vp.Timeout(item=seconds)


def test_the_modules_of_the_package_are_there_after_one_import():
    """As in torchdata, where the package imports them."""
    names = "adapter, error, graph, linter, random, reading_service, shuffle_spec"
    program = f"import voxpipe.dataloader2 as d; [getattr(d, n) for n in '{names}'.split(', ')]"
    program += "; d.ShuffleSpec, d.graph.traverse_dps"

    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_name_of_an_adapter_is_no_adapter():
    """It is told whole, and not as a list of letters."""
    with pytest.raises(TypeError, match="got its name 'Shuffle'"):
        DataLoader2(numbers(), "Shuffle")


def test_an_option_that_a_format_lacks_is_told_with_its_case(tmp_path):
    """Not by the look ahead, which knows the reader but not the sample."""
    np.save(tmp_path / "a.npy", np.zeros((4, 4, 4), np.int16))
    cases = vp.from_cases([{"case": "first", "image": str(tmp_path / "a.npy")}])
    pipe = cases.open_volume(level=1).lazy_patch(2).batch_patches(1)

    with DataLoader2(pipe) as loader, pytest.raises(TypeError, match="'level'") as caught:
        next(iter(loader))
    assert "in case first" in str(caught.value)
    assert "test_first_mistakes.py" in str(caught.value)
