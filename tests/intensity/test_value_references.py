"""Value ops beside those of MONAI and TorchIO: the proofs that docs/values.md names.

The peers made the references themselves (tests/data/make_value_references.py).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import ndimage
from scipy.stats import norm, rice

import voxpipe as vp
from voxpipe.core import Grid
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.intensity import BiasField

DATA = Path(__file__).parents[1] / "data"
LEVEL, MEAN, STD = 15.0, 1.0, 10.0
"""What noise is added to, and its mean and deviation."""
CHANCE = 0.03
"""Deviations; chance moves the 1st percentile of 64^3 numbers by 0.007, and two apart by 0.010."""


@pytest.fixture(params=["monai", "torchio"])
def peer(request: pytest.FixtureRequest) -> Any:
    """The arrays of one of them."""
    with np.load(DATA / f"values-{request.param}.npz") as arrays:
        return dict(arrays)


def is_monai(peer: Any) -> bool:
    """Whether these arrays are MONAI's."""
    return "gamma" in peer and "coefficients" not in peer


def of(name: str) -> Any:
    """The arrays of the one named."""
    with np.load(DATA / f"values-{name}.npz") as arrays:
        return dict(arrays)


def opened(volume: Any) -> Any:
    """A chain of one image of spacing 1."""
    return vp.from_cases([{"image": volume}]).open_volume()


def image_of(pipe: Any, key: str = "image") -> Any:
    """Its voxels, of draws that are the same in every run: chance is the peer's alone."""
    set_epoch(pipe, 1, 0)
    return next(iter(pipe))[key].realize()


def labelled(peer: Any) -> Any:
    """A chain of one image and its label."""
    volumes = {"image": peer["volume"], "label": peer["labels"]}
    return vp.from_cases([volumes]).open_volume()


def sample_to_population(count: int) -> float:
    """What turns TorchIO's quotient, by the deviation of a sample, into ours."""
    return (count / (count - 1)) ** 0.5


def test_normalize(peer: Any) -> None:
    """By the whole volume; TorchIO divides by the sample deviation, n - 1."""
    factor = 1 if is_monai(peer) else sample_to_population(peer["volume"].size)

    found = image_of(opened(peer["volume"]).normalize())

    assert np.allclose(found, peer["normalize"] * factor, atol=2e-5)


def test_normalize_above_0_is_over_what_is_not_0() -> None:
    """MONAI's nonzero=True leaves zeros as they are; the rest is the same."""
    monai = of("monai")
    given = monai["volume"].copy()
    given[:, :3] = 0

    found = image_of(opened(given).normalize(above=0))

    assert np.allclose(found[:, 3:], monai["normalize_nonzero"][:, 3:], atol=2e-5)


def test_normalize_inside_a_label() -> None:
    """TorchIO's masking_method: numbers from inside, for all voxels."""
    torchio = of("torchio")

    found = image_of(labelled(torchio).normalize(inside="label"))

    factor = sample_to_population(np.count_nonzero(torchio["labels"]))
    assert np.allclose(found, torchio["normalize_inside"] * factor, atol=2e-5)


def test_rescale(peer: Any) -> None:
    """By smallest and largest value."""
    found = image_of(opened(peer["volume"]).rescale((-1, 2)))

    assert np.allclose(found, peer["rescale"], atol=1e-5)


def test_rescale_given() -> None:
    """By given ends, with a clamp."""
    monai = of("monai")

    given = image_of(opened(monai["volume"]).rescale(in_range=(10, 60), clamp=True))
    assert np.allclose(given, monai["rescale_given"], atol=1e-6)


def test_percentiles(peer: Any) -> None:
    """Two percentiles become 0 and 1; to the width of a bin, a 65536th of the range."""
    found = image_of(opened(peer["volume"]).rescale_percentiles(5, 90))

    assert np.allclose(found, peer["percentiles"], atol=4e-5)


