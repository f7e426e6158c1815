import itertools

from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import Stream


def test_every_part_of_the_key_matters():
    """Seed, epoch, identity and name each change the numbers."""
    streams = [
        Stream(s, e, i, n)
        for s, e, i, n in itertools.product([0, 1], [0, 1], [(1, 2), (12,), (1,)], ["a", "b"])
    ]

    drawn = {stream.generator().integers(2**62) for stream in streams}

    assert len(drawn) == len(streams)


@given(st.integers(0, 2**64 - 1), st.integers(0, 100), st.lists(st.integers(0, 2**40)))
def test_numbers_depend_on_the_key_alone(seed, epoch, identity):
    """The same key gives the same numbers, however often it is asked."""
    one = Stream(seed, epoch, tuple(identity), "x")
    two = Stream(seed, epoch, tuple(identity), "x")

    assert one.generator().random(3).tolist() == two.generator().random(3).tolist()
    assert 0 <= one.integer() < 2**63


def test_known_numbers_stay():
    """The draws of a release are a promise: a resumed run must see them again."""
    assert Stream(7, 1, (3, 2), "rotate").integer() == KNOWN


KNOWN = 6353571109880322605


@given(
    st.integers(0, 2**64 - 1),
    st.lists(st.integers(0, 2**40), max_size=4),
    st.lists(st.sampled_from(["random", "normal", "uint32", "integer"]), max_size=7),
)
def test_a_generator_that_is_restarted_is_as_good_as_a_fresh_one(seed, identity, uses):
    """Whatever was drawn before, a half-used word included, nothing of it is left."""
    used = Stream(seed, 1, (3,), "before").generator()
    for use in uses:
        draw(used, use)
    stream = Stream(seed, 0, tuple(identity), "x")

    again, fresh = stream.restart(used), stream.generator()

    for use in ("uint32", "random", "uint32", "normal", "integer", "random"):
        assert draw(again, use) == draw(fresh, use)


def draw(generator, use):
    """Draw one number in one of the ways that consume the generator's words differently."""
    ways = {
        "random": generator.random,
        "normal": generator.normal,
        "uint32": lambda: generator.integers(2**20, dtype="uint32"),
        "integer": lambda: generator.integers(2**60),
    }
    return ways[use]()
