"""What goes wrong with geometry in MONAI 1.6.1 or TorchIO (1.2.1, 2.0.0a2), and does not here.

One test per defect that was found in them, on tiny arrays; the first line says what they do.
"""

from __future__ import annotations

import copy
from typing import Any

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, Grid, IOCounters
from voxpipe.core.errors import PolicyConflict
from voxpipe.spatial import (
    LABEL,
    Elastic,
    Flip,
    OneOf,
    PatchLargerThanVolume,
    Policy,
    RandomApply,
    RandomOrder,
    Rotate,
    SomeOf,
    SourceVoxels,
    SpatialPlan,
    Zoom,
    forget_masks,
    resample,
)

SHAPE = (12, 10, 8)
AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])
NOISE = np.random.default_rng(0).integers(-1000, 1000, SHAPE).astype(np.int16)
LABELS = np.random.default_rng(1).choice([0, 3, 7, 250], SHAPE).astype(np.uint8)


def opened(
    image: Any = NOISE, label: Any = LABELS, affine: Any = AFFINE, **options: Any
) -> vp.IterDataPipe:
    """Return one case of image and label, not read yet."""
    case = {
        "image": vp.Volume(image, affine=affine),
        "label": vp.Volume(label, affine=affine, kind="label"),
    }
    return vp.from_cases([case]).open_volume(**options)


def first(pipe: Any) -> Any:
    """Return the first sample of a chain."""
    return next(iter(pipe))


def image_of(pipe: Any) -> Any:
    """Return the voxels of the first image, without the channel axis."""
    return np.asarray(first(pipe)["image"])[0]


def done(pipe: Any) -> IOCounters:
    """Return what was done to make one batch of a chain."""
    before = IO_COUNTERS.snapshot()
    list(pipe.batch_patches(1))
    return IO_COUNTERS.snapshot() - before


# MONAI, lazily


@pytest.mark.parametrize("angle", [10, 45])
def test_labels_stay_labels_under_rotation(angle: float) -> None:
    """A lazy rotation drops mode="nearest": 99 % of a label's voxels are no whole numbers."""
    found = np.asarray(first(opened().rotate((angle, 5, 0)).zoom(1.1))["label"])

    assert found.dtype == np.uint8
    assert set(np.unique(found)) <= {0, 3, 7, 250}


def test_whole_voxels_keep_their_type_and_every_bit() -> None:
    """A lazy flip gives float32: int16 is lost, and label 2^24 + 1 becomes 2^24."""
    wide = np.full(SHAPE, 2**24 + 1, np.int32)

    sample = first(opened(wide, wide).flip(0).crop((1, 1, 1), 4).pad(1))

    for key in ("image", "label"):
        found = np.asarray(sample[key])[0]
        assert found.dtype == np.int32
        assert (found[1:-1, 1:-1, 1:-1] == 2**24 + 1).all()


def test_containers_are_seen_through() -> None:
    """Compose in Compose, OneOf, SomeOf and RandomOrder resample when they end."""
    pipe = opened().one_of([Rotate(5), Rotate(7)]).some_of([Rotate(3), Zoom(1.1)], 1)
    pipe = pipe.random_order([Rotate(5), Zoom(0.9)]).random_apply([Rotate(2)], p=1.0)
    nested = OneOf([SomeOf([RandomOrder([Rotate(3), RandomApply([Zoom(1.1)], 1.0)])], 1)])

    assert done(pipe.one_of([nested]).rotate(2)).interpolations == 2  # image and label


def test_a_random_order_samples_labels_as_labels() -> None:
    """RandomOrder forgets the overrides: labels are interpolated."""
    pipe = opened().random_order([Rotate((10, 5, 3)), Zoom(1.2), Flip(0)])

    assert set(np.unique(np.asarray(first(pipe)["label"]))) <= {0, 3, 7, 250}


def test_a_weighted_crop_follows_what_was_done_before() -> None:
    """RandWeightedCropd draws from the weights as they were stored: misses the bright voxel."""
    forget_masks()
    bright = np.zeros((40, 12, 12), np.uint8)
    bright[2, 3, 4] = 100

    pipe = opened(bright, bright).flip(0).lazy_patch(4, samples_per_volume=5, mask="label")

    assert [int(np.asarray(sample["image"]).max()) for sample in pipe] == [100] * 5


