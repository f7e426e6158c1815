"""Converting to sharded zarr: bit-identical, continued after a kill, whole or absent."""

import json
import os
import threading
from importlib.metadata import version
from itertools import count
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nifti_files import numbered, write_nifti

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import CorruptVolume, DestinationBusy, DestinationExists, VolumeError
from voxpipe.volumes import Volume, close_volumes, convert
from voxpipe.volumes.conversion.convert_plan import chunk_side, plan_conversion
from voxpipe.volumes.conversion.destination import LocalDestination
from voxpipe.volumes.header import IDENTITY, Header

zarr = pytest.importorskip("zarr")
GENERATOR = np.random.default_rng(0)
TURNED = np.array([[0.1, 2, 0, 3], [-1.7, 0.3, 0, 4], [0, 0.01, 5, 1 / 3], [0, 0, 0, 1]])


class Killed(BaseException):
    """What ends a process; nothing may catch it."""


def killed_after(shards):
    """Return a progress function that ends the process after some shards."""
    calls = []

    def progress(done, total):
        calls.append(done)
        if len(calls) > shards:
            raise Killed

    return progress


@pytest.fixture(autouse=True)
def closed():
    yield
    close_volumes()


@pytest.mark.parametrize("dtype", ["bool", "u1", "i1", "i2", ">i2", "u2", "i8", "f2", "f4", "c8"])
@pytest.mark.parametrize("shape", [(5, 6), (9, 10, 11), (3, 4, 9, 6), (6, 4, 5, 7)])
def test_values_type_and_place_are_kept(tmp_path, dtype, shape):
    """Every voxel, the stored type and all 16 entries of the affine are what they were."""
    array = (GENERATOR.random(shape) * 200).astype(dtype)
    volume = Volume(array, affine=TURNED)

    convert(volume, tmp_path / "a.nii.zarr", chunk=4, shard=8)

    found = Volume(tmp_path / "a.nii.zarr")
    assert found.disk_dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(found.numpy(), volume.numpy())
    np.testing.assert_array_equal(found.affine, TURNED)


def test_bits_are_kept(tmp_path):
    """Minus zero and NaN are values too."""
    array = np.array([-0.0, 0.0, np.nan, 1.0], np.float32).reshape(4, 1, 1)

    convert(Volume(array), tmp_path / "a.zarr", chunk=2, shard=2)

    found = Volume(tmp_path / "a.zarr").numpy()[0]
    np.testing.assert_array_equal(found.view(np.uint32), array.view(np.uint32))


def test_scaling_is_kept_and_not_applied(tmp_path):
    """Stored integers stay integers, and their values what they were."""
    path = write_nifti(tmp_path / "a.nii", numbered((6, 7, 8)), scaling=(0.1, -3.7))
    volume = Volume(path)

    convert(volume, tmp_path / "a.nii.zarr", chunk=4)

    found = Volume(tmp_path / "a.nii.zarr")
    assert (found.disk_dtype, found.dtype) == (volume.disk_dtype, volume.dtype)
    assert found.header.slope == volume.header.slope
    np.testing.assert_array_equal(found.numpy(), volume.numpy())


def test_other_libraries_read_it(tmp_path):
    """zarr-python sees the shards and the names, nibabel the header."""
    array = numbered((9, 10, 11))

    convert(Volume(array, affine=TURNED), tmp_path / "a.nii.zarr", chunk=4, shard=8)

    group = zarr.open_group(tmp_path / "a.nii.zarr", mode="r")
    stored = group["0"]
    header = nibabel.Nifti2Header(group["nifti"][...].tobytes())
    ome = group.attrs["ome"]["multiscales"][0]
    np.testing.assert_array_equal(stored[...].transpose(2, 1, 0), array)
    assert (stored.chunks, stored.shards) == ((4, 4, 4), (8, 8, 8))
    assert stored.metadata.dimension_names == ("z", "y", "x")
    np.testing.assert_array_equal(header.get_best_affine(), TURNED)
    assert [axis["name"] for axis in ome["axes"]] == ["z", "y", "x"]
    assert [t["type"] for t in ome["datasets"][0]["coordinateTransformations"]] == ["scale"]


@pytest.mark.parametrize("codec", ["lz4hc", "lz4", "zstd", "none"])
def test_every_codec_gives_the_voxels_back(tmp_path, codec):
    """What stores least and what decodes fastest hold the same."""
    array = numbered((9, 10, 11))

    convert(Volume(array), tmp_path / "a.zarr", chunk=4, codec=codec)

    np.testing.assert_array_equal(Volume(tmp_path / "a.zarr").numpy()[0], array)


