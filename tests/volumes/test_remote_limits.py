"""What a store that does not answer may take, from the first listing on."""

import ast
import asyncio
from pathlib import Path

import pytest
from s3_server import Fault

from voxpipe.core.errors import StoreUnavailable, VolumeReadError
from voxpipe.storage import remote_ranges
from voxpipe.storage.fsspec_ranges import with_defaults
from voxpipe.storage.in_flight import InFlight
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.remote import RemoteFile
from voxpipe.storage.remote_answers import Answer, Head
from voxpipe.storage.remote_ranges import ObjectFacts, RemoteRanges
from voxpipe.volumes.catalog import find


def test_a_bucket_that_hangs_is_given_up(server, client, monkeypatch):
    """A listing that is never answered ends at the deadline of a read, and names the bucket."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.5")
    server.fail(Fault("hang"))

    with pytest.raises(StoreUnavailable, match="s3://bucket/cases failed"):
        find.find_volumes("s3://bucket/cases", server.storage_options)

    assert 1 <= len(server.requests) <= 3


def test_the_user_says_how_long_a_server_may_be_silent(monkeypatch):
    """Ours is a third of the deadline; what is given in config_kwargs stays."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "9")
    asked = with_defaults("s3://b", {"config_kwargs": {"read_timeout": 100}})["config_kwargs"]

    assert (asked["connect_timeout"], asked["read_timeout"]) == (3.0, 100)


def test_a_request_that_hangs_is_asked_again_within_the_deadline(server, monkeypatch):
    """A server that went away for a moment costs a third of it, not the read."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "3")
    (server.bucket / "a").write_bytes(b"abc")
    file = RemoteFile("s3://bucket/a", server.storage_options, "s3://bucket/a")
    server.forget()
    server.fail(Fault("hang", times=1))

    assert bytes(file.ranges([(0, 3)])[0]) == b"abc"
    assert len(server.requests) == 2


class Fake(RemoteRanges):
    """Answers each request when it is told to."""

    def __init__(self):
        super().__init__("s3://fake", {})
        self.asked = []
        self.answers = asyncio.Event()

    async def ask(self, asked):
        self.asked.append(asked.key)
        await self.answers.wait()
        return Answer(b"x")

    async def ask_facts(self, key):
        return ObjectFacts(1, "")

    async def ask_keys(self, prefix):
        return []


def test_waiting_for_others_is_no_failure(monkeypatch):
    """The time of a request begins when there is room for it, not when it is wished for."""
    began = []
    true = remote_ranges.Attempts

    async def run():
        store, room = Fake(), InFlight(most_requests=1)
        monkeypatch.setattr(remote_ranges, "IN_FLIGHT", room)

        def begin(*arguments, **named):
            began.append(len(store.asked))
            return true(*arguments, **named)

        monkeypatch.setattr(remote_ranges, "Attempts", begin)
        both = asyncio.ensure_future(store.get_ranges_async([ReadRange("a"), ReadRange("b")]))
        while not store.asked:
            await asyncio.sleep(0)
        before = list(began)
        store.answers.set()
        await both
        return before

    assert asyncio.run(run()) == [0]
    assert began == [0, 1]


@pytest.mark.parametrize(("whole", "together"), [(60, 1), (40, 2), (0, 1)])
def test_whole_objects_count_as_what_they_may_have(monkeypatch, whole, together):
    """Of objects whose length is not asked for, what a chunk takes; or a guess, and then alone."""

    async def run():
        store, room = Fake(), InFlight(most_bytes=100)
        monkeypatch.setattr(remote_ranges, "IN_FLIGHT", room)
        both = asyncio.ensure_future(
            store.get_ranges_async([ReadRange("a"), ReadRange("b")], whole=whole)
        )
        while not store.asked:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        under_way = len(store.asked), room.bytes <= max(100, room.bytes // room.requests)
        store.answers.set()
        await both
        return under_way

    assert asyncio.run(run()) == (together, True)


def test_nothing_is_told_with_a_secret(server):
    """Errors on the way to a file go by its storage options."""
    (server.bucket / "a").write_bytes(b"abc")
    options = {**server.storage_options, "secret": "very-secret-indeed"}
    file = RemoteFile("s3://bucket/a", options, "s3://bucket/a")

    with pytest.raises(VolumeReadError) as caught, file.errors():
        raise RuntimeError("refused for very-secret-indeed")

    assert "very-secret" not in str(caught.value)
    assert "s3://bucket/a" in str(caught.value)


def test_everything_remote_knows_what_not_to_tell():
    """No place turns errors into ours without the options whose values it must cut out."""
    folder = Path(remote_ranges.__file__).parent
    calls = [
        (path.name, node.lineno)
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") == "remote_errors"
        and len(node.args) < 2
    ]

    assert calls == []


class Versioned(RemoteRanges):
    """Reports the version ``"a"`` of each object."""

    async def ask(self, asked):
        return Answer(b"x", Head(0, 1, 1, "a", 0.0))

    async def ask_facts(self, key):
        raise NotImplementedError


class ReadingKey(str):
    """A key whose lookup reads another object, as a second thread may meanwhile."""

    __slots__ = ("act",)

    def __hash__(self):
        getattr(self, "act", int)()
        return super().__hash__()


def test_versions_are_forgotten_while_another_thread_reads():
    """A read of a new object in the middle changes no loop over the known ones."""
    store = Versioned("s3://fake", {})
    key, read = ReadingKey("a"), []

    def act():
        del key.act
        read.extend(store.get_ranges([ReadRange("b", 0, 1)]))

    store.get_ranges([ReadRange(key, 0, 1), ReadRange("c", 0, 1)])
    key.act = act
    store.forget_versions()

    assert read == [b"x"]
