"""Torch's way to make a batch, on patches that are not read yet."""

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