def test_a_crop_by_a_map_of_weights_follows_what_was_done_before() -> None:
    """The same with weights as such: behind a flip, a turn by an angle and another spacing."""
    forget_masks()
    bright = np.zeros((40, 12, 12), np.uint8)
    bright[17, 3, 4] = 100

    start = opened(bright, bright)
    for before in (start.flip(0), start.rotate((0, 0, 30)).spacing((1, 1, 1))):
        pipe = before.lazy_patch(4, samples_per_volume=5, weights="image")
        assert all(int(np.asarray(sample["image"]).max()) > 20 for sample in pipe)


def test_a_crop_to_where_something_is_follows_what_was_done_before() -> None:
    """CropForeground after a lazy flip crops the background, of sum 0."""
    forget_masks()
    inside = np.zeros((40, 12, 12), np.uint8)
    inside[1:4, 2:5, 3:6] = 7

    pipe = opened(inside, inside).flip((0, 2)).lazy_patch(3, mask="label", min_fraction=0.2)

    assert np.asarray(first(pipe)["image"]).sum() >= 0.2 * 27 * 7


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [({"padding": "constant", "fill": -1024}, -1024), ({"padding": "border"}, 5)],
)
def test_a_pad_is_filled_as_it_was_asked_for(sampling: Any, expected: float) -> None:
    """Lazily SpatialPad(value=-1024) and SpatialPad(mode="edge") write 0."""
    five = np.full(SHAPE, 5, np.int16)

    found = image_of(opened(five).pad(3, **sampling))

    assert found[0, 0, 0] == found[-1, -1, -1] == expected
    assert (found[3:-3, 3:-3, 3:-3] == 5).all()


def test_a_pad_is_filled_after_a_rotation_too() -> None:
    """A lazy pad and rotation give the last voxel instead of the value."""
    five = np.full(SHAPE, 5, np.int16)

    found = image_of(opened(five).pad(6, padding="constant", fill=-1024).rotate((0, 0, 30)))

    assert found[0, 0, 0] == -1024
    assert found[12, 11, 10] == 5


def test_a_crop_can_forget_what_is_outside() -> None:
    """Lazily a crop to 4 and a pad to 10 give back the data; eagerly zeros."""
    pipe = opened().crop((2, 2, 2), 4, hard=True).pad(3, padding="constant", fill=0)
    soft = image_of(opened().crop((2, 2, 2), 4).pad(2))

    found = image_of(pipe)

    assert np.array_equal(found[3:-3, 3:-3, 3:-3], NOISE[2:6, 2:6, 2:6])
    assert not found[:3].any()
    assert not found[..., -3:].any()
    assert np.array_equal(soft, NOISE[0:8, 0:8, 0:8])


def test_patches_where_something_is_resample_no_volume() -> None:
    """RandCropByPosNegLabel resamples image and label whole before it crops."""
    forget_masks()
    pipe = opened().lazy_patch(4, samples_per_volume=2, mask="label").rotate(5)
    list(pipe)  # the mask is read once

    found = done(pipe)

    assert found.interpolations == 4  # two patches of image and label
    assert found.bytes_read < 4 * 8**3 * 3


def test_a_cache_is_no_boundary(tmp_path: Any) -> None:
    """CacheDataset holds no pending ops: resampled before the cache and again after it."""
    nibabel.save(nibabel.Nifti1Image(NOISE, AFFINE), tmp_path / "ct.nii")
    pipe = vp.from_cases([{"image": str(tmp_path / "ct.nii")}]).open_volume()

    found = done(pipe.cache(tmp_path).spacing(1.3).orientation("LPS").rotate(5).lazy_patch(4))

    assert found.interpolations == 1


def test_an_op_on_the_image_leaves_the_label_alone() -> None:
    """One op of values that is not lazy resamples every key."""
    pipe = opened().rotate(5).blur(1.0, unit="voxel").rotate(3)

    assert done(pipe).interpolations == 3  # the blurred image twice, the label once


