"""Crops that look at voxels: what they ask, of whom, how often; and the same as their peers do."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st
from manifests import index_cases, write_manifest

from voxpipe.core import IO_COUNTERS, Grid, Region
from voxpipe.core.call_site import looking_ahead
from voxpipe.core.errors import GraphError, PatchSizeError, SampleError
from voxpipe.dataloader2 import DataLoader2
from voxpipe.datapipes.iter import from_cases, from_manifest
from voxpipe.spatial import (
    AnsweredOp,
    Elastic,
    ForegroundCrop,
    GridDistortion,
    LabelCrop,
    OneOf,
    Rotate,
    SpatialOp,
    SpatialPlan,
    box_to_output,
)
from voxpipe.testing import SpatialOpContract
from voxpipe.volumes import Volume
from voxpipe.volumes.catalog import whole_pass

FOLDER = ROOT / "tests" / "data"


def contract_volume(start: Any, stop: Any) -> Volume:
    array = np.zeros(SpatialOpContract.GRID.shape, np.uint8)
    array[tuple(map(slice, start, stop))] = 1
    key = (tuple(start), tuple(stop))
    if key not in _MADE:
        _MADE[key] = Volume(array, affine=SpatialOpContract.GRID.affine, kind="label")
    return _MADE[key]


_MADE: dict[Any, Volume] = {}


class TestForegroundCrop(SpatialOpContract):
    def make(self) -> SpatialOp:
        return AnsweredOp(ForegroundCrop("label", margin=1), contract_volume((2, 1, 3), (6, 6, 5)))

    def make_nothing(self) -> SpatialOp:
        whole = contract_volume((0, 0, 0), self.GRID.shape)
        return AnsweredOp(ForegroundCrop("label"), whole)

    def test_the_number_of_draws_is_fixed(self) -> None:
        """No number is drawn."""
        used, fresh = np.random.default_rng(0), np.random.default_rng(0)

        self.make().draw(used, SpatialPlan.identity(self.GRID))

        assert used.random() == fresh.random()


class TestLabelCrop(SpatialOpContract):
    def make(self) -> SpatialOp:
        return AnsweredOp(LabelCrop((5, 4, 3)), contract_volume((2, 1, 3), (6, 6, 5)))

    def make_nothing(self) -> SpatialOp:
        return AnsweredOp(LabelCrop(self.GRID.shape), contract_volume((0, 0, 0), self.GRID.shape))

    def test_the_number_of_draws_is_fixed(self) -> None:
        """No number is drawn."""
        used, fresh = np.random.default_rng(0), np.random.default_rng(0)

        self.make().draw(used, SpatialPlan.identity(self.GRID))

        assert used.random() == fresh.random()


def arguments(op: Any) -> dict[str, Any]:
    """Return what the chained form takes."""
    return {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}


PEERS: dict[str, Any] = {
    "monai-crop_foreground": ForegroundCrop("label"),
    "monai-crop_foreground_margin": ForegroundCrop("label", margin=(2, 3, 1), overhang=True),
    "monai-crop_foreground_inside": ForegroundCrop("label", margin=4),
    "monai-crop_foreground_divisible": ForegroundCrop("label", divisible=4, overhang=True),
    "monai-crop_foreground_label": ForegroundCrop("label", classes=2, margin=1),
    "torchio-crop_or_pad_mask_even": LabelCrop((4, 6, 8), classes=1),
    "torchio-crop_or_pad_mask_odd": LabelCrop((5, 3, 11), classes=[1]),
    "torchio-crop_or_pad_mask_larger": LabelCrop((16, 4, 4), classes=1),
}


@pytest.mark.parametrize("name", PEERS)
def test_a_crop_gives_what_its_peer_gives(name: str) -> None:
    """The same voxels, and 0 where it hangs over; bit for bit."""
    peer, _, row = name.partition("-")
    with np.load(FOLDER / f"deciding-{peer}.npz") as file:
        volume, label, expected = file["volume"], file["label"], file[row]
    pipe = from_cases([{"image": volume, "label": label}]).open_volume()
    op = PEERS[name]
    fields = arguments(op)
    if fields.get("classes"):
        fields.pop("above", None)
    pipe = getattr(pipe, op.name)(**fields, padding="constant", fill=0)

    found = next(iter(pipe))["image"].realize()

    assert found.dtype == volume.dtype
    assert np.array_equal(found, expected)


@pytest.fixture
def files(tmp_path: Any) -> Any:
    label = np.zeros((20, 18, 16), np.uint8)
    label[4:9, 10:12, 3:7] = 3
    label[1, 1, 1] = 1
    image = np.random.default_rng(0).normal(size=label.shape).astype(np.float32)
    for name, array in {"image": image, "label": label}.items():
        np.save(tmp_path / f"{name}.npy", array)
    whole_pass.BOXES.memory.clear()
    case = {name: tmp_path / f"{name}.npy" for name in ("image", "label")}
    return case, image, label


def test_only_the_asked_volume_is_read_and_once(files: Any) -> None:
    """Of the image not a voxel is read for the decision; nothing at all the second time."""
    case, image, label = files
    chain = from_cases([case]).open_volume().foreground_crop("label", classes=3)
    sample = next(iter(chain))
    before = IO_COUNTERS.snapshot()

    assert sample["image"].shape == (1, 5, 2, 4)
    first = IO_COUNTERS.snapshot() - before
    whole_pass.BOXES.memory.clear()  # as another process would find it
    assert next(iter(chain))["image"].shape == (1, 5, 2, 4)
    second = IO_COUNTERS.snapshot() - before

    assert first.bytes_read == label.nbytes
    assert (second.reads, second.bytes_read) == (first.reads, first.bytes_read)
    assert np.array_equal(sample["image"].realize()[0], image[4:9, 10:12, 3:7])
    assert (IO_COUNTERS.snapshot() - before).bytes_read == label.nbytes + 5 * 2 * 4 * 4


def test_building_the_chain_reads_no_voxel(files: Any) -> None:
    """A sample is a description; an estimate does not read either, and keeps the whole grid."""
    case, _, _ = files
    chain = from_cases([case]).open_volume().foreground_crop("label")
    before = IO_COUNTERS.snapshot()

    with looking_ahead():
        assert next(iter(chain))["image"].shape == (1, 20, 18, 16)

    assert (IO_COUNTERS.snapshot() - before).bytes_read == 0


def test_a_file_that_changed_is_looked_at_again(files: Any) -> None:
    """The box belongs to the content."""
    case, _, label = files
    chain = from_cases([case]).open_volume().foreground_crop("label", classes=3)
    assert next(iter(chain))["image"].shape == (1, 5, 2, 4)

    label[15:18] = 3
    np.save(case["label"], label)

    assert next(iter(chain))["image"].shape == (1, 14, 18, 16)


def test_memory_is_bounded_and_the_inside_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slabs of a few voxels; what lies in the box of the outer ones is left alone."""
    monkeypatch.setattr(whole_pass, "SLAB_VOXELS", 100)
    array = np.ones((10, 10, 10), np.uint8)
    array[:, :, 0] = 0
    volume = Volume(array)
    before = IO_COUNTERS.snapshot()

    found = whole_pass.occupied_box(volume, whole_pass.ForegroundRule())

    assert found == Region((0, 0, 1), (10, 10, 10))
    # The first slab is empty, the last one full, the second full: the rest lies between.
    assert (IO_COUNTERS.snapshot() - before).reads == 3


