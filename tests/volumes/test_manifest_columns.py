"""Manifests by columns: the entries of a JSON manifest, made one by one; damage is noticed."""

import copy
import os
import pickle
import random
import subprocess
import sys
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import volume_of, write_manifest
from nifti_files import numbered, write_nifti
from test_manifest import entries as any_entries

import voxpipe as vp
from voxpipe.core.errors import BadManifest, MissingDependency, StaleEntry, VolumeNotFound
from voxpipe.volumes import (
    Entry,
    Manifest,
    Volume,
    close_volumes,
    describe_volume,
    read_manifest,
)
from voxpipe.volumes.catalog import columns, manifest
from voxpipe.volumes.catalog.columns import write_columns
from voxpipe.volumes.catalog.parquet_footer import checked_footer, read_footer
from voxpipe.volumes.header import Header
from voxpipe.volumes.source import Stamp

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def closed():
    yield
    close_volumes()


def entry(case, key="image", location=None, **more):
    header = Header((1, 4, 5, 6), tuple(map(float, range(16))), np.dtype("<i2"), stamp=(592, 7))
    where = location or f"/data/{case}/{key}.nii"
    return Entry(case, key, where, "intensity", header, Stamp("file", 592, 1, "7"), **more)


def written(path, *entries):
    write_manifest(Manifest(entries), path)
    return path


def in_64_bits(entry):
    return max(entry.stamp.size, entry.stamp.objects) < 2**63


@settings(max_examples=30)
@given(
    found=st.lists(any_entries.filter(in_64_bits), max_size=5, unique_by=lambda e: (e.case, e.key))
)
def test_entries_are_those_of_json(found, tmp_path_factory):
    """Every number to the last bit, in the order of the cases."""
    place = written(tmp_path_factory.mktemp("columns") / "m.parquet", *found)
    again = read_manifest(place, follow="anywhere")

    by_case = Manifest(tuple(found)).cases()
    assert repr([*map(copy.copy, again.entries)]) == repr(
        [e for case in by_case.values() for e in case]
    )
    assert again.case_count == len(by_case)
    cases = dict(map(again.case, range(again.case_count)))
    cases = {case: [*map(copy.copy, entries)] for case, entries in cases.items()}  # with statistics
    assert repr(cases) == repr(by_case)  # NaN differs from itself


@pytest.mark.parametrize("name", ["\ud800", "large"])
def test_what_fits_no_column_is_refused(tmp_path, name):
    """A name that is no UTF-8, a size above 64 bits; JSON has both."""
    one = entry("a", location=f"/data/{name}.nii")
    one = replace(one, stamp=Stamp("file", 2**63, 1, "7")) if name == "large" else one

    with pytest.raises(BadManifest, match=r"\.json"):
        written(tmp_path / "m.parquet", one)
    assert read_manifest(written(tmp_path / "m.json", one)).case(0)[1] == [one]
    assert os.listdir(tmp_path) == ["m.json"]


def test_cases_by_number(tmp_path, monkeypatch):
    """Also beyond a row group, and of a case in two of them."""
    monkeypatch.setattr(columns, "ROWS", 3)
    keys = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("c", "x")]
    found = read_manifest(
        written(tmp_path / "m.parquet", *(entry(*k) for k in keys)), None, "anywhere"
    )

    assert found.case_count == 3
    assert [(name, [e.key for e in es]) for name, es in map(found.case, range(3))] == [
        ("a", ["x", "y"]),
        ("b", ["x", "y"]),
        ("c", ["x"]),
    ]
    assert found.case(-1)[0] == "c"
    with pytest.raises(IndexError):
        found.case(3)


