"""Members of archives are read as streams; damage, bombs and names that lead out are told."""

import bz2
import gzip
import io
import lzma
import struct
import tarfile
import zipfile

import pytest
from leftovers import open_files
from torch.utils.data.datapipes.iter import FileOpener, IterableWrapper
from torch.utils.data.datapipes.utils.common import StreamWrapper

import voxpipe.datapipes
from voxpipe.core.errors import SampleError, StreamError

MEMBERS = {"p0/a.txt": b"first", "p0/b.bin": bytes(range(256)) * 40, "c.txt": b""}


LINKS = {"folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE}


def tar_bytes(members, mode="w"):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def zip_bytes(members, method=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


class Arriving(io.RawIOBase):
    """A stream that cannot go back, and counts what was taken of it."""

    def __init__(self, content):
        self.rest = io.BytesIO(content)
        self.taken = 0

    def readable(self):
        return True

    def seekable(self):
        return False

    def readinto(self, buffer):
        count = self.rest.readinto(buffer)
        self.taken += count
        return count


def pipe_of(name, content):
    stream = content if isinstance(content, io.IOBase) else io.BytesIO(content)
    return IterableWrapper([(name, stream)], deepcopy=False)


def contents(pipe):
    return {path: stream.read() for path, stream in pipe}


EXPECTED = {f"x/{name}": content for name, content in MEMBERS.items()}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize("arrives", [False, True])
def test_members_of_tar_archives(mode, arrives):
    """Compressed or not, from a file or from a stream that cannot go back."""
    content = tar_bytes(MEMBERS, mode)
    source = pipe_of("x", Arriving(content) if arrives else content)

    assert contents(source.load_from_tar()) == EXPECTED


@pytest.mark.parametrize("arrives", [False, True])
def test_members_of_zip_archives(arrives):
    """An archive that arrives is put into a file first: its table stands at its end."""
    content = zip_bytes(MEMBERS)
    source = pipe_of("x", Arriving(content) if arrives else content)

    assert contents(source.load_from_zip()) == EXPECTED


@pytest.mark.parametrize("form", ["tar", "zip"])
def test_members_can_be_read_after_the_end(form):
    """As with torchdata: whoever holds a member can read it."""
    content = tar_bytes(MEMBERS) if form == "tar" else zip_bytes(MEMBERS)
    pipe = getattr(pipe_of("x", content), f"load_from_{form}")()

    members = list(pipe)

    assert {path: stream.read() for path, stream in members} == EXPECTED


def test_an_archive_is_not_loaded():
    """The first member is there when little more than it was taken."""
    large = {"a": b"first", "b": bytes(10**7)}
    source = Arriving(tar_bytes(large))
    items = iter(pipe_of("x", source).load_from_tar())

    _, stream = next(items)

    assert stream.read() == b"first"
    assert source.taken < 10**5


def test_headers_of_members_are_not_kept():
    """A kilobyte for each member would be gigabytes for a large archive."""
    content = io.BytesIO(tar_bytes({f"{n}": b"" for n in range(500)}))
    with tarfile.open(fileobj=content) as tar:
        source = IterableWrapper([("x", StreamWrapper(tar))], deepcopy=False)
        kept = [len(tar.members) for _ in source.load_from_tar()]

    assert len(kept) == 500
    assert max(kept) <= 1


def test_what_is_no_file_is_left_out():
    """A link could point anywhere."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, kind in LINKS.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)

    assert list(pipe_of("x", file.getvalue()).load_from_tar()) == []
    assert list(pipe_of("x", zip_bytes({"folder/": b""})).load_from_zip()) == []


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..\\evil", "C:\\evil", ".."])
@pytest.mark.parametrize("form", ["tar", "zip"])
def test_a_member_that_leads_out_is_refused(name, form):
    """Written under that name, it would land outside of the archive's folder."""
    content = tar_bytes({name: b"x"}) if form == "tar" else zip_bytes({name: b"x"})

    with pytest.raises(StreamError, match="leads out of it"):
        list(getattr(pipe_of("x", content), f"load_from_{form}")())


def test_extractall_of_a_tar_stays_inside(tmp_path):
    """The archive that decompress() opens is as careful with those who unpack it themselves."""
    if not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has no filters for extraction")
    content = tar_bytes({"../evil": b"x"})
    ((_, tar),) = pipe_of("x.tar", content).decompress()

    with pytest.raises(tarfile.OutsideDestinationError):
        tar.extractall(tmp_path / "inside")
    assert not (tmp_path / "evil").exists()
    tar.close()


@pytest.mark.parametrize("keep", [700, 1000, 1536 + 100])
def test_a_tar_that_ends_early_is_told(keep):
    """In the middle of a member, and in the middle of a header, which tarfile takes for the end."""
    content = tar_bytes({"a": b"x" * 600, "b": b"y" * 600})[:keep]

    for source in (content, Arriving(content)):
        with pytest.raises(StreamError):
            contents(pipe_of("x", source).load_from_tar())


def test_a_tar_with_a_garbled_header_is_told():
    """Tarfile takes one in the middle for the end, and leaves out the rest without a word."""
    content = bytearray(tar_bytes({"a": b"x", "b": b"y"}))
    content[1024:1100] = bytes(range(1, 77))

    with pytest.raises(StreamError, match="x cannot be read"):
        contents(pipe_of("x", bytes(content)).load_from_tar())


def test_what_is_no_archive_is_told():
    """The message names the file."""
    with pytest.raises(StreamError, match=r"a\.tar cannot be read"):
        list(pipe_of("a.tar", b"no archive at all" * 100).load_from_tar())
    with pytest.raises(StreamError, match=r"a\.zip cannot be read"):
        list(pipe_of("a.zip", b"no archive at all" * 100).load_from_zip())


@pytest.mark.parametrize(
    ("form", "compress"),
    [
        ("load_from_xz", lzma.compress),
        ("load_from_bz2", bz2.compress),
        ("decompress", gzip.compress),
    ],
)
def test_compressed_files(form, compress):
    """One stream becomes one; damage, early ends and bombs are told while reading."""
    name = {"load_from_xz": "axx.xz", "load_from_bz2": "a2b.bz2"}.get(form, "a.gz")
    plain = b"hello" * 1000

    def opened(content, **options):
        ((path, stream),) = getattr(pipe_of(name, content), form)(**options)
        return path, stream

    path, stream = opened(compress(plain))
    assert (path, stream.read()) == (
        name if form == "decompress" else name.rpartition(".")[0],
        plain,
    )
    assert stream.seek(5) == 5
    assert stream.read(5) == b"hello"
    for damaged in (compress(plain)[:-9], b"nothing of the kind"):
        _, stream = opened(damaged)
        with pytest.raises(StreamError, match="cannot be read"):
            stream.read()
    # 10 MB of zeros in some kilobytes: nothing beyond the bound is given.
    _, bomb = opened(compress(bytes(10**7)), most_bytes=10**6)
    for _ in range(2):
        with pytest.raises(StreamError, match="more than the 1000000 bytes"):
            bomb.read()
    bomb.seek(10**6 + 5)
    with pytest.raises(StreamError, match="more than the 1000000 bytes"):
        bomb.readline()


@pytest.mark.parametrize("form", ["tar", "zip"])
def test_a_member_may_not_grow(form):
    """What can be read before the bound is read; the bound itself is allowed."""
    content = (
        tar_bytes({"a": bytes(10**6)}, "w:gz") if form == "tar" else zip_bytes({"a": bytes(10**6)})
    )
    source = pipe_of("x", content)

    with pytest.raises(StreamError, match="x/a holds more than the 999999 bytes"):
        contents(getattr(source, f"load_from_{form}")(most_bytes=999_999))
    source = pipe_of("x", content)
    assert contents(getattr(source, f"load_from_{form}")(most_bytes=10**6)) == {"x/a": bytes(10**6)}


def test_what_is_stored_as_it_is_may_be_large(monkeypatch):
    """Nobody can make much of little there; what is compressed is bounded."""
    monkeypatch.setattr("voxpipe.extensions.torchdata.archives.MOST_BYTES", 999)
    large = {"a": bytes(1000)}
    for content in (tar_bytes(large), Arriving(tar_bytes(large))):
        assert contents(pipe_of("x", content).load_from_tar()) == {"x/a": bytes(1000)}
    stored = zip_bytes(large, zipfile.ZIP_STORED)
    assert contents(pipe_of("x", stored).load_from_zip()) == {"x/a": bytes(1000)}
    for pipe in (
        pipe_of("x", tar_bytes(large, "w:gz")).load_from_tar(),
        pipe_of("x", Arriving(tar_bytes(large, "w:gz"))).load_from_tar(),
        pipe_of("x", zip_bytes(large)).load_from_zip(),
    ):
        with pytest.raises(StreamError, match="more than the 999 bytes"):
            contents(pipe)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_may_not_grow(kind):
    """Tarfile reads it into memory before anybody sees a member."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, 64 * 1024**2
    content = gzip.compress(info.tobuf() + bytes(info.size + 1024))

    for source in (content, Arriving(content)):
        with pytest.raises(StreamError, match="a header of 67108864 bytes"):
            contents(pipe_of("x", source).load_from_tar())


def test_a_compressed_archive_is_no_plain_one():
    """At some times of writing, the start of a gzip file has the checksum of a tar header."""
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 64 * 1024**2
    content = bytearray(gzip.compress(info.tobuf() + bytes(info.size + 1024), mtime=0))
    left = -sum(struct.unpack("148b8x356b", content[:512])) - 256
    time = [max(-128, min(127, left)), 0, 0, 0]
    time[1] = left - time[0]
    content[4:8] = struct.pack("4b", *time)
    assert tarfile.TarInfo.frombuf(content[:512], "utf-8", "surrogateescape").name[0] == "\x1f"

    with pytest.raises(StreamError, match="a header of 67108864 bytes"):
        contents(pipe_of("x", bytes(content)).load_from_tar())


def test_long_names():
    """Those that need a header of their own."""
    name = "/".join(["a" * 90] * 5)

    assert contents(pipe_of("x", tar_bytes({name: b"y"})).load_from_tar()) == {f"x/{name}": b"y"}


def test_an_encrypted_member_is_told():
    """Zipfile raises RuntimeError, without the archive's name."""
    content = bytearray(zip_bytes({"a": b"x"}))
    content[6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1

    with pytest.raises(StreamError, match="x/a cannot be read"):
        contents(pipe_of("x", bytes(content)).load_from_zip())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tar", tar_bytes(MEMBERS)),
        ("b.c.tar.gz", tar_bytes(MEMBERS, "w:gz")),
        ("a.TGZ", tar_bytes(MEMBERS, "w:gz")),
        ("a.zip", zip_bytes(MEMBERS)),
    ],
)
def test_decompress_opens_archives(name, content):
    """Their loaders take what it opened, whether the file can go back or not."""
    form = "load_from_zip" if name.endswith("zip") else "load_from_tar"

    for source in (content, Arriving(content)):
        pipe = getattr(pipe_of(name, source).decompress(), form)()
        assert contents(pipe) == {f"{name}/{member}": text for member, text in MEMBERS.items()}


def test_decompress_is_told_what_it_is():
    """By a word or by the enumeration; extract is its older name."""
    for kind in ("GZip", voxpipe.datapipes.iter.CompressionType.GZIP):
        assert contents(pipe_of("x", gzip.compress(b"y")).extract(kind)) == {"x": b"y"}
    with pytest.raises(ValueError, match="is not a valid CompressionType"):
        pipe_of("x", b"").decompress("rar")
    with pytest.raises(RuntimeError, match="does not match any compression"):
        list(pipe_of("x.nii", b"").decompress())


@pytest.mark.parametrize("item", ["x", ("x", b"bytes"), (1, io.BytesIO()), ("x", io.BytesIO(), 1)])
@pytest.mark.parametrize("form", ["load_from_tar", "load_from_zip", "load_from_xz", "decompress"])
def test_only_named_streams_are_taken(item, form):
    """The message says how to get some; torchdata's class, TypeError, holds."""
    with pytest.raises(TypeError) as caught:
        list(getattr(IterableWrapper([item], deepcopy=False), form)())

    assert caught.type is SampleError


def test_lengths(tmp_path):
    """What cannot be known is not guessed."""
    source = IterableWrapper([("a", None)] * 3)

    assert len(source.load_from_xz()) == 3
    assert len(source.load_from_tar(length=7)) == 7
    for pipe in (source.load_from_tar(), source.load_from_zip()):
        with pytest.raises(TypeError, match="instance doesn't have valid length"):
            len(pipe)


def files(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(tar_bytes(MEMBERS, "w:gz"))
    return FileOpener(IterableWrapper([str(tmp_path / "a.tar.gz")] * 3), mode="rb")


def test_a_pass_that_ends_leaves_no_file_open(tmp_path):
    """The watch over all tests counts descriptors."""
    pipe = files(tmp_path).load_from_tar()

    assert len([stream.read() for _, stream in pipe]) == 9


def test_a_pass_that_is_abandoned_leaves_no_file_open(tmp_path):
    """Nor does one that nobody finishes."""
    items = iter(files(tmp_path).load_from_tar().webdataset())
    sample = next(items)
    assert open_below(tmp_path)

    del items, sample

    assert not open_below(tmp_path)


def test_a_pass_that_fails_leaves_no_file_open(tmp_path):
    """Even while somebody holds the error."""
    pipe = files(tmp_path).load_from_tar(most_bytes=10).readlines()

    with pytest.raises(StreamError) as caught:
        list(pipe)

    assert not open_below(tmp_path)
    assert "p0/b.bin" in str(caught.value)


def open_below(folder):
    return [name for _, name in open_files() if str(folder) in name]
