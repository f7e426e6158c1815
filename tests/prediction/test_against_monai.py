"""Prediction gives the numbers of MONAI's ``SlidingWindowInferer``."""

import numpy as np
import pytest
import torch
from window_models import network

import voxpipe as vp

inferers = pytest.importorskip("monai.inferers")

SHAPES = [(15, 13, 19), (12, 12, 12), (9, 20, 12), (7, 8, 30)]
OVERLAPS = [0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("blend", ["gaussian", "mean"])
@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("shape", SHAPES)
def test_same_numbers(shape, overlap, blend):
    """Odd sizes, windows larger than the volume, overlaps from 0 to 0.75: equal to 1e-5."""
    patch = (12, 9, 11)
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    model = network()
    mode = {"gaussian": "gaussian", "mean": "constant"}[blend]
    inferer = inferers.SlidingWindowInferer(patch, 2, overlap, mode, padding_mode="replicate")
    with torch.no_grad():
        expected = inferer(torch.from_numpy(array)[None, None], model)[0].numpy()

    found = vp.predict(
        model, array, patch=patch, overlap=overlap, blend=blend, output="logits", batch_size=2
    )

    assert found.shape == (3, *shape)
    assert np.abs(found.numpy() - expected).max() < 1e-5


def test_its_own_padding():
    """With zeros around a volume that is smaller than a window, as MONAI pads by default."""
    array = np.random.default_rng(0).normal(size=(7, 8, 9)).astype(np.float32)
    inferer = inferers.SlidingWindowInferer((12, 12, 12), 1, 0.5, "gaussian")
    with torch.no_grad():
        expected = inferer(torch.from_numpy(array)[None, None], network())[0].numpy()
    chain = vp.from_cases([{"image": array, "case": "a"}]).open_volume(
        policies={"image": vp.Policy("linear", "constant")}
    )

    found = vp.predict(network(), chain, patch=12, output="logits")["a"]

    assert np.abs(found.numpy() - expected).max() < 1e-5


def test_mirroring_is_the_mean_of_all_ways():
    """Eight forward passes for three axes, each mirrored back exactly."""
    array = np.random.default_rng(0).normal(size=(10, 11, 12)).astype(np.float32)
    model = network()
    inferer = inferers.SlidingWindowInferer((8, 8, 8), 1, 0.5, "gaussian")
    ways = [[2 + a for a in range(3) if number >> a & 1] for number in range(8)]

    def mirrored(batch):
        return torch.stack([model(batch.flip(axes)).flip(axes) for axes in ways]).mean(0)

    with torch.no_grad():
        expected = inferer(torch.from_numpy(array)[None, None], mirrored)[0].numpy()
    found = vp.predict(model, array, patch=8, output="logits", mirror=True)

    assert np.abs(found.numpy() - expected).max() < 1e-5
