"""URLs and options hold keys: no message, drawing or description of a chain shows them."""

import io
import pickle

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.utils.common import StreamWrapper

import voxpipe as vp
from voxpipe.core.errors import HashMismatch, StreamError, VolumeNotFound, VolumeReadError
from voxpipe.extensions.torchdata.streams import RedactingFile
from voxpipe.graph import to_dot, to_mermaid

TOKEN, KEY = "t0ken-of-mine", "k3y-of-mine"
URL = f"leaking://me:{TOKEN}@box/train/*/?token={TOKEN}"
USES = {"read": lambda f: f.read(), "list": list, "next": next, "seek": lambda f: f.seek(0)}


class LeakingFile(io.RawIOBase):
    """A file that fails when it is used, and quotes the key."""

    def _refused(self, *arguments):
        raise OSError(f"signature of {KEY} does not match")

    read = write = seek = readinto = __next__ = _refused


class LeakingSystem(MemoryFileSystem):
    """A file system whose errors quote what it was given, as some do."""

    protocol = "leaking"
    cachable = False

    def __init__(self, key="", **options):
        super().__init__(**options)
        self.key = key

    def find(self, path, **options):
        raise PermissionError(f"key {self.key} may not list {path}")

    def open(self, path, mode="rb", **options):
        return LeakingFile()


@pytest.fixture(autouse=True)
def leaking():
    """Register the file system, for one test."""
    fsspec.register_implementation("leaking", LeakingSystem, clobber=True)


def texts_of(pipe, error):
    """Return everything that may be printed of a chain and of how it failed."""
    texts = [str(error), repr(error), *map(str, getattr(error, "__notes__", []))]
    texts += [str(error.__cause__), "" if error.__suppress_context__ else str(error.__context__)]
    texts += [repr(pipe), vp.explain(pipe), to_mermaid(pipe), to_dot(pipe)]
    return [*texts, str(pickle.loads(pickle.dumps(error)))]


def leaks(pipe, error):
    return [text for text in texts_of(pipe, error) if TOKEN in text or KEY in text]


def test_listing_cases_tells_no_key():
    """An error of the file system arrives as ours, and the URL without user and query."""
    pipe = vp.list_cases(URL, storage_options={"key": KEY}, image="ct.nii")

    with pytest.raises(VolumeReadError, match="listing leaking://box/train/") as caught:
        list(pipe)

    assert leaks(pipe, caught.value) == []


def test_no_case_found_tells_no_token():
    """The message and the line under it."""
    pipe = vp.list_cases(f"memory://nowhere/*/?token={TOKEN}", image=f"ct.nii?sig={TOKEN}")
    other = vp.list_cases(image=f"memory://me:{TOKEN}@nowhere/*.nii?token={TOKEN}")

    for chain in (pipe.open_volume(), other):
        with pytest.raises(VolumeNotFound, match="no case matches") as caught:
            list(chain)
        assert leaks(chain, caught.value) == []


def test_a_new_token_is_the_same_chain():
    """A state can be resumed when a signed URL was signed again."""
    first, second = (
        vp.list_cases(f"memory://a/*/?token={token}", image="ct.nii") for token in (TOKEN, "other")
    )

    assert first.settings() == second.settings()


def test_appending_tells_no_key():
    """The file system is used directly, in one attempt."""
    pipe = IterableWrapper([("leaking://box/log", b"x")]).save_by_fsspec("ab", key=KEY)

    with pytest.raises(VolumeReadError, match="writing leaking://box/log failed") as caught:
        list(pipe)

    assert leaks(pipe, caught.value) == []


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_a_stream_of_the_file_system_tells_no_key(use):
    """However it is read after it was opened."""
    pipe = IterableWrapper(["leaking://box/a"])
    pipe = pipe.open_files_by_fsspec("rb", kwargs_for_open={"block_size": 5}, key=KEY)
    ((_, stream),) = list(pipe)

    with pytest.raises(VolumeReadError, match="reading leaking://box/a failed") as caught:
        use(stream)

    assert leaks(pipe, caught.value) == []


def test_a_stream_of_the_file_system_is_read_as_any_other():
    """By lines, as a context, to its end, and not once it is closed."""
    text = io.TextIOWrapper(io.BytesIO(b"one\ntwo\n"), encoding="utf-8")

    stream = RedactingFile(text, "memory://a.txt", {})

    assert list(stream) == ["one\n", "two\n"]
    with pytest.raises(StopIteration):
        next(stream)
    stream.seek(0)
    assert (stream.readline(), stream.seekable()) == ("one\n", True)
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.read()


def test_what_any_pipe_says_of_a_url():
    """Errors of ours and the lines of the user's calls are cut, whichever pipe it is."""
    signed = f"https://me:{TOKEN}@host/a.json?sig={TOKEN}"

    def broken():
        return IterableWrapper([(signed, StreamWrapper(io.BytesIO(b"{")))], deepcopy=False)

    chains = [
        (broken().parse_json_files(), ValueError),
        (broken().decompress(), StreamError),
        (broken().load_from_zip(), StreamError),
        (broken().check_hash({signed: "1"}, "sha256"), HashMismatch),
    ]
    for chain, kind in chains:
        with pytest.raises(kind) as caught:
            list(chain)
        assert leaks(chain, caught.value) == []
