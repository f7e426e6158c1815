"""Backends registered in the consumer's process work in its workers."""

import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import NotPicklable


class Counting:
    """A backend with TorchIO's contract and nothing more: voxel values count up."""

    def __init__(self, request):
        self.shape = (1, 4, 4, 4)
        self.affine = torch.eye(4, dtype=torch.float64)
        self.dtype = np.dtype("int16")
        self.voxels = torch.arange(64, dtype=torch.int16).reshape(self.shape)

    def __getitem__(self, slices):
        return self.voxels[slices]

    def to_tensor(self):
        return self.voxels.clone()


def is_counting(request):
    return request.path is not None and request.path.suffix == ".counting"


@pytest.fixture
def chain(tmp_path):
    path = tmp_path / "scan.counting"
    path.touch()
    yield vp.from_cases([{"image": str(path)}]).open_volume().batch_patches(1)
    vp.volumes.unregister_backend("counting")


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_know_the_backends_of_their_parent(chain, method):
    """A registration made at run time travels to workers that are no forks."""
    vp.register_backend("counting", is_counting, Counting)

    service = vp.MultiProcessingReadingService(1, method)
    with vp.DataLoader2(chain, None, service) as it:
        (batch,) = list(it)

    assert batch["image"].flatten().tolist() == list(range(64))


def test_a_registration_that_cannot_travel_is_named(chain):
    """A lambda as matcher is refused at construction, with the name of the backend."""
    vp.register_backend("counting", lambda request: False, Counting)

    with pytest.raises(NotPicklable, match="backend 'counting' cannot travel"):
        vp.DataLoader2(chain, None, vp.MultiProcessingReadingService(1))
