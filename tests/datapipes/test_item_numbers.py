"""Orders that are functions from a number to a number."""

from collections import Counter
from itertools import groupby, pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.core import Stream
from voxpipe.datapipes.item_numbers import NumberedItems, Permutation, number_items

EPOCHS = 10_000


def permutation(length, epoch=0, seed=3, **kwargs):
    return Permutation(length, Stream(seed, epoch, (), "shuffle"), **kwargs)


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1), st.sampled_from([0, 2**12]))
def test_a_permutation_is_a_bijection(length, seed, small):
    """With and without a table."""
    order = permutation(length, seed=seed, small=small)
    assert sorted(map(order, range(length))) == list(range(length))


@pytest.mark.parametrize("length", [0, 1, 5, 10_000])
def test_places_beyond_the_last_are_refused(length):
    """A walk from there might never end."""
    for place in (length, length + 1, -1):
        with pytest.raises(IndexError):
            permutation(length)(place)


def test_it_needs_no_table_for_many():
    """Each number by itself, in the range of 10**15."""
    order = permutation(10**15)
    numbers = [order(n) for n in range(1000)]
    assert len(set(numbers)) == 1000
    assert max(numbers) < 10**15
    assert numbers != [permutation(10**15, epoch=1)(n) for n in range(1000)]


def is_uniform(counts, cells):
    """Whether a chi-squared test keeps uniformity, at a level of one in a million."""
    # Wilson and Hilferty, 1931: the quantile of a chi-squared distribution.
    expected = sum(counts.values()) / cells
    statistic = sum((counts[cell] - expected) ** 2 for cell in counts) / expected
    statistic += (cells - len(counts)) * expected
    freedom = cells - 1
    return statistic < freedom * (1 - 2 / (9 * freedom) + 4.75 * (2 / (9 * freedom)) ** 0.5) ** 3


def test_positions_and_pairs_are_uniform_in_a_small_set():
    """Over 10,000 epochs: where each case comes, and which follows which."""
    orders = [[permutation(5, epoch)(n) for n in range(5)] for epoch in range(EPOCHS)]
    for place in range(5):
        assert is_uniform(Counter(order[place] for order in orders), 5)
    assert is_uniform(Counter(pair for order in orders for pair in pairwise(order)), 20)
    assert is_uniform(Counter(map(tuple, orders)), len(list(permutations(range(5)))))


def test_positions_and_pairs_are_uniform_in_a_large_set():
    """Of the network: places of neighbours, in tenths of the range, in 10,000 epochs."""
    length, tenths = 5000, 10
    places = []
    for epoch in range(EPOCHS):
        order = permutation(length, epoch)
        places.append((order(0) * tenths // length, order(1) * tenths // length))
    assert is_uniform(Counter(place for place, _ in places), tenths)
    assert is_uniform(Counter(places), tenths**2)


def patches(counts):
    cases = [
        {"image": np.zeros((8, 8, 8), np.uint8), "n": n, "case": str(i)}
        for i, n in enumerate(counts)
    ]
    return vp.from_cases(cases).open_volume().lazy_patch(4, samples_per_volume="n")


def even(number, each):
    cases = [{"image": np.zeros((8, 8, 8), np.uint8), "case": str(n)} for n in range(number)]
    return vp.from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=each)


def ids(items):
    return [item.identity for item in items]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=7),
    st.integers(1, 4),
    st.integers(1, 4),
    st.data(),
)
def test_orders_by_number_are_those_of_iteration(counts, visits, turn, data):
    """Of visits in turn, blocks and windows, with equal and unequal counts."""
    each = data.draw(st.integers(1, 4))
    for source in (patches(counts), even(len(counts), each)):
        for pipe in (
            source.interleave(visits, turn),
            source.shuffle_plans(vp.ShuffleSpec.window(turn + 1)),
            source.shuffle_plans(vp.ShuffleSpec.chunk_local(visits * 600)),
            source.shuffle_plans(),
        ):
            pipe.set_seed(4) if hasattr(pipe, "set_seed") else None
            expected = ids(pipe)
            items = number_items(pipe)
            assert isinstance(items, NumberedItems)
            assert len(items) == len(expected)
            assert [items[n].identity for n in reversed(range(len(expected)))] == expected[::-1]
            assert not items.holds(len(expected))
            assert sorted(expected) == sorted(ids(source))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 99))
def test_a_block_of_one_visit_keeps_its_patches_together(counts, seed):
    """Visits come in a drawn order, each with its own patches in a row."""
    pipe = patches(counts).shuffle_plans(vp.ShuffleSpec.chunk_local(1))
    pipe.set_seed(seed)
    order = [identity[0] for identity in ids(pipe)]
    visits = [case for case, _ in groupby(order)]
    assert sorted(visits) == [case for case, number in enumerate(counts) if number]
    assert Counter(order) == Counter({c: n for c, n in enumerate(counts) if n})


@pytest.mark.parametrize("size", [1, 3, 20])
def test_a_window_moves_a_plan_by_less_than_its_length(size):
    """And the first window ends elsewhere in each epoch."""
    pipe = even(12, 1).shuffle_plans(vp.ShuffleSpec.window(size))
    firsts = set()
    for seed in range(30):
        pipe.set_seed(seed)
        order = [identity[0] for identity in ids(pipe)]
        assert sorted(order) == list(range(12))
        assert all(abs(place - n) < size for place, n in enumerate(order))
        firsts.add(tuple(order))
    assert len(firsts) > 1 or size == 1
