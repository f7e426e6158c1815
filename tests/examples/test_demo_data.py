"""The demo's cases: one head, stored in many ways, that lies where it should in the world."""

import importlib.util

import demo_data
import nibabel
import numpy as np
import pytest
import zarr
from demo_data import CASE_SHAPE, VARIANTS, Head, Variant, prepare

from voxpipe.core.errors import MissingDependency, VolumeError

# A corner of the template is enough: what is beyond the array is cut off.
SHAPE = (40, 44, 36)
needs_nilearn = pytest.mark.skipif(
    importlib.util.find_spec("nilearn") is None, reason="the template is inside nilearn"
)


@pytest.fixture(scope="module")
def head():
    """Return a ramp whose value tells the voxel, with a frame that is outside the head."""
    i, j, k = np.indices(SHAPE)
    t1 = (50 + 2 * i + j + k).astype(np.uint8)
    t1[:, :, -4:] = 0
    label = ((i // 8 + j // 8) % 3 * (t1 > 0)).astype(np.uint8)
    affine = np.diag([1.0, 1.0, 1.0, 1.0])
    affine[:3, 3] = (-98, -134, -72)
    return Head(t1, label, affine)


def stored(path):
    """Return voxels (I, J, K) and affine as nibabel and zarr see them."""
    if not path.name.endswith(".zarr"):
        image = nibabel.load(path)
        return np.asanyarray(image.dataobj), image.affine
    header = np.asarray(zarr.open_array(str(path / "nifti"), mode="r")[:])
    voxels = np.asarray(zarr.open_array(str(path / "0"), mode="r")[:]).T
    return voxels, nibabel.Nifti1Header(header.tobytes(), check=True).get_best_affine()


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
def test_every_voxel_stays_where_it_was(variant, head, tmp_path):
    """Turned, cut and shifted, each voxel is the template's at the same place in the world."""
    case = demo_data.write_case(tmp_path, variant, head)

    voxels, affine = stored(case.label)
    index = np.indices(voxels.shape).reshape(3, -1)
    world = affine[:3, :3] @ index + affine[:3, 3:]
    source = np.linalg.inv(head.affine) @ np.r_[world - np.c_[[*variant.shift]], world[:1] * 0 + 1]
    i, j, k = np.rint(source[:3]).astype(int)

    assert np.abs(source[:3] - np.rint(source[:3])).max() < 1e-4  # float32 in a NIfTI header
    assert np.array_equal(voxels.ravel(), head.label[i, j, k])
    assert variant.axes == "".join(nibabel.aff2axcodes(affine))


@pytest.mark.parametrize("variant", VARIANTS[:3], ids=lambda v: v.suffix)
def test_image_and_label_lie_on_one_grid(variant, head, tmp_path):
    """Both have one shape and one affine, and the types that scanners and tools use."""
    case = demo_data.write_case(tmp_path, variant, head)
    (image, image_affine), (label, label_affine) = stored(case.image), stored(case.label)

    assert np.array_equal(image_affine, label_affine)
    assert image.shape == label.shape
    assert (image.dtype, label.dtype) == (np.int16, np.uint8)


def test_nothing_is_outside_the_head(head):
    """Noise is added to the head only, and greys stay within twelve bits."""
    greys = demo_data.scanned(head.t1, VARIANTS[1])

    assert not greys[head.t1 == 0].any()
    assert (greys.min(), greys.max() <= demo_data.BRIGHTEST) == (0, True)


def test_contrast_follows_gamma(head):
    """The mean grey is that of the exponent; noise of 2 % averages out over 50,000 voxels."""
    variant = Variant("bright", ".nii", "RAS", (0, 0, 0), gamma=0.5)
    inside = head.t1 > 0

    greys = demo_data.scanned(head.t1, variant)[inside].mean() / demo_data.BRIGHTEST

    assert greys == pytest.approx(np.sqrt(head.t1[inside] / 255).mean(), abs=1e-3)


def test_nifti_zarr_is_an_ome_zarr_image(head, tmp_path):
    """The group says its axes, and its only level is stored z first in 64-voxel chunks."""
    case = demo_data.write_case(tmp_path, VARIANTS[2], head)
    group = zarr.open_group(str(case.image), mode="r")
    attributes = dict(group.attrs)
    (image,) = attributes.get("ome", attributes)["multiscales"]

    assert [axis["name"] for axis in image["axes"]] == ["z", "y", "x"]
    assert image["datasets"][0]["path"] == "0"
    assert group["0"].shape == stored(case.image)[0].shape[::-1]
    assert group["nifti"].shape == (348,)


def test_a_second_run_writes_nothing(head, tmp_path):
    """What is there already stays, byte and time."""
    first = prepare(tmp_path / "data", VARIANTS[:2], head)
    before = {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*")}

    second = prepare(tmp_path / "data", VARIANTS[:2], head)

    assert first == second
    assert before == {f: f.stat().st_mtime_ns for f in tmp_path.rglob("*")}


def test_another_recipe_replaces_the_cases(head, tmp_path):
    """Cases of an older version do not mix with new ones."""
    prepare(tmp_path / "data", VARIANTS[:2], head)
    prepare(tmp_path / "data", VARIANTS[1:2], head)

    assert sorted(f.name for f in (tmp_path / "data").iterdir()) == ["cases.json", "head-1"]
    assert [f.name for f in tmp_path.iterdir()] == ["data"]


def test_an_interrupted_run_leaves_no_cases(head, tmp_path):
    """Half of the cases would look like all of them."""
    wrong = Variant("wrong", ".mgz", "RAS", (0, 0, 0))
    with pytest.raises(VolumeError, match=r"cannot write t1\.mgz"):
        prepare(tmp_path / "data", [VARIANTS[0], wrong], head)

    assert not (tmp_path / "data").exists()


def test_somebody_elses_files_are_kept(head, tmp_path):
    """A folder that the demo did not write is refused, with what to do."""
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(VolumeError, match=r"(?s)did not write.*--output"):
        prepare(tmp_path, VARIANTS[:1], head)

    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_missing_template_says_what_to_install(monkeypatch, tmp_path):
    """The error is one that callers of optional imports expect."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r'pip install "voxpipe\[demo\]"') as caught:
        prepare(tmp_path / "data")

    assert isinstance(caught.value, ImportError)
    assert not (tmp_path / "data").exists()


def test_two_cases_are_held_out():
    """They come in other formats and orientations than each other, and under their own names."""
    held_out = [variant for variant in VARIANTS if variant.held_out]

    assert [v.name for v in held_out] == ["held-out-0", "held-out-1"]
    assert len({v.suffix for v in held_out}) == 2
    assert len({v.axes for v in VARIANTS}) == len(VARIANTS)
    assert {v.suffix for v in VARIANTS if not v.held_out} == {".nii", ".nii.gz", ".nii.zarr"}


@needs_nilearn
def test_the_template_fits_the_recipe():
    """No case cuts the head but at the neck, and each tissue is a plausible part of it."""
    head = demo_data.read_template()
    inside = np.argwhere(head.t1 > 0)
    volume = {value: int((head.label == value).sum()) / 1e6 for value in demo_data.CLASSES}

    for variant in VARIANTS:
        ends = np.array(variant.start) + CASE_SHAPE
        assert (ends > inside.max(axis=0)).all()
        assert (variant.start[:2] <= inside.min(axis=0)[:2]).all()
    # Litres, at one cubic millimetre a voxel; adults have about 0.5 to 1.1 of grey matter.
    assert 0.5 < volume[demo_data.GREY] < 1.2
    assert 0.4 < volume[demo_data.WHITE] < 0.8


@pytest.mark.slow
@needs_nilearn
def test_every_case_shows_the_whole_head(tmp_path):
    """All but the neck is in each of the eight cases, and their formats read back alike."""
    head = demo_data.read_template()
    above_the_neck = max(variant.start[2] for variant in VARIANTS)
    whole = (head.label > 0).sum()
    least = (head.label[:, :, above_the_neck:] > 0).sum()

    tissue = [int((stored(case.label)[0] > 0).sum()) for case in prepare(tmp_path / "data")]

    assert len(tissue) == len(VARIANTS)
    assert all(least <= count <= whole for count in tissue)
