"""Shards of a bucket: one that is read nearly whole is asked for once by all patches of a visit."""

import asyncio
import gc
import threading
import weakref
from contextlib import suppress

import numpy as np
import pytest
from fsspec.asyn import get_loop
from hypothesis import given
from hypothesis import strategies as st
from s3_server import Fault

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import AccessDenied, CorruptVolume, StoreUnavailable
from voxpipe.reading_services import reading_service as running
from voxpipe.storage import obstore_ranges
from voxpipe.storage.in_flight import InFlight, RequestPriority
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.read_ahead import AHEAD, SMALL_BYTES, SharedRequests
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.chunks.ranged_chunks import MOSTLY, nearly_whole

zarr = pytest.importorskip("zarr")
SHAPE = (64, 32, 32)
SHARD = (32, 32, 32)
CHUNK = (8, 8, 8)
CHUNK_BYTES, SHARD_BYTES = 8**3 * 4, 32**3 * 4
INDEX_BYTES = 64 * 16 + 4


def array_of(server, name, values, **options):
    """Store values in two shards of 64 chunks, uncompressed unless said otherwise."""
    options = {"compressors": None, "fill_value": 0, "shards": SHARD, **options}
    stored = zarr.create_array(
        server.bucket / name, shape=SHAPE, chunks=CHUNK, dtype=values.dtype, **options
    )
    stored[...] = values
    volume = Volume(f"s3://bucket/{name}", storage_options=server.storage_options)
    assert volume.shape == (1, *SHAPE)
    server.forget()
    return volume


@pytest.fixture
def numbers():
    """Every voxel another one."""
    return np.arange(np.prod(SHAPE), dtype=np.int32).reshape(SHAPE)


@pytest.fixture
def volume(server, client, numbers):
    """Shards of 128 KiB."""
    return array_of(server, "a.zarr", numbers)


def requests_of(server):
    """Return key and bytes of what was asked of shards: indices, and the rest."""
    lines = [line for line in server.requests if "/c/" in line.key]
    ends = [(line.key, line.sent) for line in lines if line.range.startswith("bytes=-")]
    data = [(line.key, line.sent) for line in lines if not line.range.startswith("bytes=-")]
    return ends, data


def made(volume, numbers, starts, edge=(24, 24, 24)):
    """Read patches as a batch is: tickets for all of them, the reads, then the tickets go."""
    regions = [Region(start, tuple(np.add(start, edge).tolist())) for start in starts]
    tickets = [volume.prefetch(region) for region in regions]
    try:
        for region in regions:
            np.testing.assert_array_equal(volume.read(region).array[0], numbers[region.slices])
    finally:
        for ticket in tickets:
            ticket.close()


def test_two_batches_of_a_visit_ask_for_each_shard_once(server, volume, numbers):
    """One index and one request for all of it, whoever comes first and however many there are."""
    made(volume, numbers, [(0, 0, 0), (20, 4, 8), (36, 8, 8), (2, 8, 0)])
    made(volume, numbers, [(33, 1, 1), (8, 0, 7), (24, 5, 3)])

    ends, data = requests_of(server)
    keys = [f"bucket/a.zarr/c/{n}/0/0" for n in range(2)]
    assert sorted(key for key, _ in ends) == keys
    assert sorted(data) == [(key, SHARD_BYTES) for key in keys]


def test_what_stays_is_counted_and_goes_with_the_epoch(server, volume, numbers):
    """It is told as held; closing volumes, as an epoch does at its end, frees it."""
    made(volume, numbers, [(0, 0, 0)])

    assert (len(AHEAD), AHEAD.held_bytes) == (0, SHARD_BYTES)
    close_volumes()
    assert AHEAD.held_bytes == len(AHEAD.requests) == 0


def settled():
    """Wait until the loop of the requests has turned to something else."""
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), get_loop()).result(60)


