"""Statistics of a coarser level, or of a sample, in the place of a pass over the whole volume."""

import numpy as np
import pytest
import zarr
from zarr_arrays import add_array

import voxpipe as vp
from voxpipe.core.errors import VolumeError
from voxpipe.intensity import Normalize

FINE = np.random.default_rng(0).integers(0, 999, (2, 80, 16, 16), np.uint16)
COARSE = FINE[:, ::2, ::2, ::2] + np.uint16(7)


@pytest.fixture
def pyramid(tmp_path):
    axes = [{"name": "c", "type": "channel"}, *({"name": n, "type": "space"} for n in "zyx")]
    levels = [
        {"path": str(n), "coordinateTransformations": [{"type": "scale", "scale": [1, s, s, s]}]}
        for n, s in enumerate((1.0, 2.0))
    ]
    image = {"axes": axes, "datasets": levels}
    omero = {"channels": [{"label": "DAPI"}, {"label": "GFP"}]}
    group = zarr.open_group(str(tmp_path / "a.ome.zarr"), mode="w", zarr_format=3)
    group.attrs["ome"] = {"version": "0.5", "multiscales": [image], "omero": omero}
    for n, array in enumerate((FINE, COARSE)):
        add_array(group, str(n), data=array, chunks=(1, 1, 16, 16))
    return tmp_path / "a.ome.zarr"


def values_of(pipe):
    return next(iter(pipe))["image"].realize()


@pytest.mark.parametrize("name", ["level 1", "level 9"])
def test_a_coarser_level_is_read(pyramid, name):
    """Its mean and deviation; the coarsest level where there are fewer."""
    opened = vp.from_cases([{"image": pyramid}]).open_volume()
    stored = FINE.transpose(0, 3, 2, 1)
    values = values_of(opened.crop((0, 0, 0), (1, 1, 1)).normalize(statistics=name))
    expected = (stored[:, :1, :1, :1] - COARSE.mean()) / COARSE.std()
    assert np.allclose(values, expected, rtol=1e-4)
    above = values_of(opened.normalize(above=500, statistics=name))
    kept = COARSE[COARSE > 500]
    assert np.allclose(above, (stored - kept.mean()) / kept.std(), rtol=1e-4, atol=1e-4)


def test_channels_have_the_levels_of_their_file(pyramid):
    """By name, at opening and in a pipe."""
    own = COARSE[1]
    expected = (FINE[1].T - own.mean()) / own.std()
    named = vp.from_cases([{"image": pyramid}]).open_volume(channels="GFP")
    picked = vp.from_cases([{"image": pyramid}]).open_volume().select_channels(1)
    for pipe in (named, picked):
        values = values_of(pipe.normalize(statistics="level 1"))
        assert np.allclose(values[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("origin", ["cases", "manifest"])
def test_each_channel_has_statistics_of_its_own(pyramid, tmp_path, origin):
    """Of a level, inside a mask, and of the whole volume, as NumPy computes them by channel."""
    fine, coarse = FINE.transpose(0, 3, 2, 1), COARSE.transpose(0, 3, 2, 1)
    mask = (fine[0] > 300).astype(np.uint8)
    vp.save(tmp_path / "mask.ome.zarr", mask)
    place = {"image": str(pyramid), "mask": str(tmp_path / "mask.ome.zarr")}
    cases = vp.from_cases([place])
    if origin == "manifest":
        vp.index(cases, tmp_path / "m.json")
        cases = vp.from_manifest(tmp_path / "m.json")
    each = {
        Normalize(): fine.reshape(2, -1),
        Normalize(statistics="level 1"): coarse.reshape(2, -1),
        Normalize(inside="mask"): fine[:, mask > 0],
    }
    for op, values in each.items():
        mean, deviation = (f(values, 1)[:, None, None, None] for f in (np.mean, np.std))
        for channels in ([0, 1], [1]):
            opened = cases.open_volume(channels={"image": channels}).per_channel(op, keys="image")
            expected = ((fine - mean) / deviation)[channels]
            assert np.allclose(values_of(opened), expected, rtol=1e-4, atol=1e-4)


def test_a_sample_is_spread_over_the_volume(pyramid):
    """32 of 80 layers of chunks, the first and the last too."""
    layers = np.linspace(0, 79, 32).round().astype(int)
    sample = FINE[:, layers]
    pipe = vp.from_cases([{"image": pyramid}]).open_volume()
    values = values_of(pipe.normalize(statistics="sample"))
    assert np.allclose(
        values, (FINE.transpose(0, 3, 2, 1) - sample.mean()) / sample.std(), atol=1e-4
    )
    low, high = np.percentile(sample, (5, 95))
    values = values_of(pipe.rescale_percentiles(5, 95, clamp=False, statistics="sample"))
    assert np.allclose(values, (FINE.transpose(0, 3, 2, 1) - low) / (high - low), atol=1e-4)


def test_small_volumes_are_read_whole():
    """A sample of few layers is the volume."""
    array = FINE[0, :8].astype(np.float32)
    pipe = vp.from_cases([{"image": array}]).open_volume().normalize(statistics="sample")
    assert np.allclose(values_of(pipe)[0], (array - array.mean()) / array.std(), atol=1e-4)


def test_the_choice_is_reported(pyramid):
    """By `explain()`, and in its list of passes."""
    pipe = vp.from_cases([{"image": pyramid}]).open_volume().lazy_patch(8)
    text = pipe.normalize(statistics="level 1").batch_patches(1).explain()
    assert "statistics='level 1'" in text
    patch = next(iter(pipe.normalize(statistics="sample")))["image"]
    assert "statistics of a sample" in repr(patch)


def test_what_cannot_be_is_refused(pyramid):
    """At the user's line, or with the file that has no levels."""
    opened = vp.from_cases([{"image": FINE[0]}]).open_volume()
    with pytest.raises(ValueError, match="'sample' or 'level 2'"):
        opened.normalize(statistics="level two")
    with pytest.raises(ValueError, match="leave one of them out"):
        opened.normalize(inside="label", statistics="sample")
    with pytest.raises(VolumeError, match=r'no coarser level(?s:.*)statistics="sample"'):
        values_of(opened.normalize(statistics="level 1"))
