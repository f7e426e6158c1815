"""A Redis server that is down, dies, hangs, is full or lies: items arrive, and are right."""

import functools
import itertools
import pickle
import signal

import numpy as np
import pytest
from redis_server import PASSWORD, RedisServer, need_redis
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import CacheUnused, StoreUnavailable
from voxpipe.graph import to_dot


@pytest.fixture
def server(tmp_path):
    need_redis()
    with RedisServer(tmp_path) as running:
        yield running


@pytest.fixture
def log(tmp_path):
    return tmp_path / "made.log"


def thousand(log, number):
    """Make a thousand bytes, and write that down."""
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{number}\n")
    return np.full(1000, number, np.uint8)


def chain(log, server, numbers=range(4), **options):
    make = functools.partial(thousand, log)
    options = {"version": 1, "timeout": 0.5, **options}
    return IterableWrapper(numbers).map(make).cache_items(server.url, **options)


def made(log):
    return log.read_text().splitlines()


def check(items, numbers=range(4)):
    """Check that these are the right items."""
    assert [item.tolist() for item in items] == [[number] * 1000 for number in numbers]


def test_a_server_that_is_down_at_the_start(log, server):
    """One warning for all items; `on_error="raise"` is an error with the user's line."""
    server.kill()

    with pytest.warns(CacheUnused, match=r"redis://127.0.0.1:\d+/0: the store failed") as warned:
        check(chain(log, server))
    assert len(warned) == 1
    with pytest.raises(StoreUnavailable, match=r"get: ConnectionError(.|\n)*test_item_cache_f"):
        list(chain(log, server, on_error="raise"))


def test_a_server_that_dies_in_the_middle(log, server):
    """Items that it held are made again."""
    list(chain(log, server))
    items = iter(chain(log, server))
    first = next(items)
    server.kill()

    with pytest.warns(CacheUnused, match="the store failed") as warned:
        check([first, *items])
    assert len(warned) == 1
    assert made(log) == ["0", "1", "2", "3", "1", "2", "3"]


def test_a_server_that_was_started_again(log, server):
    """Its connections are gone; the pipe opens new ones, without a warning."""
    items = iter(chain(log, server))
    first = next(items)
    server.kill()
    server.start()

    check([first, *items])
    assert len(server.entries()) == 3


def test_a_server_that_hangs(log, server):
    """One answer is awaited for `timeout` seconds, and the server then left alone."""
    list(chain(log, server))
    server.signal(signal.SIGSTOP)
    try:
        with pytest.warns(CacheUnused, match="the store failed in get: TimeoutError") as warned:
            check(chain(log, server, range(40), timeout=0.2), range(40))
        with pytest.raises(StoreUnavailable, match="TimeoutError"):
            list(chain(log, server, timeout=0.2, on_error="raise"))
    finally:
        server.signal(signal.SIGCONT)
    assert len(warned) == 1


def test_a_server_that_is_full(log, server):
    """Items that it holds are still read from it."""
    list(chain(log, server, [0, 1]))
    server.ask("CONFIG", "SET", "maxmemory", "1kb")

    with pytest.warns(CacheUnused, match="the store failed in put: .*maxmemory") as warned:
        check(chain(log, server))
    assert len(warned) == 1
    assert made(log) == ["0", "1", "2", "3"]


def test_a_server_that_removes_items_itself(log, server):
    """They are made again; the bound of the pipe counts them no longer."""
    list(chain(log, server, store_bytes=6000))
    server.ask("DEL", *server.entries()[:2])

    check(chain(log, server, store_bytes=6000))
    check(chain(log, server, store_bytes=6000))
    assert len(made(log)) == 6


def test_a_damaged_value(log, server):
    """A value of another program, and one of another type."""
    list(chain(log, server))
    first, second, *_ = server.entries()
    server.ask("SETRANGE", first, 200, b"xx")
    server.ask("DEL", second)
    server.ask("LPUSH", second, "x")

    with pytest.warns(CacheUnused) as warned:
        check(chain(log, server))
    assert len(warned) == 1


def test_a_client_that_answers_with_texts(log, server):
    """An option of the user; no entry is one."""
    list(chain(log, server, [1]))
    first = server.entries()[0]
    server.ask("SET", first, b"text")

    with pytest.warns(CacheUnused, match="is damaged"):
        check(chain(log, server, [1], storage_options={"decode_responses": True}), [1])


def test_workers_survive_their_server(log, server):
    """Each goes on by itself, and batches are right."""
    service = vp.MultiProcessingReadingService(2, multiprocessing_context="fork")
    with vp.DataLoader2(chain(log, server, range(16)).batch(2), reading_service=service) as loader:
        batches = iter(loader)
        first = next(batches)
        server.kill()
        with pytest.warns(CacheUnused, match="the store failed"):
            rest = list(batches)

    check(itertools.chain(first, *rest), range(16))


def test_two_bounds_on_one_server(log, server):
    """The bound holds for all processes together, also while they write at once."""
    service = vp.MultiProcessingReadingService(2, multiprocessing_context="fork")
    pipe = chain(log, server, range(32), store_bytes=6000).batch(2)
    with vp.DataLoader2(pipe, reading_service=service) as loader:
        check(itertools.chain(*loader), range(32))

    sizes = [server.ask("STRLEN", name) for name in server.entries()]
    assert 3000 < sum(sizes) <= 6000
    assert int(server.ask("HGET", "voxpipe-sizes", "total")) == sum(sizes)


def test_no_password_is_shown(log, server):
    """Not by the pipe, its drawing, its state, a warning or an error."""
    pipe = chain(log, server)
    with vp.DataLoader2(pipe) as loader:
        list(loader)
        texts = [repr(loader.state_dict()), loader.explain()]
    texts += [repr(pipe), str(pipe), vp.explain(pipe), to_dot(pipe), repr(pipe.settings())]
    server.ask("CONFIG", "SET", "requirepass", "another")
    with pytest.warns(CacheUnused) as warned:
        list(chain(log, server))
    with pytest.raises(StoreUnavailable) as caught:
        list(chain(log, server, on_error="raise"))
    texts += [str(warned[0].message), str(caught.value), repr(caught.value)]
    texts += [str(pickle.loads(pickle.dumps(caught.value))), str(caught.value.__cause__)]

    assert [text for text in texts if PASSWORD in text] == []
    assert "127.0.0.1" in texts[-1] or "redis" in texts[2]
