"""Zarr in a zip archive: members as zarr writes them, and as other programs deflate them."""

import random
import shutil
import sys
import zipfile

import fsspec
import numpy as np
import pytest
from nifti_files import numbered

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import BadHeader, CorruptVolume, VolumeError, VolumeNotFound
from voxpipe.storage.file_reader import LocalRanges
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.zip_ranges import ZipRanges
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume, close_volumes, find_volumes

zarr = pytest.importorskip("zarr")
ARRAY = numbered((5, 6, 7), np.uint16)


def write(path, **how):
    """Write with zarr-python's own store of zip archives."""
    with zarr.storage.ZipStore(path, mode="w") as store:
        zarr.create_array(store, data=ARRAY, chunks=(2, 4, 4), **how)
    return path


def deflate(folder, path):
    """Pack a folder as a file manager does: everything deflated, folders as entries."""
    packed = shutil.make_archive(str(path.with_suffix("")), "zip", folder)
    return shutil.move(packed, path)


def zipped(path, inside):
    """Return a zip of a folder whose members lie below a name, beside a file of macOS."""
    folder = path.with_suffix(".folder.zarr")
    zarr.create_array(folder, data=ARRAY, chunks=(2, 4, 4), shards=(4, 8, 8))
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{inside}{file.relative_to(folder)}")
        archive.writestr("__MACOSX/._a.zarr", b"")
    shutil.rmtree(folder)
    return path


@pytest.mark.parametrize("inside", ["", "a.zarr/", "scans/a.zarr/"])
@pytest.mark.parametrize("suffix", [".zarr.zip", ".ozx"])
def test_a_zip_of_a_folder(tmp_path, inside, suffix):
    """Its members may lie in the folder that was packed, on a disk and behind a URL."""
    path = zipped(tmp_path / f"a{suffix}", inside)
    url = f"memory://zipped/{tmp_path.name}/a{suffix}"
    fsspec.filesystem("memory").pipe(url.partition(":/")[2], path.read_bytes())

    for place in (path, url):
        np.testing.assert_array_equal(Volume(place).numpy()[0], ARRAY)
    assert [*find_volumes(tmp_path).values()] == [{"image": str(path)}]
    assert len(find_volumes(f"memory://zipped/{tmp_path.name}")) == 1
    assert not vp.check(tmp_path).bad


class TestZipStore(StoreContract):
    @pytest.fixture(params=["v2", "v3", "shards"])
    def case(self, tmp_path, request):
        how = {"v2": {"zarr_format": 2}, "v3": {}, "shards": {"shards": (4, 8, 8)}}
        path = write(tmp_path / "a.zarr.zip", **how[request.param])
        return StoreCase(path, ARRAY[None], np.eye(4))


