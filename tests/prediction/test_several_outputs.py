"""A model with several outputs, also of other scales: each goes to its own destination."""

import nibabel
import numpy as np
import pytest
import torch
from window_models import SCALES, Heads

import voxpipe as vp
from voxpipe.core.errors import DestinationExists, PatchSizeError, SampleError

inferers = pytest.importorskip("monai.inferers")
AFFINE = np.array([[0, 2, 0, 7], [-3, 0, 0, 5], [0, 0, 4, -9], [0, 0, 0, 1.0]])
FACE = np.array([-0.5, -0.5, -0.5, 1])


def volume(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("blend", ["gaussian", "mean"])
@pytest.mark.parametrize("kind", [dict, tuple])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("shape", [(12, 16, 8), (20, 4, 12)])
def test_both_are_monais(shape, scale, kind, blend):
    """Equal to its sliding window, windows larger than the volume included."""
    array, model = volume(*shape), Heads(scale, kind)
    mode = {"gaussian": "gaussian", "mean": "constant"}[blend]
    inferer = inferers.SlidingWindowInferer((8, 8, 8), 2, 0.5, mode, padding_mode="replicate")
    with torch.no_grad():
        expected = inferer(torch.from_numpy(array)[None, None], model)
    names = [0, 1] if kind is tuple else ["a_seg", "b_map"]

    found = vp.predict(
        model,
        array,
        dict.fromkeys(names),
        patch=8,
        blend=blend,
        output="logits",
        batch_size=2,
    )

    assert list(found) == names
    for name in names:
        assert found[name].shape == expected[name].shape[1:]
        assert np.abs(found[name].numpy() - expected[name][0].numpy()).max() < 1e-5


def test_each_has_its_own_place_type_and_affine(tmp_path):
    """The outer faces of a coarser result are those of the scan."""
    scan = vp.Volume(volume(12, 16, 8), affine=AFFINE)
    double = np.zeros((2, 12, 16, 8), np.float32)

    found = vp.predict(
        Heads(), scan, {"a_seg": tmp_path / "seg.nii.gz", "b_map": None}, patch=8,
        output={"a_seg": "argmax", "b_map": "logits"}, dtype={"a_seg": "int16", "b_map": "float16"},
    )  # fmt: skip
    vp.predict(
        Heads("full"), scan, {"a_seg": None, "b_map": double}, patch=8,
        output={"a_seg": "argmax", "b_map": "logits"},
    )  # fmt: skip

    saved = nibabel.load(tmp_path / "seg.nii.gz")
    assert saved.get_data_dtype() == "int16"
    assert np.allclose(saved.affine, AFFINE)
    coarse = found["b_map"]
    assert (coarse.shape, coarse.dtype) == ((2, 6, 8, 4), "float16")
    for corner in ((0, 0, 0), (6, 8, 4)):
        face = np.array([*(np.array(corner) - 0.5), 1])
        own = np.array([*(np.array(corner) * 2 - 0.5), 1])
        assert np.allclose(coarse.affine @ face, AFFINE @ own)
    assert double.any()


@pytest.mark.parametrize("name", ["map.nii.gz", "map.nii.zarr", "map.nrrd"])
def test_a_coarser_file_is_in_its_place(tmp_path, name):
    """Shape and affine of the written file follow the scale."""
    path = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(volume(12, 16, 8), AFFINE), path)

    vp.predict(Heads(), path, {"b_map": tmp_path / name}, patch=8, output="logits")

    found = vp.Volume(tmp_path / name)
    assert found.shape == (2, 6, 8, 4)
    assert np.allclose(found.spacing, (6, 4, 8))
    assert np.allclose(found.affine @ FACE, AFFINE @ FACE)


