"""Slots are page-locked where CUDA is in use; a device that still reads keeps its slot."""

import ast
import ctypes
import gc
import importlib
import inspect
import pkgutil
import sys
import types

import pytest
import torch
from links import STEP, Link

from voxpipe.core.errors import SlotsUsedUp
from voxpipe.reading_services import transport
from voxpipe.reading_services.transport import shared_memory as mapping
from voxpipe.reading_services.transport import slot_reader as pinning
from voxpipe.reading_services.transport.slot_reader import Cuda

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memfd_create")


class Recorder:
    """A registrar that only remembers; its device is done when the test says so."""

    def __init__(self, ready=True, accepts=True):
        self.ready, self.accepts, self.done = ready, accepts, True
        self.pinned, self.unpinned, self.marks = [], [], 0

    def is_ready(self):
        return self.ready

    def pin(self, address, size):
        self.pinned.append((address, size))
        return self.accepts

    def unpin(self, address):
        # Still mapped: reading it would end the process otherwise.
        assert ctypes.string_at(address, 1) is not None
        self.unpinned.append(address)

    def mark(self):
        self.marks += 1
        return lambda: self.done


def test_a_slot_is_registered_once_and_unregistered_before_it_is_unmapped():
    """Twenty batches through two slots: two registrations, undone with the slots."""
    device = Recorder()
    link = Link(registrar=device)
    held = None
    for number in range(20):
        batch = link.deliver(number)
        held = batch
    assert held["image"][0] == 19
    assert [size for _, size in device.pinned] == [STEP, STEP]
    assert device.unpinned == []

    link.reader.close()
    assert len(device.unpinned) == 1  # the other is looked into
    del held, batch
    gc.collect()
    assert sorted(device.unpinned) == sorted(address for address, _ in device.pinned)


def test_nothing_is_registered_before_cuda_is_in_use():
    """A slot that was there before is registered with its next batch."""
    device = Recorder(ready=False)
    link = Link(registrar=device)
    del link.deliver(0)["image"]
    gc.collect()
    assert device.pinned == []

    device.ready = True
    link.deliver(1)

    assert len(device.pinned) == len(link.made) == 1


def test_a_refusal_costs_nothing_but_speed():
    """Where memory cannot be locked, e.g. by a limit, batches arrive and slots go round."""
    device = Recorder(accepts=False)
    link = Link(registrar=device)

    values = [int(link.deliver(number)["image"][0]) for number in range(5)]

    assert values == list(range(5))
    assert len(link.made) == 1
    assert (device.marks, device.unpinned) == (0, [])
    assert len(device.pinned) == 1  # asked once, not for every batch


def test_a_slot_that_a_device_may_still_read_is_not_handed_back():
    """Its tensors are gone, but a copy to the device may be under way."""
    device = Recorder()
    link = Link(registrar=device)
    batch = link.deliver(1)
    device.done = False
    del batch
    gc.collect()

    assert link.reader.take_freed() == []
    assert link.reader.take_freed() == []
    device.done = True
    assert link.reader.take_freed() == [0]
    assert link.reader.take_freed() == []
    assert device.marks == 1


def test_slots_that_cool_down_count_as_taken():
    """With one slot cooling and one in flight, a batch in two slots' room is copied."""
    device = Recorder()
    link = Link(limit=2 * STEP, ahead=1, registrar=device)
    first = link.deliver(1)
    device.done = False
    del first
    gc.collect()

    with pytest.warns(SlotsUsedUp, match="^batches still in use: 1 "):
        second = link.deliver(2)

    assert second["image"][0] == 2
    # What was copied out was copied by this process: that slot is free now.
    assert link.reader.take_freed() == [1]


class FakeTorch:
    """The parts of torch that are asked, recording what they are told."""

    def __init__(self, initialized, capable=2, refusal=0):
        self.calls = []
        self.capturing = False
        runtime = types.SimpleNamespace(
            cudaHostRegister=lambda *a: self.calls.append(("register", *a)) or refusal,
            cudaHostUnregister=lambda *a: self.calls.append(("unregister", *a)) or 0,
        )
        self._C = types.SimpleNamespace(_cuda_hasPrimaryContext=lambda n: n == 0)
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: initialized,
            is_current_stream_capturing=lambda: self.capturing,
            cudart=lambda: runtime,
            device_count=lambda: capable,
            device=lambda n: torch.no_grad(),
            synchronize=lambda n: self.calls.append(("synchronize", n)),
            Event=lambda: types.SimpleNamespace(
                record=lambda: self.calls.append(("record",)),
                query=lambda: False,
                cuda_event=1,
            ),
        )


