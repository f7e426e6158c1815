"""Labels at several scales and filled outsides: pipes of whole batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.batching.batch_steps import voxels_kept
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import SampleError

SCALES = ((1, 1, 1), (0.5, 0.5, 0.5), (0.5, 0.25, 0.25), (0.3, 1, 0.7))


def reference(name: str) -> Any:
    with np.load(ROOT / "tests" / "data" / "draws-nnunet.npz") as file:
        return file[f"made/{name}"]


def batches_of(label: Any, image: Any) -> Any:
    """A chain of one case, up to the batch."""
    return vp.from_cases([{"image": image, "label": label}]).open_volume().batch_patches(1)


def test_scales_are_nnunet_s() -> None:
    """Odd sizes and uneven scales, voxel by voxel, in the stored type."""
    label = reference("label")
    batch = next(iter(batches_of(label, reference("image")).deep_supervision(SCALES)))

    for number, found in enumerate(batch["label"]):
        expected = reference(f"scale {number}")
        assert found.dtype == torch.int16
        assert np.array_equal(found[0], expected)


@given(st.integers(1, 40), st.floats(0.05, 1))
def test_voxels_kept_are_torch_s(length: int, scale: float) -> None:
    """Those of "nearest-exact", for every size."""
    size = max(round(length * scale), 1)
    line = torch.arange(length, dtype=torch.float32)[None, None]
    theirs = torch.nn.functional.interpolate(line, size, mode="nearest-exact")

    assert voxels_kept(size, length).tolist() == theirs.int().flatten().tolist()


def test_nothing_is_read_again() -> None:
    """Four scales cost the reads and interpolations of one."""
    image = np.random.default_rng(0).integers(0, 9, (12, 12, 12)).astype(np.int16)
    counts = []
    for scales in (None, SCALES):
        opened = vp.from_cases([{"image": image, "label": image}] * 2).open_volume()
        pipe = opened.rotate((-20, 20)).lazy_patch(8).batch_patches(2)
        if scales:
            pipe = pipe.deep_supervision(scales)
        before = IO_COUNTERS.snapshot()
        list(vp.DataLoader2(pipe, None, seed=3))
        done = IO_COUNTERS.snapshot() - before
        counts.append((done.reads, done.bytes_read, done.interpolations))

    assert counts[0] == counts[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_workers_make_the_same(workers: int) -> None:
    """The list of tensors comes whole out of a worker, and is the same as without."""
    label = np.random.default_rng(1).integers(0, 4, (40, 40, 40)).astype(np.uint8)
    cases = [{"image": label.astype(np.float32), "label": label}] * 2
    opened = vp.from_cases(cases).open_volume().lazy_patch(32).batch_patches(2)
    pipe = opened.deep_supervision((1, 0.5, 0.25)).fill_outside("image", mask="image", fill=7)
    service = vp.MultiProcessingReadingService(workers) if workers else None
    loader = vp.DataLoader2(pipe, None, service, seed=5)

    (batch,) = loader
    loader.shutdown()
    (alone,) = vp.DataLoader2(pipe, None, seed=5)

    assert [one.shape[-1] for one in batch["label"]] == [32, 16, 8]
    assert all(map(torch.equal, batch["label"], alone["label"]))
    assert torch.equal(batch["image"], alone["image"])
    assert batch["image"].min() == 1


def test_what_is_outside_is_nnunet_s() -> None:
    """`use_mask_for_norm` of the second channel, where the label is -1."""
    pipe = batches_of(reference("label"), reference("image"))
    filled = pipe.fill_outside("image", mask="label", outside=-1, channels=(1,), keep_mask=False)
    batch = next(iter(filled))

    assert np.array_equal(batch["image"][0], reference("masked"))
    assert "label" not in batch


def test_labels_are_removed_and_grouped_as_nnunet_s() -> None:
    """-1 becomes 0; regions become channels."""
    opened = vp.from_cases([{"label": reference("label")}]).open_volume()
    removed = next(iter(opened.remap_labels({-1: 0})))["label"].realize()
    regions = next(iter(opened.regions(((1, 2, 3), (2, 3), 3, 4))))["label"].realize()

    assert np.array_equal(removed, reference("removed"))
    assert np.array_equal(regions, reference("regions"))


def test_they_say_where_they_stand() -> None:
    """Before the batch, or without the key, there is nothing to scale."""
    label = np.zeros((4, 4, 4), np.uint8)
    opened = vp.from_cases([{"label": label}]).open_volume()
    with pytest.raises(SampleError, match=r"Put deep_supervision\(\) after batch_patches"):
        next(iter(opened.deep_supervision((1, 0.5))))
    with pytest.raises(SampleError, match="to change 'seg', but the batch has label"):
        next(iter(opened.batch_patches(1).deep_supervision((1, 0.5), "seg")))
    twice = opened.batch_patches(1).deep_supervision((1, 0.5)).deep_supervision((1, 0.5))
    with pytest.raises(SampleError, match="once"):
        next(iter(twice))
    with pytest.raises(ValueError, match="from above 0 to 1"):
        opened.deep_supervision((1, 2))
    filled = opened.batch_patches(1).fill_outside("label", mask="label", channels=(3,))
    with pytest.raises(SampleError, match="1 channels, none is number 3"):
        next(iter(filled))
    with pytest.raises(ValueError, match="outside is the label of the mask"):
        opened.batch_patches(1).fill_outside("label", mask="label", outside=0.5)
    for fill in (300, 0.5):
        filled = opened.batch_patches(1).fill_outside("label", mask="label", fill=fill)
        with pytest.raises(SampleError, match="'label' is uint8, which has no such number"):
            next(iter(filled))
