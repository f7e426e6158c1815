"""Damaged zarr: the right voxels or a VolumeError that names the file, nothing else."""

import json
import random
import re
import warnings

import numpy as np
import pytest
from nifti_files import numbered

from voxpipe.core import Region
from voxpipe.core.errors import BadHeader, CorruptVolume, VolumeError
from voxpipe.volumes import Volume, close_volumes, convert

zarr = pytest.importorskip("zarr")
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


@pytest.mark.parametrize("kind", ["group", "arrays", None])
def test_a_nifti_header_that_is_no_array_is_refused(tmp_path, kind):
    """Without it the volume would lose its slope and affine."""
    convert(Volume(ARRAY, affine=np.diag([2.0, 2, 5, 1])), tmp_path / "a.nii.zarr")
    edited(tmp_path / "a.nii.zarr" / "nifti" / "zarr.json", lambda d: d.update(node_type=kind))

    with pytest.raises(BadHeader, match="nifti"):
        read(tmp_path / "a.nii.zarr")
