"""Keeping and putting back NumPy's global generator gives what get_state and set_state give."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.reading_services.seeds import numpy_generator
from voxpipe.reading_services.seeds.numpy_generator import numpy_state, put_back
from voxpipe.reading_services.seeds.seeding import seeded_globals

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


def test_whether_one_is_left_over_is_seen_without_asking(monkeypatch):
    """With the NumPy that is pinned: else each item costs a copy of all words more."""
    with seeded_globals(5):
        pass
    monkeypatch.setattr(np.random, "get_state", None)
    with seeded_globals(5):
        np.random.rand()


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


def test_the_state_is_asked_for_once_where_nobody_draws(monkeypatch):
    """That is what is slow."""
    asked = []
    own = np.random.get_state
    monkeypatch.setattr(np.random, "get_state", lambda: asked.append(1) or own())
    np.random.seed(1)
    for _ in range(5):
        with seeded_globals(2):
            np.random.randn()
    np.random.rand()
    with seeded_globals(2):
        pass

    assert len(asked) == 2


def test_another_generator():
    """One that somebody put in the place of NumPy's own is kept the slow way."""
    own = np.random.mtrand._rand._bit_generator
    np.random.set_bit_generator(np.random.MT19937(3))
    try:
        state = numpy_state()
        first = np.random.rand()
        put_back(state)
        assert np.random.rand() == first
    finally:
        np.random.set_bit_generator(own)


def test_memory_that_is_laid_out_otherwise(monkeypatch):
    """It is not written to: what is read there is compared with what NumPy says."""
    monkeypatch.setattr(numpy_generator, "_memory", lambda generator: b"x" * 2500)
    np.random.seed(9)
    state = numpy_state()
    first = np.random.rand()

    put_back(state)

    assert not state.is_plain
    assert np.random.rand() == first
