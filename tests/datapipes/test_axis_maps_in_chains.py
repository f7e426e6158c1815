"""Axis maps in a chain: patches see what is shown, and a mask says what of it is stored."""

import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import OutOfVolume, SampleError
from voxpipe.graph.fingerprint import fingerprint
from voxpipe.volumes import close_volumes

SHAPE = (20, 18, 24)
GAPS = [0, 1, 9, 10, 17]


@pytest.fixture
def cases(tmp_path):
    import nibabel

    found = []
    for n in range(2):
        image = np.full(SHAPE, 5 + n, np.int16)
        label = np.full(SHAPE, 1 + n, np.uint8)
        paths = {"image": tmp_path / f"{n}.nii", "label": tmp_path / f"{n}_seg.nii.gz"}
        nibabel.save(nibabel.Nifti1Image(image, np.diag([1, 1, 2, 1.0])), paths["image"])
        nibabel.save(nibabel.Nifti1Image(label, np.diag([1, 1, 2, 1.0])), paths["label"])
        found.append({key: str(path) for key, path in paths.items()})
    yield found
    close_volumes()


def batches(pipe, workers=0):
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    loader = vp.DataLoader2(pipe, None, service)
    loader.seed(3)
    found = [{k: v.clone() for k, v in batch.items() if k != "meta"} for batch in loader]
    loader.shutdown()
    return found


def turned(cases, axis_map):
    # Constant images look like labels, so that these are named.
    opened = vp.from_cases(cases).open_volume(labels=("label",), axis_map=axis_map)
    pipe = opened.lazy_patch(12, samples_per_volume=3)
    return pipe.augment(rotate=25, zoom=(0.8, 1.2), flip=0.5, padding="constant").batch_patches(2)


def test_the_mask_is_the_share_of_a_value_that_is_stored(cases):
    """On turned patches too: value = stored * share + fill * (1 - share), voxel by voxel."""
    axis_map = vp.AxisMap.missing("K", GAPS, "mask", fill=-100)

    for batch in batches(turned(cases[:1], axis_map)):
        share = batch["image_stored"]
        assert share.dtype == torch.float32
        inside = batch["label_stored"] + (batch["image"] != 0)
        # Outside of the volume the image is 0 and the share as well, so neither has a say.
        image = torch.where(inside > 0, batch["image"], -100 * (1 - share))
        torch.testing.assert_close(image, 5 * share - 100 * (1 - share), atol=1e-3, rtol=0)
        assert 0 < (share == 1).float().mean() < 1
        assert (batch["image"][share == 1] == 5).all()
        stored = batch["label_stored"]
        assert stored.dtype == torch.uint8
        assert (batch["label"][stored == 1] == 1).all()


def test_a_copied_patch_has_a_mask_of_ones_and_zeros(cases):
    """Nothing is interpolated: the image keeps its type, missing sections are fill."""
    pipe = vp.from_cases(cases).open_volume(
        axis_map={"image": vp.AxisMap.missing(2, GAPS, "mask", fill=-100)}
    )

    (batch,) = batches(pipe.batch_patches(2))

    assert sorted(batch) == ["image", "image_stored", "label"]
    gaps = torch.tensor([k in GAPS for k in range(SHAPE[2])])
    assert (batch["image_stored"] == (~gaps).float()).all()
    assert batch["image"].dtype == torch.int16
    assert (batch["image"][..., gaps] == -100).all()
    assert not (batch["image"][..., ~gaps] == -100).any()


def test_workers_give_the_same(cases):
    """Bit for bit, mask included."""
    axis_map = vp.AxisMap.missing("K", GAPS, "mask").then(vp.AxisMap.shift("I", 3))
    here, there = (batches(turned(cases, axis_map), workers) for workers in (0, 2))

    assert len(here) == 3
    for one, other in zip(here, there, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_normalize_leaves_the_mask_alone(cases):
    """It is no intensity."""
    axis_map = vp.AxisMap.missing("K", GAPS, "mask")
    pipe = vp.from_cases(cases).open_volume(axis_map=axis_map).normalize().batch_patches(2)

    (batch,) = batches(pipe)

    assert set(batch["image_stored"].unique().tolist()) == {0.0, 1.0}


def test_every_case_may_have_its_own_map(cases):
    """As volumes; others are as they are stored, and so have no mask."""
    lengths = []
    for n, case in enumerate(cases):
        own = vp.AxisMap.missing("K", range(n + 1), in_file=False)
        case["image"] = vp.Volume(case["image"]).with_axis_map(own)
        case["label"] = vp.Volume(case["label"], kind="label").with_axis_map(own)

    for sample in vp.from_cases(cases).open_volume():
        lengths.append(sample["image"].shape[3])
        assert sorted(sample) == ["image", "label"]

    assert lengths == [25, 26]


def test_a_manifest_is_read_through_a_map(cases, tmp_path):
    """Headers come from the manifest, sections from the map."""
    from manifests import index_cases, write_manifest

    from voxpipe.dataloader2 import volumes_of

    manifest, _ = index_cases(volumes_of(vp.from_cases(cases)))
    write_manifest(manifest, tmp_path / "m.json")
    axis_map = vp.AxisMap.from_table("K", [3, 3, -1, 0], "fill", fill=9)

    pipe = vp.from_manifest(tmp_path / "m.json").open_volume(axis_map=axis_map)
    (batch,) = batches(pipe.batch_patches(2))

    assert batch["image"].shape == (2, 1, 20, 18, 4)
    assert batch["image"][0, 0, 0, 0].tolist() == [5, 5, 9, 5]


def test_a_chain_with_another_map_is_another_chain(cases):
    """A state saved under one map is not resumed under another; without one nothing changed."""
    maps = [
        {},
        {"axis_map": vp.AxisMap.shift("K", 1)},
        {"axis_map": vp.AxisMap.shift("K", 2)},
        {"axis_map": {"image": vp.AxisMap.shift("K", 1)}},
    ]
    prints = [fingerprint(vp.from_cases(cases).open_volume(**given)) for given in maps]
    again = fingerprint(vp.from_cases(cases).open_volume(axis_map=vp.AxisMap.shift("K", 1)))

    assert len(set(prints)) == 4
    assert again == prints[1]


def test_errors_name_the_case_and_the_line(cases):
    """A map that does not fit, and a mask whose name is taken."""
    pipe = vp.from_cases(cases).open_volume(axis_map=vp.AxisMap.missing("K", [24]))
    with pytest.raises(OutOfVolume, match=r"0\.nii, which has 24"):
        next(iter(pipe))["image"].shape  # noqa: B018
    cases[0]["image_stored"] = cases[0]["label"]
    taken = vp.from_cases(cases).open_volume(axis_map=vp.AxisMap.missing("K", [2], "mask"))
    with pytest.raises(SampleError, match=r"'image_stored'(.|\n)*open_volume"):
        next(iter(taken))


@pytest.mark.parametrize("axis_map", ["K", 3, {"image": "K"}, {"image": None}, [], "", 0, False])
def test_what_is_no_axis_map_is_refused_at_once(axis_map):
    pipe = vp.from_cases([{"image": np.zeros((4, 5, 6))}])

    with pytest.raises(TypeError, match="axis_map is an AxisMap, or a mapping of them by key"):
        pipe.open_volume(axis_map=axis_map)
