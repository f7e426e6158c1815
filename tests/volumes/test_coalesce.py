"""Joining byte ranges."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from voxpipe.storage.ranges import coalesce

SPANS = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 30))).map(
    lambda pairs: sorted((start, start + length) for start, length in pairs)
)


def one_by_one(spans, gap, most):
    """Join spans in a loop over them."""
    runs = []
    for start, stop in spans:
        first, last = runs[-1] if runs else (0, -gap - 1)
        if start - last <= gap and max(stop, last) - first <= most:
            runs[-1] = (first, max(stop, last))
        else:
            runs.append((start, stop))
    return runs


@given(SPANS, st.integers(0, 20), st.integers(1, 100))
def test_it_joins_as_a_loop_does(spans, gap, most):
    """Whatever overlaps."""
    assert coalesce(spans, gap, most) == one_by_one(spans, gap, most)


@given(SPANS, st.integers(0, 20), st.integers(1, 100))
def test_every_span_is_in_a_joined_one(spans, gap, most):
    """Nothing is lost, nothing is longer than allowed, joined spans are in order."""
    joined = coalesce(spans, gap, most)

    longest = max([most, *(b - a for a, b in spans)])
    assert all(any(a <= c and d <= b for a, b in joined) for c, d in spans)
    assert all(b - a <= longest for a, b in joined)
    assert joined == sorted(joined)


@given(SPANS, st.integers(0, 20))
def test_what_is_left_apart_is_far_apart(spans, gap):
    """Without a limit of length, neighbours within the gap are always joined."""
    joined = coalesce(spans, gap, 10**9)

    assert all(start - stop > gap for (_, stop), (start, _) in itertools.pairwise(joined))
