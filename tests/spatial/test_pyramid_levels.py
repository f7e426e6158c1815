"""Reading from a coarser level: which one, what it costs, and how far its values are off."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import zarr

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import PolicyConflict
from voxpipe.datapipes.iter import from_cases
from voxpipe.spatial import Policy
from voxpipe.volumes import Volume
from voxpipe.volumes.catalog import whole_pass
from voxpipe.volumes.catalog.whole_pass import (
    ForegroundRule,
    at_level,
    coarser_levels,
    occupied_box,
)

SHAPE = (48, 40, 32)
RANGE = 1000.0
AFFINE = np.array([[0.0, -1.5, 0.1, 7], [1.2, 0, 0.2, -3], [0, 0.1, 2.0, 11], [0, 0, 0, 1]])


PERIODS = (2.3 / 48, 1.7 / 40, 1.2 / 32)
# Of the waves below, at most: a quarter of the range times the squared wave numbers.
CURVATURE = RANGE / 4 * sum((2 * np.pi * f) ** 2 for f in PERIODS)


def waves(i: Any, j: Any, k: Any) -> Any:
    """Return a few periods over the volume, 0 to 1000, at places along each axis."""
    a, b, c = (
        np.cos(2 * np.pi * (f * np.asarray(x) + shift))
        for f, x, shift in zip(PERIODS, (i, j, k), (0, 0.2, 0.1), strict=True)
    )
    return ((a[:, None, None] * b[:, None] + c) / 2 + 1) * RANGE / 2


def smooth() -> Any:
    """Return the waves on the voxels, (I, J, K) float32."""
    return waves(*map(np.arange, SHAPE)).astype(np.float32)


def means(array: Any, factors: Any) -> Any:
    """Return the mean of blocks, as writers of pyramids do."""
    i, j, k = (n // f for n, f in zip(array.shape, factors, strict=True))
    blocks = array.reshape(i, factors[0], j, factors[1], k, factors[2])
    return blocks.mean(axis=(1, 3, 5), dtype=np.float64).astype(array.dtype)


def write_pyramid(
    path: Path, array: Any, steps: Any = ((1, 1, 1), (2, 2, 2), (4, 4, 4)), nifti: Any = None
) -> Path:
    """Write OME-Zarr 0.5 with levels of block means, in chunks of 8, stored (z, y, x)."""
    group = zarr.open_group(path, mode="w", zarr_format=3)
    datasets = []
    for level, factors in enumerate(steps):
        made = np.ascontiguousarray(means(array, factors).T)
        stored = group.create_array(
            str(level), shape=made.shape, chunks=(8, 8, 8), dtype=made.dtype, compressors=None
        )
        stored[...] = made
        backward = [float(f) for f in reversed(factors)]
        datasets.append(
            {
                "path": str(level),
                "coordinateTransformations": [
                    {"type": "scale", "scale": backward},
                    # Edge to edge: a coarse centre lies in the middle of its block.
                    {"type": "translation", "translation": [(f - 1) / 2 for f in backward]},
                ],
            }
        )
    if nifti is not None:
        raw = np.frombuffer(nifti, np.uint8)
        group.create_array("nifti", shape=raw.shape, chunks=raw.shape, dtype="u1")[...] = raw
    axes = [{"name": n, "type": "space", "unit": "millimeter"} for n in "zyx"]
    image = {"axes": axes, "datasets": datasets, "version": "0.5"}
    group.attrs.update({"ome": {"version": "0.5", "multiscales": [image]}})
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_pyramid(tmp_path / "image.ome.zarr", smooth())


def read(path: Any, antialias: Any, *pipes: Any, **options: Any) -> tuple[Any, Any, int]:
    """Return patch, voxels, and how many bytes were read; ``pipes`` are (name, arguments)."""
    chain = from_cases([{"image": path}]).open_volume(**options)
    for name, *arguments in pipes:
        chain = getattr(chain, name)(*arguments, antialias={"image": antialias})
    patch = next(iter(chain))["image"]
    before = IO_COUNTERS.snapshot()
    voxels = patch.realize()
    return patch, voxels, (IO_COUNTERS.snapshot() - before).bytes_read


@pytest.mark.parametrize(
    ("size", "level", "spread"),
    [((24, 20, 16), 1, 0.25), ((12, 10, 8), 2, 1.25), ((16, 13, 10), 1, 1), ((40, 36, 30), 0, 0)],
    ids=["half", "quarter", "third", "nearly"],
)
def test_the_coarsest_level_that_has_enough_is_read(
    path: Path, size: Any, level: int, spread: float
) -> None:
    """The values of level 0, smoothed, but for what the two are smoothed differently.

    That is half the difference of the variances times the curvature. By the rule's Gaussian and
    linear interpolation a half has 0.5 square voxels, by the mean of two 0.25; a quarter 2.5
    and 1.25; a third, from level 1, between 1 and 2 either way.
    """
    patch, found, cost = read(path, "level", ("resize", size))
    fine, expected, whole = read(path, True, ("resize", size))

    inside = (0, *(slice(2, -2) for _ in range(3)))
    assert patch.read_plan.level == level
    assert np.abs(found - expected)[inside].max() <= spread / 2 * CURVATURE
    assert cost * 8**level == whole == smooth().nbytes
    assert (f", from level {level}" in patch.explain()) == (level > 0)
    assert patch.provenance().get("level", 0) == level
    assert "level" not in fine.explain()
    assert np.array_equal(patch.affine, fine.affine)


@pytest.mark.parametrize("size", [(24, 20, 16), (12, 10, 8)], ids=["half", "quarter"])
def test_a_level_is_no_further_from_the_truth(path: Path, size: Any) -> None:
    """Against the waves themselves, which both of them flatten."""
    factor = SHAPE[0] // size[0]
    places = [factor * np.arange(n) + (factor - 1) / 2 for n in size]
    truth = waves(*places)
    errors = [
        np.abs(read(path, how, ("resize", size))[1][0] - truth)[2:-2, 2:-2, 2:-2].max()
        for how in ("level", True)
    ]

    assert errors[0] < errors[1] < 0.1 * RANGE


def test_turned_and_moved_patches_read_their_part_of_a_level(path: Path) -> None:
    """A rotated crop at 0.45 of the scale: a region of level 1, in its chunks, the same places."""
    pipes = (("rotate", (10, -20, 30)), ("zoom", 0.45), ("crop", (18, 15, 12), (12, 10, 8)))

    patch, found, cost = read(path, "level", *pipes)
    _, expected, whole = read(path, True, *pipes)

    assert patch.read_plan.level == 1
    assert np.abs(found - expected).max() < CURVATURE / 2
    assert cost < whole / 4
    assert Region.of_shape((24, 20, 16)).contains(patch.source_region)


def test_displacements_go_along(path: Path) -> None:
    """A deformed and reduced volume is the same from its level."""
    chain = from_cases([{"image": path}]).open_volume().elastic(5, spacing=16)
    patch = next(iter(chain.resize((24, 20, 16), antialias="level")))["image"]
    fine = dataclasses.replace(patch, policy=Policy(antialias=True))

    assert patch.read_plan.level == 1
    inside = (0, *(slice(2, -2) for _ in range(3)))
    assert np.abs(patch.realize() - fine.realize())[inside].max() < CURVATURE / 2


def test_no_axis_loses_anything(tmp_path: Path) -> None:
    """What is taken as it is along one axis is not read from a level that is coarser there."""
    cubes = write_pyramid(tmp_path / "cubes.zarr", smooth())
    plates = write_pyramid(tmp_path / "plates.zarr", smooth(), ((1, 1, 1), (2, 2, 1)))

    assert read(cubes, "level", ("resize", (24, 20, 32)))[0].read_plan.level == 0
    assert read(plates, "level", ("resize", (24, 20, 32)))[0].read_plan.level == 1
    # Turned in the plane nothing changes; out of it, fine steps lie along the coarse axis too.
    within = (("resize", (24, 20, 32)), ("rotate", (0, 0, 30)))
    across = (("resize", (24, 20, 32)), ("rotate", (0, 45, 0)))
    assert read(plates, "level", *within)[0].read_plan.level == 1
    assert read(plates, "level", *across)[0].read_plan.level == 0


def test_it_is_asked_for(path: Path) -> None:
    """By default and with antialias=True the volume itself is read; labels always."""
    case = {"image": path, "label": path}
    for antialias in (False, True):
        assert read(path, antialias, ("resize", (12, 10, 8)))[0].read_plan.level == 0
    chain = from_cases([case]).open_volume().resize((12, 10, 8), antialias="level")
    sample = next(iter(chain))
    assert [sample[key].read_plan.level for key in case] == [2, 0]
    hard = from_cases([{"image": path}]).open_volume().crop((0, 0, 0), (24, 24, 24), hard=True)
    cut = next(iter(hard.resize((6, 6, 6), antialias="level")))["image"]
    assert cut.read_plan.level == 0
    array = next(
        iter(from_cases([{"image": smooth()}]).open_volume().resize(8, antialias="level"))
    )["image"]
    assert array.read_plan.level == 0

    with pytest.raises(ValueError, match="antialias is False, True or 'level', got 'levels'"):
        from_cases([case]).open_volume().resize(8, antialias="levels")
    with pytest.raises(PolicyConflict, match="nearest"):
        next(iter(from_cases([case]).open_volume().resize(8, antialias={"label": "level"})))


def test_nifti_zarr_and_given_affines(tmp_path: Path) -> None:
    """The levels of both lie where the volume lies in the world."""
    image = nibabel.Nifti1Image(smooth(), AFFINE)
    path = write_pyramid(tmp_path / "a.nii.zarr", smooth(), nifti=image.header.binaryblock)
    other = np.diag([3.0, 3.0, 3.0, 1.0])
    size = ("resize", (24, 20, 16))

    patch, found, _ = read(path, "level", size)
    moved, again, _ = read(path, "level", size, affine=other)

    assert patch.read_plan.level == moved.read_plan.level == 1
    shift = np.eye(4)
    shift[:3, :3] *= 2
    shift[:3, 3] = 0.5
    assert np.allclose(at_level(Volume(path), 1).affine, Volume(path).affine @ shift, atol=1e-6)
    assert np.allclose(moved.read_plan.volume.affine, other @ shift)
    assert np.array_equal(found, again)


def test_value_ops_speak_of_the_volume(path: Path) -> None:
    """Statistics are those of all voxels, whichever level is read."""
    fine = smooth().astype(np.float64)
    chain = from_cases([{"image": path}]).open_volume().resize((12, 10, 8), antialias="level")

    found = next(iter(chain.normalize()))["image"]
    plain = read(path, "level", ("resize", (12, 10, 8)))[1]

    assert found.read_plan.level == 2
    assert np.allclose(found.realize(), (plain - fine.mean()) / fine.std(), atol=1e-4)


def test_a_patch_finds_its_level_in_another_process(path: Path) -> None:
    """What travels is the volume and the plan."""
    patch, found, _ = read(path, "level", ("resize", (12, 10, 8)))

    again = pickle.loads(pickle.dumps(patch))

    assert again.read_plan.level == 2
    assert np.array_equal(again.realize(), found)


def test_levels_are_numbered_from_the_one_that_is_open(path: Path) -> None:
    """A volume opened at level 1 has one coarser level; arrays have none."""
    fine, half = Volume(path), Volume(path, level=1)

    assert [m.diagonal().tolist() for m in coarser_levels(fine)] == [
        [2.0, 2.0, 2.0, 1.0],
        [4.0, 4.0, 4.0, 1.0],
    ]
    assert len(coarser_levels(half)) == 1
    assert at_level(half, 1).shape == at_level(fine, 2).shape == (1, 12, 10, 8)
    assert np.allclose(at_level(half, 1).affine, at_level(fine, 2).affine)
    assert coarser_levels(Volume(smooth())) == ()
    with pytest.raises(IndexError, match="2 coarser levels"):
        at_level(fine, 3)


def test_a_box_may_be_looked_up_at_a_coarser_level(tmp_path: Path) -> None:
    """It holds the exact box and at most two coarse voxels more on a side, for fewer bytes."""
    array = np.zeros(SHAPE, np.float32)
    array[8:20, 11:31, 4:9] = 100
    path = write_pyramid(tmp_path / "a.zarr", array)
    whole_pass.BOXES.memory.clear()
    before = IO_COUNTERS.snapshot()

    exact = occupied_box(Volume(path), ForegroundRule(above=0))
    whole = (IO_COUNTERS.snapshot() - before).bytes_read
    coarse = occupied_box(Volume(path), ForegroundRule(above=0), level=1)
    further = occupied_box(Volume(path), ForegroundRule(above=0), level=9)

    assert exact == Region((8, 11, 4), (20, 31, 9))
    assert coarse == Region((6, 8, 2), (22, 34, 12))
    assert further.contains(exact)
    assert (IO_COUNTERS.snapshot() - before).bytes_read - whole < whole / 4
    crop = from_cases([{"image": path}]).open_volume().foreground_crop("image", level=1)
    assert next(iter(crop))["image"].shape == (1, 16, 26, 10)
