"""Damaged zarr: the right voxels or a VolumeError that names the file, nothing else."""

import json
import random
import re
import shutil
import warnings

import fsspec
import numcodecs
import numpy as np
import pytest
from nifti_files import numbered
from zarr_arrays import wrapped_codecs

from voxpipe.core import Region
from voxpipe.core.errors import (
    BadHeader,
    CorruptVolume,
    EmptyVolume,
    VolumeChanged,
    VolumeError,
)
from voxpipe.volumes import Volume, close_volumes, convert

zarr = pytest.importorskip("zarr")
SEVERAL_FRAMES = tuple(map(int, numcodecs.__version__.split(".")[:3])) >= (0, 16, 4)
CHECKED = [zarr.codecs.ZstdCodec(level=1), zarr.codecs.Crc32cCodec()]
ARRAY = numbered((8, 8, 8), np.uint16)
FLIPS, TRUNCATIONS = 200, 50


def write(folder, **how):
    """Write in shards whose index and chunks carry check sums."""
    how = {"chunks": (4, 4, 4), "shards": (8, 8, 8), "compressors": CHECKED} | how
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(folder, data=ARRAY, **how)
    return folder


def read(folder):
    """Read as much as is safe of an array of any claimed size."""
    close_volumes()
    volume = Volume(folder)
    return volume.read(Region((0, 0, 0), tuple(min(8, n) for n in volume.spatial_shape))).array


def damaged(whole, seed=0):
    """Yield the bytes of a file cut short, and with one byte changed."""
    generator = random.Random(seed)
    for n in range(TRUNCATIONS):
        yield whole[: n * len(whole) // TRUNCATIONS]
    for _ in range(FLIPS):
        changed = bytearray(whole)
        changed[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        yield bytes(changed)


@pytest.mark.parametrize("index", ["start", "end"])
def test_a_damaged_shard_never_gives_wrong_voxels(tmp_path, index):
    """Where index and chunks carry check sums, each damage is seen, and its file named."""
    shards = {"shape": (8, 8, 8), "index_location": index}
    file = write(tmp_path / "a.zarr", shards=shards) / "c" / "0" / "0" / "0"
    refused = []
    for data in damaged(file.read_bytes()):
        file.unlink()  # cutting a file short in place may wait for the disk
        file.write_bytes(data)
        try:
            found = read(tmp_path / "a.zarr")
        except VolumeError as error:
            refused.append(str(error))
        else:
            np.testing.assert_array_equal(found[0], ARRAY)

    assert len(refused) > FLIPS  # hardly a byte of the file is without meaning
    assert [text for text in refused if "a.zarr" not in text or "c/0/0/0" not in text] == []


@pytest.mark.parametrize("how", [{"zarr_format": 2, "shards": None}, {}], ids=["v2", "v3"])
def test_damaged_metadata_are_refused_or_read(tmp_path, how):
    """A changed document still says something sensible, or is refused by name."""
    name = ".zarray" if how else "zarr.json"
    how |= {"compressors": "auto"} if how else {}
    file = write(tmp_path / "a.zarr", **how) / name
    refused = []
    for data in damaged(file.read_bytes()):
        file.unlink()  # cutting a file short in place may wait for the disk
        file.write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zarr-python warns before it refuses
            try:
                read(tmp_path / "a.zarr")
            except VolumeError as error:
                refused.append(str(error))

    assert len(refused) > TRUNCATIONS
    assert [text for text in refused if "a.zarr" not in text] == []


def test_an_index_that_points_beyond_the_shard_costs_no_memory(tmp_path):
    """A length of terabytes in an index without a check sum is not allocated."""
    made = write(tmp_path / "a.zarr")
    document = (made / "zarr.json").read_text()
    index = re.search(r'"index_codecs": \[.*?"crc32c"\s*\}\s*\]', document, re.S).group()
    bare = '"index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]'
    (made / "zarr.json").write_text(document.replace(index, bare))
    shard = made / "c" / "0" / "0" / "0"
    table = np.frombuffer(shard.read_bytes()[-8 * 16 - 4 : -4], "<u8").copy()
    table[1::2] = 2**45
    shard.write_bytes(shard.read_bytes()[: -8 * 16 - 4] + table.tobytes())

    with pytest.raises(CorruptVolume, match=r"a\.zarr.*c/0/0/0"):
        read(made)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"chunk_shape": [100_000, 100_000, 100_000]}, "takes more than"),
        ({"chunk_shape": [8, 8]}, "make no sense"),
        ({"chunk_shape": [8, 8, 0]}, "make no sense"),
    ],
)
def test_senseless_chunks_are_refused_before_memory_is_taken(tmp_path, wrong, message):
    """The shape of a chunk is judged before one is made."""
    made = write(tmp_path / "a.zarr", shards=None, compressors=None)
    document = (made / "zarr.json").read_text()
    found = re.search(r'"chunk_shape": \[.*?\]', document, re.S).group()
    chunk_shape = str(wrong["chunk_shape"])
    (made / "zarr.json").write_text(document.replace(found, f'"chunk_shape": {chunk_shape}'))

    with pytest.raises(BadHeader, match=message):
        read(made)


