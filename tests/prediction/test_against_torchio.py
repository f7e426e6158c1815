"""Prediction gives the numbers of TorchIO's ``GridAggregator``."""

import numpy as np
import pytest
import torch
from window_models import network

import voxpipe as vp

tio = pytest.importorskip("torchio")
BLENDS = {"crop": "crop", "mean": "average", "hann": "hann"}


@pytest.mark.parametrize("blend", BLENDS)
@pytest.mark.parametrize("overlap", [0, 2, 4, 6])
@pytest.mark.parametrize("shape", [(13, 11, 9), (8, 8, 8), (9, 20, 12)])
def test_same_numbers(shape, overlap, blend):
    """Its three modes, on odd sizes, with overlaps from 0 to 0.75 of a window: equal to 1e-5."""
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    model = network()
    subject = tio.Subject(image=tio.ScalarImage(tensor=torch.from_numpy(array)[None]))
    sampler = tio.GridSampler(subject, 8, overlap)
    aggregator = tio.GridAggregator(sampler, overlap_mode=BLENDS[blend])
    with torch.no_grad():
        for window in sampler:
            batch = window["image"][tio.DATA][None]
            aggregator.add_batch(model(batch), window[tio.LOCATION][None])
    expected = aggregator.get_output_tensor().numpy()

    found = vp.predict(
        model, array, patch=8, overlap=overlap / 8, blend=blend, output="logits", batch_size=3
    )

    assert np.abs(found.numpy() - expected).max() < 1e-5