def test_folder_and_manifest_move_together(tmp_path):
    """Locations are relative; a remote manifest is downloaded once."""
    (tmp_path / "a").mkdir()
    path = write_nifti(tmp_path / "a" / "ct.nii", numbered((4, 5, 6)))
    written(tmp_path / "a" / "m.parquet", describe_volume(Volume(path), "p1", "image"))
    os.rename(tmp_path / "a", tmp_path / "b")

    (found,) = read_manifest(tmp_path / "b" / "m.parquet").entries
    assert found.statistics is not None
    np.testing.assert_array_equal(volume_of(found).numpy()[0], numbered((4, 5, 6)))


def test_of_a_bucket():
    """Written whole, and read like a local one."""
    place = "memory://columns/m.parquet"
    write_manifest(Manifest((entry("a", location="memory://columns/a.nii"),)), place)

    assert [e.location for e in read_manifest(place).entries] == ["memory://columns/a.nii"]
    with pytest.raises(VolumeNotFound, match="voxpipe index"):
        read_manifest("memory://columns/none.parquet")


@pytest.mark.parametrize("location", ["/etc/../a.nii", "s3://other/a.nii", "../a.nii", " "])
def test_locations_are_checked_when_an_entry_is_made(tmp_path, location):
    """Before anything is opened; as in a JSON manifest."""
    with open(tmp_path / "m.parquet", "wb") as file:
        volume = manifest.json_of_entry(entry("a"), "") | {"location": location}
        write_columns(file, [("a", "image", volume)], list)

    _, (found,) = read_manifest(tmp_path / "m.parquet").case(0)
    with pytest.raises(BadManifest, match="'image' of case a"):
        _ = found.location


def test_rows_like_an_earlier_one_differ_in_all_their_own_values(tmp_path):
    """Entries that are copied equal those that are checked in full."""
    header = entry("a").header
    scaled = replace(header, slope=2.0, intercept=-0.0, affine=(0.5,) * 16, stamp=(7, 8))
    listed = replace(header, stamp=(), chunks=(2, 2, 2))
    rows = [
        entry("a"),
        replace(entry("b", "seg"), header=scaled, stamp=Stamp("file", 7, 1, "8")),
        replace(entry("c"), header=listed, stamp=Stamp("listing", 3, 2, "f0")),
        replace(entry("d"), header=listed, stamp=Stamp("listing", 4, 5, "")),
        entry("e", location=f"{tmp_path}/.hidden/e.nii"),
        entry("f", location=f"{tmp_path}/sub folder/ä+1,x.nii"),
    ]
    place = written(tmp_path / "m.parquet", *rows)
    entries = read_manifest(place, follow="anywhere").entries
    checked = [read_manifest(place, follow="anywhere").entries[n] for n in range(len(rows))]

    for _ in range(2):
        _ = [one.header.dtype for one in entries]  # cached values are not copied
        assert [*entries] == checked == rows
        assert [repr(one.header) for one in entries] == [repr(one.header) for one in checked]


@pytest.mark.parametrize(
    "location",
    ["a/../../x.nii", "..", "a/%2e%2e/%2e%2e/x.nii", "/a/../x.nii", "s3://other/x", " ", r"a\..\x"],
)
def test_locations_of_rows_like_an_earlier_one_are_checked(tmp_path, location):
    """A sound row before does not vouch for them."""
    with open(tmp_path / "m.parquet", "wb") as file:
        volume = manifest.json_of_entry(entry("a"), "")
        places = {"a": "a.nii", "b": location, "c": "c.nii"}
        rows = [(case, "image", {**volume, "location": own}) for case, own in places.items()]
        write_columns(file, rows, list)
    found = read_manifest(tmp_path / "m.parquet")

    assert [found.case(n)[1][0].location for n in (0, 2)] == [f"{tmp_path}/{n}.nii" for n in "ac"]
    with pytest.raises(BadManifest, match="of case b"):
        _ = found.case(1)[1][0].location


def test_made_of_names_other_places(tmp_path):
    """A local manifest of volumes in a bucket; of no other bucket."""
    place = written(tmp_path / "m.parquet", entry("a", location="s3://bucket/a.nii"))

    assert read_manifest(place).case(0)[1][0].location == "s3://bucket/a.nii"


