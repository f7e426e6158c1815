"""What was fetched ahead is counted as what it keeps in memory, and comes first once waited for."""

import os
from concurrent.futures import Future

import numpy as np
import pytest

from voxpipe.storage.ranges import ObjectRanges, ReadRange
from voxpipe.storage.read_ahead import AHEAD, ReadAhead, joint_ticket
from voxpipe.storage.remote import open_remote
from voxpipe.volumes.chunks.chunked_array import Lookup
from voxpipe.volumes.chunks.ranged_chunks import RangedChunks

CONTENT = os.urandom(1_000_000)


class Places:
    """Chunks of 1000 bytes, so many bytes apart."""

    def __init__(self, step):
        self._step = step

    def locate(self, chunks):
        step = self._step
        return ObjectRanges.of([ReadRange("a", n * step, n * step + 1000) for (n,) in chunks])

    def lookup(self, chunks):
        return Lookup((), lambda answers: self.locate(chunks))


class Plain:
    """What is stored is what is meant."""

    def decode(self, data, out, index):
        out[...] = np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(("step", "held"), [(100_000, 10_000), (1500, 14_500)])
def test_what_is_counted_is_what_is_held(server, client, step, held):
    """Ten chunks come in one request; of one that is mostly gap only the chunks are kept."""
    (server.bucket / "a").write_bytes(CONTENT)
    store = open_remote("s3://bucket", server.storage_options)
    source = RangedChunks(store, Places(step), Plain(), f"token {step} {client}", 1000)
    chunks = [(n,) for n in range(10)]

    ticket = source.prefetch(chunks, 1000)
    brought = source.fetch_chunks(chunks)
    out = np.empty(1000, np.uint8)
    found = []
    for index in chunks:
        assert brought.decode(index, out)
        found.append(out.tobytes())

    assert found == [CONTENT[n * step : n * step + 1000] for n in range(10)]
    assert len([line for line in server.requests if line.method == "GET"]) == 1
    assert AHEAD.held_bytes == held
    ticket.close()
    assert (len(AHEAD), AHEAD.held_bytes) == (0, 0)


class Told:
    """A store that notes what is hurried, and answers then."""

    def __init__(self):
        self.future, self.later, self.hurried = Future(), None, []

    def begin(self, work):
        work.close()
        return self.future

    def hurry(self, later):
        self.hurried.append(later)
        self.future.set_result({(0,): memoryview(b"abc"), (1,): None})


def test_a_read_that_waits_hurries_what_it_waits_for():
    """Once, however many chunks it needs of it; and never for what is here."""
    ahead, store, asked = ReadAhead(), Told(), []

    async def never():
        raise AssertionError

    def fetch_chunks(chunks, later):
        asked.append(later)
        return never()

    ticket = ahead.begin("t", [(0,), (1,)], lambda _: 3, store, fetch_chunks)

    assert ahead.take("t", [(0,), (1,)]) == {(0,): b"abc", (1,): None}
    assert store.hurried == asked
    assert ahead.take("t", [(0,)]) == {(0,): b"abc"}
    assert len(store.hurried) == 1
    ticket.close()


def test_who_closes_a_ticket_is_not_told_of_others():
    """What waited for its room cannot even be asked for: the read of that says so."""

    class Broken(Told):
        def begin(self, work):
            work.close()
            raise RuntimeError("no loop")

    async def never():
        raise AssertionError

    ahead = ReadAhead(3000)

    def ticket(token, store):
        return ahead.begin(token, [(0,)], lambda _: 2000, store, lambda *_: never())

    first, second = ticket("a", Told()), ticket("b", Broken())

    joint_ticket([first, second]).close()

    assert (len(ahead), ahead.held_bytes) == (0, 0)
    with pytest.raises(RuntimeError, match="no loop"):
        ticket("b", Broken())


class Asked:
    """A store that is asked by whoever comes, and never answers."""

    def __init__(self):
        self.futures = []

    def begin(self, work):
        work.close()
        self.futures.append(Future())
        return self.futures[-1]

    def hurry(self, later):
        pass


async def nothing(chunks, later):
    raise AssertionError


def asked_for(ahead, store):
    """Ask for parts, of which only the second and one of the last fit together."""
    sizes = [int(ahead.most_bytes * part) for part in (0.9, 0.1, 0.6, 0.6)]
    return [
        ahead.begin("t", [(n,)], lambda _, size=size: size, store, nothing)
        for n, size in enumerate(sizes)
    ]


def test_a_ticket_that_is_closed_while_its_bytes_are_asked_for_keeps_nothing(monkeypatch):
    """By the collector, in the thread that has the lock: what was begun is taken back."""
    ahead, store = ReadAhead(), Asked()
    first, second, third, fourth = asked_for(ahead, store)
    begin = store.begin

    def closing(work):
        monkeypatch.setattr(store, "begin", begin)
        second.close()
        return begin(work)

    monkeypatch.setattr(store, "begin", closing)
    first.close()
    assert [future.cancelled() for future in store.futures] == [True, False, True]

    third.close()
    assert [future.cancelled() for future in store.futures] == [True, True, True, False]
    fourth.close()
    assert (len(ahead), ahead.held_bytes) == (0, 0)


def test_a_ticket_that_is_closed_while_room_is_made_takes_no_other_with_it(monkeypatch):
    """What waits behind it is asked for, each in its turn."""
    ahead, store = ReadAhead(), Asked()
    first, second, third, fourth = asked_for(ahead, store)
    spare = ahead.requests.spare

    def closing(size):
        monkeypatch.setattr(ahead.requests, "spare", spare)
        second.close()
        return spare(size)

    monkeypatch.setattr(ahead.requests, "spare", closing)
    first.close()
    assert [future.cancelled() for future in store.futures] == [True, False]

    third.close()
    assert [future.cancelled() for future in store.futures] == [True, True, False]
    fourth.close()
    assert (len(ahead), ahead.held_bytes) == (0, 0)
