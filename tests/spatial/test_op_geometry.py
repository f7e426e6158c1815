"""Where ops move things in the world, worked out by hand and by NumPy's own turns and flips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from voxpipe.core import Grid, Region
from voxpipe.core.errors import BadHeader
from voxpipe.spatial import (
    LABEL,
    Affine,
    Augment,
    Flip,
    Pad,
    Policy,
    Rotate,
    Rotate90,
    Shear,
    SourceVoxels,
    SpatialOp,
    SpatialPlan,
    Translate,
    Zoom,
    resample,
)

# Voxels of 1 x 1 x 3 mm whose axes run backwards and sideways: i along -y, j along +x, k along +z.
ANISOTROPIC = np.array([[0, 1, 0, -7], [-1, 0, 0, 20], [0, 0, 3, 5], [0, 0, 0, 1]], dtype=float)


def applied(op: SpatialOp, plan: SpatialPlan, item: int = 0) -> SpatialPlan:
    drawn = op.draw(np.random.default_rng(item), plan)
    return plan if drawn is None else op.then(plan, drawn)


def realized(volume: np.ndarray, plan: SpatialPlan, policy: Policy, dtype: Any = None) -> Any:
    out = np.empty((volume.shape[0], *plan.shape), dtype or volume.dtype)
    bounds = Region.of_shape(volume.shape[1:])
    source = SourceVoxels(volume, (0, 0, 0), plan.bounds.intersect(bounds))
    resample(source, plan.matrix, policy, out, plan.kernel_stages)
    return out


def world_of_brightest(volume: np.ndarray, grid: Grid) -> np.ndarray:
    """Return the middle of the brightest voxels, in millimetres from the centre of the grid."""
    index = np.argwhere(volume[0] == volume.max()).mean(axis=0)
    return grid.affine[:3, :3] @ index + grid.affine[:3, 3] - grid.centre


QUARTER = {"x": (90, 0, 0), "y": (0, 90, 0), "z": (0, 0, 90)}


@pytest.mark.parametrize(
    ("axis", "before", "after"),
    [
        ("z", (6, 0, 3), (0, 6, 3)),
        ("z", (0, 6, 3), (-6, 0, 3)),
        ("x", (3, 6, 0), (3, 0, 6)),
        ("x", (3, 0, 6), (3, -6, 0)),
        ("y", (0, 3, 6), (6, 3, 0)),
        ("y", (6, 3, 0), (0, 3, -6)),
    ],
)
def test_a_bright_voxel_turns_as_the_world_says(
    axis: str, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """A quarter turn about each axis is right-handed in millimetres, whatever the voxels are."""
    grid = Grid((15, 15, 7), ANISOTROPIC)
    index = np.linalg.solve(ANISOTROPIC[:3, :3], before) + grid.centre_index
    volume = np.zeros((1, 15, 15, 7), np.int16)
    volume[(0, *np.rint(index).astype(int))] = 100

    plan = applied(Rotate(QUARTER[axis]), SpatialPlan.identity(grid))
    moved = realized(volume, plan, LABEL)

    assert moved.max() == 100
    # The op moves the content; the grid stays where it was in millimetres about its centre.
    assert np.allclose(world_of_brightest(moved, grid), after)


def test_the_first_angle_turns_first() -> None:
    """(90, 0, 90) takes +y over +z, about x, and leaves it there, about z."""
    plan = SpatialPlan.identity(Grid((9, 9, 9), np.eye(4)))
    volume = np.zeros((1, 9, 9, 9), np.uint8)
    volume[0, 4, 7, 4] = 1

    moved = realized(volume, applied(Rotate((90, 0, 90)), plan), LABEL)

    assert np.argwhere(moved[0]).tolist() == [[4, 4, 7]]


@pytest.mark.parametrize("k", [-1, 0, 1, 2, 3, 5])
@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (2, 1)])
def test_rotate90_is_numpy_s(k: int, axes: tuple[int, int]) -> None:
    """Every quarter turn gives what numpy.rot90 gives, lengths swapped, bit for bit."""
    volume = np.arange(2 * 3 * 4 * 5, dtype=np.uint16).reshape(2, 3, 4, 5) + 65000
    plan = applied(Rotate90(k, axes), SpatialPlan.identity(Grid((3, 4, 5), ANISOTROPIC)))

    expected = np.rot90(volume, k, axes=(axes[0] + 1, axes[1] + 1))

    assert plan.shape == expected.shape[1:]
    assert np.array_equal(realized(volume, plan, Policy()), expected)


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_flip_is_numpy_s(axes: tuple[int, ...]) -> None:
    """Flips reverse the array, and keep integers that float32 cannot hold."""
    volume = np.arange(2 * 3 * 4 * 5, dtype=np.int32).reshape(2, 3, 4, 5) + 2**24
    plan = applied(Flip(axes), SpatialPlan.identity(Grid((3, 4, 5), ANISOTROPIC)))

    expected = np.flip(volume, axis=[a + 1 for a in axes])

    assert np.array_equal(realized(volume, plan, Policy()), expected)


@pytest.mark.parametrize(
    ("padding", "numpy_mode"), [("border", "edge"), ("reflection", "symmetric")]
)
def test_pad_is_numpy_s(padding: str, numpy_mode: str) -> None:
    """Padding by more than the volume is long repeats and mirrors as numpy.pad does."""
    volume = np.arange(24, dtype=np.int16).reshape(1, 2, 3, 4)
    amount = ((5, 1), (0, 4), (2, 9))
    plan = applied(Pad(amount), SpatialPlan.identity(Grid((2, 3, 4), np.eye(4))))

    expected = np.pad(volume, ((0, 0), *amount), mode=numpy_mode)

    assert np.array_equal(realized(volume, plan, Policy("linear", padding)), expected)


def test_zoom_magnifies_millimetres() -> None:
    """What lies 3 mm from the centre lies 6 mm from it after a zoom by 2, on every axis."""
    grid = Grid((15, 15, 7), ANISOTROPIC)
    plan = applied(Zoom(2), SpatialPlan.identity(grid))

    back = np.linalg.inv(grid.affine) @ plan.affine

    assert plan.shape == grid.shape
    assert np.allclose(plan.grid.centre, grid.centre)
    assert np.allclose(back[:3, :3], np.eye(3) / 2)


def test_zoom_along_the_world_follows_the_world() -> None:
    """Three factors belong to x, y, z in the world, and to the array's axes in voxel space."""
    plan = SpatialPlan.identity(Grid((15, 15, 7), ANISOTROPIC))

    world = applied(Zoom((2, 1, 1)), plan)
    voxel = applied(Zoom((2, 1, 1), space="voxel"), plan)

    # World x is the array's axis j.
    assert np.allclose(np.diag(world.matrix), [1, 0.5, 1, 1])
    assert np.allclose(np.diag(voxel.matrix), [0.5, 1, 1, 1])


