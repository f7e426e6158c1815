"""The oracle that spatial tests compare with is itself compared with other libraries."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from voxpipe.core import Region
from voxpipe.spatial import Policy
from voxpipe.testing.spatial_oracle import sample_at

# scipy's names: "nearest" repeats the last voxel, "reflect" repeats it once and mirrors.
SCIPY = {"border": "nearest", "reflection": "reflect"}


@pytest.fixture
def volume() -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 1, (1, 5, 6, 4))


@pytest.fixture
def where() -> np.ndarray:
    # Far beyond the volume on every side.
    return np.random.default_rng(1).uniform(-14, 18, (3, 4000))


@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_linear_agrees_with_scipy(volume: np.ndarray, where: np.ndarray, padding: str) -> None:
    """Clamping and mirroring give what scipy's map_coordinates gives."""
    found = sample_at(volume, where, Region.of_shape((5, 6, 4)), Policy("linear", padding))

    expected = map_coordinates(volume[0], where, order=1, mode=SCIPY[padding])
    assert np.allclose(found[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding", ["border", "reflection", "zeros"])
def test_every_torch_rule_agrees_with_torch(
    volume: np.ndarray, where: np.ndarray, mode: str, padding: str
) -> None:
    """The rules that torch has give what grid_sample gives in float64."""
    import torch
    from torch.nn.functional import grid_sample

    size = np.array([5, 6, 4])[:, None]
    normal = torch.from_numpy((2 * where + 1) / size - 1).flip(0).T.reshape(1, 1, 1, -1, 3)
    expected = grid_sample(
        torch.from_numpy(volume)[None],
        normal,
        mode="bilinear" if mode == "linear" else "nearest",
        padding_mode=padding,
        align_corners=False,
    )

    found = sample_at(volume, where, Region.of_shape((5, 6, 4)), Policy(mode, padding))
    assert np.allclose(found[0], expected.numpy().ravel(), rtol=0, atol=1e-9)


def test_constant_clamps_for_half_a_voxel() -> None:
    """Half a voxel outside is still the last voxel, beyond it is fill."""
    ramp = np.arange(1.0, 4.0).reshape(1, 3, 1, 1)
    where = np.array([[-0.6, -0.4, 0.5, 2.4, 2.6], [0] * 5, [0] * 5], dtype=np.float64)

    found = sample_at(ramp, where, Region.of_shape((3, 1, 1)), Policy("linear", "constant", -9))

    assert found.tolist() == [[-9, 1, 1.5, 3, -9]]