def test_cases_of_a_chain_have_both(tmp_path):
    """After a change of spacing classes return to the stored grid, and the map keeps its own."""
    cases = [{"image": volume(8, 8, 8), "case": name} for name in "ab"]
    chain = vp.from_cases(cases).open_volume().spacing(0.5)
    places = {"a_seg": str(tmp_path / "{case}.nii.gz"), "b_map": str(tmp_path / "{case}.zarr")}

    found = vp.predict(Heads(), chain, places, patch=8, output="softmax", num_workers=0)

    assert {case: [*each] for case, each in found.items()} == {case: [*places] for case in "ab"}
    assert found["b"]["a_seg"].shape == (3, 8, 8, 8)
    assert found["b"]["b_map"].shape == (2, 8, 8, 8)
    assert np.allclose(found["b"]["b_map"].affine, np.eye(4))  # 16 voxels, then 8 again


@pytest.mark.parametrize(
    ("shape", "size", "words"),
    [
        ((16, 16, 16), 3, "the output 'b' has 3x3x3 voxels for a window of 8x8x8"),
        ((16, 16, 13), 4, "the volume of 16x16x13 voxels.*Pad the volume"),
        ((16, 16, 16), 0, "the output 'b' for a window of 8x8x8 voxels has the shape"),
    ],
)
def test_a_scale_that_does_not_divide_is_refused(shape, size, words):
    """By name, with what does not fit."""

    def model(batch):
        return {"a": batch, "b": batch[..., :size, :size, :size]}

    with pytest.raises(PatchSizeError, match=f"(?s){words}"):
        vp.predict(model, volume(*shape), {"b": None}, patch=8, output="logits")


def test_what_does_not_fit_together_is_refused(tmp_path):
    """Other names in an argument, one place for two, an output that the model lacks."""
    array, same = volume(8, 8, 8), np.zeros((3, 8, 8, 8), np.float32)
    both = {"a_seg": None, "b_map": None}
    with pytest.raises(SampleError, match="output= names others"):
        vp.predict(Heads(), array, both, patch=8, output={"a_seg": "argmax"})
    with pytest.raises(SampleError, match="head= names others"):
        vp.predict(Heads(), array, both, patch=8, head="a_seg")
    for place in (same, str(tmp_path / "a.nii")):
        with pytest.raises(DestinationExists, match="one destination"):
            vp.predict(Heads(), array, dict.fromkeys(both, place), patch=8, output="logits")
    with pytest.raises(SampleError, match="'a_seg', 'b_map', and not 'c'"):
        vp.predict(Heads(), array, {"c": None}, patch=8)
    with pytest.raises(SampleError, match="one output"):
        vp.predict(torch.nn.Identity(), array, {"a": None}, patch=8)


@pytest.mark.parametrize("name", ["dtype", "output", "classes"])
@pytest.mark.parametrize("place", [None, "a.nii"])
def test_arguments_by_output_need_destinations_by_output(name, place):
    """One destination is of one output: no name of another argument means anything."""
    value = {"dtype": "uint8", "output": "argmax", "classes": 3}[name]

    with pytest.raises(SampleError, match=rf"{name}= is a mapping.*(?s:.)*destination=\{{'"):
        vp.predict(Heads(), volume(8, 8, 8), place, patch=8, **{name: {"a_seg": value}})


def test_a_case_outside_of_the_mask_takes_the_scale_of_others():
    """Without others it is unknown, and refused."""
    mask = np.zeros((8, 8, 8), np.uint8)
    empty = {"image": volume(8, 8, 8), "mask": mask, "case": "empty"}
    full = {"image": volume(8, 8, 8), "mask": mask + 1, "case": "full"}
    own = {"patch": 8, "mask": "mask", "output": "logits"}

    found = vp.predict(Heads(), [full, empty], {"b_map": None}, **own)

    assert found["empty"]["b_map"].shape == (2, 4, 4, 4)
    assert not found["empty"]["b_map"].numpy().any()
    with pytest.raises(SampleError, match="and its scale is unknown"):
        vp.predict(Heads(), [empty], {"b_map": None}, classes=2, **own)
