"""How a model is called, and what is done with the memory that it leaves."""

import numpy as np
import pytest
import torch

from voxpipe.prediction.model_calls import Heap, run_model


def test_the_heap_is_given_back_now_and_then(monkeypatch):
    """After every 128 MiB of output, not after every window."""
    heap, calls = Heap(), []
    monkeypatch.setattr(heap, "_trim", calls.append)
    for _ in range(40):
        heap.note(8 * 1024**2)

    assert calls == [0, 0]


class Keeping(torch.nn.Module):
    """A model that keeps what it gives, or gives what it keeps."""

    def __init__(self, way):
        super().__init__()
        self.way, self.kept = way, torch.ones(1, 1, 2, 3, 4)
        self.array = np.ones((1, 1, 2, 3, 4), np.float32)

    def forward(self, batch):
        if self.way == "numpy":
            return torch.from_numpy(self.array)
        self.kept = batch * 2
        return {"same": self.kept, "view": self.kept[:]}[self.way]


class ScriptedKeeping(torch.nn.Module):
    """One that TorchScript runs, which keeps what it gives."""

    def __init__(self):
        super().__init__()
        self.kept = torch.zeros(1)

    def forward(self, batch):
        """Return twice the batch."""
        self.kept = batch * 2
        return self.kept


class Reusing(torch.nn.Module):
    """A model that writes to what it was given, or gave, before or now; it adds one."""

    def __init__(self, way):
        super().__init__()
        self.way, self.last = way, None

    def forward(self, batch):
        if self.way == "input":
            return batch.add_(1)
        if self.last is not None:
            self.last.fill_(1e6)
        result = batch + 1
        self.last = batch if self.way == "last input" else result
        if self.way == "buffer":
            self.buffer = getattr(self, "buffer", torch.empty_like(result))
            self.last, result = None, self.buffer.copy_(result)
        return result


@pytest.mark.parametrize("mirror", [(0,), (0, 1, 2)])
@pytest.mark.parametrize("way", ["input", "last input", "last output", "buffer"])
def test_a_model_may_write_to_what_it_got_and_gave(way, mirror):
    """Each way to mirror gets the window as it is, and the mean is not the model's memory."""
    batch = torch.arange(24.0).reshape(1, 1, 2, 3, 4)

    output, _ = run_model(Reusing(way), batch.clone(), mirror)

    assert (output == (batch + 1).numpy()).all()


@pytest.mark.parametrize(
    ("model", "mirror", "is_kept"),
    [
        (torch.nn.Identity(), (), True),
        (Keeping("same"), (), True),
        (Keeping("view"), (), True),
        (Keeping("numpy"), (), True),
        (lambda batch: batch * 2, (), False),
        (lambda batch: [batch * 2, batch], (), False),
        (torch.nn.Conv3d(1, 2, 1), (), False),
        (lambda batch: batch.double(), (), False),
        (torch.nn.Identity(), (0, 2), False),
    ],
)
def test_whose_memory_an_output_is(model, mirror, is_kept):
    """Another call may write to what the model keeps, and to nothing else."""
    output, found = run_model(model, torch.ones(1, 1, 2, 3, 4), mirror)

    assert output.dtype == "float32"
    assert found == is_kept


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_what_torchscript_keeps_is_the_models():
    """No Python object holds it."""
    assert run_model(torch.jit.script(ScriptedKeeping()), torch.ones(1, 1, 2, 3, 4), ())[1]


def test_where_torch_does_not_tell_it_is_the_models(monkeypatch):
    """As of a version without that function."""
    monkeypatch.delattr(torch._C, "_storage_Use_Count")

    assert run_model(lambda batch: batch * 2, torch.ones(1, 1, 2, 3, 4), ())[1]