@pytest.mark.parametrize("where", ["{}/a.nii.zarr", "memory://continued/a.nii.zarr"])
@pytest.mark.parametrize("shards", [0, 1, 5])
def test_a_killed_conversion_is_continued(tmp_path, where, shards):
    """Nothing is at the destination before the end, and no finished shard is read again."""
    path = write_nifti(tmp_path / "a.nii", numbered((8, 8, 8)))
    place = where.format(tmp_path)
    with pytest.raises(Killed):
        convert(path, place, chunk=2, shard=4, progress=killed_after(shards))
    with pytest.raises(VolumeError):
        Volume(place).probe()
    before = IO_COUNTERS.snapshot()

    done = convert(path, place, chunk=2, shard=4, overwrite=False)

    assert (done.new_shards, done.reused_shards) == (8 - shards, shards)
    assert (IO_COUNTERS.snapshot() - before).reads == 8 - shards
    np.testing.assert_array_equal(Volume(place).numpy()[0], numbered((8, 8, 8)))
    _remove(place)


def _remove(place):
    close_volumes()
    if "://" in place:
        import fsspec

        system, path = fsspec.core.url_to_fs(place)
        assert not [p for p in system.find(path.rpartition("/")[0]) if ".part" in p]
        system.rm(path, recursive=True)
    else:
        assert not [p for p in os.listdir(os.path.dirname(place)) if ".part" in p]


def files_below(folder):
    """Return the bytes of all files, by name."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.skipif(version("zarr").startswith("3.0."), reason="it writes files in place")
def test_a_conversion_killed_within_files_is_as_if_it_was_not(tmp_path, monkeypatch):
    """Killed in the middle of the metadata and of shards, and when all was in place but the rest.

    zarr-python gives each file its name when it is whole.
    """
    path = write_nifti(tmp_path / "a.nii", numbered((8, 8, 8)))
    convert(path, tmp_path / "once" / "a.zarr", chunk=2, shard=4)
    place = tmp_path / "killed" / "a.zarr"
    for file in (2, 3, 4):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", killed_at(Path.replace, file))
            with pytest.raises(Killed):
                convert(path, place, chunk=2, shard=4)
    left = tmp_path / "killed" / ".a.zarr.part"
    journal = (left / "journal.jsonl").read_bytes()
    convert(path, place, chunk=2, shard=4)
    # As of one that was killed after the volume had got its name.
    (left / "old").mkdir(parents=True)
    (left / "journal.jsonl").write_bytes(journal)

    assert convert(path, place, chunk=2, shard=4).new_shards == 0
    assert files_below(tmp_path / "killed") == files_below(tmp_path / "once")


def killed_at(call, which):
    """Return what ends the process at one of the calls, before it is made."""
    calls = count(1)

    def killed(*arguments):
        if next(calls) == which:
            raise Killed
        return call(*arguments)

    return killed


def test_a_line_cut_off_in_the_journal_is_written_again(tmp_path):
    """A kill may come between the first and the last byte of a line."""
    path = write_nifti(tmp_path / "a.nii", numbered((8, 8, 8)))
    with pytest.raises(Killed):
        convert(path, tmp_path / "b.zarr", chunk=2, shard=4, progress=killed_after(3))
    journal = tmp_path / ".b.zarr.part" / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[:-4])

    done = convert(path, tmp_path / "b.zarr", chunk=2, shard=4)

    assert (done.new_shards, done.reused_shards) == (6, 2)
    np.testing.assert_array_equal(Volume(tmp_path / "b.zarr").numpy()[0], numbered((8, 8, 8)))


@pytest.mark.parametrize("change", ["source", "chunk"])
def test_what_was_begun_otherwise_is_begun_anew(tmp_path, change):
    """Shards of another version, or of another size, are not mixed in."""
    path = write_nifti(tmp_path / "a.nii", numbered((8, 8, 8)))
    with pytest.raises(Killed):
        convert(path, tmp_path / "b.zarr", chunk=2, shard=4, progress=killed_after(3))
    if change == "source":
        write_nifti(path, numbered((8, 8, 8)) + 1)
        os.utime(path, ns=(1, 1))
    expected = Volume(path).numpy()

    done = convert(path, tmp_path / "b.zarr", chunk=2 if change == "source" else 4, shard=4)

    assert (done.new_shards, done.reused_shards) == (8, 0)
    np.testing.assert_array_equal(Volume(tmp_path / "b.zarr").numpy(), expected)


def test_converting_again_does_nothing(tmp_path):
    """The same volume in the same shards is there already."""
    path = write_nifti(tmp_path / "a.nii", numbered((8, 8, 8)))
    convert(path, tmp_path / "b.zarr", shard=8, chunk=4)

    done = convert(path, tmp_path / "b.zarr", shard=8, chunk=4)

    assert (done.new_shards, done.reused_shards) == (0, 1)


def test_nothing_is_overwritten_unasked(tmp_path):
    """Another volume stays, until told otherwise; it stays whole until the new one is."""
    convert(Volume(numbered((4, 4, 4))), tmp_path / "a.zarr")
    other = Volume(numbered((5, 4, 4)))

    with pytest.raises(DestinationExists, match="overwrite=True"):
        convert(other, tmp_path / "a.zarr")
    with pytest.raises(Killed):
        convert(other, tmp_path / "a.zarr", overwrite=True, progress=killed_after(0))
    assert Volume(tmp_path / "a.zarr").shape == (1, 4, 4, 4)
    convert(other, tmp_path / "a.zarr", overwrite=True)

    assert Volume(tmp_path / "a.zarr").shape == (1, 5, 4, 4)


def test_a_folder_of_other_things_is_never_overwritten(tmp_path):
    """A slip of the path costs nobody their data."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years")

    with pytest.raises(DestinationExists, match="no zarr group"):
        convert(Volume(numbered((4, 4, 4))), tmp_path / "data", overwrite=True)

    assert (tmp_path / "data" / "thesis.txt").exists()


