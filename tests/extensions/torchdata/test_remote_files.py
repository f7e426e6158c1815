"""Files of web servers and buckets: streams that survive, errors and texts without secrets."""

import gc
import gzip
import io
import multiprocessing
import pickle
import zipfile

import fsspec
import pytest
from leftovers import open_files
from s3_server import Fault, S3Server
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper
from web_server import WebServer

import voxpipe as vp
from voxpipe.core.errors import (
    AccessDenied,
    NotOffered,
    StoreUnavailable,
    StreamError,
    VolumeNotFound,
    VolumeReadError,
)
from voxpipe.datapipes.iter import FSSpecFileLister, HttpReader

pytestmark = pytest.mark.usefixtures("started_clients")

CONTENT = bytes(range(256)) * 4000


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "2")


def read(server, path="/a", **options):
    ((_, stream),) = IterableWrapper([server.url + path]).read_from_http(**options)
    with stream.file_obj:
        return stream.read()


def test_a_file_of_a_server():
    """One request, whatever its size."""
    with WebServer({"/a": CONTENT}) as server:
        assert read(server) == CONTENT
        assert len(server.requests) == 1


def test_a_timeout_is_for_the_whole_wait(monkeypatch):
    """Not for each of the attempts that fit into the deadline of the process."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "3600")
    with WebServer({}) as server:
        gone = server.url
    urls = IterableWrapper([gone + "/a"])

    with pytest.raises(StoreUnavailable, match="more time: timeout=seconds, now") as e:
        list(urls.read_from_http(timeout=0.2))
    assert "VOXPIPE_REMOTE_DEADLINE" not in str(e.value)


@pytest.mark.parametrize("ranges", [True, False])
def test_a_broken_connection_goes_on_where_it_broke(ranges):
    """By a range, or by passing over what was read already."""
    with WebServer({"/a": CONTENT}, ranges=ranges, cuts=1, cut_after=300_000) as server:
        assert read(server) == CONTENT
        asked = [headers["Range"] for _, headers in server.requests]

    # How much of the first answer arrived is up to the network.
    assert [asked[0], len(asked)] == ["bytes=0-", 2]


def test_a_server_that_is_busy_is_asked_again():
    """503 passes."""
    with WebServer({"/a": CONTENT}, fails=2) as server:
        assert read(server) == CONTENT
        assert len(server.requests) == 3


def test_a_file_that_changes_in_between_is_told():
    """Half of one version and half of the next is neither."""
    with WebServer({"/a": CONTENT}, cuts=1, cut_after=300_000) as server:
        ((_, stream),) = IterableWrapper([server.url + "/a"]).read_from_http()
        server.version = "v2"
        with pytest.raises(StreamError, match="changed while it was being read"):
            stream.read()
        stream.close()


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize(
    ("path", "encoding"),
    [
        *(("/a", encoding) for encoding in ("gzip", "deflate", "br", "zstd", "identity, GZip")),
        *(("/a.nii.gz", "br"), ("/a.nii.gz", "gzip, gzip")),
    ],
)
def test_a_compressed_answer_is_refused(path, encoding, ranges):
    """The server was asked for the bytes of the file; of no coding there is a part."""
    with WebServer({path: gzip.compress(CONTENT)}, ranges=ranges) as server:
        server.headers["Content-Encoding"] = encoding
        with pytest.raises(VolumeReadError, match=f"compresses its answers .it sends {encoding}"):
            read(server, path)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("path", "encoding"),
    [("/a", ""), ("/a", "identity"), ("/a.nii.gz?x=1", "gzip"), ("/a.TGZ", "X-Gzip")],
)
def test_the_bytes_of_a_file_come_as_they_are_stored(path, encoding):
    """A server announces a file of gzip by its type, without an encoding."""
    stored = gzip.compress(CONTENT)
    with WebServer({path.partition("?")[0]: stored}, cuts=1, cut_after=300) as server:
        server.headers["Content-Encoding"] = encoding
        assert read(server, path) == stored


def test_a_file_of_another_size_is_another_file():
    """Also from a server that tells no versions."""
    with WebServer({"/a": CONTENT}, cuts=1, cut_after=300_000) as server:
        server.version = ""
        ((_, stream),) = IterableWrapper([server.url + "/a"]).read_from_http()
        server.contents["/a"] = CONTENT + b"more"
        with pytest.raises(StreamError, match="changed while it was being read"):
            stream.read()
        stream.close()


def test_an_empty_file_and_one_of_unknown_length():
    """Of nothing there is no range; without a length the end of the body is the end."""
    with WebServer({"/a": b""}) as server:
        assert read(server) == b""
    with WebServer({"/a": CONTENT}, ranges=False, length=False) as server:
        assert read(server) == CONTENT


def test_a_stream_goes_back_where_the_server_knows_ranges():
    """So members of a zip archive come without the rest of it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("large", bytes(10**6))
        archive.writestr("small", b"hello")
    for ranges in (True, False):
        with WebServer({"/a.zip": file.getvalue()}, ranges=ranges) as server:
            source = IterableWrapper([server.url + "/a.zip"]).read_from_http()
            assert next(iter(source))[1].seekable() is ranges
            found = {path[-5:]: stream.read() for path, stream in source.load_from_zip()}
            assert found == {"large": bytes(10**6), "small": b"hello"}


