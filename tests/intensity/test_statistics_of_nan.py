"""A volume with NaN among its voxels has no mean: told, before a batch is all NaN."""

import numpy as np
import pytest

import voxpipe as vp


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("op", ["normalize", "rescale", "rescale_percentiles", "contrast", "gamma"])
def test_a_volume_without_a_mean_is_named(op, bad):
    """With the case and the line, whichever number is asked for."""
    voxels = np.arange(64, dtype=np.float32).reshape(4, 4, 4)
    voxels[1, 2, 3] = bad
    opened = vp.from_cases([{"image": voxels, "case": "patient7"}]).open_volume()
    arguments = {"contrast": (1.5,), "gamma": (2.0,)}.get(op, ())
    pipe = getattr(opened, op)(*arguments).batch_patches(1)

    with pytest.raises(vp.errors.VolumeError, match="holds NaN or infinite values") as e:
        next(iter(pipe))

    assert "in case patient7" in str(e.value)
    assert f"at .{op}(" in str(e.value)


def test_given_numbers_ask_for_no_statistics():
    voxels = np.full((4, 4, 4), 3, np.float32)
    voxels[0, 0, 0] = np.nan
    opened = vp.from_cases([{"image": voxels}]).open_volume()

    (batch,) = list(opened.normalize(mean=1, std=2).batch_patches(1))

    assert np.isnan(batch["image"].numpy()).sum() == 1


def test_values_whose_squares_leave_float64_are_told_as_what_they_are():
    """They are finite, and a search for NaN would find none."""
    voxels = np.full((4, 4, 4), 1e300)
    voxels[0] = -1e299
    opened = vp.from_cases([{"image": voxels}]).open_volume()

    with pytest.raises(vp.errors.VolumeError, match=r"values from -1e\+299 to 1e\+300, so large"):
        next(iter(opened.normalize().batch_patches(1)))