class TestDeflated(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        zarr.create_array(tmp_path / "a", data=ARRAY, chunks=(2, 4, 4), shards=(4, 4, 8))
        return StoreCase(deflate(tmp_path / "a", tmp_path / "a.zarr.zip"), ARRAY[None], np.eye(4))


class TestRemoteZip(StoreContract):
    spawnable = False  # fsspec's memory file system

    @pytest.fixture
    def case(self, tmp_path):
        path = write(tmp_path / "a.zarr.zip")
        # A name of its own: zarr-python writes chunks in another order each time.
        key = f"remote/{tmp_path.name}.zarr.zip"
        fsspec.filesystem("memory").put(str(path), f"/{key}")
        return StoreCase(f"memory://{key}", ARRAY[None], np.eye(4))


def test_it_needs_no_zarr(tmp_path, monkeypatch):
    """The archive is read by voxpipe itself."""
    path = write(tmp_path / "a.zarr.zip")
    monkeypatch.setitem(sys.modules, "zarr", None)

    np.testing.assert_array_equal(Volume(path).numpy()[0], ARRAY)


def test_what_only_zarr_reads_goes_through_it(tmp_path):
    """Filters of version 2 are left to zarr-python, in an archive too."""
    numcodecs = pytest.importorskip("numcodecs")
    path = write(tmp_path / "a.zarr.zip", zarr_format=2, filters=[numcodecs.Delta("u2")])

    np.testing.assert_array_equal(Volume(path).numpy()[0], ARRAY)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_ranges_are_those_of_the_member(tmp_path, method):
    """From the front, from the end, open, too long and empty; a name that is not there is None."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("x/y", bytes(range(100)))
        archive.writestr("x/y", bytes(range(100, 200)))  # written again: this one counts
    store = ZipRanges(LocalRanges(str(tmp_path)), "a.zip", "a.zip")
    asked = [(0, 3), (-3, None), (97, 200), (40, 40), (-500, None)]

    found = store.get_ranges([ReadRange("x/y", *ends) for ends in asked] + [ReadRange("x")])

    whole = bytes(range(100, 200))
    assert found == [whole[:3], whole[-3:], whole[97:], b"", whole, None]
    assert (store.size("x/y"), list(store.list("x"))) == (100, ["x/y"])
    with pytest.raises(FileNotFoundError):
        store.size("x")


def test_neighbouring_chunks_are_one_read(tmp_path, monkeypatch):
    """Members that lie next to each other come in one request."""
    path = write(tmp_path / "a.zarr.zip")
    volume = Volume(path)
    assert volume.shape == (1, 5, 6, 7)
    asked = []
    real = LocalRanges.get_ranges
    monkeypatch.setattr(LocalRanges, "get_ranges", lambda s, r: asked.append(len(r)) or real(s, r))

    volume.read(Region((0, 0, 0), (5, 6, 7)))

    assert asked == [1, 1]  # where the members begin, and the members


def test_damage_is_named(tmp_path):
    """Cut short or changed anywhere: the right voxels, or an error that names the archive."""
    path = write(tmp_path / "a.zarr.zip", compressors=[zarr.codecs.Crc32cCodec()])
    whole = path.read_bytes()
    generator = random.Random(0)
    damaged = [whole[: n * len(whole) // 50] for n in range(50)]
    for _ in range(200):
        changed = bytearray(whole)
        changed[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        damaged.append(bytes(changed))
    refused = []
    for data in damaged:
        path.unlink()  # cutting a file short in place may wait for the disk
        path.write_bytes(data)
        close_volumes()
        try:
            Volume(path).numpy()
        except VolumeError as error:
            refused.append(str(error))

    assert len(refused) > 100
    assert [text for text in refused if "a.zarr.zip" not in text] == []


def test_what_is_no_archive(tmp_path):
    """No file, another file, a directory that points nowhere."""
    (tmp_path / "b.zarr.zip").write_bytes(b"PK what")

    with pytest.raises(VolumeNotFound, match="none"):
        _ = Volume(tmp_path / "none.zarr.zip").shape
    with pytest.raises(BadHeader, match=r"b\.zarr\.zip is no sound zip"):
        _ = Volume(tmp_path / "b.zarr.zip").shape
    path = write(tmp_path / "c.zarr.zip")
    path.write_bytes(path.read_bytes().replace(b"PK\x03\x04", b"PK\x03\x05"))
    with pytest.raises(CorruptVolume, match=r"zarr\.json in .*c\.zarr\.zip"):
        _ = Volume(path).shape


@pytest.mark.parametrize("shards", [None, (4, 8, 8)])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_wrong_check_sum_is_told(tmp_path, shards, method):
    """Of a member read whole, inflated, or in parts: one changed bit is no voxel of ours."""
    folder = tmp_path / "a"
    zarr.create_array(folder, data=ARRAY, chunks=(2, 4, 4), shards=shards, compressors=None)
    path = tmp_path / "a.zarr.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(folder))
    region = Region.of_shape((1, 1, 1))
    sound = Volume(path).read(region).array.copy()
    close_volumes()
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        chunk = archive.getinfo("c/0/0/0")
    # Of the directory's entry: signature, 12 bytes, then the check sum.
    entry = raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"c/0/0/0"))
    assert int.from_bytes(raw[entry + 16 : entry + 20], "little") == chunk.CRC
    raw[entry + 16] ^= 1
    path.write_bytes(raw)

    assert sound.size == 1
    with pytest.raises(CorruptVolume, match=r"c/0/0/0 in .*: its check sum is wrong"):
        Volume(path).read(region)


@pytest.mark.parametrize(
    ("how", "method"),
    [
        ({}, zipfile.ZIP_STORED),
        ({}, zipfile.ZIP_DEFLATED),
        ({"shards": (8, 8, 8)}, zipfile.ZIP_DEFLATED),
    ],
)
def test_a_whole_member_is_checked_by_url_too(tmp_path, how, method):
    """What comes by URL and is read or inflated whole."""
    path = write(tmp_path / "a.zarr.zip", **how)
    if method == zipfile.ZIP_DEFLATED:
        with zipfile.ZipFile(path) as archive:
            content = {info.filename: archive.read(info) for info in archive.infolist()}
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, data in content.items():
                archive.writestr(name, data)
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"c/0/0/0")) + 16] ^= 1
    fsspec.filesystem("memory").pipe(f"/checked/{tmp_path.name}.zarr.zip", bytes(raw))

    with pytest.raises(CorruptVolume, match=r"c/0/0/0 in .*: its check sum is wrong"):
        Volume(f"memory://checked/{tmp_path.name}.zarr.zip").numpy()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("way", ["obstore", "fsspec"])
def test_a_whole_member_is_checked_in_a_bucket_too(server, monkeypatch, way, method):
    """Whoever sends the requests."""
    monkeypatch.setenv("VOXPIPE_REMOTE", way)
    path = server.bucket / f"{way}-{method}.zarr.zip"
    write(path)
    with zipfile.ZipFile(path) as archive:
        content = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    url, options = f"s3://bucket/{path.name}", server.storage_options
    assert Volume(url, storage_options=options).numpy().size == ARRAY.size
    close_volumes()
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"c/0/0/0")) + 16] ^= 1
    path.write_bytes(raw)

    with pytest.raises(CorruptVolume, match=r"c/0/0/0 in .*: its check sum is wrong"):
        Volume(url, storage_options=options).numpy()


def test_a_part_of_a_member_costs_no_more_by_url(tmp_path):
    """A shard is not brought whole for its check sum: what the decision says is not looked at."""
    path = write(tmp_path / "a.zarr.zip", shards=(8, 8, 8))
    asked = []

    class Far(LocalRanges):
        def get_ranges(self, ranges, most=0):
            asked.extend(ranges)
            return super().get_ranges(ranges, most)

    store = ZipRanges(Far(str(tmp_path)), path.name, str(path))
    asked.clear()

    store.get_ranges([ReadRange("c/0/0/0", 3, 10)])

    assert [(wanted.stop or 0) - wanted.start for wanted in asked] == [30, 7]


def test_a_member_is_checked_once(tmp_path, monkeypatch):
    """However many parts of it are read."""
    path = write(tmp_path / "a.zarr.zip", shards=(8, 8, 8))
    store = ZipRanges(LocalRanges(str(tmp_path)), path.name, str(path), checks_parts=True)
    checked = []
    crc32 = zipfile.zlib.crc32
    monkeypatch.setattr("zlib.crc32", lambda *a: checked.append(len(a[0])) or crc32(*a))

    for start in (0, 10, 20):
        store.get_ranges([ReadRange("c/0/0/0", start, start + 10)])

    assert checked == [store.size("c/0/0/0")]
