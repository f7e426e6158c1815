"""Volumes on different grids in one sample, new spatial pipes in chains, and antialias=."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from scipy.ndimage import map_coordinates

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, Grid
from voxpipe.core.errors import GridMismatch, PolicyConflict, SampleError
from voxpipe.graph import fingerprint
from voxpipe.spatial import Policy, SourceVoxels, resample

CT = Grid(
    (24, 20, 16), np.array([[1, 0.1, 0, -9], [-0.1, 1, 0, 4], [0, 0, 1.5, 2], [0, 0, 0, 1.0]])
)
PET = Grid((9, 8, 7), np.array([[0, 3, 0, -10], [3.2, 0, 0.1, 1], [0, 0.2, 4, 1], [0, 0, 0, 1.0]]))


@pytest.fixture
def case(tmp_path: Path) -> dict[str, str]:
    rng = np.random.default_rng(0)
    volumes = {
        "ct": (CT, rng.integers(0, 1000, CT.shape).astype(np.int16)),
        "pet": (PET, rng.integers(0, 1000, PET.shape).astype(np.int16)),
        "seg": (PET, rng.integers(0, 4, PET.shape).astype(np.uint8)),
    }
    for key, (grid, array) in volumes.items():
        nibabel.save(nibabel.Nifti1Image(array, grid.affine), tmp_path / f"{key}.nii")
    return {"case": "one", **{key: str(tmp_path / f"{key}.nii") for key in volumes}}


def opened(case: dict[str, str]) -> Any:
    return vp.from_cases([case]).open_volume()


def values_at(path: str, places: np.ndarray, order: int) -> np.ndarray:
    """Return what lies at (N, 3) places of the world."""
    image = nibabel.load(path)
    index = np.linalg.inv(image.affine) @ np.column_stack([places, np.ones(len(places))]).T
    stored = np.asarray(image.dataobj).astype(float)
    return np.asarray(map_coordinates(stored, index[:3], order=order, mode="nearest"))


def world(grid: Grid) -> np.ndarray:
    index = np.indices(grid.shape).reshape(3, -1).T
    return index @ grid.affine[:3, :3].T + grid.affine[:3, 3]


def test_volumes_meet_on_the_grid_of_one(case: dict[str, str]) -> None:
    """Every voxel of the other volumes holds what lies at its place in the world."""
    sample = next(iter(opened(case).resample_to("ct").realize()))

    stored = np.asarray(nibabel.load(case["ct"]).dataobj)
    assert np.array_equal(sample["ct"][0], stored)
    assert sample["ct"].dtype.is_floating_point is False
    expected = values_at(case["pet"], world(CT), 1).reshape(CT.shape)
    inside = map_inside(CT, PET)
    assert inside.sum() > 500
    assert np.abs(sample["pet"][0].numpy() - expected)[inside].max() < 0.05
    labels = values_at(case["seg"], world(CT), 0).reshape(CT.shape)
    # Half way between two voxels rounding decides.
    index = (world(CT) - PET.affine[:3, 3]) @ np.linalg.inv(PET.affine[:3, :3]).T
    clear = (np.abs(index % 1 - 0.5) > 1e-6).all(axis=1).reshape(CT.shape)
    assert (sample["seg"][0].numpy() == labels)[inside & clear].all()


def map_inside(grid: Grid, other: Grid) -> np.ndarray:
    index = (world(grid) - other.affine[:3, 3]) @ np.linalg.inv(other.affine[:3, :3]).T
    last = np.array(other.shape) - 1
    return np.asarray(((index > 0) & (index < last)).all(axis=1).reshape(grid.shape))


def test_patches_of_all_volumes_see_the_same_draws(case: dict[str, str]) -> None:
    """One interpolation each, one affine, and the region of the other volume only."""
    pipe = opened(case).resample_to("ct").lazy_patch(8, samples_per_volume=3)
    pipe = pipe.rotate((-20, 20)).zoom((0.8, 1.2)).flip(p=0.5)

    for sample in pipe:
        ct, pet, seg = sample["ct"], sample["pet"], sample["seg"]
        before = IO_COUNTERS.snapshot()
        pet.realize()
        assert (IO_COUNTERS - before).interpolations == 1
        assert np.allclose(ct.affine, pet.affine, atol=1e-9)
        assert np.allclose(ct.affine, seg.affine, atol=1e-9)
        assert ct.draws == pet.draws == seg.draws
        assert pet.plan.source == pet.volume.grid
        assert pet.plan.keeps_dtype is False
        assert pet.dtype == np.float32
        places = world(pet.grid)
        inside = map_inside(pet.grid, PET)
        expected = values_at(case["pet"], places, 1).reshape(pet.grid.shape)
        assert np.abs(pet.realize()[0] - expected)[inside].max(initial=0) < 0.05


def test_every_stage_of_a_plan_moves_along(case: dict[str, str]) -> None:
    """Through hard crops and displacements, a voxel of either volume comes from one place."""
    filled = {"pet": "constant"}  # else it begins anew after the first crop
    pipe = opened(case).resample_to("ct")
    pipe = pipe.crop((2, 1, 1), (20, 18, 14), hard=True, padding=filled)
    pipe = pipe.rotate(15).elastic((2, 3), spacing=8).crop((3, 3, 2), (12, 11, 9), hard=True)
    sample = next(iter(pipe.zoom(0.6)))
    ct, pet = sample["ct"].plan, sample["pet"].plan
    index = np.indices(ct.shape).reshape(3, -1).T

    places = [
        plan.points_to_source(index) @ plan.source.affine[:3, :3].T + plan.source.affine[:3, 3]
        for plan in (ct, pet)
    ]

    assert np.abs(places[0] - places[1]).max() < 1e-9
    assert len(pet.stages) == 3
    ones = np.ones((1, *PET.shape))
    found = np.empty((1, *pet.shape))
    resample(
        SourceVoxels(ones, (0, 0, 0), pet.bounds),
        pet.matrix,
        Policy(fill=-1),
        found,
        pet.kernel_stages,
    )
    back = np.linalg.inv(CT.affine)
    inside = places[0] @ back[:3, :3].T + back[:3, 3]
    kept = ((inside > np.array([1.5, 0.5, 0.5])) & (inside < np.array([21.5, 18.5, 14.5]))).all(
        axis=1
    )
    assert 0 < kept.sum() < kept.size
    assert (found.ravel()[~kept] == -1).all()


def test_a_mask_on_another_grid_draws_for_all(case: dict[str, str]) -> None:
    """Patches lie where the mask says, at one place for every volume."""
    pipe = opened(case).resample_to("ct").lazy_patch(6, samples_per_volume=8, mask="seg")

    for sample in pipe:
        assert np.allclose(sample["ct"].affine, sample["seg"].affine, atol=1e-9)
        assert sample["ct"].draws == sample["pet"].draws == sample["seg"].draws


def test_a_type_does_not_depend_on_the_grids(case: dict[str, str]) -> None:
    """A volume that happens to lie on the grid already is float32 all the same."""
    pipe = opened({**case, "pet": case["ct"]}).resample_to("ct", keys="pet")

    with pytest.raises(GridMismatch, match=r"resample_to\('ct'\) right after open_volume"):
        list(pipe.realize())
    sample = next(iter(opened({**case, "pet": case["ct"], "seg": case["ct"]}).resample_to("ct")))
    assert sample["pet"].dtype == np.float32
    assert sample["ct"].dtype == np.int16
    assert np.array_equal(sample["pet"].realize(), sample["ct"].realize())


def test_a_given_grid_is_a_step_as_any_other(case: dict[str, str]) -> None:
    """It stands anywhere, fuses with its neighbours, and gives all volumes that grid."""
    target = Grid((5, 6, 7), CT.affine @ np.diag([3, 2, 2, 1]))
    pipe = vp.from_cases([{"ct": case["ct"]}]).open_volume().flip(0).resample_to(target).rotate(5)
    loader = vp.DataLoader2(pipe.realize().batch_patches(1))

    (batch,) = list(loader)

    assert batch["ct"].shape == (1, 1, 5, 6, 7)
    assert "resample_to" in loader.explain()
    alone = next(iter(pipe.realize().batch_patches(1)))
    assert np.array_equal(alone["ct"], batch["ct"])


def test_the_key_form_is_no_step_to_merge(case: dict[str, str]) -> None:
    """The graph keeps it apart and says why; the batch stays the same."""
    pipe = opened(case).resample_to("ct").flip(p=0.5).lazy_patch(6).batch_patches(1)
    loader = vp.DataLoader2(pipe, seed=7)

    (batch,) = list(loader)

    assert "gives volumes plans of their own" in loader.explain()
    (plain,) = list(vp.DataLoader2(pipe, seed=7))
    assert all(np.array_equal(batch[key], plain[key]) for key in ("ct", "pet", "seg"))


def test_it_survives_workers_and_a_flush(case: dict[str, str]) -> None:
    """Plans travel, and a flush begins anew from the common grid."""
    pipe = opened(case).resample_to("ct").rotate(5).flush().rotate(-5).lazy_patch(6)
    service = vp.MultiProcessingReadingService(num_workers=1)

    with vp.DataLoader2(pipe.batch_patches(1), None, service, seed=7) as loader:
        (far,) = list(loader)

    (near,) = list(vp.DataLoader2(pipe.batch_patches(1), seed=7))
    assert all(np.array_equal(far[key], near[key]) for key in ("ct", "pet", "seg"))


def test_misuse_says_what_to_do(case: dict[str, str]) -> None:
    """A wrong key, a spatial pipe before, keys with a grid."""
    with pytest.raises(SampleError, match=r"names 'mr', but the sample has 'ct', 'pet', 'seg'"):
        list(opened(case).resample_to("mr"))
    with pytest.raises(SampleError, match=r"Put it right after open_volume\(\)"):
        list(opened(case).flip(0).resample_to("ct"))
    with pytest.raises(TypeError, match=r"keys= belongs to resample_to\(key\)"):
        opened(case).resample_to(CT, keys="pet")
    with pytest.raises(TypeError, match=r"takes a Grid\(shape, affine\), or the key"):
        opened(case).resample_to(4)


def test_antialias_is_an_argument_of_every_spatial_pipe(case: dict[str, str]) -> None:
    """For intensities, or by key; labels stay nearest; explain() shows it."""
    base = opened({"case": "one", "pet": case["pet"], "seg": case["seg"]})

    sample = next(iter(base.zoom(0.5, antialias=True).center_crop(4)))

    assert sample["pet"].policy.antialias
    assert not sample["seg"].policy.antialias
    assert "smoothed by 0.5, 0.5, 0.5 voxels before" in sample["pet"].explain()
    assert "0.984 KiB read, 1 interpolation" in sample["pet"].explain()
    pipe = base.zoom(0.5, antialias={"pet": True}).lazy_patch(4).batch_patches(1)
    assert "linear, antialiased, border outside" in pipe.explain()


def test_antialias_and_nearest_do_not_go_together(case: dict[str, str]) -> None:
    """Refused where it is written, or where the volume's kind is known."""
    with pytest.raises(ValueError, match="mode='nearest' does not do that"):
        opened(case).zoom(0.5, antialias=True, mode="nearest")
    base = opened({"case": "one", "pet": case["pet"], "seg": case["seg"]})
    with pytest.raises(PolicyConflict, match=r"'seg' is a label of mode='nearest'"):
        list(base.zoom(0.5, antialias={"seg": True}))
    with pytest.raises(PolicyConflict, match="antialias=False here, but antialias=True"):
        base.zoom(0.5, antialias=True).rotate(5, antialias=False)


