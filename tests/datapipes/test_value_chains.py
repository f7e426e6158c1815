"""Value ops in chains: done in passing, with statistics that follow, where labels and masks are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import NotPicklable, SampleError, VolumeError
from voxpipe.datapipes.cost import explain
from voxpipe.intensity import Epilogue
from voxpipe.spatial.lazy import lazy_patch


def opened(shape: tuple[int, ...] = (14, 12, 10), **more: Any) -> Any:
    """A chain of one case: an image of int16 and a label."""
    random = np.random.default_rng(0)
    image = random.integers(-100, 900, shape).astype(np.int16)
    label = (image > 200).astype(np.uint8)
    return vp.from_cases([{"image": image, "label": label, **more}]).open_volume()


def voxels(pipe: Any, key: str = "image") -> Any:
    """What the first sample has under a key."""
    return next(iter(pipe))[key].realize()


def passes(pipe: Any) -> int:
    """How often value ops go over the patch of the first sample."""
    patch = next(iter(pipe))["image"]
    before = IO_COUNTERS.snapshot()
    patch.realize()
    return (IO_COUNTERS.snapshot() - before).value_passes


def test_a_modality_that_is_missing_becomes_zero() -> None:
    """Where nothing is above 0 there are no statistics; of other volumes that is an error."""
    missing = vp.from_cases([{"image": np.zeros((4, 4, 4), np.int16)}]).open_volume()
    assert not voxels(missing.normalize(above=0)).any()
    with pytest.raises(SampleError, match="no voxel of the volume is above 5000"):
        voxels(opened().normalize(above=5000))


AFFINE = st.one_of(
    st.tuples(st.just("brightness"), st.tuples(st.floats(-2, 2), st.floats(-50, 50))),
    st.tuples(st.just("contrast"), st.tuples(st.floats(0, 3), st.floats(-50, 50))),
    st.tuples(st.just("clamp"), st.tuples(st.floats(-300, 0), st.floats(1, 700))),
    st.tuples(st.just("normalize"), st.tuples(st.floats(-9, 9), st.floats(1, 100))),
    st.tuples(st.just("rescale"), st.just(((-1.0, 3.0), (-90.0, 500.0), True))),
)


@pytest.mark.parametrize("native", ["", "0"])
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rescale", ()),
        ("rescale", ((5, -3), (1e6 - 2, 1e6 + 3.3))),
        ("rescale_percentiles", (1, 98)),
    ],
)
def test_a_small_range_far_from_0_keeps_its_digits(
    name: str, arguments: Any, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies near is subtracted before anything is scaled, as float32 holds it."""
    monkeypatch.setenv("VOXPIPE_NATIVE", native)
    stored = 1e6 + np.random.default_rng(0).normal(size=(6, 7, 8)).astype(np.float32)
    exact = stored.astype(np.float64)
    low, high, out = exact.min(), exact.max(), (0.0, 1.0)
    if name != "rescale":
        low, high = np.percentile(exact, arguments)
        exact = np.clip(exact, low, high)
    elif arguments:
        out, (low, high) = arguments
    expected = out[0] + (out[1] - out[0]) * (exact - low) / (high - low)

    chain = vp.from_cases([{"image": stored}]).open_volume()
    found = voxels(getattr(chain, name)(*arguments))

    assert np.abs(found - expected).max() < 1e-6 * abs(out[1] - out[0])


@given(ops=st.lists(AFFINE, min_size=1, max_size=5), turn=st.booleans())
def test_folded_is_done_one_after_another(ops: Any, turn: bool) -> None:
    """Scales, shifts and clamps are no pass of their own, and give the same to 1e-6 of the range.

    A function that does nothing keeps the ops after it from being folded.
    """
    folded = opened().rotate(20) if turn else opened()
    apart = folded.map_values(np.positive, commutes=True)
    largest = 1000.0
    for n, (name, arguments) in enumerate(ops):
        folded = getattr(folded, name)(*arguments, name=f"{name}-{n}")
        apart = getattr(apart, name)(*arguments, name=f"{name}-{n}")
        largest = max(largest, float(np.abs(voxels(apart)).max()))

    found, expected = voxels(folded), voxels(apart)

    assert (passes(folded), passes(apart)) == (0, len(ops) + 1)
    # Rounding is that of the largest value on the way, times what later ops make of it.
    growth = 3.0 ** sum(name in ("brightness", "contrast") for name, _ in ops)
    assert np.allclose(found, expected, rtol=0, atol=1e-6 * largest * growth)