BOXES = st.tuples(*(st.tuples(st.integers(0, 7), st.integers(1, 8)) for _ in range(3)))


@given(boxes=st.lists(BOXES, max_size=3), most=st.sampled_from([1, 7, 64, 10000]))
def test_the_box_is_that_of_numpy(boxes: Any, most: int) -> None:
    """In whatever slabs it is read."""
    array = np.zeros((8, 8, 8), np.int16)
    for box in boxes:
        array[tuple(slice(min(a, b - 1), b) for a, b in box)] = 5
    places = np.argwhere(array > 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_pass, "SLAB_VOXELS", most)
        found = whole_pass.occupied_box(Volume(array), whole_pass.ForegroundRule(above=2))

    if len(places) == 0:
        assert found.is_empty
    else:
        assert found == Region(tuple(places.min(axis=0)), tuple(places.max(axis=0) + 1))


@given(seed=st.integers(0, 2**20), kind=st.sampled_from(["turned", "bent", "cells"]))
def test_a_carried_box_holds_every_voxel_of_interest(seed: int, kind: str) -> None:
    """Whatever comes before: no foreground that the output shows lies outside the crop."""
    numbers = np.random.default_rng(seed)
    label = np.zeros((20, 18, 16), np.uint8)
    start = numbers.integers(2, 9, 3)
    label[tuple(slice(a, a + n) for a, n in zip(start, numbers.integers(1, 7, 3), strict=True))] = 1
    op: Any = {
        "turned": Rotate((-40, 40)),
        "bent": Elastic(2.5, spacing=8),
        "cells": GridDistortion(0.4),
    }[kind]
    plain = from_cases([{"label": label}]).open_volume()
    chain = getattr(plain, op.name)(**arguments(op)).foreground_crop("label", fallback="whole")
    cropped = next(iter(chain))["label"]
    first = dataclasses.replace(cropped.pending, steps=cropped.pending.steps[:1])
    whole = cropped.with_pending(first)

    assert (cropped.realize() != 0).sum() == (whole.realize() != 0).sum()
    if (whole.realize() != 0).any() and kind != "turned":
        assert np.prod(cropped.shape) < np.prod(whole.shape)