def edited(file, change):
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


@pytest.mark.parametrize("version", [2, 3])
def test_a_separator_that_does_not_exist_is_refused(tmp_path, version):
    """No chunk would be found under such keys, and the volume would be all fill."""
    write(tmp_path / "a.zarr", zarr_format=version, shards=None, compressors="auto")
    file = tmp_path / "a.zarr" / {2: ".zarray", 3: "zarr.json"}[version]
    if version == 2:
        edited(file, lambda d: d.update(dimension_separator="-"))
    else:
        edited(file, lambda d: d["chunk_key_encoding"].update(configuration={"separator": "-"}))

    with pytest.raises(BadHeader, match=r"a\.zarr .*separated by '\.' or '/', not by '-'"):
        read(tmp_path / "a.zarr")


INSIDE = ("codecs", 0, "configuration")
F_ORDER = [{"name": "transpose", "configuration": {"order": "F"}}, {"name": "bytes"}]


@pytest.mark.parametrize(
    ("version", "where", "change", "message"),
    [
        (3, (), {"zarr_format": 4}, "zarr_format 4 and not 3"),
        (2, (), {"zarr_format": 3}, "zarr_format 3 and not 2"),
        (2, (), {"order": "K"}, "order is 'C' or 'F', not 'K'"),
        (3, (), {"mystery": {"name": "m"}}, "extension 'mystery'"),
        (3, (), {"mystery": {"must_understand": True}}, "extension 'mystery'"),
        (3, (), {"storage_transformers": [{"name": "mystery"}]}, "mystery"),
        (3, (), {"chunk_grid": {"name": "mystery", "configuration": {}}}, "mystery"),
        (3, (), {"data_type": "mystery"}, "mystery"),
        (3, (), {"chunk_key_encoding": {"name": "mystery"}}, "mystery"),
        (3, (), {"fill_value": None}, "fill_value is null"),
        (3, INSIDE, {"index_location": "middle"}, "index_location is 'start' or 'end', not 'mid"),
        (3, INSIDE, {"codecs": F_ORDER}, "order 'F' of transpose"),
        (3, INSIDE, {"codecs": [{"name": "bytes"}, {"name": "mystery"}]}, "mystery"),
    ],
)
def test_metadata_of_another_kind_are_refused_by_name(tmp_path, version, where, change, message):
    """Nothing is guessed of a newer version or an extension."""
    how = {} if version == 3 else {"zarr_format": 2, "shards": None, "compressors": "auto"}
    made = write(tmp_path / "a.zarr", **how)

    def edit(document):
        for key in where:
            document = document[key]
        document.update(change)

    edited(made / ("zarr.json" if version == 3 else ".zarray"), edit)

    with pytest.raises(BadHeader, match=rf"a\.zarr[\s\S]*{message}"):
        read(made)


