"""Functions draw from seeded global generators, and nobody outside notices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.reading_services.pipe_runner import seeded_globals

DRAWS = {
    "rand": lambda: float(np.random.rand()),
    "randn": lambda: float(np.random.randn()),
    "randint": lambda: int(np.random.randint(10)),
    "many": lambda: float(np.random.rand(700).sum()),
    "nothing": lambda: 0.0,
}
draws = st.lists(st.sampled_from(sorted(DRAWS)), max_size=4)


@pytest.fixture(autouse=True)
def as_it_was():
    """Leave the generator of the tests alone."""
    kept = np.random.get_state()
    yield
    np.random.set_state(kept)


def drawn(names):
    return [DRAWS[name]() for name in names]


@given(seed=st.integers(0, 2**32 - 1), rounds=st.lists(st.tuples(draws, draws), max_size=4))
def test_nobody_outside_notices(seed, rounds):
    """Whatever is drawn inside and outside, normal numbers that are left over included."""
    np.random.seed(seed)
    expected = [drawn(outside) for outside, _ in rounds] + [drawn(["randn", "randn", "rand"])]
    np.random.seed(seed)
    got = []
    for outside, inside in rounds:
        got.append(drawn(outside))
        with seeded_globals(5):
            drawn(inside)

    assert [*got, drawn(["randn", "randn", "rand"])] == expected


def test_a_number_left_over_where_there_was_none_is_kept():
    """After the same seed one normal number leaves the words as two do, and one over."""
    np.random.seed(1)
    np.random.randn(2)
    with seeded_globals(5):
        pass
    np.random.seed(1)
    np.random.randn()
    with seeded_globals(5):
        np.random.rand()
    after = np.random.randn()

    np.random.seed(1)
    assert after == np.random.randn(2)[1]


@given(outer=draws, inner=draws)
def test_one_inside_another(outer, inner):
    """The state outside is put back, and that between them."""
    np.random.seed(3)
    with seeded_globals(7):
        first = drawn(outer)
        with seeded_globals(8):
            drawn(inner)
        rest = drawn(["randn", "rand"])
    after = drawn(["randn"])

    np.random.seed(7)
    assert [first, rest] == [drawn(outer), drawn(["randn", "rand"])]
    np.random.seed(3)
    assert after == drawn(["randn"])


def test_another_generator():
    """One that somebody put in the place of NumPy's own is put back too."""
    own = np.random.mtrand._rand._bit_generator
    np.random.set_bit_generator(np.random.MT19937(3))
    try:
        first = np.random.rand()
        np.random.set_bit_generator(np.random.MT19937(3))
        with seeded_globals(5):
            np.random.rand()
        assert np.random.rand() == first
    finally:
        np.random.set_bit_generator(own)
