"""Boxes of a case go the way of its volumes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from eager_chains import Eager

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import SampleError

BOXES = [[1.5, 2.5, 1.5, 5.5, 6.5, 4.5], [8.5, 7.5, 5.5, 11.5, 9.5, 7.5]]


def opened(boxes: Any = BOXES) -> Any:
    """A case whose boxes are full of ones, in a world of its own."""
    image = np.zeros((14, 12, 10), np.uint8)
    for a, b, c, d, e, f in BOXES:
        image[
            int(a + 0.5) : int(d + 0.5), int(b + 0.5) : int(e + 0.5), int(c + 0.5) : int(f + 0.5)
        ] = 1
    return vp.from_cases([{"seg": image, "boxes": boxes}]).open_volume(keys=["seg"])


def around(voxels: Any) -> list[float]:
    at = np.argwhere(voxels)
    return [*(at.min(axis=0) - 0.5).tolist(), *(at.max(axis=0) + 0.5).tolist()]


def test_a_box_is_where_its_voxels_are() -> None:
    """Through flips, turns, pads, a flush and a crop that cuts one box and loses the other."""
    pipe = opened().flip((0, 1)).rotate90(1, (0, 2)).flush().pad(2).crop((8, 2, 3), (6, 12, 13))
    before = IO_COUNTERS.snapshot()

    sample = next(iter(pipe.move_boxes(min_fraction=0.1)))

    assert (IO_COUNTERS.snapshot() - before).reads == 0
    assert sample["boxes"] == [around(sample["seg"].realize()[0])]
    assert len(next(iter(pipe.move_boxes(min_fraction=0)))["boxes"]) == 2


def test_a_deformed_lesion_lies_in_its_box() -> None:
    """Turned and bent: no voxel of it is outside."""
    for seed in range(5):
        torch.manual_seed(seed)
        pipe = opened(BOXES[:1]).rotate((-30, 30)).elastic((0, 2), spacing=6).zoom((0.8, 1.2))
        sample = next(iter(pipe.move_boxes(min_fraction=0)))
        # The other one's voxels have no box here, so only those of the first count.
        image = np.zeros((14, 12, 10), np.uint8)
        image[2:6, 3:7, 2:5] = 1
        torch.manual_seed(seed)
        alone = vp.from_cases([{"seg": image}]).open_volume()
        alone = alone.rotate((-30, 30)).elastic((0, 2), spacing=6).zoom((0.8, 1.2))
        found = around(next(iter(alone))["seg"].realize()[0])
        (box,) = sample["boxes"]
        # A voxel is taken whole whose centre lies in the lesion: half of one hangs over.
        assert all(b <= f + 0.5 for b, f in zip(box[:3], found[:3], strict=True))
        assert all(b >= f - 0.5 for b, f in zip(box[3:], found[3:], strict=True))


def test_a_batch_has_a_list_per_sample() -> None:
    """However many boxes each has; workers do the same."""
    pipe = opened().lazy_patch(6, samples_per_volume=4).move_boxes().batch_patches(4)
    with vp.DataLoader2(pipe, seed=1) as loader:
        (batch,) = list(loader)

    assert len(batch["boxes"]) == 4
    assert len({len(found) for found in batch["boxes"]}) > 1
    for boxes in batch["boxes"]:
        assert all(-0.5 <= v <= 5.5 for box in boxes for v in box)
    assert "move_boxes()" in vp.explain(pipe)


def test_boxes_do_not_grow_by_being_eager() -> None:
    """A flush does not take the box around a box: they are those of the fused chain."""
    pipe = (
        opened().rotate((-30, 30)).elastic(1, spacing=6).zoom(0.8).rotate(20).elastic(1, spacing=9)
    )
    pipe = pipe.flip(0).crop((1, 1, 1), (9, 9, 8), hard=True).rotate(5).move_boxes(min_fraction=0)
    found = []
    for chain in (pipe, Eager()(pipe)):
        torch.manual_seed(1)
        found.append(next(iter(chain)))

    assert found[1]["seg"].volume.access == "made"
    assert np.allclose(found[0]["boxes"], found[1]["boxes"], atol=1e-6)


def test_no_boxes_are_fine() -> None:
    """A case without lesions."""
    assert next(iter(opened([]).flip(0).move_boxes()))["boxes"] == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: opened().move_boxes("bones"),
            r"is to move 'bones', but the sample has seg, boxes",
        ),
        (
            lambda: opened().move_boxes(key="ct"),
            r"boxes move with 'ct', but the lazy volumes are seg",
        ),
        (lambda: opened([[1, 2, 3]]).move_boxes(), r"holds no boxes \(N, 6\)"),
        (lambda: opened([[5, 0, 0, 1, 1, 1]]).move_boxes(), r"begins at its lowest corner"),
        (lambda: opened().move_boxes(min_fraction=2), r"min_fraction is from 0 to 1, got 2"),
        (lambda: opened().realize().move_boxes(), r"no volume is lazy"),
        (lambda: opened().batch_patches(1).move_boxes(), r"a sample expected"),
    ],
)
def test_what_cannot_be_moved_is_refused(make: Any, message: str) -> None:
    """With the case and the keys that there are."""
    with pytest.raises(SampleError, match=message):
        next(iter(make()))


def test_classes_stay_with_their_boxes_and_points() -> None:
    """The row that is left out is left out of both; behind a flush, too."""
    points = np.array([[3.0, 4.0, 3.0], [10.0, 8.0, 6.0], [0.0, 0.0, 0.0]])
    case = {
        "seg": np.zeros((14, 12, 10), np.uint8),
        "boxes": np.array(BOXES),
        "classes": np.array([7, 9]),
        "points": points,
        "names": ["a", "b", "c"],
    }
    pipe = vp.from_cases([case]).open_volume(keys=["seg"]).flip(0).flush()
    pipe = pipe.crop((0, 5, 3), (6, 7, 6)).move_boxes(row_keys="classes")
    sample = next(iter(pipe.move_points(row_keys=["names"])))

    assert sample["classes"] == [9]
    assert sample["boxes"] == [[1.5, 2.5, 2.5, 4.5, 4.5, 4.5]]
    assert sample["names"] == ["b"]
    assert sample["points"] == [[3.0, 3.0, 3.0]]
    whole = next(iter(pipe.move_points(inside=False)))
    assert len(whole["points"]) == 3


def test_rows_that_do_not_go_together_are_refused() -> None:
    """With both numbers."""
    pipe = opened()
    with pytest.raises(SampleError, match="2 rows that move_boxes"):
        next(iter(pipe.map(add_one_class).move_boxes(row_keys="classes")))
    with pytest.raises(SampleError, match="one key"):
        pipe.move_boxes(["boxes", "more"], row_keys="classes")
    with pytest.raises(SampleError, match="is to move 'points'"):
        next(iter(pipe.move_points()))
    with pytest.raises(SampleError, match="one key"):
        pipe.move_points(["points", "more"], row_keys="classes")


def add_one_class(sample: Any) -> Any:
    return sample.with_data(classes=[1])
