"""What a small cache keeps, when it is told what comes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.volumes.chunks.chunked_array import ChunkCache

ROOM = 3


def hits(requests, room, ahead):
    """Return how many requests a cache of ``room`` chunks answers, told ``ahead`` of them."""
    cache = ChunkCache(room)
    told = [cache.announce([key]) for key in requests[:ahead]]
    found = 0
    for number, key in enumerate(requests):
        if cache.get(key) is None:
            cache.put(key, np.zeros(1, np.uint8))
        else:
            found += 1
        if number < len(told):
            told[number].close()
        if ahead and number + ahead < len(requests):
            told.append(cache.announce([requests[number + ahead]]))
    return found


def best_hits(requests, room):
    """Return how many any cache could answer: drop what is needed last (Belady, 1966)."""
    here, found = set(), 0
    for now, key in enumerate(requests):
        found += key in here
        here.add(key)
        if len(here) > room:
            later = requests[now + 1 :]
            here.remove(max(here, key=lambda k: later.index(k) if k in later else len(later)))
    return found


requests = st.lists(st.integers(0, 6), max_size=40)


@given(requests)
def test_told_everything_it_is_as_good_as_any_can_be(wanted):
    """No cache of this size has more hits when all requests are announced."""
    assert hits(wanted, ROOM, len(wanted)) == best_hits(wanted, ROOM)


@given(requests, st.integers(0, 10))
def test_it_never_holds_more_than_it_may(wanted, ahead):
    """Whatever it is told; and what it finds is what was put there."""
    cache = ChunkCache(ROOM * 8)
    for key in wanted[:ahead]:
        cache.announce([key])
    for key in wanted:
        found = cache.get(key)
        assert found is None or found[0] == key
        cache.put(key, np.array([key], np.int64))
        assert cache.held_bytes <= ROOM * 8


def test_what_was_taken_back_makes_room():
    """An announcement that is closed keeps nothing."""
    cache = ChunkCache(2)
    told = cache.announce(["a", "b"])
    for key in "ab":
        cache.put(key, np.zeros(1, np.uint8))
    kept = cache.put("c", np.zeros(1, np.uint8))
    told.close()

    assert not kept
    assert cache.put("c", np.zeros(1, np.uint8))
    assert [cache.holds(key) for key in "abc"] == [False, True, True]


def full_cache():
    """Return a cache of two chunks that are announced for later, and the announcement."""
    cache = ChunkCache(2)
    for key in "ab":
        cache.put(key, np.zeros(1, np.uint8))
    return cache, cache.announce(["a", "b"], keep=True)


@pytest.mark.parametrize("counts", [True, False])
def test_what_somebody_counts_on_is_not_given_up_for_what_is_needed_sooner(counts):
    """Its bytes are far away; the newcomer's are here."""
    cache = ChunkCache(2)
    sooner = cache.announce(["c"])
    for key in "ab":
        cache.put(key, np.zeros(1, np.uint8))
    later = cache.announce(["a", "b"], keep=counts)

    assert later.here == {"a", "b"}
    assert cache.put("c", np.zeros(1, np.uint8)) is not counts
    sooner.close()


@pytest.mark.parametrize("used", [True, False])
def test_nobody_counts_on_what_was_used_or_taken_back(used):
    """Then it goes as any other."""
    cache, later = full_cache()
    assert not cache.put("c", np.zeros(1, np.uint8))

    if used:
        cache.get("a")
    else:
        later.close()

    assert cache.put("c", np.zeros(1, np.uint8))
    assert cache._claims.keys() == ({"b"} if used else set())


def test_two_that_count_on_a_chunk_keep_it_until_both_had_it():
    """One of them is not enough to let it go."""
    cache, first = full_cache()
    second = cache.announce(["a", "b"], keep=True)

    first.close()
    after_one = cache.put("c", np.zeros(1, np.uint8))
    second.close()

    assert not after_one
    assert cache.put("c", np.zeros(1, np.uint8))


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), max_size=40))
def test_what_is_kept_is_found(wanted):
    """Whatever comes in between, and the bound holds."""
    cache = ChunkCache(ROOM)
    counted: list[tuple[int, object]] = []
    for key, counts in wanted:
        if counts:
            told = cache.announce([key], keep=True)
            if told.here:
                counted.append((key, told))
        else:
            cache.put(key, np.zeros(1, np.uint8))
        assert all(cache.holds(kept) for kept, _ in counted)
        assert cache.held_bytes <= ROOM
    for _, told in counted:
        told.close()
    assert not cache._claims


def test_the_end_of_a_loan_drops_what_has_no_room():
    """What nobody has announced goes first."""
    cache = ChunkCache(0)
    loan = cache.lend(3)
    cache.announce(["b"])
    for key in "abc":
        cache.put(key, np.zeros(1, np.uint8))
    cache.lend(1)
    loan.close()

    assert [cache.holds(key) for key in "abc"] == [False, True, False]


def test_the_table_of_moments_stays_as_small_as_the_chunks():
    """A thousand rounds over the same few chunks leave no trail."""
    cache = ChunkCache(10)
    for key in range(10):
        cache.put(key, np.zeros(1, np.uint8))

    for _ in range(1000):
        told = cache.announce(range(10))
        for key in range(9):  # the last one is taken back instead
            cache.get(key)
        told.close()

    assert len(cache._by_moment) <= 2 * 10 + 64


def test_a_forked_child_has_nothing_to_give_back(monkeypatch):
    """Closing what the parent lent leaves the child's cache as it is."""
    cache = ChunkCache(0)
    loan = cache.lend(1000)
    cache.after_fork()
    monkeypatch.setattr("os.getpid", lambda: -1)

    loan.close()

    assert cache.most_bytes == 0