def test_a_box_goes_through_flips_crops_and_scales() -> None:
    """Exactly, where whole voxels move; by their centres, where they are scaled."""
    plan = SpatialPlan.identity(Grid((10, 10, 10), np.eye(4)))
    flip = np.diag([-1.0, 1, 1, 1])
    flip[0, 3] = 9
    half = np.diag([2.0, 2, 2, 1])
    half[:3, 3] = 0.5

    assert box_to_output(
        plan.then(flip, plan.shape, lattice=True), Region((1, 2, 3), (4, 4, 4))
    ) == (Region((6, 2, 3), (9, 4, 4)))
    scaled = plan.then(half, (5, 5, 5), lattice=False)
    assert box_to_output(scaled, Region((2, 3, 4), (6, 7, 5))) == Region((1, 1, 2), (3, 4, 3))


def test_a_label_on_another_grid_and_after_a_flush(files: Any) -> None:
    """The box is found in the world; a flush in between changes the grid only."""
    _, image, label = files
    half = np.diag([2.0, 2.0, 2.0, 1.0])
    half[:3, 3] = 0.5
    coarse = Volume((label[::2, ::2, ::2] == 3).astype(np.uint8), affine=half, kind="label")
    chain = from_cases([{"image": image, "label": coarse}]).open_volume(affine={"image": np.eye(4)})

    brought = chain.resample_to("image").foreground_crop("label")
    flushed = (
        from_cases([{"image": image, "label": label}]).open_volume().crop((1, 0, 0), (19, 18, 16))
    )
    flushed = flushed.flush().foreground_crop("label", classes=3)

    assert next(iter(brought))["image"].shape == (1, 6, 2, 4)
    assert np.array_equal(next(iter(flushed))["image"].realize()[0], image[4:9, 10:12, 3:7])


def test_the_crop_is_the_same_for_all_patches_and_in_records(files: Any) -> None:
    """It draws nothing; what it decided is plain data, and can be done again to another volume."""
    case, image, _ = files
    chain = from_cases([case]).open_volume().foreground_crop("label", classes=3, margin=2)
    patches = [s["image"] for s in chain.lazy_patch(4, samples_per_volume=3)]
    drawn = patches[0].draws["foreground_crop"]

    assert drawn == {"start": [2, 8, 1], "size": [9, 6, 8]} == patches[2].draws["foreground_crop"]
    assert json.loads(json.dumps(drawn)) == drawn
    other = from_cases([{"image": image + 1, "label": image > 0}]).open_volume()
    again = next(iter(other.foreground_crop("label").replay({"foreground_crop": drawn})))
    assert np.array_equal(again["image"].realize()[0], (image + 1)[2:11, 8:14, 1:9])


@pytest.mark.parametrize("field", [{"classes": 3}, {"classes": (1, 3)}, {"above": 2}, {}])
def test_a_manifest_answers(files: Any, tmp_path: Path, field: Any) -> None:
    """With the boxes of its classes: not a voxel of the label is read for the decision."""
    case, _, label = files
    kinds = {"image": "intensity", "label": "label"}
    volumes = [("one", key, Volume(path, kind=kinds[key])) for key, path in case.items()]
    write_manifest(index_cases(volumes)[0], tmp_path / "m.json")
    whole_pass.BOXES.memory.clear()
    values = (
        np.isin(label, field["classes"]) if "classes" in field else label > field.get("above", 0)
    )
    places = np.argwhere(values)
    chain = from_manifest(tmp_path / "m.json").open_volume().foreground_crop("label", **field)
    before = IO_COUNTERS.snapshot()

    shape = next(iter(chain))["image"].shape

    assert shape == (1, *(places.max(axis=0) - places.min(axis=0) + 1))
    assert (IO_COUNTERS.snapshot() - before).bytes_read == 0


