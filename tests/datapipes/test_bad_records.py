"""Records for replay(): what an op could not have drawn is refused, with the op's own words."""

import json
import math
from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import BadRecord

VOLUME = np.random.default_rng(0).normal(100, 10, (12, 10, 8)).astype(np.float32)


def chain() -> Any:
    """Ops of many kinds, some of which act now and then."""
    return (
        vp.from_cases([{"image": VOLUME, "label": (VOLUME > 100).astype(np.uint8)}])
        .open_volume()
        .lazy_patch(6, mask="label", class_weights={0: 1, 1: 1}, samples_per_volume=4)
        .rotate((-20, 20), p=0.5)
        .zoom((0.9, 1.1))
        .flip((0, 1), p=0.5)
        .rotate90((0, 3))
        .augment(rotate=(-5, 5), flip=0.5)
        .elastic((0, 1), spacing=4)
        .grid_distortion()
        .pad(1)
        .noise((0, 1), p=0.5)
        .bias_field(0.2)
        .gamma((0.8, 1.2))
        .anisotropy((1, 2), p=0.5)
        .clamp(0, 200, p=0.5)
        .crop_or_pad(6)
    )


def test_what_ops_draw_is_accepted() -> None:
    """Every record of the chain, from JSON, of items where ops act and where they do not."""
    for sample in chain():
        record = json.loads(json.dumps(sample["image"].draws))
        for again in chain().replay(record):
            assert again["image"].draws == record
            again["image"].realize()


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("zoom", {"factor": [0, 1, 1]}, "above 0, got"),
        ("zoom", {"factor": [math.nan, 1.0, 1.0]}, "what it draws is like"),
        ("zoom", {"factr": [1, 1, 1]}, "differs in factor, factr"),
        ("zoom", {"factor": [1, 1]}, r"has factor \[1, 1\]"),
        ("zoom", {"factor": "1"}, "has factor '1'"),
        ("zoom", [1, 1, 1], "a mapping from name to parameter"),
        ("rotate", {"degrees": None}, "has degrees None"),
        ("noise", {"std": -1, "mean": 0, "key": 1}, "numbers >= 0, got -1"),
        ("noise", {"std": 1, "mean": 0}, "differs in key"),
        ("gamma", {"gamma": 0}, "above 0, got 0"),
    ],
    ids=["zero", "nan", "typo", "two", "word", "list", "none", "negative", "no key", "gamma"],
)
def test_what_no_op_draws_is_refused(name: str, record: Any, message: str) -> None:
    """With the op, the field and where the pipe was written; before a voxel is read."""
    sample = next(iter(chain().replay({name: record})))

    with pytest.raises(BadRecord, match=message) as caught:
        _ = sample["image"].draws

    assert "test_bad_records.py" in str(caught.value)