def test_an_extension_that_need_not_be_known(tmp_path):
    """It says so itself."""
    made = write(tmp_path / "a.zarr")
    edited(made / "zarr.json", lambda d: d.update(mystery={"must_understand": False}))

    np.testing.assert_array_equal(read(made)[0], ARRAY)


@pytest.mark.parametrize("kind", ["group", "arrays", None])
def test_a_nifti_header_that_is_no_array_is_refused(tmp_path, kind):
    """Without it the volume would lose its slope and affine."""
    convert(Volume(ARRAY, affine=np.diag([2.0, 2, 5, 1])), tmp_path / "a.nii.zarr")
    edited(tmp_path / "a.nii.zarr" / "nifti" / "zarr.json", lambda d: d.update(node_type=kind))

    with pytest.raises(BadHeader, match="nifti"):
        read(tmp_path / "a.nii.zarr")


def converted(folder, array=ARRAY, **how):
    """Return the shard and the group that ``convert`` writes, opened by nobody."""
    convert(Volume(array), folder, chunk=4, shard=8, **how)
    close_volumes()
    return folder / "0" / "c" / "0" / "0" / "0"


@pytest.mark.parametrize(  # lz4 has the decoder of lz4hc
    "codec", ["lz4hc", pytest.param("lz4", marks=pytest.mark.slow), "zstd", "none"]
)
def test_damage_in_a_converted_shard_is_noticed(tmp_path, codec):
    """Each changed or missing byte is an error that names shard, region and what to do."""
    file = converted(tmp_path / "a.nii.zarr", codec=codec)
    stored = zarr.open_group(tmp_path / "a.nii.zarr", mode="r")
    np.testing.assert_array_equal(stored["0"][...].T, ARRAY)
    assert [type(stored[name].compressors[-1]).__name__ for name in ("0", "nifti")] == [
        "Crc32cCodec"
    ] * 2
    refused = []
    for data in damaged(file.read_bytes()):
        file.unlink()
        file.write_bytes(data)
        try:
            found = read(tmp_path / "a.nii.zarr")
        except CorruptVolume as error:
            refused.append(str(error))
        else:
            np.testing.assert_array_equal(found[0], ARRAY)

    assert len(refused) == FLIPS + TRUNCATIONS  # no byte of the file is without meaning
    assert [text for text in refused if "a.nii.zarr" not in text or "c/0/0/0" not in text] == []
    assert any(
        "its check sum is wrong" in text and "write this file again" in text for text in refused
    )


def test_check_sums_are_compared_by_native_code(tmp_path, monkeypatch):
    """Sound chunks need no call of Python; a damaged one is then looked at in Python."""
    google_crc32c = pytest.importorskip("google_crc32c")
    pytest.importorskip("google_crc32c._crc32c")
    file = converted(tmp_path / "a.nii.zarr", codec="zstd")
    volume = Volume(tmp_path / "a.nii.zarr")
    volume.read(Region((0, 0, 0), (1, 1, 1)))  # and the index of the shard
    counted = []
    value = google_crc32c.value
    monkeypatch.setattr(google_crc32c, "value", lambda data: counted.append(1) or value(data))

    np.testing.assert_array_equal(volume.numpy()[0], ARRAY)
    assert counted == []

    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptVolume, match=r"c/0/0/0: ValueError: its check sum is wrong"):
        Volume(tmp_path / "a.nii.zarr").opened_anew("a pass").numpy()
    assert len(counted) > 0


