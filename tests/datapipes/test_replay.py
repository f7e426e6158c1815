"""Recorded draws, done again: from meta, through JSON, on another volume."""

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import SampleError
from voxpipe.spatial import Elastic, Flip, Rotate

VOLUME = np.random.default_rng(0).normal(100, 10, (12, 10, 8)).astype(np.float32)


def chain(volume: Any = VOLUME) -> Any:
    """Random ops of every kind."""
    return (
        vp.from_cases([{"image": volume, "label": (volume > 100).astype(np.uint8)}])
        .open_volume()
        .lazy_patch(6)
        .rotate((-20, 20))
        .one_of([Elastic((0, 1), spacing=4), (Flip(0, p=0.5), Rotate((1, 5)))])
        .brightness((-5, 5))
        .blur((0.5, 1.0))
    )


def test_a_record_gives_the_same_sample_again() -> None:
    """Under other seeds, after JSON: the same voxels, image and label."""
    torch.manual_seed(1)
    batch = next(iter(chain().batch_patches(1)))
    record = json.loads(json.dumps(batch["meta"][0]["draws"]))
    for seed in (2, 3):
        torch.manual_seed(seed)
        again = next(iter(chain().replay(record).batch_patches(1)))

        assert torch.equal(again["image"], batch["image"])
        assert torch.equal(again["label"], batch["label"])
        assert again["meta"][0]["draws"] == batch["meta"][0]["draws"]


def test_a_record_on_another_volume_is_the_same_map() -> None:
    """The label of one case goes where the image of the other went."""
    torch.manual_seed(1)
    first = next(iter(chain()))["image"]

    other = next(iter(chain(VOLUME[::-1].copy()).replay(first.draws)))["image"]

    assert other.plan == first.plan
    assert not np.array_equal(other.realize(), first.realize())


def test_pipes_that_are_not_recorded_draw_for_themselves() -> None:
    """A part of a record fixes a part."""
    torch.manual_seed(1)
    first = next(iter(chain()))["image"].draws

    torch.manual_seed(2)
    second = next(iter(chain().replay({"rotate": first["rotate"]})))["image"].draws

    assert second["rotate"] == first["rotate"]
    assert second["blur"] != first["blur"]


def test_workers_replay_too() -> None:
    """The record travels with the chain."""
    torch.manual_seed(1)
    record = next(iter(chain()))["image"].draws
    expected = next(iter(chain().replay(record).batch_patches(1)))["image"]

    service = vp.MultiProcessingReadingService(1)
    with vp.DataLoader2(chain().replay(record).batch_patches(1), None, service) as loader:
        found = next(iter(loader))["image"]

    assert torch.equal(found, expected)


def test_replayed_steps_are_values() -> None:
    """They pickle, and keep what their op is."""
    torch.manual_seed(1)
    patch = next(iter(chain().replay({"blur": None})))["image"]
    step = patch.values[-1]

    assert pickle.loads(pickle.dumps(step)).describe() == step.describe()
    assert not step.op.commutes
    assert "replayed" in step.describe()


@pytest.mark.parametrize(
    ("draws", "message"),
    [({"zoom": {}}, "record of zoom, but the pipes before it are blur"), ([1], "takes a mapping")],
)
def test_a_record_of_something_else_is_refused(draws: Any, message: str) -> None:
    """With the names that there are."""
    with pytest.raises(SampleError, match=message):
        next(iter(chain().replay(draws)))