def test_every_new_pipe_takes_what_its_op_takes(case: dict[str, str]) -> None:
    """Chained in one plan, one interpolation."""
    pipe = opened({"case": "one", "ct": case["ct"]})
    pipe = pipe.orientation("LPS").spacing(1.2, extent="edges").crop(center=(10, 9, 9), size=12)
    pipe = pipe.random_crop(scale=(0.8, 0.9)).rotate(10, keep_size=False).zoom(2, keep_size=False)
    pipe = pipe.rotate90((1, 3)).flip(exactly_one=True).resize((16, None, None), extent="centers")
    pipe = pipe.divisible_pad(8, sides="end").pad(size=40).center_crop(scale=0.5)
    before = IO_COUNTERS.snapshot()

    patch = next(iter(pipe))["ct"]
    patch.realize()

    assert (IO_COUNTERS - before).interpolations == 1
    assert (IO_COUNTERS - before).reads == 1


def test_slices_tell_two_graphs_apart(case: dict[str, str]) -> None:
    """A state of the one is refused by the other."""
    one, other = (opened(case).crop(slices=(slice(0, n), slice(None), slice(None))) for n in (4, 5))

    assert fingerprint(one) != fingerprint(other)


def test_a_coarse_mask_by_path_is_no_unopened_volume(tmp_path):
    """It is opened for its places alone, as pipes.md says, and travels on as a path."""
    np.save(tmp_path / "tissue.npy", np.ones((4, 5, 6), np.uint8))
    cases = [{"image": np.zeros((4, 5, 6), np.float32), "tissue": str(tmp_path / "tissue.npy")}]
    pipe = vp.from_cases(cases).open_volume(keys=("image",)).lazy_patch(2, mask="tissue")

    batch = next(iter(pipe.batch_patches(1)))

    assert batch["tissue"] == [str(tmp_path / "tissue.npy")]


def test_len_names_the_pipe_without_one():
    """The first that has no length, and not those that follow it."""
    pipe = vp.from_cases([{"image": np.zeros((4, 5, 6), np.float32)}]).filter(bool)
    with pytest.raises(TypeError, match=r"the length of filter\(bool\) before it is not known"):
        len(vp.DataLoader2(pipe.open_volume().shuffle().batch_patches(1)))