@pytest.fixture
def received(monkeypatch):
    """References to what came, while no garbage is collected."""
    received = []
    true = obstore_ranges.ObstoreRanges._get

    def get(*of):
        answer = true(*of)
        if answer.body.startswith(b"{"):
            return answer  # the metadata, which stay
        array = np.frombuffer(answer.body, np.uint8)
        received.append(weakref.ref(array))
        return answer._replace(body=array.data)

    monkeypatch.setattr(obstore_ranges.ObstoreRanges, "_get", get)
    gc.disable()
    yield received
    gc.enable()


@pytest.mark.parametrize("client", ["obstore"], indirect=True)
def test_what_was_let_go_is_freed_at_once(volume, numbers, received):
    """Without a collection of garbage: a worker may see none in an epoch."""
    made(volume, numbers, [(0, 0, 0), (36, 8, 8)])
    close_volumes()
    # What the loop's thread has at hand goes when it turns to something else.
    settled()

    assert len(received) >= 2
    assert [array for array in received if array() is not None] == []


@pytest.mark.parametrize("client", ["obstore"], indirect=True)
def test_what_came_beside_a_failure_is_freed_at_once(server, volume, numbers, received):
    """A read that fails keeps neither the shard that came nor what its caller holds."""
    made(volume, numbers, [(20, 0, 0)])
    close_volumes()
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    server.fail(Fault("deny", key="/c/1/"))

    def failing():
        held = np.zeros(3)
        with suppress(AccessDenied):
            made(volume, numbers, [(0, 0, 0), (20, 0, 0)])
        return weakref.ref(held)

    left = failing()
    close_volumes()
    settled()

    assert left() is None
    assert [array for array in received if array() is not None] == []


def test_an_epoch_keeps_nothing(server, client, numbers, monkeypatch):
    """In process: what stayed for the patches of a visit is gone after the last one."""
    # One that hangs for ever, in an earlier test, would still count as one that reads.
    monkeypatch.setattr(running, "_RUNNING", weakref.WeakSet())
    array_of(server, "a.zarr", numbers)
    pipe = (
        vp.from_cases([{"image": "s3://bucket/a.zarr"}])
        .open_volume(storage_options=server.storage_options)
        .lazy_patch(24, samples_per_volume=8)
        .batch_patches(4)
    )
    with vp.DataLoader2(pipe, seed=0) as loader:
        held = [AHEAD.requests.held_bytes for _ in loader]

    assert len(held) == 2
    assert max(held) > 0
    assert AHEAD.held_bytes == 0
    _, data = requests_of(server)
    assert sum(sent for _, sent in data) <= 2 * SHARD_BYTES


def test_a_small_patch_of_a_large_shard_reads_its_chunk(server, volume, numbers):
    """And the index, with what costs nothing beside it."""
    made(volume, numbers, [(1, 9, 17)], edge=(4, 4, 4))
    made(volume, numbers, [(17, 17, 17)], edge=(4, 4, 4))

    ends, data = requests_of(server)
    assert [sent for _, sent in ends] == [SMALL_BYTES]
    assert [sent for _, sent in data] == [CHUNK_BYTES] * 2
    assert AHEAD.held_bytes == 0


def test_a_plain_read_asks_for_no_more_than_before(server, volume, numbers):
    """Whoever takes no ticket sees what is stored now, and reads the chunks of the region."""
    made(volume, numbers, [(0, 0, 0)], edge=(32, 32, 32))
    server.forget()

    volume.read(Region((0, 0, 0), (8, 8, 8)))

    assert requests_of(server) == ([], [("bucket/a.zarr/c/0/0/0", CHUNK_BYTES)])