def test_shapes_are_those_of_what_comes_out() -> None:
    """Until it is flushed a lazy tensor shows the old shape, and x * 2 changes old voxels."""
    image = first(opened().spacing((0.5, 0.5, 1)).crop((2, 2, 2), 5))["image"]

    assert image.shape == (1, 5, 5, 5) == np.asarray(image).shape
    assert np.allclose(np.diag(image.affine), (0.5, 0.5, 1, 1))
    with pytest.raises(TypeError):
        image * 2


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", None])
def test_any_type_can_be_asked_for(dtype: Any) -> None:
    """An override dtype=torch.uint8, or None on integers, is an error in grid_sample."""
    asked = {} if dtype is None else {"dtype": {"label": dtype}}

    found = np.asarray(first(opened().rotate(5, **asked))["label"])

    assert found.dtype == (dtype or "uint8")
    assert set(np.unique(found.astype(int))) <= {0, 3, 7, 250}


def test_an_inverse_is_one_interpolation() -> None:
    """Compose.inverse takes back one op after another: four interpolations for three ops."""
    plan = first(opened().spacing((0.8, 0.9, 1.1)).rotate(9).zoom(1.1))["image"].plan
    back = plan.inverse()
    values = np.broadcast_to(np.arange(12.0, dtype=np.float32)[:, None, None], SHAPE)[None]
    there, again = np.empty((1, *plan.shape), np.float32), np.empty((1, *SHAPE), np.float32)
    border = Policy(padding="border")
    before = IO_COUNTERS.snapshot()

    resample(SourceVoxels(values, (0, 0, 0), plan.bounds), plan.matrix, border, there)
    resample(SourceVoxels(there, (0, 0, 0), back.bounds), back.matrix, border, again)

    assert (IO_COUNTERS.snapshot() - before).interpolations == 2
    assert np.allclose(again[0, 4:8, 4:6, 3:5], values[0, 4:8, 4:6, 3:5], atol=1e-4)


def test_a_patch_reads_its_own_region() -> None:
    """For a patch of 32^3 the whole volume becomes float64."""
    volume = np.broadcast_to(np.int16(1), (400, 400, 400))  # two bytes of memory

    image = first(opened(volume, volume).crop((100, 100, 100), 32).rotate((15, 0, 0)))["image"]

    assert image.source_region.size < 32 * 45**2
    assert (np.asarray(image) == 1).all()


def test_antialiasing_is_not_forgotten() -> None:
    """A lazy Resize(anti_aliasing=True) warns and does not smooth: a checkerboard stays one."""
    board = (np.indices((24, 24, 24)).sum(axis=0) % 2 * 100).astype(np.float32)

    aliased = image_of(opened(board, board.astype(np.uint8)).resize((9, 9, 9)))
    smooth = image_of(opened(board, board.astype(np.uint8)).resize((9, 9, 9), antialias=True))

    assert np.ptp(aliased) > 20
    assert np.ptp(smooth[2:-2, 2:-2, 2:-2]) < 5


def test_the_affine_is_that_of_the_voxels_that_were_made() -> None:
    """Spacing(recompute_affine=True) raises lazily, and without it the affine is a little off."""
    image = first(opened().spacing((0.7, 0.7, 0.7)))["image"]
    corners = np.array([[0, 0, 0, 1], [*(n - 1 for n in image.shape[1:]), 1]], float)

    world = corners @ image.affine.T
    source = np.linalg.inv(AFFINE) @ world.T

    assert np.allclose(np.diag(image.affine)[:3], 0.7, atol=1e-12)
    assert np.allclose(source, (corners @ image.plan.matrix.T).T, atol=1e-9)


def test_a_tiny_scale_is_kept_over_1990_voxels() -> None:
    """Entries within 1e-3 of whole ones are rounded: 1.8 voxels off at the far end."""
    grid = Grid((1990, 2, 2), np.eye(4))
    ramp = np.broadcast_to(np.arange(1990, dtype=np.float32)[:, None, None], grid.shape)[None]
    matrix = np.diag([1.0009, 1, 1, 1])
    plan = SpatialPlan.identity(grid).then(matrix, grid.shape, lattice=False)
    out = np.empty((1, *grid.shape), np.float32)

    resample(SourceVoxels(ramp, (0, 0, 0), plan.bounds), plan.matrix, Policy(padding="border"), out)

    assert not plan.is_copy
    assert np.allclose(out[0, :1980, 0, 0], np.arange(1980) * 1.0009, atol=1e-3)
    assert SpatialPlan.identity(grid).then(np.diag([1 + 1e-9, 1, 1, 1]), (1990, 2, 2), lattice=True)