@given(st.data())
def test_two_epilogues_in_one(data: Any) -> None:
    """Any two compose, clamps and negative factors included."""
    number = st.floats(-5, 5)
    first, second = (
        Epilogue(
            data.draw(number), data.draw(number), *sorted([data.draw(number), data.draw(number)])
        )
        for _ in range(2)
    )
    values = np.linspace(-20, 20, 101)

    assert np.allclose(first.then(second).of(values), second.of(first.of(values)), atol=1e-9)


def test_folding_ends_where_it_must() -> None:
    """What follows a curve is a pass of its own, what is before it is not."""
    assert passes(opened().clamp(0, 500).rescale().gamma(0.7).brightness(2.0)) == 2


def test_digits_come_before_speed() -> None:
    """A mean far from 0 is subtracted in float64, in a pass of its own."""
    volume = (np.arange(24).reshape(2, 3, 4) + 2**24).astype(np.int32)
    pipe = vp.from_cases([{"image": volume}]).open_volume().normalize(2.0**24, 1.0)

    assert passes(pipe) == 1


def test_a_batch_has_the_same_values() -> None:
    """Folded into the slot of the batch as into an array of its own."""
    pipe = opened().rotate(10).clamp(-50, 700).normalize(100, 300)

    batch = next(iter(pipe.batch_patches(1)))["image"].numpy()

    assert np.array_equal(batch[0], voxels(pipe))


def test_statistics_follow_what_came_before() -> None:
    """Mean and deviation after a clamp, a curve and a flush are those of the changed volume."""
    image = voxels(opened()).astype(np.float64)
    clamped = np.clip(image, 0, 500)
    expected = (clamped - clamped.mean()) / clamped.std()

    assert np.allclose(voxels(opened().clamp(0, 500).normalize()), expected, atol=1e-5)
    assert np.allclose(voxels(opened().clamp(0, 500).flush().normalize()), expected, atol=1e-5)
    eager = opened().realize().clamp(0, 500).normalize()
    assert np.allclose(next(iter(eager))["image"].numpy(), expected, atol=1e-5)
    unit = (image - image.min()) / np.ptp(image)
    bent = opened().rescale().gamma(2).rescale((0, 2))
    assert np.allclose(voxels(bent), 2 * unit**2, atol=1e-4)


def test_statistics_are_of_the_channels_that_were_kept() -> None:
    """Of those of one modality, whatever the others hold; twice of one that is kept twice."""
    image = np.random.default_rng(0).normal(size=(3, 6, 5, 4)).astype(np.float32)
    image[1] = image[1] * 10 + 50
    label = np.zeros((1, 6, 5, 4), np.uint8)
    label[:, 2:5] = 1
    chain = vp.from_cases([{"image": image, "label": label}]).open_volume()

    one = voxels(chain.select_channels(1).normalize())
    assert abs(one.mean()) < 1e-5
    assert one.std() == pytest.approx(1, abs=1e-4)
    assert voxels(chain.select_channels(0).rescale()).max() == pytest.approx(1)
    kept = voxels(chain.select_channels((2, 1, 1)).clamp(-1, 55).normalize())
    assert kept.shape == (3, 6, 5, 4)
    assert abs(kept.mean()) < 1e-5
    twice = voxels(chain.select_channels((0, 2)).select_channels(1).normalize(inside="label"))
    assert abs(twice[label > 0].mean()) < 1e-5
    first = voxels(chain.normalize().select_channels(0))
    assert np.allclose(first[0], (image[0] - image.mean()) / image.std(), atol=1e-5)