def test_gamma() -> None:
    """MONAI's is between the ends of the volume; TorchIO's has ends of 0 and 1."""
    monai, torchio = of("monai"), of("torchio")

    assert np.allclose(image_of(opened(monai["volume"]).gamma(0.7)), monai["gamma"], rtol=2e-5)
    found = image_of(opened(torchio["volume"]).gamma(0.7, in_range=(0, 1)))
    assert np.allclose(found, torchio["gamma"], rtol=2e-5)


def test_clamp(peer: Any) -> None:
    """TorchIO's Clamp, and MONAI's two thresholds."""
    assert np.array_equal(image_of(opened(peer["volume"]).clamp(10, 60)), peer["clamp"])


def test_brightness() -> None:
    """MONAI's shift by 7, and its scale by 1 + 0.1."""
    monai = of("monai")

    assert np.allclose(image_of(opened(monai["volume"]).brightness(add=7)), monai["shift"])
    assert np.allclose(image_of(opened(monai["volume"]).brightness(1.1)), monai["scale"])


def test_contrast() -> None:
    """MONAI's scale about the mean by 1 + 0.5, and with its range kept."""
    monai = of("monai")

    free = image_of(opened(monai["volume"]).contrast(1.5))
    kept = image_of(opened(monai["volume"]).contrast(1.5, keep_range=True))

    assert np.allclose(free, monai["contrast"], atol=1e-4)
    assert np.allclose(kept, monai["contrast_kept"], atol=1e-4)
    assert not np.allclose(free, kept, atol=1)


def test_noise(peer: Any) -> None:
    """Quantiles of 64^3 voxels as the peer's, and normal; chance moves them by less."""
    flat = np.full((64, 64, 64), LEVEL, np.float32)

    found = np.quantile(image_of(opened(flat).noise(STD, mean=MEAN)), peer["ranks"])

    assert np.allclose(found, peer["noise"], atol=CHANCE * STD)
    assert np.allclose(found, LEVEL + norm.ppf(peer["ranks"], MEAN, STD), atol=CHANCE * STD)


def test_rician_noise() -> None:
    """Quantiles as MONAI's, and as SciPy's Rice distribution has them."""
    monai = of("monai")
    flat = np.full((64, 64, 64), LEVEL, np.float32)

    found = np.quantile(image_of(opened(flat).rician_noise(STD)), monai["ranks"])

    assert np.allclose(found, monai["rician_noise"], atol=CHANCE * STD)
    exact = rice.ppf(monai["ranks"], LEVEL / STD, scale=STD)
    assert np.allclose(found, exact, atol=CHANCE * STD)
    assert np.abs(exact - norm.ppf(monai["ranks"], LEVEL, STD)).max() > 10 * CHANCE * STD


def test_sharpen_is_blur_and_an_unsharp_mask() -> None:
    """MONAI's two filters: it blurs by sigma1, then adds alpha times what sigma2 takes away.

    Its sampled weights sum to 1 for a sigma of about a voxel or more only.
    """
    monai = of("monai")
    first, second = 4, 3  # voxels that the filters reach; MONAI lets zeros in before either
    padded = np.pad(monai["sharp"], [(0, 0), *[(first, first)] * 3])

    found = image_of(opened(padded).blur(1.0).sharpen(0.8, amount=2))

    whole = (slice(None), *[slice(first, -first)] * 3)
    inner = (slice(None), *[slice(second, -second)] * 3)
    assert np.allclose(found[whole][inner], monai["sharpen"][inner], atol=2e-3)
    assert np.abs(monai["sharpen"] - monai["sharp"])[inner].max() > 10


def test_low_resolution_keeps_what_monai_keeps() -> None:
    """Every third voxel along all axes; MONAI draws its lines one voxel, (3 - 1) / 2, further."""
    monai = of("monai")

    found = image_of(opened(monai["coarse"]).low_resolution(3))

    kept = (slice(None), *[slice(None, None, 3)] * 3)
    assert np.array_equal(found[kept], monai["coarse"][kept])
    # Between the first and the last voxel that MONAI puts anywhere.
    i, j, k = (n - 2 for n in monai["coarse"].shape[1:])
    moved = monai["low_resolution"][:, 1 : i + 1, 1 : j + 1, 1 : k + 1]
    assert np.allclose(found[:, :i, :j, :k], moved, atol=1e-4)


