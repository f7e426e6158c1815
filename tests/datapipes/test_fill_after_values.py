"""A fill is a value as it is where the pipe stands, as an eager library gives it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.datapipes.epoch import set_epoch

IMAGE = np.random.default_rng(0).integers(-100, 900, (8, 7, 6)).astype(np.int16)
CONSTANT = {"padding": "constant"}


def opened(**more: Any) -> Any:
    return vp.from_cases([{"image": IMAGE, "label": (IMAGE > 0).astype(np.uint8)}]).open_volume(
        **more
    )


def voxels(pipe: Any) -> Any:
    set_epoch(pipe, 1, 0)
    return next(iter(pipe))["image"].realize()[0]


def outside(found: Any) -> set[float]:
    """What lies around the volume, after pad(2)."""
    around = np.ones(found.shape, bool)
    around[2:-2, 2:-2, 2:-2] = False
    return set(found[around].tolist())


CHAINS = {
    "normalize": lambda p: p.normalize(),
    "clamp": lambda p: p.clamp(0, 100).rescale((2, 3), clamp=True),
    "gamma": lambda p: p.gamma(0.7),
    "noise": lambda p: p.normalize().noise(1.0),
    "bias": lambda p: p.bias_field(0.3),
    "channels": lambda p: p.select_channels(0).normalize(),
    "p": lambda p: p.noise(1.0, p=0.0).normalize().gamma(2.0, p=0.0),
}


@pytest.mark.parametrize("chain", CHAINS)
def test_outside_is_what_was_asked_for_where_it_was_asked_for(chain: str) -> None:
    """0 and 7.5 exactly, and every voxel of the volume as without it."""

    def before() -> Any:
        return CHAINS[chain](opened())

    assert outside(voxels(before().pad(2, **CONSTANT))) == {0.0}
    filled = voxels(before().pad(2, fill=7.5, **CONSTANT))
    assert outside(filled) == {7.5}
    assert np.allclose(filled[2:-2, 2:-2, 2:-2], voxels(before()), atol=1e-5)


def test_later_ops_change_the_fill() -> None:
    """normalize, fill with 0, then add 1: outside is 1; and a fill before all is as stored."""
    assert outside(voxels(opened().normalize().pad(2, **CONSTANT).brightness(1, 1))) == {1.0}
    assert outside(voxels(opened().pad(2, fill=-1000, **CONSTANT).brightness(0.5))) == {-500.0}
    policies = {"image": vp.Policy(padding="constant", fill=-1000)}
    assert outside(voxels(opened(policies=policies).brightness(0.5).pad(2))) == {-500.0}


def test_a_filter_looks_at_the_fill() -> None:
    """A blur after it sees 0 outside, not the smallest value normalized."""
    done = voxels(opened().normalize().pad(6, **CONSTANT).blur(1, unit="voxel"))
    eager = voxels(opened().normalize().flush().pad(6, **CONSTANT).flush().blur(1, unit="voxel"))

    assert np.allclose(done, eager, atol=1e-5)


def test_a_hard_crop_fills_alike() -> None:
    """What it takes away of a turned volume is the fill, too."""
    turned = opened().normalize().rotate((0, 0, 30)).center_crop(4, hard=True, fill=5.0)

    assert voxels(turned.pad(2))[0, 0, 0] == 5.0


def test_a_fill_goes_through_labels_of_other_numbers() -> None:
    """No label has NaN: a fill after remap_labels is remapped, as it is documented."""
    chain = opened().remap_labels({0: 9}).pad(1, fill={"label": 0}, padding={"label": "constant"})

    assert next(iter(chain))["label"].realize()[0, 0, 0, 0] == 9


def test_the_first_that_asks_says_in_which_units() -> None:
    """One plan has one fill: to ask for it again changes nothing."""
    chain = opened().pad(2, fill=4, **CONSTANT).brightness(2).flip(fill=4, **CONSTANT)

    assert outside(voxels(chain)) == {8.0}
    straight = next(iter(opened().normalize().pad(2, **CONSTANT).realize().batch_patches(1)))
    assert outside(straight["image"][0, 0].numpy()) == {0.0}


BETWEEN = {
    "nothing": lambda p: p,
    "blur": lambda p: p.blur(0.01, unit="voxel"),
    "flush": lambda p: p.flush(),
    "twice": lambda p: p.flush().brightness(1).flush(),
}


@pytest.mark.parametrize("between", BETWEEN)
def test_a_fill_goes_through_value_ops_whatever_begins_anew(between: str) -> None:
    """-1000 as stored, halved, is -500 outside with a blur or a flush behind as without."""
    chain = BETWEEN[between](opened().flip(fill=-1000, **CONSTANT).brightness(0.5))
    late = BETWEEN[between](opened().normalize().flip(fill=3, **CONSTANT).brightness(2))

    assert outside(voxels(chain.pad(2))) == {-500.0}
    assert outside(voxels(late.pad(2))) == {6.0}


def test_a_fill_that_is_asked_for_behind_a_flush_is_one_of_the_values_there() -> None:
    """Also where the number is the same as before it."""
    chain = opened().flip(fill=4, **CONSTANT).brightness(2).flush().pad(2, fill=4, **CONSTANT)

    assert outside(voxels(chain)) == {4.0}


UNKNOWN = IMAGE.astype(np.float32)
UNKNOWN[3:5, 2:4, 1] = np.nan
UNKNOWN[0, 0, 0] = np.nan
MOVES = {
    "pad": lambda p, **fill: p.pad(2, **CONSTANT, **fill),
    "hard crop": lambda p, **fill: p.rotate((0, 0, 30)).center_crop((6, 5, 4), hard=True, **fill),
    "turned": lambda p, **fill: p.rotate((0, 0, 30), **CONSTANT, **fill),
    "cubic": lambda p, **fill: p.translate((2.3, 0, 0), mode="cubic", **CONSTANT, **fill),
    "smoothed": lambda p, **fill: p.pad(4).zoom(0.5, antialias=True, **CONSTANT, **fill),
    "zeros": lambda p, **fill: p.rotate(9).center_crop(5, hard=True, padding="zeros", **fill),
}


def root(values: Any) -> Any:
    """NaN of what is below 0."""
    with np.errstate(invalid="ignore"):
        return np.sqrt(values)


@pytest.mark.parametrize("dtype", ["float16", "float32", ">f8"])
@pytest.mark.parametrize("move", MOVES)
def test_voxels_that_are_nan_stay_nan(move: str, dtype: str) -> None:
    """As in MONAI 1.6.1 and TorchIO 1.2.1: what is not known is no fill. Fill is where it was."""

    def moved(image: Any, **fill: Any) -> Any:
        pipe: Any = vp.from_cases([{"image": image}]).open_volume()
        return voxels(MOVES[move](pipe.brightness(2.0, 1.0), fill=-3, **fill).pad(1))

    found = moved(UNKNOWN.astype(dtype))
    # The place of the fill, of a volume that has no NaN; and NaN, by the chain with it in the file.
    filled = moved(np.ones_like(UNKNOWN, dtype)) == -3
    pipe: Any = vp.from_cases([{"image": UNKNOWN.astype(dtype)}]).open_volume()
    expected = voxels(MOVES[move](pipe, fill=-2).brightness(2.0, 1.0).pad(1))

    assert np.isnan(found).any()
    assert np.array_equal(found == -3, filled)
    assert np.allclose(found, expected, atol=1e-3 * 900, equal_nan=True)


def test_what_an_op_cannot_tell_is_not_filled() -> None:
    """Roots of what is below 0, of whole numbers, inside and up to the faces."""
    found = voxels(opened().map_values(root, commutes=True).pad(2, **CONSTANT))

    assert outside(found) == {0.0}
    assert np.array_equal(np.isnan(found[2:-2, 2:-2, 2:-2]), IMAGE < 0)


def test_only_a_volume_with_nan_is_looked_at_twice() -> None:
    """One interpolation of any other, whatever its type."""

    def interpolations(image: Any) -> int:
        pipe: Any = vp.from_cases([{"image": image}]).open_volume().brightness(2.0)
        patch = next(iter(pipe.rotate((0, 0, 30), **CONSTANT)))["image"]
        before = IO_COUNTERS.snapshot()
        patch.realize()
        return int((IO_COUNTERS - before).interpolations)

    images = IMAGE, np.nan_to_num(UNKNOWN), UNKNOWN
    assert [interpolations(image) for image in images] == [1, 1, 2]