def test_the_digest_names_cases_and_no_statistics(tmp_path):
    """Location, kind, header and stamp count; so does the folder."""
    found = describe_volume(
        Volume(write_nifti(tmp_path / "a.nii", numbered((4, 5, 6)))), "p1", "image"
    )
    other = [
        replace(found, kind="label"),
        replace(found, stamp=Stamp("file", 592, 1, "8")),
        replace(found, location=str(tmp_path / "b.nii")),
        replace(found, header=entry("a").header),
    ]
    bare = replace(found, statistics=None)

    def digest(one, suffix):
        return read_manifest(written(tmp_path / f"m.{suffix}", one)).digest

    for suffix in ("json", "parquet"):
        first = digest(found, suffix)
        assert digest(bare, suffix) == first
        assert len({first, *(digest(one, suffix) for one in other)}) == 5


def test_a_copy_in_another_process_reads_it_again(tmp_path):
    """A pickle has no columns; a manifest that was written again meanwhile is refused."""
    place = written(tmp_path / "m.parquet", *(entry(f"p{n}") for n in range(500)))
    found = read_manifest(place, follow="anywhere")
    data = pickle.dumps(found)

    assert len(data) < 1000
    assert copy.deepcopy(found) is found
    assert pickle.loads(data).case(499) == found.case(499)
    written(place, entry("other"))
    assert found.case(499)[0] == "p499"  # the open file
    with pytest.raises(BadManifest, match="written again"):
        pickle.loads(data)


def test_every_damaged_byte_is_noticed_or_harmless(tmp_path):
    """BadManifest, or the same entries: never another header."""
    path = write_nifti(tmp_path / "a.nii", numbered((4, 5, 6)))
    described = describe_volume(Volume(path), "p1", "image")
    place = written(tmp_path / "m.parquet", described, entry("p2", location=str(path)))
    sound = place.read_bytes()
    expected = [*map(copy.copy, read_manifest(place).entries)]  # with statistics
    generator, refused = random.Random(0), 0
    for _ in range(400):
        broken = bytearray(sound)
        at = generator.randrange(len(broken))
        broken[at] ^= 1 << generator.randrange(8)
        place.write_bytes(broken if generator.random() < 0.9 else sound[:at])
        try:
            is_same = [*read_manifest(place).entries] == expected
        except BadManifest:
            refused += 1
        else:
            assert is_same
    assert refused > 200


def test_statistics_are_read_when_they_are_needed(tmp_path, monkeypatch):
    """Planning reads no row group of them; normalize() does, once for its rows."""
    folder = tmp_path / "scans"
    folder.mkdir()
    paths = [write_nifti(folder / f"{n}.nii", numbered((6, 6, 6))) for n in range(3)]
    place = written(
        tmp_path / "m.parquet",
        *(describe_volume(Volume(p), p.stem, "image") for p in paths),
    )
    read, group = [], columns.Columns._group
    monkeypatch.setattr(
        columns.Columns, "_group", lambda *args: read.append(args[2]) or group(*args)
    )
    pipe = vp.from_manifest(place).shuffle().open_volume().lazy_patch(4).batch_patches(1)
    read.clear()
    first = next(iter(vp.DataLoader2(pipe, seed=1)))

    assert not read
    assert first["image"].shape == (1, 1, 4, 4, 4)

    source = vp.from_manifest(place).open_volume()
    read.clear()
    assert len(list(vp.DataLoader2(source.normalize().lazy_patch(4).batch_patches(1), seed=1))) == 3
    assert read == [["more"]]


