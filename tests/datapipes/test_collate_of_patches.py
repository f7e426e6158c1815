"""Torch's way to make a batch, on patches that are not read yet."""

import numpy as np
import pytest
import torch
from scenes import write_cases
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import SampleError


@pytest.fixture(scope="module")
def patches(tmp_path_factory):
    cases = write_cases(tmp_path_factory.mktemp("cases"), count=2)
    return vp.from_cases(cases).open_volume().lazy_patch(4)


def test_collate_says_what_to_write_instead(patches):
    """With the pipe and its line, as of any error of ours."""
    told = r"collate\(\) needs voxels(?s:.*)at .collate\(\)   test_coll(?s:.*)\.batch_patches\(n\)"
    chain = patches.batch(2).collate()
    with vp.DataLoader2(chain) as loader, pytest.raises(SampleError, match=told):
        next(iter(loader))


def test_what_is_read_is_collated(patches):
    """Tensors are torch's business."""
    with vp.DataLoader2(patches.realize().batch(2).collate()) as loader:
        assert next(iter(loader))["image"].shape == (2, 1, 4, 4, 4)
    assert torch.equal(next(iter(IterableWrapper([1, 2]).batch(2).collate())), torch.tensor([1, 2]))


def of_types(key, *types):
    """Return a chain of cases with one value, in these types."""
    scans = [np.full((2, 2, 2), 2**53 + 1 if "64" in name else 7, name) for name in types]
    return vp.from_cases([{key: scan} for scan in scans])


@pytest.mark.parametrize(
    ("types", "joined"),
    [
        (("int16", "uint8"), torch.int16),
        (("uint8", "int8"), torch.int16),
        (("int16", "float32"), torch.float32),
        (("int32", "float32"), torch.float64),
    ],
)
def test_a_batch_has_the_type_that_holds_its_samples(types, joined):
    """No voxel is rounded; a batch of one type keeps it."""
    chain = of_types("image", *types).open_volume()

    (mixed,) = chain.batch_patches(2)
    alone = [batch["image"].dtype for batch in chain.batch_patches(1)]

    assert mixed["image"].dtype == joined
    assert mixed["image"].flatten().tolist() == [7] * 16
    assert alone == [getattr(torch, name) for name in types]


@pytest.mark.parametrize("types", [("int64", "uint64"), ("float32", "int64"), ("uint64", "int8")])
@pytest.mark.parametrize("key", ["image", "label"])
def test_integers_that_no_common_type_holds_are_refused(key, types):
    """NumPy would make floats, and round the labels of a large segmentation."""
    policy = vp.Policy(mode="nearest", padding="constant", dtype="int64")
    message = rf"{key} of case [01] is u?int64, that of case [01] is .*, and no type holds both"

    with pytest.raises(SampleError, match=message):
        next(iter(of_types(key, *types).open_volume().batch_patches(2)))
    batch = next(iter(of_types(key, *types).open_volume(policies={key: policy}).batch_patches(2)))
    assert batch[key].dtype == torch.int64