def test_fusing_pipes_changes_nothing(files: Any) -> None:
    """The pipe stands apart, with the reason; the plan is one all the same."""
    case, _, _ = files

    def batch(fuse: bool) -> tuple[Any, str]:
        chain = from_cases([case]).open_volume().rotate((-9, 9)).flip(p=0.5)
        chain = chain.foreground_crop("label", classes=3, margin=1).elastic(1, spacing=8).flip()
        with DataLoader2(chain.batch_patches(1), fuse=fuse) as loader:
            loader.seed(7)
            return next(iter(loader))["image"].numpy(), loader.explain()

    plain, _ = batch(False)
    fused, told = batch(True)

    assert np.array_equal(plain, fused)
    assert "asks a volume of each sample" in told


def test_nothing_of_interest_is_an_error_or_the_whole(files: Any) -> None:
    """The message says what was looked for, in which file, and what to do."""
    case, _, _ = files
    chain = from_cases([case]).open_volume()

    with pytest.raises(PatchSizeError, match=r"(?s)no label 7 of 'label' in .*label\.npy.*whole"):
        next(iter(chain.foreground_crop("label", classes=7)))["image"].shape  # noqa: B018
    whole = chain.foreground_crop("label", classes=7, fallback="whole")
    assert next(iter(whole))["image"].shape == (1, 20, 18, 16)
    middle = chain.label_crop(4, classes=7, fallback="whole")
    assert next(iter(middle))["image"].draws["label_crop"]["start"] == [8, 7, 6]


def test_flat_volumes_stay_flat() -> None:
    """2-D data have K = 1: no margin is added along it."""
    array = np.zeros((9, 9, 1))
    array[3:5, 4:6] = 1
    chain = from_cases([{"image": array}]).open_volume()

    crop = chain.foreground_crop("image", margin=2, divisible=4, overhang=True)

    assert next(iter(crop))["image"].shape == (1, 8, 8, 1)


def test_a_threshold_is_not_taken_for_changed_values() -> None:
    """After a value pipe it could mean either, so it is refused; labels are fine."""
    array = np.ones((8, 8, 8))
    chain = from_cases([{"image": array, "label": array}]).open_volume().normalize(mean=0, std=1)

    with pytest.raises(SampleError, match="Put foreground_crop first"):
        next(iter(chain.foreground_crop("image")))
    assert next(iter(chain.foreground_crop("label", classes=1)))["image"].shape == (1, 8, 8, 8)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ForegroundCrop(above=np.nan), "finite number"),
        (lambda: ForegroundCrop(above="0"), "finite number"),
        (lambda: ForegroundCrop(above=1, classes=2), "above=, classes= or select_fn="),
        (lambda: ForegroundCrop(classes=1.5), "whole numbers"),
        (lambda: ForegroundCrop(classes=()), "whole numbers"),
        (lambda: ForegroundCrop(margin=-1), "margin is at least 0"),
        (lambda: ForegroundCrop(divisible=0), "divisible is at least 1"),
        (lambda: ForegroundCrop(fallback="anywhere"), "'error', 'whole'"),
        (lambda: ForegroundCrop(overhang=1), "True or False"),
        (lambda: ForegroundCrop(level=-1), "whole number of at least 0"),
        (lambda: ForegroundCrop(7), "by its key"),
        (lambda: LabelCrop(0), "size is at least 1"),
        (lambda: LabelCrop(8, classes="a"), "whole numbers"),
        (lambda: OneOf([ForegroundCrop()]), "a pipe of its own"),
    ],
    ids=map(str, range(14)),
)
def test_bad_parameters_fail_at_construction(make: Any, words: str) -> None:
    """With the allowed values in the message."""
    with pytest.raises((ValueError, PatchSizeError), match=words):
        make()


def test_an_op_that_nobody_answers_says_so() -> None:
    """It cannot be drawn from without a volume."""
    plan = SpatialPlan.identity(Grid((4, 4, 4), np.eye(4)))

    with pytest.raises(GraphError, match="has no volume"):
        ForegroundCrop().draw(np.random.default_rng(0), plan)


def test_a_key_that_is_not_there_is_named() -> None:
    """With those that are."""
    chain = from_cases([{"image": np.ones((4, 4, 4))}]).open_volume().foreground_crop("lable")

    with pytest.raises(SampleError, match=r"'lable' names a volume.*it has 'image'"):
        next(iter(chain))
