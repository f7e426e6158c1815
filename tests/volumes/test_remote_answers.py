"""Answers that are not what was asked for: tried again, then told, and never taken for voxels."""

import gzip
import os
import tracemalloc
from dataclasses import replace
from urllib.parse import urlsplit

import fsspec
import h5py
import numpy as np
import pytest
import tifffile
from hypothesis import assume, given
from hypothesis import strategies as st
from s3_server import _BROKEN, Fault, FaultMix, S3Server
from sampled import sampled

from voxpipe.core.errors import (
    AccessDenied,
    BadHeader,
    CorruptVolume,
    StoreUnavailable,
    VolumeChanged,
    VolumeReadError,
    VoxpipeError,
)
from voxpipe.storage.fsspec_ranges import FsspecRanges
from voxpipe.storage.obstore_ranges import ObstoreRanges
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.remote import RemoteFile, open_remote
from voxpipe.storage.remote_answers import Answer, Head, NoRanges, RangeRequest, WrongAnswer
from voxpipe.storage.retry import MOST_MISSING, MOST_WRONG, Retry
from voxpipe.volumes import Volume, read_manifest

CONTENT = bytes(n * n % 251 for n in range(20_000))
QUICK = Retry(deadline=10.0, first=0.001, most=0.002)
RANGES = [ReadRange("a", 3, 5000), ReadRange("a", -700), ReadRange("a", 15_000), ReadRange("a")]


@st.composite
def asked(draw):
    """A range of an object, its size, and what the right answer says."""
    size = draw(st.integers(1, 30))
    start = draw(st.integers(-30, size - 1))
    stop = None if start < 0 else draw(st.none() | st.integers(start + 1, 40))
    first = max(0, size + start) if start < 0 else start
    return RangeRequest("a", start, stop), Head(first, min(stop or size, size), size, "v")


@given(asked(), st.booleans(), st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3))
def test_only_what_was_asked_for_is_taken(pair, known, start, stop, total):
    """Of all answers nearby, one that says to hold something else is refused."""
    wanted, right = pair
    wanted = wanted._replace(size=right.total if known else None)
    wanted.check(right)
    told = Head(right.start + start, right.stop + stop, right.total + total, "v")
    assume(told != right and told.total >= 0)
    # An object of unknown size may be longer than it was: other ends are right then.
    size = told.total
    first = max(0, size + wanted.start) if wanted.start < 0 else wanted.start
    other = Head(first, size if wanted.stop is None else min(wanted.stop, size), size, "v")
    if not known and told == other:
        wanted.check(told)
    else:
        with pytest.raises(WrongAnswer):
            wanted.check(told)


@given(asked(), st.integers(0, 60))
def test_only_as_many_bytes_as_that_are_taken(pair, length):
    """With what the answer says of itself, or the size that is known; else up to the end."""
    wanted, right = pair
    expected = right.stop - right.start
    for told in (
        (wanted, Answer(bytes(length), right)),
        (wanted._replace(size=right.total), Answer(bytes(length))),
    ):
        if length == expected:
            told[0].check_length(told[1])
        else:
            with pytest.raises((WrongAnswer, NoRanges)):
                told[0].check_length(told[1])


@pytest.fixture
def store(server, client):
    """Return the bucket, with an object in it."""
    (server.bucket / "a").write_bytes(CONTENT)
    return open_remote("s3://bucket", server.storage_options, QUICK)


def fresh_stores(server, retry=QUICK, url="s3://bucket", options=None):
    """Open the store anew for each range: none knows the reads of another."""
    for wanted in RANGES:
        server.fail()
        yield (
            wanted,
            open_remote(url, server.storage_options if options is None else options, retry),
        )


@pytest.mark.parametrize(
    "kind",
    sampled(
        [
            *("short", "shift", "timeout", "stall", "close", "truncate", "whole"),
            *("page", "unsaid", "total", "redirect", "undated"),
        ]
    ),
)
def test_what_is_wrong_once_is_asked_for_again(server, store, kind):
    """The bytes are right, and one request more was sent."""
    patient = Retry(deadline=60.0, first=0.001, most=0.002, attempt=1.0)
    for wanted, another in fresh_stores(server, patient):
        server.forget()
        server.fail(Fault(kind, times=1))

        (found,) = another.get_ranges([wanted])

        assert bytes(found) == CONTENT[wanted.start : wanted.stop]
        # All of an object is the right answer to a request for it; obstore wants its range.
        is_right = kind == "whole" and wanted == ReadRange("a") and isinstance(store, FsspecRanges)
        # Of how many bytes the object is nobody knows, and the range is the right one.
        is_right |= kind == "total" and wanted.stop is not None
        assert (wanted, len(server.requests)) == (wanted, 1 if is_right else 2)