@pytest.fixture
def fake(monkeypatch):
    def install(**options):
        fake = FakeTorch(**options)
        monkeypatch.setitem(sys.modules, "torch", fake)
        return fake

    return install


def test_cuda_is_asked_in_the_right_words(fake):
    """Registered for every device; before it is undone, devices in use are waited for."""
    torch = fake(initialized=True)
    assert Cuda().is_ready()

    assert Cuda().pin(4096, 100)
    Cuda().unpin(4096)

    assert torch.calls == [("register", 4096, 100, 1), ("synchronize", 0), ("unregister", 4096)]


def test_cuda_that_refuses_is_taken_at_its_word(fake, monkeypatch):
    """An error of the runtime is no page-locked memory, and nobody else's error."""
    forgotten = []
    runtime = types.SimpleNamespace(cudaGetLastError=lambda: forgotten.append(True))
    line = "7f0-7f1 r-xp 00000000 08:01 12 /a folder/libcudart.so.12\n"
    monkeypatch.setattr(
        pinning.Path, "read_text", lambda path, encoding: f"7e0-7e1 rw-p 0 0:0 0\n{line}"
    )
    monkeypatch.setattr(pinning.ctypes, "CDLL", {"/a folder/libcudart.so.12": runtime}.__getitem__)
    fake(initialized=True, refusal=2)

    assert not Cuda().pin(4096, 100)
    assert forgotten == [True]


def test_a_runtime_that_cannot_be_found_is_left_as_it_is(fake):
    """The error stays then, and the batch arrives all the same."""
    fake(initialized=True, refusal=2)

    assert not Cuda().pin(4096, 100)


def test_a_capture_is_left_alone(fake, monkeypatch):
    """Nothing is registered, recorded or asked before it ends; then the slot cools as ever."""
    torch = fake(initialized=True)
    monkeypatch.setattr(pinning, "_covers_context", lambda event: False)
    torch.capturing = True

    assert not Cuda().is_ready()
    check = Cuda().mark()
    assert not check()
    assert torch.calls == []

    torch.capturing = False
    assert check()
    assert torch.calls == [("record",), ("synchronize", 0)]


def test_a_capture_after_the_mark_is_left_alone(fake, monkeypatch):
    """Asking for an event would end it."""
    torch = fake(initialized=True)
    monkeypatch.setattr(pinning, "_covers_context", lambda event: False)
    check = Cuda().mark()
    torch.capturing = True

    assert not check()
    torch.capturing = False
    assert check()


def test_memory_is_unmapped_whatever_the_registrar_does(monkeypatch):
    """An error of the device does not keep the memory."""
    unmapped = []
    libc = types.SimpleNamespace(munmap=lambda *place: unmapped.append(place))
    monkeypatch.setattr(mapping, "_LIBC", libc)

    with pytest.raises(RuntimeError):
        mapping._unmap(4096, 100, [refuse])

    assert unmapped == [(4096, 100)]


def refuse():
    """Fail as a device does that was lost."""
    raise RuntimeError("no device")


def test_without_an_event_for_all_streams_the_device_is_waited_for(fake, monkeypatch):
    """Older drivers cannot watch all streams at once."""
    torch = fake(initialized=True)
    monkeypatch.setattr(pinning, "_covers_context", lambda event: False)

    assert Cuda().mark()()
    assert torch.calls == [("record",), ("synchronize", 0)]


def test_an_event_over_all_streams_is_only_asked(fake, monkeypatch):
    """Newer ones can, and nobody waits."""
    torch = fake(initialized=True)
    monkeypatch.setattr(pinning, "_covers_context", lambda event: True)

    assert not Cuda().mark()()
    assert torch.calls == [("record",)]


def test_cuda_that_is_not_initialized_is_left_alone(fake):
    """Nothing is asked of a runtime that the user has not started."""
    torch = fake(initialized=False)

    assert not Cuda().is_ready()
    assert Cuda().mark()()
    Cuda().unpin(4096)
    assert torch.calls == []


def test_a_driver_that_is_not_there_covers_nothing(monkeypatch):
    """Without libcuda, or in one without the function, the device is waited for."""

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(pinning.ctypes, "CDLL", missing)

    assert not pinning._covers_context(1)


def test_no_module_of_the_slots_imports_torch():
    """A worker that has no torch can write slots."""
    names = [found.name for found in pkgutil.iter_modules(transport.__path__)]
    assert len(names) >= 4
    for name in names:
        module = importlib.import_module(f"{transport.__name__}.{name}")
        tree = ast.parse(inspect.getsource(module))
        # Functions of this one ask for torch only where a tensor is, or is wanted.
        nodes = tree.body if name == "messages" else ast.walk(tree)
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]

        assert "torch" not in " ".join(map(ast.unparse, imports))