def test_translate_moves_the_content() -> None:
    """+3 mm along z is one voxel of 3 mm up; in voxel space +1 is one voxel along the axis."""
    grid = Grid((5, 5, 7), ANISOTROPIC)
    volume = np.zeros((1, 5, 5, 7), np.uint8)
    volume[0, 2, 2, 3] = 1
    plan = SpatialPlan.identity(grid)

    up = realized(volume, applied(Translate((0, 0, 3)), plan), LABEL)
    right = realized(volume, applied(Translate((2, 0, 0)), plan), LABEL)
    along = realized(volume, applied(Translate((1, 0, 0), space="voxel"), plan), LABEL)

    assert np.argwhere(up[0]).tolist() == [[2, 2, 4]]
    assert np.argwhere(right[0]).tolist() == [[2, 4, 3]]  # +x is +j on this grid
    assert np.argwhere(along[0]).tolist() == [[3, 2, 3]]


def test_shear_slides_along_the_first_axis() -> None:
    """A factor xy of 1 moves what lies 2 mm along y by 2 mm along x, and nothing on the axis."""
    plan = SpatialPlan.identity(Grid((9, 9, 1), np.eye(4)))
    volume = np.zeros((1, 9, 9, 1), np.uint8)
    volume[0, 4, 6, 0] = volume[0, 7, 4, 0] = 1

    moved = realized(volume, applied(Shear((1, 0, 0)), plan), LABEL)

    assert np.argwhere(moved[0]).tolist() == [[6, 6, 0], [7, 4, 0]]