def test_a_damaged_nifti_header_of_a_conversion_is_noticed(tmp_path):
    """Its affine and slope have a check sum, too."""
    converted(tmp_path / "a.nii.zarr")
    file = tmp_path / "a.nii.zarr" / "nifti" / "c" / "0"
    data = bytearray(file.read_bytes())
    data[176] ^= 1  # scl_slope
    file.write_bytes(data)

    with pytest.raises(VolumeError, match=r"a\.nii\.zarr.*nifti/c/0.*check sum"):
        read(tmp_path / "a.nii.zarr")


@pytest.mark.filterwarnings("ignore:level-without-place")
@pytest.mark.parametrize("part", ["", "0"])
def test_a_missing_shard_of_a_conversion_is_noticed(tmp_path, part):
    """Through the group or its array; a volume of zeros has all of its shards, and is read."""
    file = converted(tmp_path / "a.nii.zarr", np.zeros((16, 8, 8), np.int16))
    assert not read(tmp_path / "a.nii.zarr" / part).any()
    file.unlink()

    with pytest.raises(
        CorruptVolume, match=r"the shard 0?/?c/0/0/0 of .*a\.nii\.zarr.* is missing"
    ):
        read(tmp_path / "a.nii.zarr" / part)
    node = zarr.open(tmp_path / "a.nii.zarr" / part, mode="r")
    with pytest.raises(CorruptVolume, match=r"the shard 0?/?c/0/0/0 of zarr \w+ is missing"):
        Volume(node).read(Region((0, 0, 0), (8, 8, 8)))


@pytest.mark.filterwarnings("ignore:level-without-place")
@pytest.mark.parametrize("codec", ["lz4hc", "none"])
@pytest.mark.parametrize("how", ["path", "array", "group"])
def test_a_shard_of_another_place_is_refused(tmp_path, codec, how):
    """Of another conversion, or of its own array: inside each shard all check sums are right."""
    for name, first in (("a", 0), ("b", 1)):
        values = np.arange(first, first + 2, dtype=np.int16).repeat(4)[:, None, None]
        volume = Volume(np.broadcast_to(values, (8, 4, 4)).copy())
        convert(volume, tmp_path / f"{name}.nii.zarr", chunk=2, shard=4, codec=codec)
    shards = tmp_path / "a.nii.zarr" / "0" / "c" / "0" / "0"

    def found():
        close_volumes()
        node = tmp_path / "a.nii.zarr"
        if how != "path":
            node = zarr.open(node / ("0" if how == "array" else ""), mode="r")
        return Volume(node).numpy()

    assert found()[0, ::4, 0, 0].tolist() == [0, 1]
    own = (shards / "0").read_bytes()
    for other in (shards / "1", tmp_path / "b.nii.zarr" / "0" / "c" / "0" / "0" / "0"):
        shutil.copy(other, shards / "0")
        with pytest.raises(CorruptVolume, match=r"c/0/0/0 of .* is not the one that was written"):
            found()
    (shards / "0").write_bytes(own)
    assert found().any()


def test_an_edited_shard_is_read_without_its_sum(tmp_path):
    """The advice of the error holds, and conversions without check sums are read as before."""
    converted(tmp_path / "a.nii.zarr")
    array = zarr.open_array(tmp_path / "a.nii.zarr" / "0", mode="r+")
    array[...] = 7
    with pytest.raises(CorruptVolume, match=r'edited, remove "sums" from 0/zarr\.json'):
        read(tmp_path / "a.nii.zarr")

    array.update_attributes({"voxpipe": {"complete": True}})
    assert (read(tmp_path / "a.nii.zarr") == 7).all()


def test_the_advice_of_a_missing_shard_holds(tmp_path):
    """The document that it names makes the shard fill, for a new Volume of the same process."""
    converted(tmp_path / "a.nii.zarr").unlink()
    volume, region = Volume(tmp_path / "a.nii.zarr"), Region((0, 0, 0), (4, 4, 4))
    with pytest.raises(CorruptVolume, match=r'write "complete": false in 0/zarr\.json'):
        volume.read(region)

    document = tmp_path / "a.nii.zarr" / "0" / "zarr.json"
    document.write_text(document.read_text().replace('"complete": true', '"complete": false'))
    with pytest.raises(VolumeChanged, match=r"(?s)written again since it was opened.*new Volume"):
        volume.read(region)
    with pytest.warns(EmptyVolume):
        assert not Volume(tmp_path / "a.nii.zarr").read(region).array.any()


