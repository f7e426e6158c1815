"""Records for replay(): what an op could not have drawn is refused, with the op's own words."""

import json
import math
from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import BadRecord, SampleError
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.intensity import Clamp, Gamma, Noise
from voxpipe.spatial import Elastic, Flip, Rotate, Shear, Translate, Zoom
from voxpipe.spatial.lazy.patch_steps import replay_draws
from voxpipe.spatial.ops.choices import OneOf

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
        ("zoom", {"factor": [math.nan, 1.0, 1.0]}, "it draws values like"),
        ("zoom", {"factr": [1, 1, 1]}, "differs in factor, factr"),
        ("zoom", {"factor": [1, 1]}, r"has factor \[1, 1\]"),
        ("zoom", {"factor": "1"}, "has factor '1'"),
        ("zoom", [1, 1, 1], "a mapping from name to parameter"),
        ("rotate", {"degrees": None}, "has degrees None"),
        ("noise", {"std": -1, "mean": 0, "key": 1}, "numbers >= 0, got -1"),
        ("noise", {"std": 1, "mean": 0}, "differs in key"),
        ("noise", {"std": 1, "mean": 0, "key": 1.5}, r"has key 1\.5, but"),
        ("noise", {"std": 1, "mean": 0, "key": -1}, "has key -1, but"),
        ("gamma", {"gamma": 0}, "above 0, got 0"),
    ],
    ids=[
        *("zero", "nan", "typo", "two", "word", "list", "none", "negative", "no key"),
        *("half a key", "key below 0", "gamma"),
    ],
)
def test_what_no_op_draws_is_refused(name: str, record: Any, message: str) -> None:
    """With the op, the field and where the pipe was written; before a sample is made."""
    with pytest.raises(BadRecord, match=message) as caught:
        chain().replay({name: record})

    assert "test_bad_records.py" in str(caught.value)


def test_another_size_than_the_patch_has_is_refused() -> None:
    """Before anything is worked out over as many voxels."""
    record: dict[str, Any] = {"lazy_patch": {"start": [2, 2, 0], "size": [2**53, 6, 6]}}
    patches = vp.from_cases([{"image": VOLUME}]).open_volume().lazy_patch(6)

    with pytest.raises(BadRecord, match=r"has a size of \[9007199254740992, 6, 6\]"):
        next(iter(patches.replay(record)))["image"].realize()


def test_what_is_no_record_at_all_is_refused() -> None:
    """However deep it is: lists in lists, of which Python prints some hundred."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]

    with pytest.raises(SampleError, match="a mapping from stream to parameters"):
        chain().replay(deep)


def choosing() -> Any:
    """Choices of either kind and one within another, of which some never act by themselves."""
    return (
        vp.from_cases([{"image": VOLUME}])
        .open_volume()
        .one_of([Rotate((-20, 20)), [Flip(p=0.5), Zoom((0.9, 1.1))]], p=0.1)
        .some_of([Translate(1), OneOf([Shear(0.1), Elastic(1, spacing=4)]), Noise(1)], (1, 2))
        .random_order([Gamma((0.8, 1.2)), Clamp(0, 200)])
        .random_apply([Noise((0, 1)), Gamma(1.1)])
    )


def test_what_choices_draw_is_accepted() -> None:
    """From JSON, for many seeds, so that every member is chosen."""
    for epoch in range(24):
        pipe = choosing()
        set_epoch(pipe, 7, epoch)
        sample = next(iter(pipe))
        record = json.loads(json.dumps(sample["image"].draws))
        again = next(iter(choosing().replay(record)))
        assert again["image"].draws == record


ROTATED = {"degrees": [1, 2, 3]}


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("one_of", {"chosen": [0], "drawn": [[{"degrees": [1, 2]}]]}, r"drawn\[0\]\[0\]: .*rotate"),
        (
            "one_of",
            {"chosen": [1], "drawn": [[None, {"factor": [0, 1, 1]}]]},
            r"drawn\[0\]\[1\]: the record of zoom .* above 0, got",
        ),
        (
            "one_of",
            {"chosen": [2], "drawn": [[ROTATED]]},
            r"chosen \[2\], and one_of\(\) chooses one",
        ),
        ("one_of", {"chosen": [0, 1], "drawn": [[ROTATED], [None, None]]}, "chooses one of"),
        ("one_of", {"chosen": [0], "drawn": [[ROTATED, ROTATED]]}, r"drawn\[0\] .* list of 1"),
        ("one_of", {"chosen": [0], "drawn": []}, r"drawn \[\], not a list of 1"),
        ("one_of", {"chosen": [0]}, "differs in drawn"),
        ("one_of", {"chosen": "0", "drawn": [[ROTATED]]}, "has chosen '0'"),
        (
            "some_of",
            {
                "chosen": [0, 1],
                "drawn": [
                    [{"voxels": [1, 1, 1]}],
                    [{"chosen": [0], "drawn": [[{"shear": "much"}]]}],
                ],
            },
            r"drawn\[\d\]\[0\]",
        ),
        (
            "some_of",
            {"chosen": [1], "drawn": [[{"chosen": [0], "drawn": [["shear"]]}]]},
            r"drawn\[0\]\[0\].drawn\[0\]\[0\]: the record of shear .* is 'shear'",
        ),
        ("some_of values", {"chosen": [2], "drawn": [[{"std": -1}]]}, r"drawn\[0\]\[0\]: .*noise"),
        ("random_order values", {"chosen": [0, 0], "drawn": [[None], [None]]}, "0 to 1 once"),
        ("random_apply values", {"chosen": [], "drawn": []}, "all members, 0 to 0, in turn"),
    ],
    ids=[
        *("form", "second op", "no member", "two", "too many", "none drawn", "no drawn", "word"),
        *("in either", "nested", "value", "order", "all or none"),
    ],
)
def test_a_bad_member_of_a_choice_is_refused_by_its_path(
    name: str, record: Any, message: str
) -> None:
    """When the record is loaded, not in the midst of an epoch."""
    with pytest.raises(BadRecord, match=message) as caught:
        choosing().replay({name: json.loads(json.dumps(record))})

    assert f".{name.removesuffix(' values')}(" in str(caught.value)


def test_records_of_volumes_behind_a_map_are_refused_at_their_first_use() -> None:
    """Where pipes cannot be looked at beforehand."""
    bad = {"chosen": [0], "drawn": [[{"degrees": 1}]]}
    sample = next(iter(choosing()))

    patch = replay_draws({"image": sample["image"]}, {"one_of": bad})["image"]

    with pytest.raises(BadRecord, match=r"drawn\[0\]\[0\]: the record of rotate"):
        _ = patch.plan
