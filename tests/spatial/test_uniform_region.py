"""Regions: each place belongs to one, and is as likely as without."""

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import Grid
from voxpipe.core.errors import PatchSizeError
from voxpipe.spatial import SpatialPlan, UniformPatch, UniformRegion, usual_align
from voxpipe.testing import SpatialOpContract


class TestUniformRegion(SpatialOpContract):
    """What every op promises."""

    def make(self):
        return UniformRegion((6, 7, 8), (3, 3, 3), (2, 1, 4))

    def make_nothing(self):
        return UniformRegion((99, 99, 99), (99, 99, 99), (1, 1, 1))


class Steady:
    """A generator that always gives one number per axis."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def random(self, count):
        return np.array(self.numbers[:count])


def plan_of(*shape):
    return SpatialPlan.identity(Grid(shape, np.eye(4)))


@given(
    n=st.integers(1, 40),
    size=st.integers(1, 12),
    align=st.integers(1, 8),
    more=st.integers(0, 20),
)
def test_every_place_is_equally_likely(n, size, align, more):
    """Exactly: the probability of a region, by that of a place in it, is one by all places."""
    region = UniformRegion((size + align - 1 + more,) * 3, (size,) * 3, (align,) * 3)
    places = max(1, n - size + 1)
    chance = Counter()
    for number in range(places):  # each drawn place stands for one interval of equal length
        u = (number + 0.5) / places
        drawn = region.draw(Steady(u, u, u), plan_of(n, n, n))
        start, extent = drawn["start"][0], drawn["size"][0]
        inside = max(1, extent - size + 1)
        for place in range(inside):
            chance[start + place] += Fraction(1, places * inside)

    assert dict(chance) == {place: Fraction(1, places) for place in range(places)}


@given(
    shape=st.tuples(*[st.integers(1, 40)] * 3),
    size=st.tuples(*[st.integers(1, 12)] * 3),
    align=st.tuples(*[st.integers(1, 8)] * 3),
    more=st.integers(0, 20),
    numbers=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 3),
)
def test_a_region_lies_in_whole_chunks(shape, size, align, more, numbers):
    """It begins at a multiple, lies inside, is no larger than was said, and holds a patch."""
    most = tuple(s + a - 1 + more for s, a in zip(size, align, strict=True))
    drawn = UniformRegion(most, size, align).draw(Steady(*numbers), plan_of(*shape))

    for n, s, a, r, start, extent in zip(
        shape, size, align, most, drawn["start"], drawn["size"], strict=True
    ):
        assert start % a == 0
        assert 0 <= start < start + extent <= n
        assert extent == n if n < s else s <= extent <= r


def test_patches_lie_in_their_region():
    """The patch is drawn in the region as in a volume of its own."""
    region = UniformRegion((6, 6, 6), (3, 3, 3), (2, 2, 2))
    generator = np.random.default_rng(0)
    for _ in range(50):
        plan = plan_of(20, 21, 22)
        box = region.draw(generator, plan)
        inside = region.then(plan, box)
        patch = UniformPatch((3, 3, 3))
        source = patch.then(inside, patch.draw(generator, inside)).source_region()

        for (a, b), start, extent in zip(source, box["start"], box["size"], strict=True):
            assert start <= a < b <= start + extent


@pytest.mark.parametrize(("region", "align"), [((7, 8, 8), (4, 4, 4)), ((8, 8, 3), (1, 1, 1))])
def test_a_region_that_is_too_small_is_refused(region, align):
    """It says how large it must be."""
    with pytest.raises(PatchSizeError, match="at least") as caught:
        UniformRegion(region, (5, 5, 5), align)

    assert str(tuple(5 + a - 1 for a in align)) in str(caught.value)


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_usual_alignment_is_always_valid(a, b):
    """The largest divisor for which the region is large enough; 1 always is."""
    region, size = max(a, b), min(a, b)
    align = usual_align((region,) * 3, (size,) * 3)

    UniformRegion((region,) * 3, (size,) * 3, align)
    larger = range(align[0] + 1, region - size + 2)
    assert all(region % d for d in itertools.islice(larger, 1000))
