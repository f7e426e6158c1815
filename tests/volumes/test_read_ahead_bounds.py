"""What was fetched ahead is counted as what it keeps in memory, and comes first once waited for."""

import os
from concurrent.futures import Future

import numpy as np
import pytest

from voxpipe.volumes.chunks.chunk_map import Lookup
from voxpipe.volumes.chunks.ranged_chunks import RangedChunks
from voxpipe.volumes.stores.ranges import ReadRange
from voxpipe.volumes.stores.read_ahead import AHEAD, ReadAhead, Tickets
from voxpipe.volumes.stores.remote import open_remote

CONTENT = os.urandom(1_000_000)


class Places:
    """Chunks of 1000 bytes, so many bytes apart."""

    def __init__(self, step):
        self._step = step

    def locate(self, chunks):
        return [ReadRange("a", n * self._step, n * self._step + 1000) for (n,) in chunks]

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
    brought = source.bring(chunks)
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

    def bring(chunks, later):
        asked.append(later)
        return never()

    ticket = ahead.begin("t", [(0,), (1,)], lambda _: 3, store, bring)

    assert ahead.taken("t", [(0,), (1,)]) == {(0,): b"abc", (1,): None}
    assert store.hurried == asked
    assert ahead.taken("t", [(0,)]) == {(0,): b"abc"}
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

    Tickets([first, second]).close()

    assert (len(ahead), ahead.held_bytes) == (0, 0)
    with pytest.raises(RuntimeError, match="no loop"):
        ticket("b", Broken())
