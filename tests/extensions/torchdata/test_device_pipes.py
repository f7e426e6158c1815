"""Tensors of items on another device or in page-locked memory."""

from collections import OrderedDict, namedtuple

import pytest
import torch

import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper, PinMemory
from voxpipe.datapipes.tensors import map_tensors
from voxpipe.extensions.torchdata.main_process import pin_memory_fn

Pair = namedtuple("Pair", "image label")
CUDA = torch.cuda.is_available()
without_cuda = pytest.mark.skipif(CUDA, reason="there is a GPU")
with_cuda = pytest.mark.skipif(not CUDA, reason="there is no GPU")


def test_tensors_are_found_wherever_they_are():
    """And everything keeps its class."""
    one = torch.ones(1)
    item = {"a": [one, "x"], "b": Pair(one, (one, 3)), "c": OrderedDict(d=one)}

    changed = map_tensors(item, torch.neg)

    assert changed == {"a": [-one, "x"], "b": Pair(-one, (-one, 3)), "c": OrderedDict(d=-one)}
    assert isinstance(changed["b"], Pair)
    assert isinstance(changed["c"], OrderedDict)
    assert item["a"][0] is one


def test_items_are_moved():
    """To the device, batches and samples; what else they hold stays."""
    cases = [{"image": torch.zeros(4, 4, 4), "case": "a"}]
    pipe = vp.from_cases(cases).open_volume().realize().to_device("meta")

    (sample,) = pipe

    assert sample["image"].device.type == "meta"
    assert sample.case == "a"
    assert len(pipe) == 1


@without_cuda
@pytest.mark.parametrize(
    ("call", "arguments"),
    [("pin_memory", ()), ("to_device", ("cuda",)), ("to_device", ("cuda:3",))],
)
def test_without_a_gpu_it_is_refused_at_construction(call, arguments):
    """With the user's line; torchdata raises a bare RuntimeError, which this is as well."""
    with pytest.raises(vp.errors.NoDevice, match="can only be used when CUDA is avail") as told:
        getattr(IterableWrapper([torch.ones(1)]), call)(*arguments)
    assert isinstance(told.value, RuntimeError)
    assert f"at .{call}(" in str(told.value)


def test_devices_that_are_none_are_refused():
    """At construction, as a RuntimeError, which torch's own is too."""
    with pytest.raises(RuntimeError, match="names no device that torch has here"):
        IterableWrapper([1]).to_device("gpu")


def test_pinning_asks_the_item_first():
    """A class of the user's can pin itself; words stay."""

    class Own:
        def pin_memory(self, device):
            return ("pinned", device)

    assert pin_memory_fn(Own(), 3) == ("pinned", 3)
    assert pin_memory_fn({"a": "word"}) == {"a": "word"}


def test_pinning_runs_ahead_in_a_thread(monkeypatch):
    """Two items, each given to the function with the device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)

    pipe = PinMemory(IterableWrapper(range(4)), pin_memory_fn=lambda item, device: (item, device))

    assert list(pipe) == [(n, 5) for n in range(4)]
    assert pipe.buffer_size == 2
    assert not pipe.is_replicable()
    reading = iter(pipe)
    next(reading)
    pipe.pause()  # at which torchdata's spins for ever
    pipe.resume()
    assert [item for item, _ in reading] == [1, 2, 3]


def test_a_function_that_fails_to_pin_is_heard(monkeypatch):
    """In its turn, as any error."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def fail_at_two(item, device):
        if item == 2:
            raise LookupError("two")
        return item

    reading = iter(IterableWrapper(range(4)).pin_memory(pin_memory_fn=fail_at_two))

    assert [next(reading), next(reading)] == [0, 1]
    with pytest.raises(LookupError, match="two"):
        next(reading)


@with_cuda
def test_items_come_pinned_and_are_moved():
    """On a machine with a GPU."""
    pipe = IterableWrapper([{"image": torch.arange(4.0)}]).pin_memory()
    assert next(iter(pipe))["image"].is_pinned()
    (item,) = pipe.to_device("cuda")
    assert item["image"].device.type == "cuda"
    assert item["image"].cpu().tolist() == [0, 1, 2, 3]