def test_statistics_inside_a_label_and_above_a_threshold() -> None:
    """Of the whole volume, wherever the patch lies."""
    image, label = voxels(opened()), voxels(opened(), "label")
    inside = image[label > 0].astype(np.float64)
    bright = image[image > 400].astype(np.float64)
    part = opened().crop((1, 1, 1), (3, 3, 3))
    cut = image[:, 1:4, 1:4, 1:4]

    by_label = voxels(part.normalize(inside="label"))
    by_value = voxels(part.normalize(above=400))
    percentiles = voxels(part.rescale_percentiles(10, 90, inside="label", clamp=False))

    assert np.allclose(by_label, (cut - inside.mean()) / inside.std(), atol=1e-5)
    assert np.allclose(by_value, (cut - bright.mean()) / bright.std(), atol=1e-5)
    low, high = np.percentile(inside, [10, 90])
    assert np.allclose(percentiles, (cut - low) / (high - low), atol=1e-5)


def test_a_mask_that_is_not_there_is_named() -> None:
    """With what the sample has."""
    with pytest.raises(SampleError, match=r"inside 'seg', but the sample has image, label"):
        next(iter(opened().normalize(inside="seg")))


def test_labels_are_remapped_and_split() -> None:
    """By default the label is changed, not the image, and turning may come later."""
    pipe = opened().remap_labels({1: 3}).one_hot((0, 3)).rotate90(1, (0, 1))
    label = np.rot90(voxels(opened(), "label")[0], 1, (0, 1))

    found = next(iter(pipe))["label"]

    assert found.shape == (2, *label.shape)
    assert found.realize().dtype == np.uint8
    assert np.array_equal(found.realize(), np.stack([label == 0, label == 1]))


def test_labels_stay_whole_numbers_of_whatever_type() -> None:
    """A negative label in uint64 makes int64 of it, where NumPy's rule makes float64."""
    label = np.array([0, 1, 2], np.uint64).reshape(1, 3, 1, 1)
    found = voxels(vp.from_cases([{"label": label}]).open_volume().remap_labels({1: -1}), "label")

    assert found.dtype == np.int64
    assert found.ravel().tolist() == [0, -1, 2]


def test_channels_are_counted_when_planned() -> None:
    """A channel that is not there is named before a voxel is read."""
    with pytest.raises(VolumeError, match=r"select_channels is to keep \(2,\), of 1 channels"):
        _ = next(iter(opened().select_channels(2)))["image"].shape
    with pytest.raises(VolumeError, match="one channel, not of 2"):
        _ = next(iter(opened().one_hot(2).one_hot(2, name="again")))["label"].shape


def test_draws_are_in_the_meta() -> None:
    """Plain numbers by name, None where the op did not act."""
    pipe = opened().noise((1, 2)).gamma(2, p=0).batch_patches(1)

    draws = next(iter(pipe))["meta"][0]["draws"]

    assert draws["gamma"] is None
    assert 1 <= draws["noise"]["std"] <= 2


def test_noise_of_two_volumes_differs_and_its_strength_does_not() -> None:
    """Parameters are drawn for the sample, numbers for each voxel of each volume."""
    flat = np.zeros((20, 20, 20), np.float32)
    pipe = vp.from_cases([{"t1": flat, "t2": flat}]).open_volume().noise((1, 9))
    sample = next(iter(pipe))
    one, two = sample["t1"].realize(), sample["t2"].realize()

    assert sample["t1"].draws == sample["t2"].draws
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.05
    assert np.isclose(one.std(), two.std(), rtol=0.05)