def test_anisotropy_is_torchio_s_from_the_second_voxel() -> None:
    """Of three voxels TorchIO keeps the middle one, and we the first: the same of a part."""
    torchio = of("torchio")

    found = image_of(opened(torchio["coarse"][:, 1:]).anisotropy(3, axes=0))

    last = torchio["coarse"].shape[1] - 1  # the last voxel that is kept, and no line beyond it
    assert np.allclose(found[:, : last - 1], torchio["anisotropy"][:, 1:last], atol=1e-4)
    assert not np.allclose(torchio["anisotropy"], torchio["coarse"], atol=1)


def test_boxes_are_boxes_of_the_sizes_asked_for() -> None:
    """Where boxes are few, what is filled falls apart into boxes; edges of 3 to 5 all come up."""
    flat = np.zeros((64, 64, 64), np.float32)

    (found,) = image_of(opened(flat).drop_boxes((3, 5), 0.01, fill=7))

    assert set(np.unique(found).tolist()) == {0, 7}
    parts, count = ndimage.label(found)
    edges = []
    for number, place in enumerate(ndimage.find_objects(parts), 1):
        if (parts[place] == number).all():  # else two of them touch
            edges.append([part.stop - part.start for part in place])
    inside = [e for e in edges if max(e) <= 5]
    assert len(inside) >= 0.8 * count > 20
    # A box at the face of the volume is cut.
    assert {edge for each in inside for edge in each if edge >= 3} == {3, 4, 5}


def test_channels() -> None:
    """Chosen in the order given, one filled, and their mean; NumPy says what that is."""
    volume = np.random.default_rng(0).uniform(1, 9, (3, 6, 5, 4)).astype(np.float32)

    chosen = image_of(opened(volume).select_channels((2, 0)))
    mean = image_of(opened(volume).mean_of_channels())
    dropped = image_of(opened(volume).drop_channels(0.99, fill=-1))

    assert np.array_equal(chosen, volume[[2, 0]])
    assert np.allclose(mean, volume.mean(axis=0, keepdims=True))
    gone = (dropped == -1).all(axis=(1, 2, 3))
    assert 1 <= gone.sum() < 3
    assert np.array_equal(dropped[~gone], volume[~gone])


def test_one_hot(peer: Any) -> None:
    """Three classes."""
    assert np.array_equal(image_of(labelled(peer).one_hot(3), "label"), peer["one_hot"])


def test_remap_labels(peer: Any) -> None:
    """1 to 5 and 2 to 1 at once, not one after another."""
    found = image_of(labelled(peer).remap_labels({1: 5, 2: 1}), "label")

    assert np.array_equal(found, peer["remap_labels"])


def test_map_values(peer: Any) -> None:
    """A function of one's own."""
    found = image_of(opened(peer["volume"]).map_values(np.sqrt))

    assert np.allclose(found, peer["map_values"], rtol=1e-6)


def test_blur_inside(peer: Any) -> None:
    """The same filter; at the faces each has a padding of its own, so along a long axis only."""
    radius = 5
    volume = np.pad(peer["volume"], [(0, 0), *[(radius, radius)] * 3], mode="symmetric")

    found = image_of(opened(volume).blur(1.2))
    inside = (slice(None), *[slice(radius, -radius)] * 3)

    if not is_monai(peer):  # SciPy mirrors
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


def ct_patch() -> Any:
    """Two channels of a CT that is mostly air, and where a patch of its body lies."""
    rng = np.random.default_rng(0)
    volume = np.full((2, 16, 16, 16), -1000, np.float32)
    volume[:, 4:12, 4:12, 4:12] = rng.normal(40, 30, (2, 8, 8, 8))
    volume[1] *= 3
    return volume, (slice(None), *[slice(4, 12)] * 3)