def test_augment_is_its_parts_in_a_row() -> None:
    """The bundle is rotate, zoom, translate, shear, flip, each on the grid that it finds."""
    plan = SpatialPlan.identity(Grid((9, 8, 7), ANISOTROPIC))
    for space in ("world", "voxel"):
        bundle = Augment((10, -20, 30), (1.5, 1, 0.8), (1, -2, 3), (0.1, 0, 0.2), 1, space=space)
        parts = plan

        for op in (
            Rotate((10, -20, 30), space=space),
            Zoom((1.5, 1, 0.8), space=space),
            Translate((1, -2, 3), space=space),
            Shear((0.1, 0, 0.2), space=space),
            Flip(),
        ):
            parts = applied(op, parts)

        assert np.allclose(applied(bundle, plan).matrix, parts.matrix, atol=1e-12)


def test_an_affine_of_quarter_turn_and_zoom_lands_where_it_says() -> None:
    """What lies at (0, 2, 0) mm goes to 2 R (0, 2, 0) + t = (-4, 0, 0) + (1, 3, 0)."""
    grid = Grid((15, 15, 3), ANISOTROPIC)
    matrix = np.array([[0, -2.0, 0, 1], [2, 0, 0, 3], [0, 0, 1, 0], [0, 0, 0, 1]])
    index = np.linalg.solve(ANISOTROPIC[:3, :3], (0, 2, 0)) + grid.centre_index
    volume = np.zeros((1, 15, 15, 3), np.float32)
    volume[(0, *np.rint(index).astype(int))] = 1

    moved = realized(volume, applied(Affine(matrix), SpatialPlan.identity(grid)), Policy())

    assert np.allclose(world_of_brightest(moved, grid), (-3, 3, 0))
    assert moved.max() == 1


def test_an_affine_may_change_the_shape_about_the_centre() -> None:
    """The centre of the smaller output is the centre of the grid."""
    grid = Grid((15, 14, 7), ANISOTROPIC)

    plan = applied(Affine(np.eye(4), shape=(4, 5, 2)), SpatialPlan.identity(grid))

    assert plan.shape == (4, 5, 2)
    assert np.allclose(plan.grid.centre, grid.centre)


def test_a_later_op_acts_in_the_world_of_the_grid_it_finds() -> None:
    """Storing the volume between two ops changes nothing: shape and affine say all."""
    plan = applied(Rotate((0, 0, 90)), SpatialPlan.identity(Grid((9, 9, 9), np.eye(4))))

    fused = applied(Translate((3, 0, 0)), plan)
    stored = applied(Translate((3, 0, 0)), SpatialPlan.identity(plan.grid))

    assert np.allclose(fused.matrix, plan.matrix @ stored.matrix)
    assert np.allclose(fused.affine, stored.affine)


def test_flips_are_drawn_per_axis() -> None:
    """With p = 0.5 all eight combinations come up, and an axis of p = 0 never flips."""
    plan = SpatialPlan.identity(Grid((4, 4, 4), np.eye(4)))
    seen = [Flip(p=0.5).draw(np.random.default_rng(n), plan) for n in range(100)]
    some = [Flip((0, 1), p=(1, 0)).draw(np.random.default_rng(n), plan) for n in range(20)]

    assert len({tuple((drawn or {"axes": []})["axes"]) for drawn in seen}) == 8
    assert all(drawn == {"axes": [0]} for drawn in some)


