"""What a small cache keeps, when it is told what comes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.volumes.chunks import chunk_cache

ROOM = 3


class ChunkCache(chunk_cache.ChunkCache):
    """Asked for one chunk at a time."""

    def get(self, key):
        return self.get_all([key]).arrays[0]

    def holds(self, key):
        return key in self._rows and self._arrays[self._rows[key]] is not None

    def put_chunks(self, keys, chunks):
        sizes = np.array([chunk.nbytes for chunk in chunks], np.int64)
        self.put_all(keys, chunks, sizes, np.array([chunk.ctypes.data for chunk in chunks]))

    def put(self, key, chunk):
        self.put_chunks([key], [chunk])
        return self.holds(key) and self._arrays[self._rows[key]] is chunk


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

    assert later.is_here.all()
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
    assert cache.put("d", np.zeros(1, np.uint8))
    assert cache.holds("b") is used


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
    counted, every = [], []
    for key, counts in wanted:
        if counts:
            told = cache.announce([key], keep=True)
            every.append(told)
            if told.is_here.all():
                counted.append(key)
        else:
            cache.put(key, np.zeros(1, np.uint8))
        assert all(map(cache.holds, counted))
        assert cache.held_bytes <= ROOM
    for told in every:
        told.close()
    for key in "abc":
        assert cache.put(key, np.zeros(1, np.uint8))


class PlainCache:
    """The policy in plain Python, chunk by chunk: what is needed last goes first."""

    def __init__(self, most):
        self.most, self.moment, self.uses = most, 0, 0
        self.sizes, self.used, self.coming = {}, {}, {}

    def note_use(self, key):
        self.uses += 1
        self.used[key] = self.uses

    def get(self, key):
        self.coming.get(key, []) and self.coming[key].pop(0)
        self.note_use(key)
        return key in self.sizes

    def announce(self, keys, keep):
        self.moment += 1
        for key in keys:
            self.coming.setdefault(key, []).append((self.moment, keep and key in self.sizes))
        return self.moment

    def close(self, moment, keys):
        for key in keys:
            rest = [each for each in self.coming.get(key, []) if each[0] != moment]
            if rest != self.coming.get(key, []):
                self.coming[key] = rest
                self.note_use(key)

    def worth(self, key):
        coming = self.coming.get(key, [])
        if any(counts for _, counts in coming):
            return (2, 0, 0)
        return (1, -coming[0][0], -self.used[key]) if coming else (0, 0, self.used[key])

    def put(self, sizes):
        for key, size in sizes.items():
            if key not in self.sizes and size <= self.most:
                self.sizes[key] = size
                self.note_use(key)
        while sum(self.sizes.values()) > self.most:
            last = min(self.sizes, key=self.worth)
            del self.sizes[last]
            self.coming[last] = [(moment, False) for moment, _ in self.coming.get(last, [])]


some_keys = st.lists(st.integers(0, 9), unique=True, max_size=6)
acts = st.lists(
    st.tuples(st.sampled_from(["get", "put", "announce", "keep", "close"]), some_keys), max_size=40
)


@given(acts, st.integers(0, 12))
def test_many_at_once_are_kept_as_one_by_one(steps, most):
    """Whatever is asked for, announced, counted on and taken back, in chunks of several sizes."""
    cache, plain, told = ChunkCache(most), PlainCache(most), []
    for act, keys in steps:
        if act == "get":
            assert cache.get_all(keys).is_here.tolist() == [*map(plain.get, keys)]
        elif act == "put":
            chunks = [np.zeros(1 + key % 3, np.uint8) for key in keys]
            cache.put_chunks(keys, chunks)
            plain.put({key: 1 + key % 3 for key in keys})
        elif act == "close" and told:
            announcement, moment = told.pop(0)
            announcement.close()
            plain.close(moment, announcement.keys)
        elif act != "close":
            keep = act == "keep"
            told.append((cache.announce(keys, keep=keep), plain.announce(keys, keep)))
        assert {key for key in range(10) if cache.holds(key)} == plain.sizes.keys()
        assert cache.held_bytes == sum(plain.sizes.values()) <= most


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


def test_its_tables_stay_as_small_as_what_it_holds():
    """A thousand rounds over chunks that come and go leave no trail."""
    cache = ChunkCache(10)

    for round_ in range(1000):
        keys = range(round_, round_ + 10)
        told = cache.announce(keys)
        for key in keys[:9]:  # the last one is taken back instead
            cache.put(key, np.zeros(1, np.uint8))
            cache.get(key)
        told.close()

    assert cache._moments.size <= 2 * (4 * 10 + 64)


def test_a_forked_child_has_nothing_to_give_back(monkeypatch):
    """Closing what the parent lent leaves the child's cache as it is."""
    cache = ChunkCache(0)
    loan = cache.lend(1000)
    cache.after_fork()
    monkeypatch.setattr("os.getpid", lambda: -1)

    loan.close()

    assert cache.most_bytes == 0