def patch_of(pipe: Any) -> Any:
    """The patch in the middle, of every value op in ``pipe``."""
    return image_of(pipe.crop((4, 4, 4), (8, 8, 8)))


class TestAsNnunetHasIt:
    """batchgeneratorsv2 0.3.6 on the patch that is cut, its formulas in float64."""

    @pytest.mark.parametrize("keep_range", [False, True])
    def test_contrast_about_the_mean_of_the_patch(self, keep_range: bool) -> None:
        """Of each channel; about the mean of all the air a patch is hundreds of units darker."""
        volume, body = ct_patch()
        patch = volume[body].astype(np.float64)
        mean = patch.mean((1, 2, 3), keepdims=True)
        expected = (patch - mean) * 1.25 + mean
        if keep_range:
            low, high = patch.min((1, 2, 3), keepdims=True), patch.max((1, 2, 3), keepdims=True)
            expected = np.clip(expected, low, high)

        found = patch_of(
            opened(volume).contrast(1.25, keep_range=keep_range, statistics_over="patch")
        )
        about_air = patch_of(opened(volume).contrast(1.25))

        assert np.abs(found - expected).max() < 1e-3
        assert (about_air - found).min() > 150  # a factor above 1 leaves the air behind

    @pytest.mark.parametrize("invert", [False, True])
    @pytest.mark.parametrize("keep", [False, True])
    def test_gamma_in_the_range_of_the_patch(self, invert: bool, keep: bool) -> None:
        """Its mean and deviation come back where that is asked for; upside down, too."""
        volume, body = ct_patch()
        expected = np.empty((2, 8, 8, 8))
        for n, patch in enumerate(volume[body].astype(np.float64)):
            x = -patch if invert else patch
            size = x.max() - x.min()
            bent = ((x - x.min()) / size) ** 0.7 * size + x.min()
            if keep:
                bent = (bent - bent.mean()) * x.std(ddof=1) / bent.std(ddof=1) + x.mean()
            expected[n] = -bent if invert else bent

        found = patch_of(
            opened(volume).gamma(0.7, statistics_over="patch", keep_statistics=keep, invert=invert)
        )

        assert np.abs(found - expected).max() < 1e-3

    def test_statistics_after_it_are_those_before(self) -> None:
        """What a patch did to itself says nothing of the volume."""
        volume, _ = ct_patch()

        plain = patch_of(opened(volume).normalize())
        both = patch_of(opened(volume).contrast(2, statistics_over="patch").normalize())

        assert np.abs(both.mean() - plain.mean()) < 1e-4
        assert both.std() > 1.5 * plain.std()

    @pytest.mark.parametrize(
        "op",
        [
            vp.intensity.Contrast(2, statistics_over="patch"),
            vp.intensity.Gamma(2, statistics_over="patch"),
        ],
    )
    def test_a_patch_with_nan_is_an_error(self, op: Any) -> None:
        """As a volume with NaN is: nothing is spoilt without a word."""
        volume, body = ct_patch()
        volume[body][0, 0, 0, 0] = np.nan

        with pytest.raises(ValueError, match="NaN or infinite") as told:
            patch_of(opened(volume).one_of([op]))
        assert "test_value_references.py" in "".join(told.value.__notes__)

    def test_other_words_are_refused(self) -> None:
        """And what a whole volume cannot keep."""
        with pytest.raises(ValueError, match="over is one of 'volume', 'patch'"):
            opened(ct_patch()[0]).contrast(2, statistics_over="image")
        with pytest.raises(ValueError, match='write statistics_over="patch" too'):
            opened(ct_patch()[0]).gamma(2, keep_statistics=True)
        with pytest.raises(TypeError, match="did you mean 'keep_statistics'"):
            opened(ct_patch()[0]).gamma(2, statistics_over="patch", retain_stats=True)