_DAMAGE = """
import os
import random
import sys

from pyarrow import parquet
from voxpipe.core.errors import BadManifest
from voxpipe.volumes.catalog.columns import Columns

path, first, count, checksums = sys.argv[1], *map(int, sys.argv[2:])
reader = parquet.ParquetFile


def peak():
    if not os.path.exists("/proc/self/status"):
        return 0
    with open("/proc/self/status") as file:  # resource.getrusage() counts the parent too
        return int(file.read().split("VmHWM:")[1].split()[0])


parquet.ParquetFile = lambda *a, **k: reader(*a, **k | {"page_checksum_verification": checksums})
with open(path, "rb") as file:
    sound = file.read()
footer = len(sound) - 8 - int.from_bytes(sound[-8:-4], "little")
Columns(path, "m").digest
before = peak()
refused = 0
for seed in range(first, first + count):
    generator = random.Random(seed)
    broken = bytearray(sound)
    start = footer if checksums and seed % 4 else 0
    for _ in range(generator.randint(1, 5)):
        at = generator.randrange(start, len(sound) - (4 if seed % 9 else 0))
        broken[at] = generator.choice((generator.randrange(256), broken[at] ^ 1, 0x7F, 0xFF))
    with open(path, "wb") as file:
        file.write(broken)
    try:
        columns = Columns(path, "m")
        columns.digest, [*columns.texts()], [*columns]
    except BadManifest:
        refused += 1
megabytes = (peak() - before) / 1024
assert refused > count // 3 and megabytes < 300, (refused, megabytes)
"""


@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("count", [100, pytest.param(5000, marks=pytest.mark.slow)])
def test_no_damage_ends_the_process(tmp_path, count, checksums):
    """Several bytes of footer or pages are changed, also with checksums that fit."""
    entries = [entry(f"p{n}", documents=(("x", b"{}"),)) for n in range(40)]
    place = written(tmp_path / "m.parquet", *entries)
    numbers = map(str, (0, count, int(checksums)))

    subprocess.run([sys.executable, "-c", _DAMAGE, str(place), *numbers], check=True)


def test_rows_share_the_texts_of_a_dictionary(tmp_path):
    """A long text in many rows is in memory once."""
    one = manifest.json_of_entry(entry("a"), "") | {"options": {"x": "y" * 100_000}}
    with open(tmp_path / "m.parquet", "wb") as file:
        write_columns(file, ((f"{n}", "image", one) for n in range(1000)), list)
    found = read_manifest(tmp_path / "m.parquet", follow="anywhere")

    tracemalloc.start()
    try:
        assert sum(map(len, found.texts())) > 10**8
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()


def test_threads_that_open_manifests_keep_the_memory_pool(tmp_path):
    """The pool of pyarrow is global, and others use it."""
    place = written(tmp_path / "m.parquet", entry("a"))
    pool = arrow.default_memory_pool().backend_name

    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda _: read_manifest(place, follow="anywhere"), range(200)):
            pass
    assert arrow.default_memory_pool().backend_name == pool


def test_footers_that_share_pages_or_claim_items_are_refused(tmp_path):
    """A few bytes never become many in memory."""
    place = written(tmp_path / "m.parquet", *(entry(f"p{n}") for n in range(100)))
    with open(place, "rb") as file:

        def read_at(count, offset):
            file.seek(offset)
            return file.read(count)

        footer = read_footer(read_at, os.path.getsize(place))
        assert checked_footer(read_at, footer, columns._TYPES, columns._TEXTS)[:4] == b"PAR1"
        twice = footer._replace(groups=footer.groups * 2)
        with pytest.raises(ValueError, match="another column"):
            checked_footer(read_at, twice, columns._TYPES, columns._TEXTS)
    # A list of a billion row groups; structs in structs.
    for data in (b"\x49\xfc\x80\x80\x80\x80\x04", b"\x1c" * 5000):
        place.write_bytes(b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1")
        with pytest.raises(BadManifest, match=r"claims|deeply"):
            read_manifest(place)


def write_table(path, table, about, compression, **more):
    how = {"use_dictionary": [*columns._TEXTS], "write_page_checksum": True}
    how |= {"compression": compression, "store_schema": False, "write_statistics": False, **more}
    with parquet.ParquetWriter(path, table.schema, **how) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"voxpipe": about})


