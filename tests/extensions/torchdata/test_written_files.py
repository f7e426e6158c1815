"""Files that are written appear whole; files that are checked are what they must be."""

import hashlib
import io
import os

import pytest
from torch.utils.data.datapipes.iter import FileOpener, IterableWrapper
from torch.utils.data.datapipes.utils.common import StreamWrapper

import voxpipe.datapipes  # noqa: F401  (registers the chained forms)
from voxpipe.core.errors import HashMismatch, SampleError


def in_folder(folder):
    return lambda name: os.path.join(folder, name)


@pytest.mark.parametrize("mode", ["w", "wb", "b", "wt", "t"])
def test_what_can_be_saved(tmp_path, mode):
    """Bytes, text, streams, pieces; folders are made and files replaced."""
    data = {"x/1": b"one", "x/2": "twö", "3": io.BytesIO(b"three"), "4": [b"fo", "ur"]}
    source = IterableWrapper(list(data.items()), deepcopy=False)
    (tmp_path / "3").write_text("old")

    paths = list(source.save_to_disk(mode, in_folder(tmp_path)))

    assert paths == [os.path.join(tmp_path, name) for name in data]
    found = [open_text(path) for path in paths]
    assert found == ["one", "twö", "three", "four"]
    assert len(source.save_to_disk()) == 4


def open_text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def test_a_file_in_the_current_folder(tmp_path, monkeypatch):
    """Torchdata fails there: it tries to make a folder without a name."""
    monkeypatch.chdir(tmp_path)

    assert list(IterableWrapper([("a.txt", b"x")]).save_to_disk()) == ["a.txt"]
    assert open_text("a.txt") == "x"


def broken():
    yield b"half"
    raise OSError("gone")


def test_half_a_file_is_none(tmp_path):
    """What stood there before stays."""
    (tmp_path / "a").write_text("old")

    with pytest.raises(OSError, match="gone"):
        list(
            IterableWrapper([("a", broken())], deepcopy=False).save_to_disk(
                "wb", in_folder(tmp_path)
            )
        )

    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert open_text(tmp_path / "a") == "old"


def test_what_cannot_be_saved(tmp_path):
    """A mode that is none of writing, data that are none, items that are no pairs."""
    with pytest.raises(ValueError, match="mode is"):
        IterableWrapper([]).save_to_disk("a")
    for item in [("x", 3), ("x", {}), "x"]:
        with pytest.raises(SampleError):
            list(IterableWrapper([item]).save_to_disk("w", in_folder(tmp_path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_hashes_that_hold(tmp_path, kind):
    """Items pass on as they are; a stream is at its beginning, or at its end if so wanted."""
    (tmp_path / "a").write_bytes(b"hello")
    path = str(tmp_path / "a")
    hashes = {path: hashlib.new(kind, b"hello").hexdigest().upper()}

    for data in (b"hello", "hello", bytearray(b"hello")):
        assert list(IterableWrapper([(path, data)]).check_hash(hashes, kind)) == [(path, data)]
    opened = FileOpener(IterableWrapper([path]), mode="rb")
    assert [stream.read() for _, stream in opened.check_hash(hashes, kind)] == [b"hello"]
    assert [stream.read() for _, stream in opened.check_hash(hashes, kind, rewind=False)] == [b""]
    assert len(IterableWrapper([1, 2]).check_hash(hashes, kind)) == 2


class Arriving(io.BytesIO):
    def seekable(self):
        return False


def test_hashes_that_do_not_hold():
    """The message has both; the stream is closed."""
    stream = StreamWrapper(io.BytesIO(b"hello"))
    with pytest.raises(RuntimeError, match="does not match the expected 0000") as caught:
        list(IterableWrapper([("a", stream)], deepcopy=False).check_hash({"a": "0000"}))
    assert caught.type is HashMismatch
    assert stream.closed
    with pytest.raises(RuntimeError, match="Unspecified hash for file a"):
        list(IterableWrapper([("a", b"")]).check_hash({}))
    with pytest.raises(ValueError, match="Invalid hash_type"):
        IterableWrapper([]).check_hash({}, "sha1")
    with pytest.raises(SampleError, match="cannot go back"):
        list(IterableWrapper([("a", Arriving(b""))], deepcopy=False).check_hash({"a": "0"}))
