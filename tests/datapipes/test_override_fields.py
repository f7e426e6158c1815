"""``policies=`` of single fields: these override the chain, which sets the others."""

from typing import Any

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.transforms import Compose, Rotated

import voxpipe as vp
from voxpipe.core.errors import LikelyMistake, PolicyConflict

IMAGE = np.random.default_rng(0).integers(0, 100, (6, 7, 8)).astype(np.float32)
LABEL = (IMAGE > 50).astype(np.uint8)


def opened(**given: Any) -> Any:
    return vp.from_cases([{"image": IMAGE, "label": LABEL}]).open_volume(**given)


def policies(pipe: Any) -> dict[str, Any]:
    return {key: patch.policy for key, patch in next(iter(pipe)).items()}


def test_one_field_is_overridden_and_the_others_are_those_of_the_chain() -> None:
    """The mode holds; padding and type come from pipes, for this key and for others."""
    head = opened(policies={"image": {"mode": "nearest"}}, override=True)
    pipe = head.rotate(5, mode="cubic", padding="reflection").zoom(1.1, dtype="float64")

    found = policies(pipe)

    assert found["image"] == vp.Policy("nearest", "reflection", dtype=np.float64)
    assert found["label"] == vp.spatial.LABEL


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"padding": "zeros"}, vp.Policy("cubic", "zeros", dtype=np.int16)),
        ({"dtype": "float64"}, vp.Policy("cubic", "constant", -5.0, np.float64)),
        ({"fill": 3}, vp.Policy("cubic", "constant", 3.0, np.int16)),
        ({"mode": "linear", "fill": 0}, vp.Policy("linear", "constant", 0.0, np.int16)),
        ({}, vp.Policy("cubic", "constant", -5.0, np.int16)),
    ],
)
def test_each_field(fields: dict[str, Any], expected: Any) -> None:
    """A padding without fill ignores the fill of pipes."""
    head = opened(policies={"image": fields}, override=True)
    pipe = head.rotate(5, mode="cubic", padding="constant", fill=-5, dtype="int16")

    assert policies(pipe)["image"] == expected


def test_nearest_ignores_the_smoothing_of_pipes() -> None:
    """It has no meaning then."""
    head = opened(policies={"image": {"mode": "nearest"}}, override=True)

    assert policies(head.zoom(0.5, antialias=True))["image"] == vp.Policy("nearest")


def test_fields_without_override_are_the_default_of_their_key() -> None:
    """Others are of the kind, also for labels; a pipe that sets another is a conflict."""
    head = opened(policies={"label": {"padding": "border"}, "image": {"mode": "linear"}})

    assert policies(head.pad(1))["label"] == vp.Policy("nearest", "border")
    with pytest.raises(PolicyConflict, match="mode='cubic' here, but mode='linear'"):
        head.rotate(5, mode="cubic")
    with pytest.raises(PolicyConflict, match="padding='constant' here, but padding='border'"):
        head.pad(1, padding={"label": "constant"})


def test_a_field_is_overridden_in_batches_of_workers_and_after_a_flush() -> None:
    """The fields travel with the chain."""
    head = opened(policies={"image": {"mode": "nearest"}}, override=True)
    pipe = head.rotate(20, mode="cubic").flush().zoom(1.3, mode="linear").batch_patches(1)
    service = vp.MultiProcessingReadingService(num_workers=1)
    with vp.DataLoader2(pipe, None, service, seed=2) as loader:
        (batch,) = list(loader)
        assert "image  intensity  nearest, border outside" in loader.explain()

    assert set(np.unique(batch["image"].numpy())) <= set(np.unique(IMAGE))


def test_the_voxels_of_monais_override() -> None:
    """``overrides={"image": {"mode": "nearest"}}`` of a lazy Compose, key by key."""
    tensors = {"image": MetaTensor(torch.from_numpy(IMAGE[None]), affine=torch.eye(4))}
    tensors["label"] = MetaTensor(torch.from_numpy(LABEL[None]), affine=torch.eye(4))
    turn = Rotated(["image", "label"], (0, 0, np.deg2rad(90) / 4), mode="bilinear", lazy=True)
    overrides = {"image": {"mode": "nearest", "padding_mode": "border"}}
    overrides["label"] = {"mode": "nearest", "padding_mode": "border"}
    theirs = Compose([turn], lazy=True, overrides=overrides)(tensors)

    own = {"image": {"mode": "nearest"}, "label": {"padding": "border"}}
    ours = next(iter(opened(policies=own, override=True).rotate((0, 0, -22.5), space="voxel")))

    for key in own:
        np.testing.assert_array_equal(ours[key].realize(), theirs[key].numpy())


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"padding_mode": "zeros"}, TypeError, "no argument 'padding_mode'; did you mean 'paddin"),
        ({"mode": "bilinear"}, ValueError, "that is 'linear' here"),
        ({"mode": "nearest", "antialias": True}, ValueError, "smooths before interpolating"),
        ("nearest", TypeError, "which is no Policy"),
    ],
)
def test_mistakes_are_refused(fields: Any, error: Any, words: str) -> None:
    """At construction."""
    with pytest.raises(error, match=words):
        opened(policies={"image": fields}, override=True)


@pytest.mark.parametrize("fields", [{"fill": -3}, {"padding": "border", "fill": -3}])
def test_a_fill_without_constant_padding_is_warned_of(fields: dict[str, Any]) -> None:
    """It has no effect by itself; a later pipe may pad with it."""
    with pytest.warns(LikelyMistake, match='fill=-3 for \'image\'(.|\n)*Add "padding": "constant"'):
        pipe = opened(policies={"image": fields})
    opened(policies={"image": fields}, override=True)
    if "padding" not in fields:
        padded = next(iter(pipe.pad(1, padding={"image": "constant"}).realize()))
        assert padded["image"][0, 0, 0, 0] == -3


def test_a_fill_is_used_by_constant_padding_and_by_labels() -> None:
    """The padding of labels is constant by default."""
    fields = {"image": {"padding": "constant", "fill": -3}, "label": {"fill": 3}}

    sample = next(iter(opened(policies=fields).pad(1).realize()))

    assert sample["image"][0, 0, 0, 0] == -3
    assert sample["label"][0, 0, 0, 0] == 3


def test_monais_word_is_suggested() -> None:
    """Under ``open_volume()``."""
    with pytest.raises(TypeError, match="'overrides'; did you mean 'policies'"):
        opened(overrides={"image": {"mode": "nearest"}})