@pytest.mark.parametrize("shape", [(9, 1, 1), (9, 7, 1)])
def test_one_and_two_dimensions_are_volumes_of_one_voxel(shape: tuple[int, int, int]) -> None:
    """A pending affine on one-dimensional data raises."""
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    found = first(opened(values, values.astype(np.uint8), np.eye(4)).zoom(1.5).flip(0))["image"]

    assert found.shape == (1, *shape)
    assert np.isfinite(np.asarray(found)).all()
    assert np.isclose(np.asarray(found)[0].mean(), values.mean(), rtol=0.2)


def test_two_wishes_for_one_volume_are_an_error() -> None:
    """Whether parameters go together is a stub that says yes: the last one wins, silently."""
    with pytest.raises(PolicyConflict) as told:
        opened().rotate(5, padding="border").zoom(1.1, padding="reflection")

    assert all(word in str(told.value) for word in ("border", "reflection", "rotate", "zoom"))


def test_nearest_of_a_resize_is_not_half_a_voxel_off() -> None:
    """An eager nearest Resize takes the floor: a label of odd size moves by half a voxel."""
    label = np.zeros((15, 15, 15), np.uint8)
    label[5:10, 5:10, 5:10] = 1

    found = np.asarray(first(opened(label, label).resize((45, 45, 45)).resize((5,) * 3))["label"])

    assert np.array_equal(found[0], label[1::3, 1::3, 1::3])


# TorchIO


@pytest.mark.parametrize("value", [100, -1000])
@pytest.mark.parametrize("dtype", ["int16", "float32"])
def test_a_constant_volume_stays_constant_under_a_small_shift(value: int, dtype: str) -> None:
    """2.0.0a2 blends with zero before it pads: 100 becomes 70 at a shift of 0.3 voxels."""
    constant = np.full(SHAPE, value, dtype)
    pipe = opened(constant).translate((0.3, 0.3, 0.3), space="voxel", padding="constant", fill=-50)

    assert np.allclose(image_of(pipe), value, rtol=1e-6)


def test_integers_are_rounded() -> None:
    """2.0.0a2 truncates: half-way between 7 and 8 is 7, and -7.5 becomes -7."""
    values = np.array([7, 8, 9, -7, -9], np.int16).reshape(1, 5, 1, 1)
    out, plan = np.empty((1, 4, 1, 1), np.int16), SpatialPlan.identity(Grid((5, 1, 1), np.eye(4)))
    shifted = np.eye(4)
    shifted[0, 3] = 0.8

    resample(SourceVoxels(values, (0, 0, 0), plan.bounds), shifted, Policy(padding="border"), out)

    assert out.ravel().tolist() == [8, 9, -4, -9]  # 7.8, 8.8, -3.8 and -8.6


def test_points_go_with_crops_and_pads() -> None:
    """2.0.0a2's lazy CropOrPad drops the points of a subject."""
    image = first(opened().crop((3, 2, 1), 5).pad(2).flip(0))["image"]
    place = image.plan.points_to_output([[4.0, 3.0, 2.0]])[0]

    found = np.asarray(image)[0][tuple(place.astype(int))]

    assert found == NOISE[4, 3, 2]
    assert np.allclose(image.plan.points_to_source([place]), [[4, 3, 2]])


def test_points_go_with_patches() -> None:
    """2.0.0a2's patches carry the points of the whole image, not shifted."""
    image = first(opened().lazy_patch(6))["image"]
    start = image.source_region.start

    assert np.allclose(image.plan.points_to_output([np.add(start, 2.5)]), 2.5)


def test_a_crop_of_a_crop_reads_the_last_one() -> None:
    """2.0.0a2 reads the whole first crop for the second, and the whole volume for a pad."""
    crops = first(opened().crop((1, 1, 1), 6).crop((2, 2, 2), 3))["image"]
    padded = first(opened().crop((1, 1, 1), 3).pad(1))["image"]

    assert crops.source_region.shape == (3, 3, 3)
    assert padded.source_region.shape == (5, 5, 5)


def test_crop_or_pad_says_the_type_that_it_gives() -> None:
    """2.0.0a2 gives float32 and reports int16."""
    image = first(opened().crop_or_pad((8, 14, 8)))["image"]

    assert image.dtype == np.asarray(image).dtype == np.int16


def test_a_patch_owns_its_memory() -> None:
    """2.0.0a2's patches are views: 2 kB keep a volume of 1 MB alive."""
    patch = first(opened().lazy_patch(4).realize())["image"]

    assert patch.untyped_storage().nbytes() == patch.numel() * patch.element_size()