def test_what_is_not_there():
    """The class is the built-in one, too; nothing is tried again."""
    with WebServer({}) as server:
        with pytest.raises(FileNotFoundError) as caught:
            read(server)
        assert caught.type is VolumeNotFound
        assert len(server.requests) == 1


def test_what_is_not_there_is_told_with_its_number():
    """404 before the URL, in the words that tests of torchdata's users match."""
    with WebServer({"/a": b"x"}) as server:
        with pytest.raises(VolumeNotFound, match=f"404.+{server.url}/b"):
            list(HttpReader(IterableWrapper([server.url + "/b"])))
        some = IterableWrapper([server.url + "/b", server.url + "/a"])
        with pytest.warns(UserWarning, match=f"404.+{server.url}/b.+skipping"):
            assert len(list(HttpReader(some, skip_on_error=True))) == 1


def test_a_server_that_refuses():
    """Nothing is tried again."""
    with WebServer({"/a": b"x"}, fails=10, status=403) as server:
        with pytest.raises(PermissionError, match="refused with status 403") as caught:
            read(server)
        assert caught.type is AccessDenied
        assert len(server.requests) == 1


def test_a_server_that_stays_down():
    """Until the deadline, which the environment sets."""
    with WebServer({"/a": b"x"}, fails=10**6) as server, pytest.raises(StoreUnavailable) as caught:
        read(server)
    assert isinstance(caught.value, ConnectionError)


def test_urls_that_fail_can_be_left_out():
    """With a warning that shows no secret."""
    with WebServer({"/a": b"x"}) as server:
        urls = IterableWrapper([server.url + "/b?sig=s3cret", server.url + "/a"])
        pipe = HttpReader(urls, skip_on_error=True, auth=("me", "pass1word"))
        with pytest.warns(UserWarning, match="is left out") as told:
            found = [stream.read() for _, stream in pipe]
        assert found == [b"x"]
        assert "s3cret" not in str(told[0].message)
        assert len(pipe) == 2  # the most that there can be
    assert len(HttpReader(urls)) == 2


def test_options_of_requests():
    """Those that users of torchdata give, translated."""
    with WebServer({"/a": b"x"}) as server:
        read(server, headers={"X-Own": "1"}, auth=("me", "pw"), params={"v": "2"}, verify=False)
        path, headers = server.requests[0]
    assert path == "/a?v=2"
    assert headers["X-Own"] == "1"
    assert headers["Authorization"] == "Basic bWU6cHc="
    with pytest.raises(TypeError, match="HTTP has no option 'pool'"):
        read(server, pool="s3cret")


def test_no_secret_is_shown():
    """Not by the pipe, its copy, its settings, nor an error of the server."""
    with WebServer({}) as server:
        urls = IterableWrapper([server.url + "/a?sig=s3cret"])
        pipes = [
            urls.read_from_http(timeout=5, auth=("me", "pass1word")),
            urls.open_files_by_fsspec("rb", headers={"Authorization": "pass1word"}),
            FSSpecFileLister(server.url + "/x?sig=s3cret", headers={"Authorization": "pass1word"}),
        ]
        for pipe in pipes:
            with pytest.raises(VolumeReadError) as caught:
                list(pipe)
            texts = [str(caught.value), repr(caught.value), repr(pipe), vp.explain(pipe)]
            texts += [repr(pipe.settings()), repr(pickle.loads(pickle.dumps(pipe)))]
            cause = caught.value.__cause__
            texts += [str(cause)]
            assert [t for t in texts if "pass1word" in t or "s3cret" in t] == []
    assert repr(pipes[0]) == "read_from_http(timeout=5, storage_options={…})"


