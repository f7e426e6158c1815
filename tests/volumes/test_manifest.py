"""Manifests: plain JSON that gives back what was found, and nothing else."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import index_cases, volume_of, write_manifest
from nifti_files import numbered, write_nifti

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import BadManifest, StaleEntry, VolumeError, VolumeNotFound
from voxpipe.volumes import (
    Entry,
    Manifest,
    Statistics,
    Volume,
    close_volumes,
    describe_volume,
    find_volumes,
    read_manifest,
    volume_statistics,
)
from voxpipe.volumes.catalog.catalog import MOST_NAMES, stamp_at
from voxpipe.volumes.catalog.manifest import Stamp, manifest_text, parse_manifest
from voxpipe.volumes.catalog.whole_pass import PERCENTILES
from voxpipe.volumes.header import Header


@pytest.fixture(autouse=True)
def closed():
    yield
    close_volumes()


numbers = st.floats(allow_nan=True, allow_infinity=True)
finite = st.floats(allow_nan=False, allow_infinity=False)
triples = st.none() | st.tuples(*[st.integers(1, 2**40)] * 3)
headers = st.builds(
    Header,
    shape=st.tuples(*[st.integers(1, 2**40)] * 4),
    affine=st.tuples(*[finite] * 16),
    disk_dtype=st.sampled_from(["<i2", ">i2", "|b1", "<f2", "|u1", "<c8"]).map(np.dtype),
    chunks=triples,
    access=st.sampled_from(["view", "range", "stream"]),
    slope=finite,
    intercept=finite,
    value_type=st.none() | st.just(np.dtype("f4")),
    stamp=st.lists(st.integers(0, 2**63)).map(tuple),
)
entries = st.builds(
    Entry,
    case=st.text(),
    key=st.text(),
    # A location out of the folder is refused, and one with a zero byte.
    location=st.text(min_size=1)
    .map(lambda t: f"/data/a{t}")
    .filter(lambda t: not any(part in t for part in ("::", "//", "..", "\0")))
    | st.just("s3://bucket/a.zarr"),
    kind=st.sampled_from(["intensity", "label"]),
    header=headers,
    stamp=st.builds(Stamp, st.text(), st.integers(0), st.integers(0), st.text()),
    shards=triples,
    statistics=st.none()
    | st.builds(
        Statistics,
        finite,
        finite,
        finite,
        numbers,
        st.integers(0),
        st.tuples(*[numbers] * len(PERCENTILES)),
        st.lists(st.tuples(st.integers(-9, 9) | st.just(0.5), st.integers(0)), max_size=3).map(
            tuple
        ),
        st.lists(st.tuples(st.integers(-9, 9), st.tuples(*[st.integers(0)] * 6)), max_size=3).map(
            tuple
        ),
    ),
    options=st.just(()) | st.just((("level", 1),)),
)


@given(st.lists(entries, max_size=4, unique_by=lambda e: (e.case, e.key)))
def test_what_is_written_is_what_is_read(found):
    """Every number to the last bit; the volumes of a case come together."""
    manifest = Manifest(tuple(found))

    again = parse_manifest(manifest_text(manifest, "/data/"), folder="/data/")

    expected = [entry for case in manifest.cases().values() for entry in case]
    assert repr(expected) == repr(list(again.entries))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no voxpipe manifest"),
        ("[]", "no voxpipe manifest"),
        ('{"cases": []}', "no voxpipe manifest"),
        ('{"format": "voxpipe manifest", "version": 2}', "version 2"),
        ('{"format": "voxpipe manifest", "version": 1}', "its list of cases"),
        (
            '{"format": "voxpipe manifest", "version": 1, "cases": '
            '[{"case": "p1", "volumes": {"ct": {}}}]}',
            "'ct' of case p1",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(text, message):
    """The entry is named, and what to do."""
    with pytest.raises(BadManifest, match=message):
        parse_manifest(text, "m.json")


def test_a_missing_manifest_says_how_to_write_one(tmp_path):
    """It is what comes first."""
    with pytest.raises(VolumeNotFound, match="voxpipe index"):
        read_manifest(tmp_path / "m.json")


def entry_of(path, **kind):
    return describe_volume(Volume(path, **kind), "p1", "image")


def test_folder_and_manifest_move_together(tmp_path):
    """Locations below the manifest are relative to it."""
    (tmp_path / "a").mkdir()
    write_nifti(tmp_path / "a" / "ct.nii", numbered((4, 5, 6)))
    write_manifest(Manifest((entry_of(tmp_path / "a" / "ct.nii"),)), tmp_path / "a" / "m.json")
    os.rename(tmp_path / "a", tmp_path / "b")

    (entry,) = read_manifest(tmp_path / "b" / "m.json").entries

    assert entry.location == str(tmp_path / "b" / "ct.nii")
    np.testing.assert_array_equal(volume_of(entry).numpy()[0], numbered((4, 5, 6)))


def test_credentials_are_not_written(tmp_path):
    """Neither those in the URL nor those in the options."""
    import fsspec

    raw = write_nifti(tmp_path / "a.nii", numbered((4, 5, 6))).read_bytes()
    fsspec.filesystem("memory").pipe_file("/secretly/a.nii", raw)
    volume = Volume("memory://secretly/a.nii", storage_options={"key": "hunter2"})

    text = manifest_text(Manifest((describe_volume(volume, "p1", "image"),)))

    assert "hunter2" not in text
    assert json.loads(text)["cases"][0]["volumes"]["image"]["location"] == "memory://secretly/a.nii"


def test_an_entry_answers_without_a_file(tmp_path):
    """Header and statistics are known; nothing is opened or read."""
    path = write_nifti(tmp_path / "a.nii", numbered((4, 5, 6)), scaling=(0.5, 1.0))
    entry = entry_of(path)
    close_volumes()
    os.rename(path, tmp_path / "away.nii")
    before = IO_COUNTERS.snapshot()

    volume = volume_of(entry)

    assert (volume.shape, volume.dtype) == ((1, 4, 5, 6), np.float32)
    np.testing.assert_array_equal(volume.affine.ravel(), entry.header.affine)
    assert volume_statistics(volume) == entry.statistics
    assert IO_COUNTERS.snapshot() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: os.unlink(path), "it is gone"),
        (lambda path: os.utime(path, ns=(1, 1)), "written again, with as many bytes"),
        (lambda path: path.write_bytes(b"x" * 500), "it had 592 bytes and has 500"),
    ],
)
def test_a_stale_entry_is_named(tmp_path, change, message):
    """Which volume of which case, what changed, and what to do."""
    path = write_nifti(tmp_path / "a.nii", numbered((4, 5, 6)))
    volume = volume_of(entry_of(path), "m.json")
    close_volumes()
    change(path)

    with pytest.raises(StaleEntry, match=message) as caught:
        volume.read(Region((0, 0, 0), (1, 1, 1)))

    assert "'image' of case p1 in m.json" in str(caught.value)
    assert "voxpipe index" in str(caught.value)


def test_a_chunk_that_was_written_again_is_noticed(tmp_path):
    """Its metadata did not change, but its file did."""
    zarr = pytest.importorskip("zarr")
    stored = zarr.create_array(tmp_path / "a.zarr", shape=(4, 4, 4), chunks=(2, 2, 2), dtype="i2")
    stored[...] = 1
    volume = volume_of(entry_of(tmp_path / "a.zarr"))
    close_volumes()
    chunk = tmp_path / "a.zarr" / "c" / "0" / "0" / "0"
    os.utime(chunk, ns=(1, 1))

    with pytest.raises(StaleEntry, match="written again"):
        volume.numpy()


def test_of_very_many_chunks_only_the_metadata_are_compared(tmp_path, monkeypatch):
    """Listing them would take longer than reading a patch."""
    from voxpipe.volumes.catalog import catalog as stamps

    zarr = pytest.importorskip("zarr")
    stored = zarr.create_array(tmp_path / "a.zarr", shape=(4, 4, 4), chunks=(2, 2, 2), dtype="i2")
    stored[...] = 1
    located = Volume(tmp_path / "a.zarr").located_source

    assert (stamp_at(located).how, stamp_at(located).objects) == ("listing", 9)
    monkeypatch.setattr(stamps, "MOST_NAMES", 8)
    assert stamp_at(located).how == "metadata"
    assert MOST_NAMES >= 1000


def test_voxels_in_memory_have_no_entry():
    """A manifest says where voxels are."""
    with pytest.raises(VolumeError, match="is in memory"):
        describe_volume(Volume(numbered((4, 4, 4))), "p1", "image")


def test_indexing_again_reads_only_what_changed(tmp_path):
    """Of the rest the earlier entries are taken over."""
    paths = [write_nifti(tmp_path / f"{n}.nii", numbered((4, 5, 6))) for n in "abc"]

    def index(known=None):
        close_volumes()
        volumes = [(path.stem, "image", Volume(path)) for path in paths]
        before = IO_COUNTERS.snapshot()
        manifest, bad = index_cases(volumes, previous=known)
        assert bad == ()
        return manifest, (IO_COUNTERS.snapshot() - before).headers

    first, headers_first = index()
    os.utime(paths[1], ns=(1, 1))
    second, headers_second = index(first)

    assert (headers_first, headers_second) == (3, 1)
    assert first.entries[0] == second.entries[0]
    assert first.entries[1].stamp != second.entries[1].stamp


def test_a_case_with_a_bad_volume_is_left_out_and_named(tmp_path):
    """The others are there."""
    good = write_nifti(tmp_path / "a.nii", numbered((4, 5, 6)))
    bad = tmp_path / "b.nii"
    bad.write_bytes(b"nothing")
    volumes = [("p1", "ct", Volume(good)), ("p2", "ct", Volume(good)), ("p2", "seg", Volume(bad))]

    manifest, findings = index_cases(volumes)

    assert list(manifest.cases()) == ["p1"]
    assert [(f.case, f.key, f.error) for f in findings] == [("p2", "seg", "TruncatedVolume")]


def test_volumes_are_found_below_a_folder(tmp_path):
    """A folder is a case; a volume alone is one too; what is hidden or no volume is left out."""
    pytest.importorskip("zarr")
    from voxpipe.volumes import convert

    (tmp_path / "p1").mkdir()
    (tmp_path / ".x.zarr.part").mkdir()
    for path in ("p1/ct.nii", "solo.nii.gz", ".x.zarr.part/a.nii", ".hidden.nii"):
        write_nifti(tmp_path / path, numbered((4, 5, 6)))
    (tmp_path / "p1" / "notes.txt").write_text("no volume")
    convert(Volume(numbered((4, 4, 4))), tmp_path / "p1" / "seg.nii.zarr")

    found = find_volumes(tmp_path)

    assert found == {
        "p1": {"ct": str(tmp_path / "p1/ct.nii"), "seg": str(tmp_path / "p1/seg.nii.zarr")},
        "solo": {"image": str(tmp_path / "solo.nii.gz")},
    }


def test_volumes_are_found_in_a_bucket():
    """The same by URL."""
    import fsspec

    pytest.importorskip("zarr")
    from voxpipe.volumes import convert

    system = fsspec.filesystem("memory")
    system.pipe_file("/found/p1/ct.nii", b"not looked at")
    system.pipe_file("/found/readme", b"")
    convert(Volume(numbered((4, 4, 4))), "memory://found/p1/seg.nii.zarr")

    found = find_volumes("memory://found")

    assert {c: sorted(v) for c, v in found.items()} == {"p1": ["ct", "seg"]}
    assert Volume(found["p1"]["seg"]).shape == (1, 4, 4, 4)


def test_two_that_write_at_once_both_succeed(tmp_path, monkeypatch):
    """One finishes while the other is about to: the last stays, whole, and nothing beside it."""
    place = tmp_path / "manifest.json"
    true, calls = os.replace, []

    def replace(source, target):
        calls.append(source)
        if len(calls) == 1:
            write_manifest(Manifest(()), place)
        true(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write_manifest(Manifest(()), place)

    assert len(set(calls)) == 2
    assert read_manifest(place).entries == ()
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_a_manifest_makes_no_folder(tmp_path):
    """A place that is not there is a mistake in the path."""
    with pytest.raises(BadManifest, match="cannot be written"):
        write_manifest(Manifest(()), tmp_path / "nowhere" / "manifest.json")
    assert os.listdir(tmp_path) == []


def test_a_place_without_volumes_tells_what_is_there(tmp_path):
    """A path that is wrong and a folder of another format call for different mending."""
    (tmp_path / "case").mkdir()
    (tmp_path / "case" / "ct.par").touch()

    with pytest.raises(VolumeNotFound, match=r"no volume below .*that is read: ct\.par"):
        find_volumes(tmp_path)
    with pytest.raises(VolumeNotFound, match=r"no file or folder .*ctt\.nii"):
        find_volumes(tmp_path / "ctt.nii")