def test_two_dimensional_data_turn_about_k() -> None:
    """With K = 1 an in-plane turn reads one slice and gives it; nothing leaks from outside."""
    image = np.random.default_rng(0).uniform(1, 2, (1, 9, 9, 1)).astype(np.float32)
    grid = Grid((9, 9, 1), np.diag([1, 1, 5.0, 1]))
    plan = applied(Rotate((0, 0, 30)), SpatialPlan.identity(grid))

    assert plan.source_region(Policy()).shape[2] == 1
    for padding in ("border", "reflection", "constant", "zeros"):
        found = realized(image, plan, Policy("linear", padding))
        assert found[0, 2:7, 2:7, 0].min() >= 1
    flipped = realized(image, applied(Flip(2), SpatialPlan.identity(grid)), Policy())
    assert np.array_equal(flipped, image)


def test_labels_stay_labels_under_any_turn() -> None:
    """No label appears that was not stored, except the fill."""
    labels = np.random.default_rng(0).choice([3, 7, 1000, 65535], (1, 12, 12, 12))
    labels = labels.astype(np.uint16)
    plan = SpatialPlan.identity(Grid((12, 12, 12), ANISOTROPIC))
    plan = applied(Augment(rotate=(-90, 90), zoom=(0.5, 2), shear=(-1, 1)), plan)

    found = realized(labels, plan, LABEL)

    assert set(np.unique(found)) <= {0, 3, 7, 1000, 65535}
    assert set(np.unique(found)) > {0}


def test_a_soft_crop_turns_with_the_volume_around_it() -> None:
    """The corners of a turned patch come from the volume; of a hard one, they are fill."""
    volume = np.ones((1, 21, 21, 1), np.float32)
    policy = Policy("linear", "constant", fill=-1)
    plan = SpatialPlan.identity(Grid((21, 21, 1), np.eye(4)))

    soft = applied(Rotate((0, 0, 45)), plan.crop((5, 5, 0), (11, 11, 1)))
    hard = applied(Rotate((0, 0, 45)), plan.crop((5, 5, 0), (11, 11, 1), hard=True))

    assert realized(volume, soft, policy).min() == 1
    assert realized(volume, hard, policy)[0, 0, 0, 0] == -1
    assert realized(volume, hard, policy)[0, 5, 5, 0] == 1


def test_a_hard_crop_between_two_turns_leaves_fill() -> None:
    """What was cut off after the first turn does not come back with the second."""
    volume = np.ones((1, 21, 21, 1), np.float32)
    policy = Policy("linear", "border", fill=-1)
    plan = applied(Rotate((0, 0, 20)), SpatialPlan.identity(Grid((21, 21, 1), np.eye(4))))

    soft = applied(Rotate((0, 0, 25)), plan.crop((5, 5, 0), (11, 11, 1)))
    hard = applied(Rotate((0, 0, 25)), plan.crop((5, 5, 0), (11, 11, 1), hard=True))

    assert np.all(realized(volume, soft, policy) == 1)
    cut = realized(volume, hard, policy)
    assert cut[0, 0, 0, 0] == cut[0, 10, 10, 0] == -1
    # 11 x 11 voxels turned by 25 degrees about their centre: sin and cos of the half width.
    i, j = np.indices((11, 11)) - 5.0
    c, s = np.cos(np.deg2rad(25)), np.sin(np.deg2rad(25))
    inside = (np.abs(c * i + s * j) <= 5.5) & (np.abs(c * j - s * i) <= 5.5)
    assert np.array_equal(cut[0, :, :, 0] == 1, inside)


def test_a_world_without_volume_is_refused() -> None:
    """An affine that cannot be inverted is named; voxel space still works."""
    plan = SpatialPlan.identity(Grid((4, 4, 4), np.diag([1.0, 0, 1, 1])))

    with pytest.raises(BadHeader, match="the affine has no inverse"):
        applied(Rotate(5), plan)
    assert applied(Rotate(5, space="voxel"), plan).shape == (4, 4, 4)
    assert applied(Rotate(0), plan).is_copy