@pytest.mark.parametrize("kind", ["short", "shift"])
def test_what_is_always_wrong_is_told(server, store, kind):
    """After a few attempts, not at the deadline; one request more looks for a redirect."""
    for wanted, another in fresh_stores(server):
        server.forget()
        server.fail(Fault(kind))

        with pytest.raises(StoreUnavailable, match=r"reading s3://bucket/a failed"):
            another.get_ranges([wanted])
        assert (wanted, len(server.requests)) == (wanted, MOST_WRONG + 1)


ODD = ["page", "unsaid", "total", "etag", "redirect", "undated", "whole"]


@pytest.mark.parametrize(
    ("scheme", "kind"),
    # Web servers may redirect, and what comes then is the answer.
    sampled(
        [("s3", kind) for kind in [*ODD, "timeout"]]
        + [("http", kind) for kind in ODD[1:] if kind != "redirect"]
    ),
)
def test_one_odd_answer_is_no_other_version(server, client, monkeypatch, scheme, kind):
    """Whether it is to the question how large the object is, or to one for its bytes."""
    monkeypatch.setattr("voxpipe.storage.remote_ranges.default_retry", lambda: QUICK)
    if scheme == "http":
        monkeypatch.setenv("VOXPIPE_REMOTE", client.replace("obstore", ""))
    (server.bucket / "a").write_bytes(CONTENT)
    url = "s3://bucket/a" if scheme == "s3" else f"{server.url}/bucket/a"
    for when in ("opened", "read", "read again"):
        odd = [Fault(kind, times=1), Fault(kind, times=1, method="HEAD")]
        server.fail(*odd if when == "opened" else ())
        file = RemoteFile(url, server.storage_options if scheme == "s3" else {}, "there")
        server.fail(*odd if when == "read" else ())
        assert bytes(file.ranges([(500, 900)])[0]) == CONTENT[500:900]
        server.fail(*odd if when == "read again" else ())
        assert bytes(file.ranges([(900, 1900)])[0]) == CONTENT[900:1900]

        assert file.size == len(CONTENT)
        assert file.is_current
    server.fail()
    (server.bucket / "a").write_bytes(CONTENT[::-1])
    with pytest.raises(VolumeChanged, match="was written again since"):
        file.ranges([(3, 90)])


def test_one_odd_version_of_an_index_is_no_other_one(server, store):
    """Parts of an object are of one ETag; that of one answer alone is no proof of another."""
    os.utime(server.bucket / "a", (1000, 1000))
    server.fail(Fault("etag", times=1))
    store.get_ranges(RANGES[:1])

    assert bytes(store.get_ranges(RANGES[1:2])[0]) == CONTENT[-700:]

    (server.bucket / "a").write_bytes(CONTENT[::-1])
    with pytest.raises(VolumeChanged, match="was written again since"):
        store.get_ranges(RANGES[:1])


def test_a_store_that_redirects_is_told(server, store):
    """Nobody refuses access: the store is elsewhere, or somebody wants a login first."""
    server.fail(Fault("redirect"), Fault("redirect", method="HEAD"))

    asks = [lambda: store.facts("a"), *(lambda one=one: store.get_ranges([one]) for one in RANGES)]
    for ask in asks:
        with pytest.raises(
            StoreUnavailable, match=r"redirects to localhost \(is the reg"
        ) as caught:
            ask()
        assert "SECRET" not in str(caught.value)


def test_a_redirect_to_another_store_is_told(server, store, tmp_path, monkeypatch):
    """Which does not know who asks, and refuses as S3 does: once is tried again."""
    with S3Server(tmp_path) as other:
        away = f"http://localhost:{urlsplit(other.url).port}/bucket/a?token=LOGINSECRET"
        monkeypatch.setattr(S3Server, "login", away)
        server.fail(Fault("redirect", times=1))
        assert bytes(store.get_ranges(RANGES[:1])[0]) == CONTENT[3:5000]

        server.fail(Fault("redirect"))
        with pytest.raises(AccessDenied, match="refused by localhost, to which") as caught:
            store.get_ranges(RANGES[:1])
    assert "SECRET" not in str(caught.value)