def test_objects_of_others_are_never_removed():
    """The same in a bucket."""
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe_file("/others/data/thesis.txt", b"years")

    for overwrite in (False, True):
        with pytest.raises(DestinationExists):
            convert(Volume(numbered((4, 4, 4))), "memory://others/data", overwrite=overwrite)

    assert system.cat_file("/others/data/thesis.txt") == b"years"


def test_a_volume_is_not_written_over_itself(tmp_path):
    """Its shards would be gone before they are read."""
    convert(Volume(numbered((4, 4, 4))), tmp_path / "a.zarr")

    with pytest.raises(DestinationExists, match="over itself"):
        convert(tmp_path / "a.zarr", tmp_path / "a.zarr", chunk=2, overwrite=True)


def test_a_second_writer_is_told(tmp_path):
    """It waits as long as it may, and then says for whom."""
    place = tmp_path / "a.zarr"
    with (
        LocalDestination(place).lock(timeout=0),
        pytest.raises(DestinationBusy, match=r"a\.zarr"),
    ):
        convert(Volume(numbered((4, 4, 4))), place, timeout=0)


def test_a_second_writer_waits_and_writes_nothing(tmp_path):
    """Two that want the same volume write it once."""
    path = write_nifti(tmp_path / "a.nii", numbered((8, 8, 8)))
    second, results = [], []

    def also():
        results.append(convert(path, tmp_path / "b.zarr", chunk=2, shard=4))

    def start_another(done, total):
        if not second:
            second.append(threading.Thread(target=also))
            second[0].start()

    first = convert(path, tmp_path / "b.zarr", chunk=2, shard=4, progress=start_another)
    second[0].join(timeout=60)

    assert (first.new_shards, results[0].new_shards, results[0].reused_shards) == (8, 0, 8)


def test_a_source_written_meanwhile_is_noticed(tmp_path):
    """Half of one version and half of another is no volume."""
    path = write_nifti(tmp_path / "a.nii", numbered((8, 8, 8)))

    with pytest.raises(CorruptVolume, match="while it was converted"):
        convert(path, tmp_path / "b.zarr", progress=lambda done, total: os.utime(path, ns=(1, 1)))

    assert not (tmp_path / "b.zarr").exists()


def test_memory_is_bounded_by_a_shard(tmp_path):
    """No read is larger than a shard."""
    sizes = []
    volume = Volume(numbered((8, 8, 8)))
    read = Volume.read
    volume.read = lambda region: sizes.append(region.shape) or read(volume, region)

    convert(volume, tmp_path / "a.zarr", chunk=2, shard=4)

    assert sizes == [(4, 4, 4)] * 8


def test_the_record_names_no_place(tmp_path):
    """A location may hold credentials; only its digest is written."""
    path = write_nifti(tmp_path / "a.nii", numbered((4, 4, 4)))

    convert(path, tmp_path / "b.zarr")

    document = json.loads((tmp_path / "b.zarr" / "zarr.json").read_text())
    assert list(document["attributes"]["voxpipe"]) == ["key"]


@pytest.mark.parametrize(("patch", "size", "expected"), [(96, 2, 32), (96, 4, 24), (64, 2, 24)])
def test_chunks_lie_between_a_quarter_patch_and_128_kib(patch, size, expected):
    """Both promises are met within a factor of two per axis."""
    side = chunk_side(patch, size)

    assert side == expected
    assert patch / 8 <= side <= patch / 2
    assert 128 * 1024 / 8 <= side**3 * size <= 128 * 1024 * 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chunk": 0}, "chunk is a whole number"),
        ({"chunk": 3, "shard": 8}, "does not hold whole chunks of 3"),
        ({"codec": "zip"}, "codec is one of"),
        ({"patch": 1.5}, "patch is a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    """Before anything is written."""
    with pytest.raises(VolumeError, match=message):
        plan_conversion(Header((1, 9, 9, 9), IDENTITY, np.dtype("i2")), **settings)


sides = st.integers(1, 40)


@given(st.tuples(st.integers(1, 9), sides, sides, sides), st.sampled_from([1, 2, 8, 16]))
def test_shards_cover_a_volume_once(shape, voxel):
    """Every voxel is in exactly one shard, and every shard is whole chunks."""
    plan = plan_conversion(Header(shape, IDENTITY, np.dtype(f"V{voxel}")), chunk=voxel)
    seen = np.zeros(shape[1:], int)
    for _, region in plan.regions():
        assert Region.of_shape(shape[1:]).contains(region)
        seen[region.slices] += 1

    assert (seen == 1).all()
    assert all(s % c == 0 for s, c in zip(plan.stored_shards, plan.stored_chunks, strict=True))
