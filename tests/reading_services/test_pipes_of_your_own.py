"""A subclass runs what it overrides, in every process, instead of inherited instructions."""

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.datapipes import PerItem
from voxpipe.datapipes.batch_patches import Realize
from voxpipe.datapipes.iter import BatchPatches, NormalizePipe


class Brighter(BatchPatches):
    """Overrides how a batch is gathered."""

    def gather(self, samples):
        batch = super().gather(samples)
        return {**batch, "image": batch["image"] + 100}


class BrighterAgain(Brighter):
    """Overrides nothing itself."""


class Doubled(NormalizePipe):
    """Overrides what is done to a sample."""

    def apply(self, item):
        return super().apply(item.with_data(image=item["image"] + item["image"]))


class Twice(Realize):
    """Overrides iteration; as long as its parent, so it may be cut."""

    def __iter__(self):
        for item in self.parent:
            yield self.apply(item.with_data(image=item["image"].realize() * 2))


class Renamed(BatchPatches):
    """Overrides nothing that makes a batch."""

    def describe(self):
        return "mine"


def patches():
    return vp.from_cases([{"image": np.full((4, 4, 4), 5, np.uint8)}] * 2).open_volume()


CHAINS = {
    "gather": lambda: Brighter(patches(), 1),
    "inherited gather": lambda: BrighterAgain(patches(), 1),
    "apply": lambda: BatchPatches(Doubled(patches().realize(), mean=0, std=1), 1),
    "__iter__": lambda: BatchPatches(Twice(patches()), 1),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_subclass_overrides_runs(name, workers):
    """The loader gives what the pipe itself gives."""
    direct = [batch["image"].tolist() for batch in CHAINS[name]()]
    service = vp.MultiProcessingReadingService(workers, "fork")

    with vp.DataLoader2(CHAINS[name](), None, service, seed=1) as loader:
        loaded = [batch["image"].tolist() for batch in loader]

    assert direct != [batch["image"].tolist() for batch in patches().batch_patches(1)]
    assert loaded == direct


def test_a_subclass_that_overrides_nothing_needs_no_torch():
    """Its instructions are still what it does."""
    service = vp.MultiProcessingReadingService(1)
    with vp.DataLoader2(Renamed(patches(), 1), None, service) as loader:
        assert "torch not needed" in loader.explain()


class Scaled(PerItem):
    """Says what it does in both ways."""

    def apply(self, item):
        return item

    def instructions(self):
        return ()


def test_a_class_that_says_both_is_taken_at_its_instructions():
    """Overriding counts only below the class that has the instructions."""
    service = vp.MultiProcessingReadingService(1)
    with vp.DataLoader2(Scaled(patches().batch_patches(1)), None, service) as loader:
        assert "torch not needed" in loader.explain()
