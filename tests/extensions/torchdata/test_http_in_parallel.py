"""Files of web servers requested at once: order, bounds, errors in their place, nothing left."""

import contextlib
import threading

import pytest
from leftovers import open_files
from torch.utils.data.datapipes.iter import IterableWrapper
from web_server import WebServer

import voxpipe as vp
from voxpipe.core.errors import StoreUnavailable, VolumeNotFound

LONGEST_WAIT = 60.0  # of a test that fails


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


class WaitingServer(WebServer):
    """Answers each request when ``at_once`` of them are there, and counts those in work."""

    def __init__(self, contents, at_once=1, **options):
        super().__init__(contents, **options)
        self._server.socket.listen(64)  # else connections of more than five wait for a second
        self._together = threading.Barrier(at_once)
        self._lock = threading.Lock()
        self.in_work = self.most_in_work = 0

    def answer(self, request):
        with self._lock:
            self.in_work += 1
            self.most_in_work = max(self.most_in_work, self.in_work)
        try:
            self._together.wait(LONGEST_WAIT)
            super().answer(request)
        except threading.BrokenBarrierError:
            request.close_connection = True
        finally:
            with self._lock:
                self.in_work -= 1

    def release(self):
        """Let all requests go that wait for others."""
        self._together.abort()


def urls_of(server, count):
    return IterableWrapper([f"{server.url}/{n}" for n in range(count)])


def contents(count):
    return {f"/{n}": str(n).encode() for n in range(count)}


def read(pipe):
    """Return the name and the bytes of each file."""
    return [(url.rpartition("/")[2], stream.read()) for url, stream in pipe]


def test_all_files_are_requested_at_once():
    """The server answers none before it has all sixteen requests; the order is that of the URLs."""
    with WaitingServer(contents(16), at_once=16) as server:
        found = read(urls_of(server, 16).read_from_http(max_concurrency=16))

    assert found == [(str(n), str(n).encode()) for n in range(16)]


def test_no_more_than_that_at_once():
    """Four of sixteen, and each once."""
    with WaitingServer(contents(16), at_once=4) as server:
        found = read(urls_of(server, 16).read_from_http(max_concurrency=4))
        assert server.most_in_work == 4
        assert len(server.requests) == 16

    assert [name for name, _ in found] == [str(n) for n in range(16)]


def test_one_at_a_time_without_the_argument():
    """No URL is taken from the parent before its turn, and no thread is started."""
    taken = []
    with WaitingServer(contents(3)) as server:
        urls = urls_of(server, 3).header(3).map(lambda url: taken.append(url) or url)
        items = iter(urls.read_from_http())
        next(items)
        assert len(taken) == 1
        assert running() == []
        del items


def running():
    return [t.name for t in threading.enumerate() if t.name.startswith("read_from_http")]


@pytest.mark.parametrize("skip", [False, True])
def test_an_error_is_in_its_place(skip):
    """Files before it arrive; it is raised at its turn, or left out with a warning."""
    with WaitingServer({"/0": b"0", "/2": b"2"}, at_once=3) as server:
        pipe = urls_of(server, 3).read_from_http(max_concurrency=3, skip_on_error=skip)
        items = iter(pipe)
        assert next(items)[1].read() == b"0"
        if skip:
            with pytest.warns(UserWarning, match=r"404.*/1 is left out"):
                assert next(items)[1].read() == b"2"
            assert list(items) == []
        else:
            with pytest.raises(VolumeNotFound, match=r"404.*/1"):
                next(items)

    assert running() == []


def test_the_bytes_that_wait_are_bounded():
    """Each of two files has half of the buffer; the rest comes when it is read."""
    large = {f"/{n}": bytes(2**20) for n in range(2)}
    with WebServer(large) as server:
        pipe = urls_of(server, 2).read_from_http(max_concurrency=2, buffer_bytes=2**17)
        for _, stream in pipe:
            assert len(stream.file_obj.peek()) == 2**16
            assert len(stream.read()) == 2**20


def test_an_iteration_that_is_left_leaves_nothing():
    """No thread, and no connection of a file that nobody has read."""
    before = open_files()
    with WaitingServer(contents(8), at_once=4) as server:
        items = iter(urls_of(server, 8).read_from_http(max_concurrency=4))
        _, stream = next(items)
        server.release()
        del items
        assert running() == []
        assert stream.read() == b"0"
        stream.close()

    assert open_files() <= before


def test_a_server_that_does_not_answer_ends_at_the_timeout():
    """Also where another file is waited for at the same time."""
    with WaitingServer(contents(2), at_once=3) as server, contextlib.closing(server_end(server)):
        pipe = urls_of(server, 2).read_from_http(timeout=0.2, max_concurrency=2)
        with pytest.raises(StoreUnavailable, match="/0"):
            list(pipe)

    assert running() == []


class server_end:  # noqa: N801  used as a function
    """Releases the requests of a server when it is closed."""

    def __init__(self, server):
        self.close = server.release


def as_bytes(item):
    return item[1].read()


def test_the_files_of_a_batch_are_requested_at_once_by_a_worker():
    """A batch of four; the server waits for four requests."""
    with WaitingServer(contents(8), at_once=4) as server:
        pipe = urls_of(server, 8).read_from_http(max_concurrency=4).map(as_bytes).batch(4)
        service = vp.MultiProcessingReadingService(1, multiprocessing_context="fork")
        with vp.DataLoader2(pipe, reading_service=service) as loader:
            assert list(loader) == [[b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"]]


@pytest.mark.parametrize("wrong", [{"max_concurrency": 0}, {"buffer_bytes": 0}])
def test_bounds_are_checked(wrong):
    """At construction, by name."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        IterableWrapper([]).read_from_http(**wrong)