def test_boxes_take_about_their_fraction() -> None:
    """Counted over a volume with room for a thousand of them."""
    flat = np.ones((64, 64, 64), np.float32)
    found = voxels(vp.from_cases([{"image": flat}]).open_volume().drop_boxes((3, 6), 0.2))

    assert 0.15 < (found == 0).mean() < 0.22


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("blur", (1.5,)),
        ("sharpen", (1.0,)),
        ("low_resolution", (2.5,)),
        ("anisotropy", (2, 2)),
        ("bias_field", (0.4,)),
        ("drop_boxes", (3, 0.2)),
    ],
)
def test_two_dimensions(name: str, arguments: Any) -> None:
    """One voxel along the last axis: nothing is read or mixed along it."""
    flat = np.random.default_rng(0).uniform(1, 2, (16, 14, 1)).astype(np.float32)
    padded = vp.from_cases([{"image": flat}]).open_volume().rotate((0, 0, 20), padding="constant")
    patch = next(iter(getattr(padded, name)(*arguments)))["image"]

    found = patch.realize()

    assert found.shape == (1, 16, 14, 1)
    assert patch.widen(patch.plan).shape[2] == 1


@given(
    sigmas=st.lists(st.floats(0.4, 2), min_size=1, max_size=3),
    between=st.sampled_from(["brightness", "sharpen", "noise"]),
    padding=st.sampled_from(["border", "zeros", "reflection"]),
    corner=st.tuples(*[st.integers(0, 23)] * 3),
    degrees=st.sampled_from([None, 90, 20]),
)
def test_a_wide_halo_ends_where_nothing_changes(
    sigmas: Any, between: str, padding: Any, corner: Any, degrees: Any
) -> None:
    """To the same bits as all of it: beyond the volume a filter sees what it saw at the end."""
    amounts = {"brightness": (1.5, 3), "sharpen": (1, "voxel"), "noise": (2,)}
    chain = opened((9, 7, 6)).pad(10, padding={"image": padding})
    chain = chain if degrees is None else chain.rotate((0, 0, degrees))
    chain = chain.crop(corner, (2, 3, 1))
    for sigma in sigmas:
        chain = getattr(chain.blur(sigma, "voxel"), between)(*amounts[between])
    patch = next(iter(chain))["image"]

    bounded = patch.realize()
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setattr(lazy_patch, "bounded_halo", lambda halo, *others: (halo, 1))
        patch.__dict__.pop("_reading")  # what is read is worked out once
        whole = patch.realize()

    # A turned patch begins elsewhere, and a double is rounded there.
    np.testing.assert_allclose(bounded, whole, rtol=0, atol=1e-3 if degrees == 20 else 0)


def test_a_sigma_beyond_the_volume_takes_what_the_volume_takes() -> None:
    """And is counted; what memory cannot hold is refused in the words of whoever wrote it."""
    patch = next(iter(opened((10, 11, 12)).blur(50.0, "voxel")))["image"]
    before = IO_COUNTERS.snapshot()
    mean = patch.realize().mean()

    assert patch.reads()[0].made_bytes < 4 * 40**3
    assert (IO_COUNTERS.snapshot() - before).value_passes == 1
    assert np.isfinite(mean)
    microns = np.diag([1e-5, 1e-5, 1e-5, 1])
    volume = vp.Volume(np.zeros((4, 4, 4), np.float32), affine=microns)
    far = vp.from_cases([{"image": volume}]).open_volume().pad(1, padding="reflection")
    words = r"blur sigma 1 mm, on voxels of 1e-05, 1e-05, 1e-05 mm, looks at 400000 voxels"
    with pytest.raises(MemoryError, match=words):
        voxels(far.blur(1.0))


def test_blur_is_in_millimetres_or_in_voxels() -> None:
    """Of the grid as it is there: after a zoom by 2 a voxel is half as long."""
    point = np.zeros((21, 21, 21), np.float32)
    point[10, 10, 10] = 1
    plain = vp.from_cases([{"image": point}]).open_volume().zoom(2)

    by_mm, by_voxel = voxels(plain.blur(0.75)), voxels(plain.blur(1.5, "voxel"))

    assert np.allclose(by_mm, by_voxel, atol=1e-7)


def test_a_function_of_ones_own() -> None:
    """It is applied after the interpolation, and may change its array."""
    expected = np.abs(voxels(opened().rotate(5)))

    assert np.array_equal(voxels(opened().rotate(5).map_values(np.abs)), expected)