def test_a_page_is_no_missing_chunk(server, store, monkeypatch):
    """404 of S3 means fill; that of somebody else means nothing."""
    page = replace(_BROKEN["page"], status=404)
    monkeypatch.setitem(_BROKEN, "missing", page)
    server.fail(Fault("missing", times=2))
    assert bytes(store.get_ranges(RANGES[:1])[0]) == CONTENT[3:5000]

    server.fail(Fault("missing"))
    with pytest.raises(StoreUnavailable, match="a web page"):
        store.get_ranges(RANGES[:1])


@pytest.mark.parametrize("first", [True, False])
def test_one_version_of_an_object_has_one_size(server, store, first):
    """An answer that says another one is asked for again, and no sign of a change."""
    if not first:
        store.get_ranges(RANGES[:1])
    server.fail(Fault("total", times=1))

    for wanted in RANGES[:1] * 3:
        (found,) = store.get_ranges([wanted])
        assert bytes(found) == CONTENT[wanted.start : wanted.stop]
    assert store.replaced_at == 0


def test_an_object_that_was_there_is_looked_for_again(server, store):
    """One 404 does not mean that it is gone, and no bytes in its place; more do."""
    store.get_ranges(RANGES[:1])
    server.forget()
    server.fail(Fault("missing", times=1))
    (found,) = store.get_ranges(RANGES[1:2])
    assert bytes(found) == CONTENT[-700:]
    assert len(server.requests) == 2

    (server.bucket / "a").unlink()
    with pytest.raises(VolumeChanged, match="a was removed since"):
        store.get_ranges(RANGES[:1])
    assert store.get_ranges([ReadRange("b")]) == [None]
    assert len(server.requests) == 2 + 2 * MOST_MISSING


@pytest.mark.parametrize("name", ["a.h5", "a.tif"])
def test_nothing_is_read_of_a_file_that_is_gone(server, client, name):
    """Not as fill, which a missing chunk of a zarr is."""
    voxels = np.arange(24**3, dtype=np.uint16).reshape(24, 24, 24) + 1
    if name == "a.h5":
        with h5py.File(server.bucket / name, "w") as file:
            file.create_dataset("image", data=voxels, chunks=(8, 8, 8), compression="gzip")
    else:
        tifffile.imwrite(server.bucket / name, voxels, tile=(16, 16), compression="zlib")
    volume = Volume(f"s3://bucket/{name}", storage_options=server.storage_options)
    assert np.asarray(volume[:, :8, :8, :8]).min() > 0

    (server.bucket / name).unlink()

    with pytest.raises(CorruptVolume, match="was removed since"):
        volume[:, 16:, 16:, 16:].data  # noqa: B018


def test_another_version_is_asked_for_again_and_then_told(server, client):
    """A proxy may hold an old one; where every answer is another one, the file is."""
    (server.bucket / "a").write_bytes(CONTENT)
    file = RemoteFile("s3://bucket/a", server.storage_options, "s3://bucket/a")
    file.store._retry = QUICK
    server.fail(Fault("etag", times=2))
    assert bytes(file.ranges([(5, 50)])[0]) == CONTENT[5:50]
    assert file.is_current

    server.fail(Fault("etag"))
    with pytest.raises(CorruptVolume, match="was written again since"):
        file.ranges([(5, 50)])
    assert not file.is_current


def test_a_size_that_lies_once_costs_a_few_requests(server, client):
    """Two answers that tell the same other version are believed, not the eighth only."""
    (server.bucket / "a").write_bytes(CONTENT)
    server.fail(Fault("short", times=1, method="HEAD"))
    file = RemoteFile("s3://bucket/a", server.storage_options, "s3://bucket/a")
    assert file.size == len(CONTENT) // 2
    server.forget()

    assert bytes(file.ranges([(5, 50)])[0]) == CONTENT[5:50]

    assert file.size == len(CONTENT)
    # Two that deny the size, twice two looks at the object, and one that reads it.
    assert [request.method for request in server.requests].count("GET") == 3
    assert len(server.requests) <= 8