@pytest.mark.parametrize("place", ["start", "end"])
def test_a_small_shard_comes_with_its_index(server, client, numbers, place):
    """One request each, also for patches of later batches; what is not stored is fill."""
    values = np.where(numbers % 1024 < 512, 0, numbers // 8192).astype(np.int32)
    values[32:, :8] = 0
    shards = {"shape": SHARD, "index_location": place}
    volume = array_of(server, "b.zarr", values, compressors=zarr.codecs.ZstdCodec(), shards=shards)
    made(volume, values, [(20, 4, 8), (36, 8, 8)])
    made(volume, values, [(0, 0, 0), (40, 0, 0)])

    sizes = [(server.bucket / "b.zarr" / "c" / f"{n}" / "0" / "0").stat().st_size for n in range(2)]
    assert max(sizes) < SMALL_BYTES
    assert sorted(line.sent for line in server.requests) == sorted(sizes)
    assert (len(AHEAD), AHEAD.held_bytes) == (0, 0)


def test_the_bound_holds(server, volume, numbers, monkeypatch):
    """Where a shard has no room its chunks are read as before, and never more is held."""
    most = SHARD_BYTES + 8 * CHUNK_BYTES
    before = AHEAD.most_bytes
    AHEAD.limit(most)
    held = []
    arrived = SharedRequests._deliver

    def noted(self, *args):
        arrived(self, *args)
        held.append(AHEAD.held_bytes)

    monkeypatch.setattr(SharedRequests, "_deliver", noted)
    try:
        for _ in range(3):
            made(volume, numbers, [(0, 0, 0), (36, 8, 8)], edge=(16, 24, 24))
            held.append(AHEAD.held_bytes)
    finally:
        AHEAD.limit(before)

    assert 0 < max(held) <= most


def test_who_comes_first_may_leave(server, volume, numbers):
    """A ticket that is closed takes nothing from those that wait for the same answers."""
    server.latency = 0.05
    first = volume.prefetch(Region((0, 0, 0), (24, 24, 24)))
    second = volume.prefetch(Region((0, 8, 8), (32, 32, 32)))
    first.close()
    server.latency = 0.0

    found = volume.read(Region((0, 8, 8), (32, 32, 32)))

    np.testing.assert_array_equal(found.array[0], numbers[:32, 8:, 8:])
    second.close()


def test_what_nobody_waits_for_is_not_kept(server, volume):
    """All tickets closed before the answer: nothing stays, not even its place."""
    server.latency = 0.2
    for ticket in [volume.prefetch(Region((n, 0, 0), (n + 24, 32, 32))) for n in range(4)]:
        ticket.close()
    server.latency = 0.0

    assert (len(AHEAD), AHEAD.held_bytes, len(AHEAD.requests)) == (0, 0, 0)


def test_a_failure_is_told_and_not_kept(server, volume, numbers, monkeypatch):
    """Every read is told; the next ones ask again."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.05")
    close_volumes()
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    volume.shape  # noqa: B018
    server.fail(Fault("slow_down", key="/c/"))
    regions = [Region((n, 0, 0), (n + 24, 32, 32)) for n in range(2)]
    tickets = [volume.prefetch(region) for region in regions]
    for region in regions:
        with pytest.raises(StoreUnavailable):
            volume.read(region)
    for ticket in tickets:
        ticket.close()

    assert (len(AHEAD), AHEAD.held_bytes, len(AHEAD.requests)) == (0, 0, 0)


def test_a_damaged_shard_is_asked_for_again(server, client, numbers):
    """Whoever copies it again need not begin a new process."""
    noise = np.random.default_rng(0).integers(0, 2**31, SHAPE, np.int32)
    volume = array_of(server, "b.zarr", noise, compressors=zarr.codecs.ZstdCodec())
    shard = server.bucket / "b.zarr" / "c" / "0" / "0" / "0"
    whole = shard.read_bytes()
    shard.write_bytes(bytes(len(whole) - INDEX_BYTES) + whole[-INDEX_BYTES:])
    with pytest.raises(CorruptVolume):
        made(volume, noise, [(0, 0, 0)])
    shard.write_bytes(whole)

    ticket = volume.prefetch(Region((0, 0, 0), (24, 24, 24)))
    found = volume.read(Region((0, 0, 0), (24, 24, 24)))
    ticket.close()

    np.testing.assert_array_equal(found.array[0], noise[:24, :24, :24])


SPANS = st.dictionaries(
    st.sampled_from("abc"),
    st.lists(st.integers(0, 10 * SMALL_BYTES), min_size=4, max_size=4, unique=True).map(sorted),
)


@given(SPANS, st.integers(1, 10 * SMALL_BYTES))
def test_all_of_a_shard_is_at_most_twice_its_requests(spans, longest):
    """Or so small that it does not matter, and never more than one request may bring."""
    extents = {key: (first, last) for key, (first, _, _, last) in spans.items()}
    asked = [ReadRange(key, start, stop) for key, (_, start, stop, _) in spans.items()]

    chosen = nearly_whole(asked, extents, longest)

    for key, start, stop in asked:
        size = extents[key][1] - extents[key][0]
        worth = stop - start >= MOSTLY * size or size <= SMALL_BYTES
        assert (key in chosen) == (worth and size <= longest)


def test_an_index_that_contradicts_itself_is_not_believed():
    """What lies outside of all that is said to be there is asked for by itself."""
    assert nearly_whole([ReadRange("a", 50, 150)], {"a": (0, 100)}, 1000) == []


def answers(room):
    """Return shared answers of a counted room."""
    return SharedRequests(threading.RLock(), lambda: room)


async def brought(data):
    return data


def test_the_oldest_that_nobody_uses_goes_first():
    """What is in use stays, however old; without room nothing is asked for or given up."""

    async def run():
        shared, users = answers(30), [RequestPriority() for _ in range(5)]
        for n in range(3):
            key = "a", ReadRange(f"{n}", 0, 10)
            assert await shared.begin(key, 10, lambda _, n=n: brought(bytes(10)), users[n])
        await asyncio.sleep(0)
        assert shared.begin(("a", ReadRange("9")), 10, lambda _: brought(b""), users[4]) is None
        shared.release(users[1])
        shared.release(users[2])
        assert await shared.begin(("a", ReadRange("9")), 10, lambda _: brought(b"x"), users[3])
        held = [shared.holds(("a", ReadRange(f"{n}", 0, 10))) for n in range(3)]
        await asyncio.sleep(0)
        return held, shared.held_bytes

    assert asyncio.run(run()) == ([True, False, True], 21)


def test_who_has_left_asks_for_nothing():
    """A delivery that was dropped before its request began."""

    async def run():
        shared, later = answers(30), RequestPriority()
        shared.release(later)
        with pytest.raises(asyncio.CancelledError):
            shared.begin(("a", ReadRange("0")), 10, lambda _: brought(b""), later)
        return len(shared)

    assert asyncio.run(run()) == 0


def test_hurrying_goes_on_to_what_is_waited_for():
    """A read that waits for another one's request lets that go first too."""

    async def run():
        room, order = InFlight(most_requests=1), []
        mine, theirs = RequestPriority(), RequestPriority()
        mine.needs.append(theirs)

        async def one(name, later):
            await room.enter(1, ahead=later)
            order.append(name)
            room.leave(1)

        await room.enter(1)
        tasks = [
            asyncio.ensure_future(one(name, later))
            for name, later in [("other", RequestPriority()), ("theirs", theirs), ("mine", mine)]
        ]
        await asyncio.sleep(0)
        room.hurry(mine)
        room.leave(1)
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run()) == ["theirs", "mine", "other"]


def test_several_failures_are_told_once(server, volume, numbers, monkeypatch, caplog):
    """By the read: nothing is written of those that it did not come to."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.05")
    close_volumes()
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    volume.read(Region((24, 0, 0), (40, 8, 8)))  # the indices are known
    server.fail(Fault("slow_down", key="/c/"))
    region = Region((0, 0, 0), (64, 32, 32))
    ticket = volume.prefetch(region)
    with pytest.raises(StoreUnavailable):
        volume.read(region)
    ticket.close()
    del ticket
    settled()
    gc.collect()

    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