def test_connections_end_with_their_streams():
    """At the end, in the middle, and where nobody reads at all."""
    before = open_files()
    with WebServer({"/a": CONTENT}) as server:
        pipe = IterableWrapper([server.url + "/a"] * 3).read_from_http()
        list(pipe.readlines())
        items = iter(pipe)
        _, stream = next(items)
        stream.read(10)
        del items, stream
        list(pipe)
    gc.collect()

    assert open_files() <= before


def first_byte(item):
    return item[1].read(1)


def test_in_forked_workers():
    """A child has an event loop of its own, and leaves the connections of its parent alone."""
    with WebServer({"/a": b"x" * 10**6, "/b": b"y"}) as server:
        pipe = IterableWrapper([server.url + "/a", server.url + "/b"]).read_from_http()
        items = iter(pipe)
        _, stream = next(items)
        stream.read(1)
        loader = DataLoader(
            pipe.map(first_byte), batch_size=None, num_workers=1, multiprocessing_context="fork"
        )
        assert list(loader) == [b"x", b"y"]
        assert len(stream.read()) == 10**6 - 1
        del items, stream


AT_EXIT = """
import sys
from torch.utils.data.datapipes.iter import IterableWrapper
import voxpipe.datapipes
kept = [stream for _, stream in IterableWrapper([sys.argv[1]]).read_from_http()]
kept[0].read(1)
"""


@pytest.mark.slow
def test_a_stream_that_is_open_when_the_program_ends(warm_python):
    """The thread with the connection has ended by then: nobody may wait for it."""
    with WebServer({"/a": b"x" * 10**6}) as server:
        done = warm_python.run(AT_EXIT, server.url + "/a")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def rest_in_a_child(stream, told):
    told.send(stream.read())


def test_a_stream_of_the_parent_goes_on_in_a_forked_child():
    """With a connection of its own, from where the parent stood."""
    with WebServer({"/a": CONTENT}) as server:
        ((_, stream),) = IterableWrapper([server.url + "/a"]).read_from_http()
        stream.read(100)
        fork = multiprocessing.get_context("fork")
        ours, theirs = fork.Pipe()
        child = fork.Process(target=rest_in_a_child, args=(stream, theirs))
        child.start()
        assert ours.recv() == CONTENT[100:]
        child.join()
        child.close()
        ours.close()
        theirs.close()
        assert stream.read() == CONTENT[100:]
        stream.close()


def test_drives_and_rar_archives_are_refused():
    """In a sentence that says what to do."""
    source = IterableWrapper(["https://drive.google.com/uc?id=1"])
    with pytest.raises(NotOffered, match="not read from Google Drive"):
        source.read_from_gdrive()
    with pytest.raises(NotOffered, match="not read from Google Drive"):
        list(source.read_from_remote())
    with pytest.raises(NotImplementedError, match=r"rar archives are not opened[\s\S]*\.zip"):
        source.load_from_rar()
    with pytest.raises(ValueError, match="http or https"):
        list(IterableWrapper(["ftp://host/a"]).read_from_remote())
    with pytest.raises(ValueError, match="positive number of seconds"):
        source.read_from_http(timeout=0)


def test_remote_reads_what_http_reads():
    """But for the drives."""
    with WebServer({"/a": b"x"}) as server:
        source = IterableWrapper([server.url + "/a"])
        assert [stream.read() for _, stream in source.read_from_remote()] == [b"x"]
        for mode in ("rb", "r"):
            ((_, stream),) = source.open_files_by_fsspec(mode)
            assert stream.read() == ("x" if mode == "r" else b"x")


def test_a_local_folder(tmp_path):
    """Sorted, and in the form in which it was written; a file is itself."""
    for name in ("b.nii", "a.nii", "c.txt"):
        (tmp_path / name).write_text(name)
    root = str(tmp_path)

    assert list(FSSpecFileLister(root, "*.nii")) == [f"{root}/a.nii", f"{root}/b.nii"]
    assert list(FSSpecFileLister(f"file://{root}", ["a*", "c*"])) == [
        f"file://{root}/a.nii",
        f"file://{root}/c.txt",
    ]
    several = IterableWrapper([f"{root}/c.txt", root]).list_files_by_fsspec()
    assert len(list(several)) == 4
    assert len(list(FSSpecFileLister([root, root]))) == 6
    for mode, expected in (("r", "a.nii"), ("rb", b"a.nii"), ("rt", "a.nii"), ("b", b"a.nii")):
        opened = FSSpecFileLister(f"file://{root}", "a*").open_files_by_fsspec(mode)
        assert [stream.read() for _, stream in opened] == [expected]
    latin = FSSpecFileLister(root, "a*").open_files_by_fsspec(
        kwargs_for_open={"encoding": "latin-1"}
    )
    assert [stream.encoding for _, stream in latin] == ["latin-1"]


