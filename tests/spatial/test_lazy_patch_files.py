"""Patches out of files that nibabel and zarr wrote, against nibabel and scipy."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import zarr
from scipy.ndimage import map_coordinates

from voxpipe.core import IO_COUNTERS, ChunkGrid
from voxpipe.core.errors import GridMismatch
from voxpipe.intensity import Normalize, ValueStep
from voxpipe.spatial import (
    INTENSITY,
    LABEL,
    Augment,
    FixedPatch,
    Flip,
    LazyPatch,
    Rotate90,
    Step,
    TransformChain,
    UniformPatch,
)
from voxpipe.volumes import Volume

ANATOMICAL = os.path.join(os.path.dirname(nibabel.__file__), "tests", "data", "anatomical.nii")
AUGMENT = Augment(rotate=(-25, 25), zoom=(0.8, 1.2), translate=(-4, 4), flip=0.5)
OBLIQUE = np.array([[0.9, 0.1, 0, -9], [-0.1, 0.9, 0.2, 4], [0, -0.3, 2.1, 7], [0, 0, 0, 1]])


def patches(volumes: dict[str, Volume], *ops: Any) -> dict[str, LazyPatch]:
    pending = TransformChain(volumes, seed=1, identity=(0,))
    for number, op in enumerate(ops):
        pending = pending.then(Step(op, f"step {number}"))
    return {
        k: LazyPatch(v, pending, LABEL if v.kind == "label" else INTENSITY)
        for k, v in volumes.items()
    }


def by_scipy(values: np.ndarray, lazy: LazyPatch, order: int, mode: str) -> np.ndarray:
    index = np.indices(lazy.plan.shape).reshape(3, -1)
    where = lazy.plan.matrix[:3, :3] @ index + lazy.plan.matrix[:3, 3:]
    found = map_coordinates(np.asarray(values, np.float64), where, order=order, mode=mode)
    return np.asarray(found).reshape(lazy.plan.shape)


@pytest.mark.parametrize("item", range(4))
def test_a_big_endian_scaled_scan_is_scipy_s(item: int) -> None:
    """The test scan of nibabel, turned and zoomed at its border, to 1e-5 of the range."""
    image = nibabel.load(ANATOMICAL)
    values = image.get_fdata()
    volume = Volume(ANATOMICAL)
    lazy = patches({"image": volume}, FixedPatch((item * 8, 20, -4), (16, 16, 16)), AUGMENT)[
        "image"
    ]

    found = lazy.realize()

    assert np.allclose(lazy.affine, image.affine @ lazy.plan.matrix)
    expected = by_scipy(values, lazy, 1, "nearest")
    assert np.abs(found[0] - expected).max() <= 1e-5 * np.ptp(values)


def test_a_lattice_patch_is_a_slice_of_nibabel_s() -> None:
    """Crop, flip and turn of the scan are slices of what nibabel reads."""
    values = np.asanyarray(nibabel.load(ANATOMICAL).dataobj)
    volume = Volume(ANATOMICAL)

    lazy = patches({"image": volume}, FixedPatch((3, 4, 5), (9, 8, 7)), Flip(1), Rotate90(1))
    found = lazy["image"].realize()

    expected = np.rot90(values[3:12, 4:12, 5:12][:, ::-1])
    assert found.dtype == volume.dtype
    assert np.allclose(found[0], expected, rtol=1e-6)


@pytest.fixture
def case(tmp_path: Path) -> dict[str, Volume]:
    """An image by nibabel and its label by zarr, on one grid."""
    rng = np.random.default_rng(0)
    image = rng.integers(-1000, 1000, (40, 36, 32), np.int16)
    nibabel.save(nibabel.Nifti1Image(image, OBLIQUE), tmp_path / "ct.nii")
    array = zarr.create_array(
        str(tmp_path / "seg.zarr"), shape=image.shape, chunks=(8, 8, 8), dtype="uint16"
    )
    array[...] = np.where(image > 0, 65535, 3).astype(np.uint16)
    return {
        "image": Volume(tmp_path / "ct.nii"),
        "label": Volume(tmp_path / "seg.zarr", affine=OBLIQUE, kind="label"),
    }


def test_image_and_label_are_read_once_each(case: dict[str, Volume]) -> None:
    """One header, one read and one interpolation per volume; a patch's part of the bytes."""
    before = IO_COUNTERS.snapshot()
    lazy = patches(case, UniformPatch((8, 8, 8)), AUGMENT)

    image, label = lazy["image"].realize(), lazy["label"].realize()

    done = IO_COUNTERS - before
    assert (done.headers, done.reads, done.interpolations, done.copies) == (2, 2, 2, 0)
    image_bytes = lazy["image"].source_region.size * 2
    chunks = sum(1 for _ in _touched(case["label"], lazy["label"]))
    assert done.bytes_read == image_bytes + chunks * 8**3 * 2
    assert image.dtype == np.float32
    assert label.dtype == np.uint16
    assert set(np.unique(label)) <= {0, 3, 65535}


def _touched(volume: Volume, lazy: LazyPatch) -> Any:
    return ChunkGrid(volume.spatial_shape, volume.chunks).touched_parts(lazy.source_region)


def test_a_label_follows_its_image(case: dict[str, Volume]) -> None:
    """Nearest of the label is the sign of nearest of the image, everywhere inside."""
    lazy = patches(case, FixedPatch((12, 12, 12), (10, 10, 10)), AUGMENT)
    image = nibabel.load(case["image"].name).get_fdata()

    label = lazy["label"].realize()[0]

    expected = by_scipy(image, lazy["label"], 0, "nearest")
    assert np.mean((label == 65535) == (expected > 0)) == 1


def test_a_sample_travels_small_and_gives_the_same(case: dict[str, Volume]) -> None:
    """Pickled before or after it was worked out, a sample is a few kB and the same voxels."""
    lazy = patches(case, UniformPatch((8, 8, 8)), AUGMENT)
    before = pickle.dumps(lazy)

    expected = {key: patch.realize() for key, patch in lazy.items()}
    after = pickle.dumps(lazy)

    for data in (before, after):
        assert len(data) < 16_000
        there = pickle.loads(data)
        assert there["image"].plan is there["label"].plan
        for key, voxels in expected.items():
            assert np.array_equal(there[key].realize(), voxels)


def test_normalize_takes_the_statistics_of_the_file(case: dict[str, Volume]) -> None:
    """By default the mean and deviation are those of all voxels, as NumPy computes them."""
    values = nibabel.load(case["image"].name).get_fdata()
    lazy = patches(case, FixedPatch((0, 0, 0), (4, 4, 4)))["image"]

    found = lazy.with_value(ValueStep(Normalize(), "normalize")).realize()

    expected = (values[:4, :4, :4] - values.mean()) / values.std()
    assert np.allclose(found[0], expected, rtol=1e-5, atol=1e-6)


def test_files_on_two_grids_are_named(case: dict[str, Volume], tmp_path: Path) -> None:
    """The mismatch shows both paths before a voxel is read."""
    moved = OBLIQUE.copy()
    moved[2, 3] += 1
    nibabel.save(nibabel.Nifti1Image(np.zeros((40, 36, 32), np.uint8), moved), tmp_path / "b.nii")
    case["label"] = Volume(tmp_path / "b.nii", kind="label")
    before = IO_COUNTERS.snapshot()

    with pytest.raises(GridMismatch, match=r"voxels apart.*ct\.nii and .*b\.nii"):
        _ = patches(case, UniformPatch((8, 8, 8)))["image"].shape
    assert (IO_COUNTERS - before).reads == 0