def test_a_lambda_runs_where_there_are_no_workers() -> None:
    """As in ``map``: nothing has to travel."""
    pipe = opened().map_values(lambda array: array * 2)

    assert np.array_equal(voxels(pipe), 2 * voxels(opened()))
    with vp.DataLoader2(pipe.batch_patches(1), seed=3) as loader:
        assert np.array_equal(next(iter(loader))["image"][0], 2 * voxels(opened()))


def test_a_function_that_cannot_travel_is_refused_by_workers() -> None:
    """When a service distributes the graph, with the place and what to do, as of ``map``."""
    service = vp.MultiProcessingReadingService(num_workers=1)
    told = []
    for pipe in (
        opened().map_values(lambda array: array).batch_patches(1),
        opened().batch_patches(1).map(lambda batch: batch),
    ):
        with pytest.raises(NotPicklable, match="cannot travel to a worker") as caught:
            vp.DataLoader2(pipe, None, service)
        told.append(str(caught.value))

    assert all("test_value_chains.py" in text for text in told)
    assert ".map_values(<lambda>)" in told[0]
    assert told[0].splitlines()[-1] == told[1].splitlines()[-1]
    assert "num_workers=0" in told[0]


def test_a_function_keeps_the_shape() -> None:
    """Else it is named, with both shapes."""
    with pytest.raises(SampleError, match=r"sum made \(\) of a patch of \(1, 14, 12, 10\)"):
        voxels(opened().map_values(np.sum))


def test_explain_says_which_op_breaks_the_fusion_and_where() -> None:
    """Two interpolations of the image, one of the label, and bytes of the stored volume."""
    pipe = opened().lazy_patch(6).rotate(10).blur(1).rotate(5).batch_patches(1)

    text = explain(pipe)

    assert "3 interpolations" in text
    assert "not fused: image is sampled anew after blur at" in text
    assert "test_value_chains.py" in text
    assert "not fused" not in explain(opened().rotate(10).noise(1).rotate(5).batch_patches(1))
    flushed = explain(opened().rotate(10).flush("image").rotate(5).realize())
    assert "anew after flush at .flush('image')   test_value_chains.py:" in flushed


def test_bytes_are_those_of_the_stored_volume() -> None:
    """A patch of a filtered volume needs the patch, the halo, and no more."""
    pipe = opened().blur(0.5, "voxel").crop((5, 5, 5), (2, 2, 2)).batch_patches(1)

    cost = vp.datapipes.cost.cost_of(pipe, 0, 0)

    assert cost is not None
    assert cost.bytes_needed == 6**3 * 2 + 2**3


def test_a_choice_of_scales_is_done_in_passing() -> None:
    """And what a choice drew is what its member does alone."""
    pipe = opened().one_of([vp.intensity.Clamp(0, 500)]).normalize()

    assert passes(pipe) == 0
    assert np.allclose(voxels(pipe), voxels(opened().clamp(0, 500).normalize()), atol=1e-5)


def test_a_choice_holds_nothing_that_changes_the_shape() -> None:
    """The shape is known before anything is drawn."""
    with pytest.raises(ValueError, match="a choice cannot hold one_hot"):
        opened().one_of([vp.intensity.OneHot(2)])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_stack_behind_a_plain_patch_is_still_one(order: tuple[int, int]) -> None:
    """A step that the last sample had is not given to a sample of another kind."""
    plain = vp.from_cases([{"image": np.ones((9, 9, 9))}]).open_volume()
    two = vp.from_cases([{"t1": np.ones((9, 9, 9)), "t2": np.zeros((9, 9, 9))}]).open_volume()
    parents = [plain, two.brightness(0.5, keys="t1").stack(("t1", "t2"), "image")]

    alone = [next(iter(parent.blur(1.3)))["image"] for parent in parents]
    together = list(parents[order[0]].concat(parents[order[1]]).blur(1.3))

    for place, number in enumerate(order):
        found, expected = together[place]["image"], alone[number]
        assert [len(m.values) for m in found.members] == [len(m.values) for m in expected.members]
        assert len(found.values) == len(expected.values)