def without_attributes(folder):
    document = json.loads((folder / "zarr.json").read_text())
    document["attributes"] = {}
    (folder / "zarr.json").write_text(json.dumps(document))


@pytest.mark.parametrize("name", ["a.nii.zarr", "a.zarr"])
@pytest.mark.parametrize("lost", ["nifti", "nifti/zarr.json", "0 attributes", "nifti attributes"])
def test_a_part_that_a_conversion_lost_is_an_error(tmp_path, name, lost):
    """Without it, voxels would lie elsewhere, or missing shards would be fill."""
    converted(tmp_path / name)
    assert read(tmp_path / name).any()
    part, _, attributes = lost.partition(" ")
    if part == "nifti/zarr.json":
        (tmp_path / name / part).unlink()
    elif part == "nifti":
        shutil.rmtree(tmp_path / name / part)
    if attributes:
        without_attributes(tmp_path / name / ("0" if part == "0" else ""))

    with pytest.raises(BadHeader, match=rf"{name} lost .*{'0/zarr.json' if part == '0' else part}"):
        read(tmp_path / name)
    if part == "0":  # zarr-python's objects of it, too
        with pytest.raises(BadHeader, match=r"lost .*0/zarr\.json"):
            Volume(zarr.open_group(tmp_path / name, mode="r")).probe()


def test_a_nifti_header_of_another_shape_is_refused(tmp_path):
    """Array and header are two sources of one fact."""
    for name, shape in (("a", (16, 8, 8)), ("b", (8, 16, 8))):
        converted(tmp_path / f"{name}.nii.zarr", np.ones(shape, np.int16))
    shutil.rmtree(tmp_path / "a.nii.zarr" / "nifti")
    shutil.copytree(tmp_path / "b.nii.zarr" / "nifti", tmp_path / "a.nii.zarr" / "nifti")

    with pytest.raises(BadHeader, match=r"a\.nii\.zarr has the shape \(8, 16, 8\).*\(16, 8, 8\)"):
        read(tmp_path / "a.nii.zarr")


def test_missing_shards_of_other_writers_are_fill(tmp_path):
    """zarr-python leaves out shards and chunks that hold nothing but the fill value."""
    array = np.zeros((16, 16, 16), np.uint16)
    array[:4, :4, :4] = 5
    stored = zarr.create_array(tmp_path / "a.zarr", data=array, chunks=(4,) * 3, shards=(8,) * 3)
    assert len([*(tmp_path / "a.zarr" / "c").rglob("0")]) < 8

    np.testing.assert_array_equal(Volume(tmp_path / "a.zarr").numpy()[0], stored[...])


@pytest.mark.parametrize("far", [False, True])
def test_a_shard_that_is_gone_since_its_index_was_read_is_no_fill(tmp_path, far):
    """The index said where the chunk is."""
    file = write(tmp_path / "a.zarr") / "c" / "0" / "0" / "0"
    place = tmp_path / "a.zarr"
    system = fsspec.filesystem("memory")
    if far:
        place = f"memory://gone/{tmp_path.name}.zarr"
        system.put(str(tmp_path / "a.zarr"), f"/gone/{tmp_path.name}.zarr", recursive=True)
    volume = Volume(place)
    volume.read(Region((0, 0, 0), (1, 1, 1)))
    system.rm(f"/gone/{tmp_path.name}.zarr/c/0/0/0") if far else file.unlink()

    with pytest.raises(CorruptVolume, match=r"c/0/0/0"):
        volume.read(Region((4, 4, 4), (8, 8, 8)))