def test_a_length_of_an_exbibyte_takes_no_memory(server, store):
    """What an answer claims is compared before anything is taken for it."""
    brief = Retry(deadline=0.3, first=0.05, most=0.1, attempt=1.0)
    for wanted, another in fresh_stores(server, brief):
        server.fail(Fault("claim"))
        tracemalloc.start()
        try:
            with pytest.raises(StoreUnavailable):
                another.get_ranges([wanted])
            assert tracemalloc.get_traced_memory()[1] < 8 * 1024**2, wanted
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("wish", ["", "fsspec"])
def test_a_web_server(server, monkeypatch, wish):
    """By URL, with what is wrong once: version, length, and range where the client sees it."""
    monkeypatch.setenv("VOXPIPE_REMOTE", wish)
    (server.bucket / "a b.nii").write_bytes(CONTENT)
    file = RemoteFile(f"{server.url}/bucket/a%20b.nii?x=1", {}, "there")
    file.store._retry = QUICK
    server.fail(Fault("short", times=1), Fault("slow_down", times=1))

    assert [bytes(piece) for piece in file.ranges([(3, 90), (5000, 6000)])] == [
        CONTENT[3:90],
        CONTENT[5000:6000],
    ]
    assert file.size == len(CONTENT)
    (server.bucket / "a b.nii").write_bytes(CONTENT[::-1])
    with pytest.raises(CorruptVolume, match="was written again"):
        file.ranges([(3, 90)])


def test_a_server_without_ranges_is_told(server, monkeypatch):
    """At once, where a part is asked for."""
    monkeypatch.delenv("VOXPIPE_REMOTE", raising=False)
    (server.bucket / "a").write_bytes(CONTENT)
    monkeypatch.setattr("s3_http.Question.range", "")
    file = RemoteFile(f"{server.url}/bucket/a", {}, "there")

    with pytest.raises(VolumeReadError, match="does not know ranges"):
        file.ranges([(3, 90)])


def test_a_server_without_ranges_is_asked_once_for_each_file(server, monkeypatch):
    """It sends all, which is taken where it is no more than was asked for: a range asks twice."""
    monkeypatch.delenv("VOXPIPE_REMOTE", raising=False)
    monkeypatch.setattr("s3_http.Question.range", "")
    for name in "abcd":
        (server.bucket / name).write_bytes(CONTENT)
    store = open_remote(f"{server.url}/bucket", {}, QUICK)
    assert isinstance(store, ObstoreRanges)
    counts = []
    for name in "abcd":
        server.forget()
        found = store.get_ranges([ReadRange(name, 0, 30_000)])[0]
        assert bytes(found) == CONTENT
        counts.append(len(server.requests))
    assert counts == [2, 1, 1, 1]

    server.forget()
    for most in (3, 1):
        with pytest.raises(VolumeReadError, match="does not know ranges"):
            store.get_ranges([ReadRange("a", 3, 90)])
        assert len(server.requests) <= most
        server.forget()


def test_one_answer_with_all_of_a_file_is_no_server_without_ranges(server, monkeypatch):
    """A proxy may send one; the server is asked for ranges as before."""
    monkeypatch.delenv("VOXPIPE_REMOTE", raising=False)
    (server.bucket / "a").write_bytes(CONTENT)
    store = open_remote(f"{server.url}/bucket", {}, QUICK)
    server.fail(Fault("whole", times=1))
    for _ in range(2):
        assert bytes(store.get_ranges([ReadRange("a", 3, 90)])[0]) == CONTENT[3:90]

    assert not store._always_fsspec


def test_a_mix_is_drawn_from_its_seed():
    """The same seed draws the same faults for as many requests."""
    drawn = []
    for seed in (1, 1, 2):
        mix = FaultMix(0.5, seed)
        drawn.append([getattr(mix.draw("GET"), "kind", None) for _ in range(50)])

    assert drawn[0] == drawn[1] != drawn[2]
    assert 10 < sum(kind is not None for kind in drawn[0]) < 40


@pytest.mark.parametrize("kind", ["short", "shift", "etag"])
@pytest.mark.parametrize("wish", ["", "fsspec"])
def test_a_web_server_that_answers_with_something_else(server, monkeypatch, wish, kind):
    """Each client's answers are looked at: what is wrong once is asked for again."""
    monkeypatch.setenv("VOXPIPE_REMOTE", wish)
    (server.bucket / "a").write_bytes(CONTENT)
    for wanted, store in fresh_stores(server, url=f"{server.url}/bucket/a", options={}):
        store.expect("", store.facts(""))
        server.forget()
        server.fail(Fault(kind, times=1))

        (found,) = store.get_ranges([wanted._replace(object="")])

        assert bytes(found) == CONTENT[wanted.start : wanted.stop]
        assert (wanted, len(server.requests)) == (wanted, 2)