def encoded(name, encoding):
    return {"use_dictionary": False, "column_encoding": {name: encoding}}


def with_nulls(table):
    return table.cast(arrow.schema([field.with_nullable(True) for field in table.schema]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: {"compression": "zstd"}, "compressed"),
        (lambda table: {"about": '{"format": "voxpipe manifest", "version": 2}'}, "version 2"),
        (lambda table: {"about": "[]"}, "no voxpipe manifest"),
        (lambda table: {"table": table.drop_columns(["slope"])}, "columns"),
        (lambda table: {"table": table.set_column(10, "slope", table["stamp_size"])}, "slope"),
        (lambda table: {"table": table.take([0, 2, 1])}, "not together"),
        (lambda table: {"use_dictionary": ["location"]}, "location has type 2"),
        (lambda table: encoded("location", "DELTA_BYTE_ARRAY"), "location .* encoding 7"),
        (lambda table: encoded("layout", "DELTA_BYTE_ARRAY"), "layout .* encoding 7"),
        (lambda table: {"write_page_checksum": False}, "no checksum"),
        (lambda table: {"data_page_version": "2.0"}, "field 8"),
        (lambda table: {"table": with_nulls(table)}, "its columns"),
    ],
)
def test_what_others_wrote_is_refused(tmp_path, change, message):
    """Pages that could grow in memory, other columns, and cases in parts."""
    place = written(tmp_path / "m.parquet", entry("a", "x"), entry("a", "y"), entry("b"))
    table = parquet.read_table(place)
    about = '{"format": "voxpipe manifest", "version": 1, "made_of": [], "more": false}'
    how = {"table": table, "compression": "none", "about": about, **change(table)}
    write_table(place, **how)

    with pytest.raises(BadManifest, match=message):
        read_manifest(place, follow="anywhere")


def test_two_volumes_of_one_key(tmp_path):
    """A case is a mapping."""
    with open(tmp_path / "m.parquet", "wb") as file:
        volume = manifest.json_of_entry(entry("a"), "")
        write_columns(file, [("a", "image", volume)] * 2, lambda: ["local"])

    with pytest.raises(BadManifest, match="two volumes of one key"):
        read_manifest(tmp_path / "m.parquet").case(0)


def test_statistics_that_would_fill_the_memory(tmp_path, monkeypatch):
    """They are inflated up to a limit."""
    place = written(tmp_path / "m.parquet", entry("a", documents=(("x", b" " * 10_000),)))
    monkeypatch.setattr(columns, "MOST_DOCUMENT_BYTES", 1000)

    with pytest.raises(BadManifest, match="row 0"):
        assert read_manifest(place, follow="anywhere").case(0)[1][0].documents


def test_files_that_are_too_large_or_no_files(tmp_path, monkeypatch):
    """Sizes are compared before anything is read; a pipe is not waited for."""
    place = written(tmp_path / "m.parquet", entry("a"))
    os.mkfifo(tmp_path / "pipe.parquet")

    with pytest.raises(vp.errors.VolumeError, match="no regular file"):
        read_manifest(tmp_path / "pipe.parquet")
    with pytest.raises(VolumeNotFound, match="voxpipe index"):
        read_manifest(tmp_path / "none.parquet")
    monkeypatch.setattr(columns, "MOST_BYTES", 100)
    with pytest.raises(vp.errors.VolumeError, match="100 at most"):
        read_manifest(place)