def test_a_patch_larger_than_the_volume_has_its_size() -> None:
    """2.0.0a2 gives a smaller one, silently."""
    with pytest.warns(PatchLargerThanVolume):
        found = np.asarray(first(opened().lazy_patch((16, 4, 4)))["image"])

    assert found.shape == (1, 16, 4, 4)


def test_classes_come_by_their_weight_and_not_by_their_size() -> None:
    """2.0.0a2's LabelSampler weighs voxels: 0.5 % of the patches see the foreground, not half."""
    forget_masks()
    label = np.zeros((24, 24, 24), np.uint8)
    label[10:12, 10:12, 10:12] = 1
    pipe = opened(label, label).lazy_patch(
        5, samples_per_volume=200, mask="label", class_weights={0: 1, 1: 1}
    )

    drawn = [sample["image"].draws["lazy_patch"]["class"] for sample in pipe]

    assert 60 < sum(drawn) < 140


def test_more_than_2_to_the_24_voxels_can_be_drawn_from() -> None:
    """2.0.0a2's WeightedSampler fails on them."""
    forget_masks()
    label = np.zeros((260, 260, 260), np.uint8)
    label[250:252, 200:202, 5:7] = 1
    pipe = opened(label, label).lazy_patch(8, samples_per_volume=3, mask="label")

    assert label.size > 2**24
    assert all(np.asarray(sample["label"]).any() for sample in pipe)


def test_more_than_2_to_the_24_voxels_can_weigh_something() -> None:
    """The same with weights: a cumulative sum in float32 would end before the last of them."""
    forget_masks()
    weights = np.ones((260, 260, 260), np.float32)
    weights[250:, 250:, 250:] = 1e9
    pipe = opened(weights, keys=("image",))
    pipe = pipe.lazy_patch(8, samples_per_volume=3, weights="image")

    drawn = [sample["image"].draws["lazy_patch"]["start"] for sample in pipe]

    assert all(min(start) >= 246 for start in drawn)


def test_axes_are_longer_than_65535_voxels() -> None:
    """1.2.1 keeps where a patch begins in 16 bits."""
    long = np.arange(70_000, dtype=np.int32).reshape(-1, 1, 1)

    found = image_of(opened(long, long).crop((69_000, 0, 0), (4, 1, 1)))

    assert found.ravel().tolist() == [69_000, 69_001, 69_002, 69_003]


def test_locked_borders_hold_all_three_axes() -> None:
    """1.2.1's locked borders leave the control points of the third axis free."""
    for n, most in ((25, 1e-12), (26, 2 / 48)):  # the spacing fits 25 voxels exactly
        grid = Grid((n, n, n), np.eye(4))
        op = Elastic(2, spacing=6, locked_layers=2)
        start = SpatialPlan.identity(grid)
        plan = op.then(start, op.draw(np.random.default_rng(0), start) or {})
        places = np.random.default_rng(1).uniform(0, n - 1, (200, 3))
        middle = plan.points_to_source(places) - places
        for axis in range(3):
            for face in (0, n - 1):
                places[:, axis] = face
                assert np.abs(plan.points_to_source(places) - places).max() <= most
            places[:, axis] = (n - 1) / 2

        assert np.abs(middle).max() > 0.1


def test_grids_that_differ_by_rounding_are_one() -> None:
    """1.2.1 refuses a subject whose affines differ by 1e-7."""
    case = {
        "image": vp.Volume(NOISE, affine=AFFINE),
        "label": vp.Volume(LABELS, affine=AFFINE * (1 + 1e-7), kind="label"),
    }

    sample = first(vp.from_cases([case]).open_volume().rotate(5))

    assert np.asarray(sample["label"]).shape == np.asarray(sample["image"]).shape


def test_what_was_drawn_can_be_done_again_without_the_objects() -> None:
    """Inverses match transforms by id(): a copy, or another process, cannot find them."""
    image = first(opened().rotate((5, 3, 2)).elastic(0.5, spacing=4))["image"]
    told = copy.deepcopy(image.plan.to_json())

    again = SpatialPlan.from_json(told)

    assert np.allclose(again.matrix, image.plan.matrix)
    assert np.allclose(
        again.inverse(tolerance=0.05).matrix, image.plan.inverse(tolerance=0.05).matrix
    )
    assert LABEL.mode == "nearest"