@pytest.mark.parametrize("kind", ["CRC32", "CRC32C", "Adler32", "Fletcher32"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.filterwarnings("ignore:Numcodecs codecs:UserWarning")
def test_check_sums_of_numcodecs_are_compared(tmp_path, kind, version):
    """As filters of version 2, and as codecs of version 3; those before the bytes as well."""
    path = tmp_path / "a.zarr"
    if version == 2:
        codec = {"filters": [getattr(numcodecs, kind)()], "compressors": None}
    else:
        where = {"location": "start"} if kind.startswith("CRC") else {}
        codec = {"compressors": [getattr(wrapped_codecs, kind)(**where)]}
    write(path, zarr_format=version, shards=None, **codec)
    np.testing.assert_array_equal(read(path)[0], ARRAY)
    file = path / ("0.0.0" if version == 2 else "c/0/0/0")
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(data)

    with pytest.raises(CorruptVolume, match=r"a\.zarr"):
        read(path)


SKIPPED = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"  # a frame of zstandard


def zstd_without_size(data):
    """Return a frame whose header does not say its size: one block, stored as it is."""
    return b"\x28\xb5\x2f\xfd\x00\x58" + (len(data) << 3 | 1).to_bytes(3, "little") + data


def v2_chunk(folder, codec, stored):
    """Write an array of one chunk, of which the stored bytes are given."""
    folder.mkdir()
    document = {"shape": [8, 8, 8], "chunks": [8, 8, 8], "dtype": "<u2", "compressor": codec}
    document |= {"fill_value": 0, "order": "C", "filters": None, "zarr_format": 2}
    (folder / ".zarray").write_text(json.dumps(document))
    (folder / "0.0.0").write_bytes(stored)
    return folder


@pytest.mark.parametrize("name", ["zstd", "gzip", "bz2", "lzma"])
def test_a_chunk_of_several_frames(tmp_path, name):
    """As RFC 8878 and RFC 1952 allow it, and zarr-python reads it."""
    if name == "zstd" and not SEVERAL_FRAMES:
        pytest.skip("numcodecs refuses several frames of zstd before 0.16.4")
    codec, raw = numcodecs.get_codec({"id": name}), ARRAY.tobytes()
    parts = [bytes(codec.encode(raw[start:stop])) for start, stop in ((0, 300), (300, 1024))]
    frames = {"joined": b"".join(parts), "one": bytes(codec.encode(raw))}
    if name == "zstd":
        frames["skipped"] = b"".join([SKIPPED, parts[0], SKIPPED, parts[1], SKIPPED])
        frames["unsized"] = zstd_without_size(raw[:300]) + parts[1]
    if name == "gzip":
        frames["padded"] = frames["joined"] + bytes(8)
    for kind, stored in frames.items():
        path = v2_chunk(tmp_path / kind, codec.get_config(), stored)
        np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], ARRAY)
        np.testing.assert_array_equal(read(path)[0], ARRAY)


@pytest.mark.parametrize("name", ["zstd", "gzip", "zlib", "bz2", "lzma", "lz4"])
def test_frames_that_do_not_fill_a_chunk_are_refused(tmp_path, name):
    """Too few, too many, one that ends early, and, of what has a magic number, other bytes."""
    codec, raw = numcodecs.get_codec({"id": name}), ARRAY.tobytes()
    whole, half = bytes(codec.encode(raw)), bytes(codec.encode(raw[:512]))
    frames = {"few": half, "many": half * 3, "early": whole[:-3]}
    if name in ("zstd", "gzip", "lz4"):
        frames["garbage"] = whole + b"abcd1234"
    if name == "zstd":
        frames["unsized"] = zstd_without_size(raw[:512])
    for kind, stored in frames.items():
        with pytest.raises(CorruptVolume, match=r"0\.0\.0"):
            read(v2_chunk(tmp_path / kind, codec.get_config(), stored))
