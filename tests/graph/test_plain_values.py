"""A pipe that yields plain values lets the planner run what comes before it."""

import numpy as np
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.datapipes import PerItem
from voxpipe.graph import Cut, NoCut, Traits, cut


class Opens(PerItem):
    """Makes something of each item that cannot travel."""

    traits = Traits(voxels=True)

    def apply(self, item):
        return item


class Reads(Opens):
    """Makes plain values of it again."""

    traits = Traits(plain=True)


def test_what_cannot_travel_ends_at_plain_values():
    """Without them the graph is run whole."""
    opened = Opens(IterableWrapper([1, 2]))

    assert isinstance(cut(opened.shuffle()), NoCut)
    split = cut(Reads(opened).shuffle().map(str).batch(2))
    assert isinstance(split, Cut)
    assert len(split.realizing) == 2


def test_another_way_around_them_counts():
    """Of a fork only one branch is plain."""
    opened = Opens(IterableWrapper([1, 2]))

    assert isinstance(cut(Reads(opened).zip(opened).shuffle()), NoCut)


def test_voxels_of_volumes_are_not_read_in_the_planner():
    """Only files that are no volumes are taken to be small."""
    volumes = vp.from_cases([{"image": np.zeros((2, 2, 2))}]).open_volume().realize()

    assert isinstance(cut(Reads(volumes).shuffle()), NoCut)