@pytest.mark.parametrize("kind", ["gzip", "encoded"])
@pytest.mark.parametrize("scheme", ["s3", "http"])
@pytest.mark.parametrize("wish", ["", "fsspec"])
def test_a_server_that_compresses_unasked(server, monkeypatch, wish, scheme, kind):
    """Compressed answers are decoded or refused; a .gz file keeps its stored bytes."""
    monkeypatch.setenv("VOXPIPE_REMOTE", wish)
    plain = np.random.default_rng(0).bytes(20_000)
    stored = gzip.compress(plain)
    (server.bucket / "a").write_bytes(stored if kind == "encoded" else plain)
    (server.bucket / "a.nii.gz").write_bytes(stored)
    url = "s3://bucket" if scheme == "s3" else f"{server.url}/bucket"
    options = server.storage_options if scheme == "s3" else {}
    for wanted, store in fresh_stores(server, url=url, options=options):
        server.fail(Fault(kind))
        if scheme == "http" and wanted == ReadRange("a"):
            assert bytes(store.get_ranges([wanted])[0]) == plain
        else:
            with pytest.raises(VolumeReadError, match="compresses its answers"):
                store.get_ranges([wanted])
        if kind == "encoded":
            wanted = wanted._replace(object="a.nii.gz")
            assert bytes(store.get_ranges([wanted])[0]) == stored[wanted.start : wanted.stop]


ENDLESS = 64 * 1024**2


def read(place, options):
    """Read a manifest, or the header of a zarr."""
    if place.endswith("manifest.json"):
        return read_manifest(place, options)
    return Volume(place.partition(".zarr")[0] + ".zarr", storage_options=options).shape


@pytest.mark.parametrize("scheme", ["s3", "http", "memory"])
@pytest.mark.parametrize(
    "name", sampled(["a.zarr/zarr.json", "a.zarr/.zarray", "manifest.json", "a.zarr/0/zarr.json"])
)
def test_metadata_without_an_end(server, client, monkeypatch, scheme, name):
    """They are refused by name before they are taken in: as they say, or when too much came."""
    monkeypatch.setattr("voxpipe.volumes.catalog.manifest.MOST_MANIFEST_BYTES", 8 * 1024**2)
    place, options = f"s3://bucket/{name}", server.storage_options
    content = {name: bytes(ENDLESS)}
    if "/0/" in name:
        content["a.zarr/zarr.json"] = (
            b'{"node_type": "group", "zarr_format": 3, "attributes": {"ome": {"multiscales": '
            b'[{"datasets": [{"path": "0"}]}]}}}'
        )
    for key, data in content.items():
        if scheme == "memory":
            fsspec.filesystem("memory").pipe(f"/endless/{key}", data)
        else:
            (server.bucket / key).parent.mkdir(parents=True, exist_ok=True)
            (server.bucket / key).write_bytes(data)
    if scheme != "s3":
        place, options = f"{server.url}/bucket/{name}", {}
        place = f"memory://endless/{name}" if scheme == "memory" else place
    tracemalloc.start()
    try:
        with pytest.raises(VoxpipeError, match=f"{name} takes [0-9]+ bytes"):
            read(place, options)
        # fsspec's file system in memory copies all of a file to show a part of it.
        assert scheme == "memory" or tracemalloc.get_traced_memory()[1] < ENDLESS / 2
    finally:
        tracemalloc.stop()
        fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("ome", [True, False])
def test_a_description_without_an_end(server, client, ome):
    """What OME says of an image, or anybody: as long as a file of a gibibyte."""
    tifffile = pytest.importorskip("tifffile")
    path = server.bucket / ("a.ome.tif" if ome else "a.tif")
    text = "<?xml version='1.0'?><OME" if ome else "text"
    voxels = np.zeros((4, 16, 16), np.uint8)
    how = {"photometric": "minisblack", "metadata": None}
    tifffile.imwrite(path, voxels, description=f"{text}{' ' * 100}</OME>", **how)
    with tifffile.TiffFile(path) as tiff:
        place = tiff.pages[0].tags["ImageDescription"].offset
    with open(path, "r+b") as file:
        file.seek(place + 4)
        file.write((2**30 - 2**20).to_bytes(4, "little"))
        file.truncate(2**30)
    tracemalloc.start()
    try:
        with pytest.raises(BadHeader, match=r"tif takes [0-9]+ bytes"):
            _ = Volume(f"s3://bucket/{path.name}", storage_options=server.storage_options).shape
        assert tracemalloc.get_traced_memory()[1] < 4 * ENDLESS
    finally:
        tracemalloc.stop()
