"""How a model is called, and what is done with the memory that it leaves."""

import re

import numpy as np
import pytest
import torch

from voxpipe.core.errors import SampleError
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

    (output,), _ = run_model(Reusing(way), batch.clone(), mirror)

    assert (output == (batch + 1).numpy()).all()


@pytest.mark.parametrize(
    ("model", "mirror", "is_kept"),
    [
        (torch.nn.Identity(), (), True),
        (Keeping("same"), (), True),
        (Keeping("view"), (), True),
        (Keeping("numpy"), (), True),
        (lambda batch: batch * 2, (), False),
        (lambda batch: [batch * 2], (), False),
        (torch.nn.Conv3d(1, 2, 1), (), False),
        (lambda batch: batch.double(), (), False),
        (torch.nn.Identity(), (0, 2), False),
    ],
)
def test_whose_memory_an_output_is(model, mirror, is_kept):
    """Another call may write to what the model keeps, and to nothing else."""
    (output,), found = run_model(model, torch.ones(1, 1, 2, 3, 4), mirror)

    assert output.dtype == "float32"
    assert found == is_kept


def outputs(*sizes, channels=2):
    """Return tensors of ones for a batch of one, of these sizes."""
    return [torch.ones(1, channels, *size) for size in sizes]


WINDOW, HALF = (4, 4, 4), (2, 2, 2)
DEEP = outputs(WINDOW, (4, 2, 2), HALF)


@pytest.mark.parametrize(
    ("result", "head"),
    [
        (DEEP, None),
        (tuple(DEEP), None),
        (DEEP[:1], None),
        ({"out": DEEP[0]}, None),
        ([[DEEP[0]]], None),
        ([DEEP[1], DEEP[0]], 1),
        ({"features": DEEP[1], "logits": DEEP[0]}, "logits"),
        ((DEEP, torch.ones(3)), 0),
    ],
)
def test_the_output_that_counts(result, head):
    """The only one, the finest of deep supervision, or the one that head= names."""
    (found,), _ = run_model(lambda batch: result, torch.ones(1, 1, *WINDOW), (), head)

    assert found.shape == (1, 2, *WINDOW)


@pytest.mark.parametrize(
    ("result", "head", "words"),
    [
        (outputs(WINDOW, WINDOW), None, "2 outputs: 0: a Tensor of shape.*head=0"),
        (outputs(WINDOW, HALF, WINDOW), None, "3 outputs"),
        (outputs(HALF, WINDOW), None, "2 outputs"),
        ([*outputs(WINDOW), *outputs(HALF, channels=7)], None, "2 outputs"),
        ((DEEP[0], None), None, "1: a NoneType"),
        ({"features": DEEP[0], "logits": DEEP[0]}, None, "head='features'"),
        ({"logits": DEEP[0]}, "seg", "outputs 'logits', and not 'seg'"),
        (DEEP, 3, "outputs 0, 1, 2, and not 3"),
        (DEEP[0], 0, "Leave head= out"),
        ([], None, "a list"),
    ],
)
def test_several_outputs_are_refused(result, head, words):
    """The error names the outputs, and how one of them is chosen."""
    with pytest.raises(SampleError) as raised:
        run_model(lambda batch: result, torch.ones(1, 1, *WINDOW), (), head)

    assert re.search(words, str(raised.value), re.DOTALL)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is (deprecated|not supp):FutureWarning")
def test_what_torchscript_keeps_is_the_models():
    """No Python object holds it."""
    assert run_model(torch.jit.script(ScriptedKeeping()), torch.ones(1, 1, 2, 3, 4), ())[1]


def test_where_torch_does_not_tell_it_is_the_models(monkeypatch):
    """As of a version without that function."""
    monkeypatch.delattr(torch._C, "_storage_Use_Count")

    assert run_model(lambda batch: batch * 2, torch.ones(1, 1, 2, 3, 4), ())[1]


def test_complex_numbers_are_refused():
    """PyTorch would drop their imaginary parts."""
    window = torch.zeros(1, 1, 2, 2, 2)
    with pytest.raises(SampleError, match="complex numbers"):
        run_model(lambda x: torch.complex(x, x), window, ())
