"""Adapters of a loader change between two epochs; the batches stay the same."""

import os

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import GraphError


def where(sample):
    return sample.with_data(pid=os.getpid())


def cases(count=6):
    return [{"image": np.full((6, 6, 6), n, np.uint8)} for n in range(count)]


def test_adapters_come_and_go_between_epochs_of_a_living_loader():
    """The batches stay the same, workers that stay are those of the new graph."""
    profile = vp.Profile()
    pipe = vp.from_cases(cases()).open_volume().lazy_patch(4).flip().realize().map(where)
    service = vp.MultiProcessingReadingService(1, "fork", persistent_workers=True)
    with vp.DataLoader2(pipe.batch_patches(2), None, service, seed=1) as loader:

        def batches(epoch):
            loader.set_epoch(epoch)
            return [batch["image"].numpy().tobytes() for batch in loader]

        plain = [batches(0), batches(1)]
        running = iter(loader)
        next(running)
        loader.adapters = [vp.FuseSpatial(), profile]
        assert len(list(running)) == 2  # it goes on as it is
        assert profile.to_json()[0]["items"] == 0
        assert [batches(0), batches(1)] == plain
        assert profile.to_json()[0]["items"] == 12
        loader.adapters = [a for a in loader.adapters if a is not profile]
        assert batches(0) == plain[0]
        assert profile.to_json()[0]["items"] == 12
        assert [type(a).__name__ for a in loader.adapters] == ["FuseSpatial"]


def test_an_adapter_that_is_refused_leaves_the_loader_as_it_was():
    """The error is raised at the line that sets the adapter."""
    pipe = vp.from_cases(cases()).open_volume().lazy_patch(4).batch_patches(3)
    with vp.DataLoader2(pipe, seed=1) as loader:
        with pytest.raises(GraphError):
            loader.adapters = [vp.Timeout(3, at="rotate")]
        with pytest.raises(TypeError):
            loader.adapters = vp.Profile
        assert loader.adapters == ()
        assert len(list(loader)) == 2
