"""Value ops beside those of MONAI and TorchIO, where the definition is theirs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import Grid
from voxpipe.intensity import BiasField

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(params=["monai", "torchio"])
def peer(request: pytest.FixtureRequest) -> Any:
    """The arrays of one of them."""
    with np.load(DATA / f"values-{request.param}.npz") as arrays:
        return dict(arrays)


def of(name: str) -> Any:
    """The arrays of the one named."""
    with np.load(DATA / f"values-{name}.npz") as arrays:
        return dict(arrays)


def opened(volume: Any) -> Any:
    """A chain of one image of spacing 1."""
    return vp.from_cases([{"image": volume}]).open_volume()


def image_of(pipe: Any) -> Any:
    """Its voxels."""
    return next(iter(pipe))["image"].realize()


def test_normalize(peer: Any) -> None:
    """By the whole volume; TorchIO divides by the sample deviation, n - 1."""
    count = peer["volume"].size
    factor = 1 if "percentiles" in peer and "rescale" in peer else (count / (count - 1)) ** 0.5

    found = image_of(opened(peer["volume"]).normalize())

    assert np.allclose(found, peer["normalize"] * factor, atol=2e-5)


def test_normalize_above_0_is_over_what_is_not_0() -> None:
    """MONAI's nonzero=True leaves zeros as they are; the rest is the same."""
    monai = of("monai")
    given = monai["volume"].copy()
    given[:, :3] = 0

    found = image_of(opened(given).normalize(above=0))

    assert np.allclose(found[:, 3:], monai["normalize_nonzero"][:, 3:], atol=2e-5)


def test_rescale() -> None:
    """By smallest and largest value, or given ends with a clamp."""
    monai = of("monai")

    assert np.allclose(
        image_of(opened(monai["volume"]).rescale((-1, 2))), monai["rescale"], atol=1e-5
    )
    given = image_of(opened(monai["volume"]).rescale(given=(10, 60), clamp=True))
    assert np.allclose(given, monai["rescale_given"], atol=1e-6)


def test_percentiles(peer: Any) -> None:
    """Two percentiles become 0 and 1; to the width of a bin, a 65536th of the range."""
    found = image_of(opened(peer["volume"]).rescale_percentiles(5, 90))

    assert np.allclose(found, peer["percentiles"], atol=4e-5)


def test_gamma() -> None:
    """MONAI's is between the ends of the volume; TorchIO's has ends of 0 and 1."""
    monai, torchio = of("monai"), of("torchio")

    assert np.allclose(image_of(opened(monai["volume"]).gamma(0.7)), monai["gamma"], rtol=2e-5)
    found = image_of(opened(torchio["volume"]).gamma(0.7, given=(0, 1)))
    assert np.allclose(found, torchio["gamma"], rtol=2e-5)


def test_blur_inside(peer: Any) -> None:
    """The same filter; at the faces each has a padding of its own, so along a long axis only."""
    radius = 5
    volume = np.pad(peer["volume"], [(0, 0), *[(radius, radius)] * 3], mode="symmetric")

    found = image_of(opened(volume).blur(1.2))
    inside = (slice(None), *[slice(radius, -radius)] * 3)

    if "coefficients" in peer:  # SciPy mirrors
        assert np.allclose(found[inside], peer["blur"], atol=1e-3)
    else:  # MONAI pads with zeros
        padded = np.pad(peer["volume"], [(0, 0), *[(radius, radius)] * 3])
        assert np.allclose(image_of(opened(padded).blur(1.2))[inside], peer["blur"], atol=1e-3)


def test_bias_field() -> None:
    """TorchIO's polynomial of coordinates from -1 to 1, its order of terms, and exp."""
    torchio = of("torchio")
    shape = torchio["volume"].shape[1:]
    grid = Grid(shape, np.diag([1.0, 2, 3, 1]))
    facts: Any = SimpleNamespace(grid=grid, source=grid)
    drawn = {"coefficients": torchio["coefficients"].tolist()}

    found = BiasField().apply(np.ones((1, *shape), np.float32), drawn, facts)

    assert np.allclose(found[0], torchio["bias_field"], rtol=1e-5)