def test_a_chain_of_file_systems(tmp_path):
    """What is inside of an archive is listed and opened by its whole URL."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/x.txt", "hello")
    root = f"zip://in::file://{tmp_path}/a.zip"

    (found,) = FSSpecFileLister(root)

    assert found == f"zip://in/x.txt::file://{tmp_path}/a.zip"
    opened = IterableWrapper([found]).open_files_by_fsspec("rb")
    assert [stream.read() for _, stream in opened] == [b"hello"]


def test_a_bucket(tmp_path):
    """Listed, opened, read by ranges, written; what fails for a moment is tried again."""
    (tmp_path / "bucket" / "in").mkdir(parents=True)
    (tmp_path / "bucket" / "in" / "a.bin").write_bytes(CONTENT)
    with S3Server(tmp_path) as server:
        options = {"storage_options": server.storage_options}
        listed = FSSpecFileLister("s3://bucket/in", **options)
        assert list(listed) == ["s3://bucket/in/a.bin"]
        server.fail(Fault("slow_down", times=2))
        opened = listed.open_files_by_fsspec("rb", **server.storage_options)
        ((_, stream),) = opened
        assert stream.read() == CONTENT
        assert stream.seek(-3, 2) == len(CONTENT) - 3
        assert stream.read() == CONTENT[-3:]
        server.fail(Fault("slow_down", times=1, method="PUT"))
        saved = IterableWrapper([("x/y", b"one"), ("z", "twö")]).save_by_fsspec(
            "wb", "s3://bucket/out/{}".format, **options
        )
        assert list(saved) == ["s3://bucket/out/x/y", "s3://bucket/out/z"]
        assert (tmp_path / "bucket/out/z").read_text("utf-8") == "twö"
        assert "nothing" not in repr(opened) + repr(saved) + repr(listed)
        fsspec.filesystem("s3", **server.storage_options).invalidate_cache()


def test_saving_by_fsspec(tmp_path):
    """Folders are made; appending and options of open() go to the file system."""
    items = [(f"{tmp_path}/x/a.txt", "one"), (f"{tmp_path}/x/b.txt", io.BytesIO(b"two"))]
    source = IterableWrapper(items, deepcopy=False)

    assert list(source.save_by_fsspec()) == [path for path, _ in items]
    assert (tmp_path / "x/b.txt").read_bytes() == b"two"
    list(IterableWrapper(items[:1]).save_by_fsspec("a"))
    assert (tmp_path / "x/a.txt").read_text() == "oneone"
    packed = IterableWrapper([(f"{tmp_path}/c.gz", b"zzz")])
    list(packed.save_by_fsspec("wb", kwargs_for_open={"compression": "gzip"}))
    opened = IterableWrapper([f"{tmp_path}/c.gz"]).open_files_by_fsspec(
        "rb", kwargs_for_open={"compression": "gzip"}
    )
    assert [stream.read() for _, stream in opened] == [b"zzz"]
    assert len(source.save_by_fsspec()) == len(source.save_to_disk()) == 2


def test_a_download_that_is_kept(tmp_path):
    """Asked for once, in whole; a bomb in it is bounded where it is unpacked."""
    with WebServer({"/a.bin": CONTENT}, cuts=1, cut_after=300_000) as server:
        urls = IterableWrapper([server.url + "/a.bin"])
        begun = urls.on_disk_cache(lambda url: f"{tmp_path}/{url.rpartition('/')[2]}")
        kept = begun.read_from_http().end_caching(same_filepath_fn=True)
        assert list(kept) == list(kept) == [str(tmp_path / "a.bin")]
        assert len(server.requests) == 2
    assert (tmp_path / "a.bin").read_bytes() == CONTENT


def test_cases_that_may_not_be_listed(tmp_path):
    """A refusal is told as one, at once."""
    (tmp_path / "bucket" / "case").mkdir(parents=True)
    (tmp_path / "bucket" / "case" / "ct.nii").touch()
    with S3Server(tmp_path) as server:
        server.fail(Fault("deny"))
        options = server.storage_options
        pipe = vp.list_cases("s3://bucket/*/", image="ct.nii", storage_options=options)

        with pytest.raises(AccessDenied, match=r"s3://bucket.* was refused(.|\n)*storage_o"):
            list(pipe)
