"""How a model is called, and what is done with the memory that it leaves."""

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


@pytest.mark.parametrize(
    ("model", "mirror", "is_models"),
    [
        (torch.nn.Identity(), (), True),
        (lambda batch: batch * 2, (), True),  # it may have kept it
        (lambda batch: batch.double(), (), False),
        (torch.nn.Identity(), (0, 2), False),
    ],
)
def test_whose_memory_an_output_is(model, mirror, is_models):
    """That of the model, unless it was brought to float32 or is a mean of several."""
    output, found = run_model(model, torch.ones(1, 1, 2, 3, 4), mirror)

    assert output.dtype == "float32"
    assert found == is_models