def test_without_pyarrow_an_error_names_the_extra(tmp_path, monkeypatch):
    """It is optional."""
    place = written(tmp_path / "m.parquet", entry("a"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(MissingDependency, match=r"pip install voxpipe\[parquet\]"):
        read_manifest(place)
    with pytest.raises(MissingDependency, match=r"pip install voxpipe\[parquet\]"):
        written(tmp_path / "n.parquet", entry("a"))
    assert sorted(os.listdir(tmp_path)) == ["m.parquet"]


def test_a_volume_made_twice_is_one(tmp_path):
    """The same name, header and token; both compare the version at the first read."""
    path = write_nifti(tmp_path / "a.nii", numbered((4, 5, 6)))
    place = written(tmp_path / "m.parquet", describe_volume(Volume(path), "p1", "image"))
    pipe = vp.from_manifest(place)
    first, other = (pipe.case(0)[1]["image"] for _ in range(2))

    assert other is not first
    assert (other.name, other.header, other.token) == (first.name, first.header, first.token)
    np.testing.assert_array_equal(first.numpy(), other.numpy())
    close_volumes()
    os.utime(path, ns=(1, 1))
    for volume in (first, other):
        with pytest.raises(StaleEntry):
            volume.numpy()
        close_volumes()


def many_rows(count):
    """Yield rows of ``count`` volumes, two a case, as of a data set of CT scans."""
    generator = random.Random(0)
    layout = {"value_type": None, "chunks": None, "access": "stream", "file_unit": "mm"}
    layout |= {"names_axes": True, "dtype": "<i2", "shards": None, "options": {}}
    for case in range(count // 2):
        origin = [generator.uniform(-300, 300) for _ in range(3)]
        affine = [0.7, 0, 0, origin[0], 0, 0.7, 0, origin[1], 0, 0, 1.25, origin[2], 0, 0, 0, 1.0]
        shape = [1, 512, 512, generator.randint(50, 450)]
        for key, kind, name in (("image", "intensity", "ct"), ("label", "label", "seg")):
            size, time = generator.randint(10**6, 10**8), 17 * 10**17 + generator.randint(0, 10**15)
            stamp = {"how": "file", "size": size, "objects": 1, "version": str(time)}
            yield (
                f"patient-{case:07d}",
                key,
                {
                    **layout,
                    "location": f"site-{case % 20}/patient-{case:07d}/{name}.nii.gz",
                    "kind": kind,
                    "shape": shape,
                    "affine": affine,
                    "slope": 1.0,
                    "intercept": 0.0,
                    "stamp": {**stamp, "header": [size, time]},
                    "statistics": None,
                },
            )


_OPEN = """
import sys
import voxpipe as vp
from voxpipe.volumes import Volume
from voxpipe.volumes.catalog import manifest

made = []
true = manifest.ColumnEntries.later
manifest.ColumnEntries.later = lambda self, row: made.append(row) or true(self, row)

def megabytes(name):
    with open("/proc/self/status") as file:
        return int(file.read().split(name + ":")[1].split()[0]) / 1024

vp.from_manifest, Volume
before = megabytes("VmRSS")
pipe = vp.from_manifest(sys.argv[1])
opened = megabytes("VmRSS")
assert len(pipe) == 500_000 and not made, len(made)
assert megabytes("VmHWM") - before < 400, (before, opened, megabytes("VmHWM"))
pipe.data_hash()
loader = vp.DataLoader2(pipe.open_volume().lazy_patch(8).batch_patches(2), None, seed=0)
iter(loader)
assert len(made) < 2000, len(made)
assert megabytes("VmRSS") - opened < 200, (opened, megabytes("VmRSS"))
made.clear()
assert pipe.case(250_000)[0] == "patient-0250000"
assert made == [500_000, 500_001], made
"""


@pytest.mark.slow
def test_a_million_volumes(tmp_path):
    """Opening makes no entry and takes less than 400 MB; a loader over them less than 200 more."""
    place = tmp_path / "m.parquet"
    with open(place, "wb") as file:
        write_columns(file, many_rows(1_000_000), list)

    subprocess.run([sys.executable, "-c", _OPEN, str(place)], check=True)
