"""Prediction gives the numbers of MONAI's ``SlidingWindowInferer``."""

import numpy as np
import pytest
import torch
from window_models import network

import voxpipe as vp
from voxpipe.stitching.stitcher import BLENDS

inferers = pytest.importorskip("monai.inferers")
compute_importance_map = pytest.importorskip("monai.data.utils").compute_importance_map

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


@pytest.mark.parametrize("sigma_scale", [0.125, 0.5, (0.05, 0.3, 1.5), 0.02])
def test_its_width_of_weights(sigma_scale):
    """The weights are those of MONAI's importance map, and so are the results."""
    patch = (6, 5, 4)
    array = np.random.default_rng(0).normal(size=(9, 8, 7)).astype(np.float32)
    inferer = inferers.SlidingWindowInferer(patch, 1, 0.5, "gaussian", sigma_scale)
    with torch.no_grad():
        expected = inferer(torch.from_numpy(array)[None, None], network())[0].numpy()
    weights = compute_importance_map(patch, "gaussian", sigma_scale).numpy()

    own = {"patch": patch, "output": "logits", "sigma_scale": sigma_scale}
    found = vp.predict(network(), array, **own)

    scales = sigma_scale if isinstance(sigma_scale, tuple) else (sigma_scale,) * 3
    assert np.allclose(BLENDS["gaussian"](patch, scales), weights, rtol=1e-6, atol=0)
    assert np.abs(found.numpy() - expected).max() < 1e-5
    chain = vp.from_cases([{"image": array, "case": "a"}]).open_volume()
    chain = chain.lazy_patch(patch, sampling="grid", overlap=(3, 3, 2)).batch_patches(1)
    chain = chain.map(lambda image: network()(image).detach(), "image", "out")
    own = {"output": "logits", "sigma_scale": sigma_scale}
    (stitched,) = [one["a"] for one in chain.stitch("out", **own) if one]
    assert np.abs(stitched.numpy() - expected).max() < 1e-5


@pytest.mark.parametrize("wrong", [0, -1, 1e-9, "wide", (0.1, 0.2), np.nan])
def test_a_width_that_cannot_be_is_refused(wrong):
    """Before the model runs; so is a width of weights that have none."""
    with pytest.raises(ValueError, match=r"sigma_scale is a number from 0\.001, or three"):
        vp.predict(network(), np.zeros((4, 4, 4)), patch=2, sigma_scale=wrong)
    with pytest.raises(ValueError, match="sigma_scale belongs to blend='gaussian'"):
        vp.predict(network(), np.zeros((4, 4, 4)), patch=2, sigma_scale=0.1, blend="mean")


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
