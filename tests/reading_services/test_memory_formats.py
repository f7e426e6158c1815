"""Tensors keep the order of their axes in memory on their way from a worker."""

import numpy as np
import pytest
import torch
from links import Link

import voxpipe as vp
from voxpipe.reading_services.transport.messages import pack, unpack

SHAPES = [(2, 3, 20, 30, 40), (2, 1, 20, 30, 40), (1, 2, 3, 4, 5), (1, 1, 1, 1, 1), (0, 2, 3, 4, 5)]


def through_slots(batch):
    return Link().send(batch)[0]


def through_a_pipe(batch):
    return unpack(pack(batch, None)[0], Link().reader)


@pytest.mark.parametrize("send", [through_slots, through_a_pipe])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_channels_last_stays_channels_last(shape, dtype, send):
    """Values and strides arrive as they were, also for axes of length 1."""
    values = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    image = values.to(memory_format=torch.channels_last_3d)

    arrived = send({"image": image})["image"]

    assert arrived.dtype == dtype
    assert torch.equal(image, arrived)
    assert image.numel() == 0 or image.stride() == arrived.stride()


@pytest.mark.parametrize("send", [through_slots, through_a_pipe])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.mT,
        lambda t: t[:, ::2],
        lambda t: t.flip(0),
        lambda t: t[:1].expand(5, -1, -1),
        lambda t: t[..., 0],
    ],
    ids=["transposed", "strided", "flipped", "expanded", "sliced"],
)
def test_any_view_arrives_with_its_values(view, send):
    """What has gaps, or shows elements twice, becomes dense."""
    there = view(torch.arange(60 * 50 * 40).reshape(60, 50, 40))

    assert torch.equal(there, send({"image": there})["image"])


def to_channels_last(batch):
    return {**batch, "image": batch["image"].contiguous(memory_format=torch.channels_last_3d)}


def test_batches_of_workers_are_those_of_this_process():
    """A function that asks for channels last gets them at the other end, too."""
    cases = [{"image": np.zeros((3, 20, 20, 20), np.float32)}] * 2
    pipe = vp.from_cases(cases).open_volume().batch_patches(2).map(to_channels_last)
    strides = []
    for workers in (0, 1):
        service = vp.MultiProcessingReadingService(workers, "fork")
        with vp.DataLoader2(pipe, None, service, seed=1) as loader:
            strides.append([batch["image"].stride() for batch in loader])

    assert strides[0] == strides[1] == [(24000, 1, 1200, 60, 3)]
