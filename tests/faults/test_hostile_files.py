"""Files that were made to do harm: read within the budget, or refused by name before that."""

import json
import os
import shutil
import struct
import zipfile
import zlib
from contextlib import suppress
from functools import cache
from random import Random

import numpy as np
import pytest
from hostile_values import as_text, mutated, nested
from reading_child import ReadingChild

SMALL = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
# More than a reader may take.
BOMB = 384 * 1024**2


@pytest.fixture
def child():
    """Return the process that reads."""
    found = ReadingChild()
    yield found
    found.close()


def zarr_at(place, voxels=SMALL, **how):
    import zarr

    settings = {"chunks": voxels.shape, "dtype": voxels.dtype, "shape": voxels.shape, **how}
    zarr.create_array(place, **settings)[...] = voxels
    return place


def edited(path, **changes):
    """Change the metadata of a zarr array."""
    file = path / "zarr.json"
    file.write_text(as_text({**json.loads(file.read_text()), **changes}))
    return path


def sparse(path, size):
    """Make a file as long as that; it takes no room on the disk."""
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.truncate(size)


@cache
def squeezed():
    """Return what inflates to more than a reader may take, and its check sum."""
    squeeze = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    block, crc = bytes(1024**2), 0
    pieces = []
    for _ in range(BOMB // len(block)):
        pieces.append(squeeze.compress(block))
        crc = zlib.crc32(block, crc)
    return b"".join(pieces) + squeeze.flush(), crc


def zipped(folder, path, bomb):
    """Pack a zarr into an archive in which one member inflates to more than a reader may take."""
    packed, crc = squeezed()
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            name = file.relative_to(folder).as_posix()
            if file.is_file() and name != bomb:
                archive.write(file, name)
        info = zipfile.ZipInfo(bomb)
        archive.writestr(info, b"")
    # Written by hand: the library would compress two gigabytes once more.
    data = bytearray(path.read_bytes())
    local = data.rindex(b"PK\x03\x04", 0, data.index(b"PK\x01\x02"))
    central = data.rindex(b"PK\x01\x02")
    end = data.rindex(b"PK\x05\x06")
    head = struct.pack("<HIII", 0, crc, len(packed), BOMB)
    for at in (local + 8, central + 10):
        data[at : at + 2] = struct.pack("<H", zipfile.ZIP_DEFLATED)
    for at in (local + 14, central + 16):
        data[at : at + 12] = head[2:]
    (begin,) = struct.unpack_from("<I", data, end + 16)
    struct.pack_into("<I", data, end + 16, begin + len(packed))
    path.write_bytes(data[:begin] + packed + data[begin:])
    return path


def zip_bomb(place, member="c/0/0/0"):
    return zipped(zarr_at(place / "a.zarr"), place / "a.zarr.zip", member)


def shard_bomb(place):
    zarr_at(place / "a.zarr", shards=(2, 2, 2), chunks=(1, 1, 1))
    return zipped(place / "a.zarr", place / "a.zarr.zip", "c/0/0/0")


def endless_metadata(place):
    sparse(zarr_at(place / "a.zarr") / "zarr.json", 1 << 40)
    return place / "a.zarr"


def endless_chunk(place):
    sparse(zarr_at(place / "a.zarr") / "c/0/0/0", 1 << 40)
    return place / "a.zarr"


def wide_metadata(place):
    path = zarr_at(place / "a.zarr")
    text = (path / "zarr.json").read_text().rstrip().removesuffix("}")
    (path / "zarr.json").write_text(f'{text}, "attributes": {{"a": [{"[]," * 4_000_000}[]]}}}}')
    return path


def mhd(place, **fields):
    told = {"NDims": 3, "DimSize": "2 2 2", "ElementType": "MET_UCHAR", **fields}
    told.setdefault("ElementDataFile", "a.raw")
    data = told.pop("ElementDataFile")
    lines = [f"{key} = {value}\n" for key, value in told.items()]
    (place / "a.mhd").write_text("".join([*lines, f"ElementDataFile = {data}\n"]))
    (place / "a.raw").write_bytes(SMALL.tobytes())
    return place / "a.mhd"


def nrrd(place, **fields):
    told = {"type": "uchar", "dimension": 3, "sizes": "2 2 2", "encoding": "raw", **fields}
    lines = "".join(f"{key}: {value}\n" for key, value in told.items())
    (place / "a.nrrd").write_bytes(f"NRRD0004\n{lines}\n".encode() + SMALL.tobytes())
    return place / "a.nrrd"


def bmp(place, width=2, height=2, colours=0):
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 0, 0, 0, 0, colours, 0)
    palette = bytes(1024)
    pixels = bytes(8)
    size = 14 + len(info) + len(palette) + len(pixels)
    head = struct.pack("<2sIHHI", b"BM", size, 0, 0, 14 + len(info) + len(palette))
    (place / "a.bmp").write_bytes(head + info + palette + pixels)
    return place / "a.bmp"


def hdf5(place, chunks, **how):
    import h5py

    with h5py.File(place / "a.h5", "w") as file:
        made = file.create_dataset("x", chunks, "u1", chunks=chunks, **how)
        squeezed = zlib.compress(bytes(1024**2), 9)
        if "compression" in how:
            made.id.write_direct_chunk((0,) * len(chunks), squeezed)
    return place / "a.h5"


def itself(place):
    import h5py

    layout = h5py.VirtualLayout((2, 2, 2), "u1")
    layout[...] = h5py.VirtualSource(".", "x", (2, 2, 2))
    with h5py.File(place / "a.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    return place / "a.h5"


def linked_on(place, last):
    """A virtual dataset of a link to a link, which leads to what ``last`` says."""
    import h5py

    layout = h5py.VirtualLayout((2, 2, 2), "u1")
    layout[...] = h5py.VirtualSource(".", "/link", (2, 2, 2))
    with h5py.File(place / "a.h5", "w") as file:
        file["link"] = h5py.ExternalLink("b.h5", "/y")
        file.create_virtual_dataset("v", layout)
    with h5py.File(place / "b.h5", "w") as file:
        file["y"] = h5py.ExternalLink(*last)
    return place / "a.h5"


def linked_to_pipe(place):
    os.mkfifo(place / "p.h5")
    return linked_on(place, ("p.h5", "/x"))


def in_disguise(place, name, change, before=0):
    """Let another file hold what SimpleITK wrote as HDF5, but for its voxels."""
    import h5py
    import SimpleITK

    suffix, path = (".mnc", MINC) if name.endswith(".mnc") else (".hdf5", ITK)
    SimpleITK.WriteImage(SimpleITK.GetImageFromArray(SMALL), os.fspath(place / f"sound{suffix}"))
    sound = (place / f"sound{suffix}").read_bytes()
    (place / name).write_bytes(bytes(before) + sound)
    with h5py.File(place / name, "r+", libver=("v108", "v110")) as file:
        group, old = file[path].parent, dict(file[path].attrs)
        del file[path]
        change(group, path)
        if isinstance(group.get(path, getlink=True), h5py.HardLink):
            for key, value in old.items():
                with suppress(TypeError):  # of references
                    file[path].attrs[key] = value
    return place / name


MINC, ITK = "/minc-2.0/image/0/image", "/ITKImage/0/VoxelData"


def virtual_of_itself(group, path):
    import h5py

    layout = h5py.VirtualLayout((2, 2, 2), "u1")
    layout[...] = h5py.VirtualSource(".", path, (2, 2, 2))
    group.create_virtual_dataset(path, layout)


def pipe_among_slices(place):
    (place / "scan").mkdir()
    (place / "scan" / "1.dcm").write_bytes(bytes(128) + b"DICM")
    os.mkfifo(place / "scan" / "2.dcm")
    return place / "scan"


def long_slice(place):
    (place / "scan").mkdir()
    element = struct.pack("<HH2sHI", 0x0010, 0x0010, b"OB", 0, 2**31)
    (place / "scan" / "1.dcm").write_bytes(bytes(128) + b"DICM" + element)
    return place / "scan"


def npy(place, header):
    text = f"{header:<117}\n".encode()
    (place / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text)
    return place / "a.npy"


DIGITS = "9" * 5000
FILES = {
    "zip: chunk": zip_bomb,
    "zip: metadata": lambda p: zip_bomb(p, "zarr.json"),
    "zip: shard": shard_bomb,
    "zarr.json without an end": endless_metadata,
    "zarr.json of a million lists": wide_metadata,
    "chunk without an end": endless_chunk,
    "zarr.json: deep": lambda p: edited(zarr_at(p / "a.zarr"), attributes=nested()),
    "zarr.json: deep type": lambda p: edited(zarr_at(p / "a.zarr"), data_type=nested(900)),
    "zarr.json: long shape": lambda p: edited(zarr_at(p / "a.zarr"), shape=[10**5000] * 3),
    "zarr.json: many axes": lambda p: edited(zarr_at(p / "a.zarr"), shape=[1] * 100_000),
    "zarr.json: codecs": lambda p: edited(zarr_at(p / "a.zarr"), codecs=[["a"], 5, None]),
    "mhd: a billion files": lambda p: mhd(
        p, DimSize="1000 1000 1000", ElementDataFile="a%09d 0 999999999 1"
    ),
    "mhd: two numbers in a name": lambda p: mhd(p, ElementDataFile="a%d%s%n 0 1 1"),
    "mhd: wide number": lambda p: mhd(p, ElementDataFile="a%99d 0 1 1"),
    "mhd: a number of 5000 digits": lambda p: mhd(p, ElementDataFile=f"a%d 0 {DIGITS} 1"),
    "mhd: long sizes": lambda p: mhd(p, DimSize=f"{DIGITS} 2 2"),
    "mhd: large sizes": lambda p: mhd(p, DimSize="99999999999 99999999999 99999999999"),
    "mhd: long skip": lambda p: mhd(p, HeaderSize=DIGITS),
    "mhd: large channels": lambda p: mhd(p, ElementNumberOfChannels=10**30),
    "nrrd: large sizes": lambda p: nrrd(p, sizes="4000000000 4000000000 4000000000"),
    "nrrd: long skip": lambda p: nrrd(p, byteskip=DIGITS[:4000]),
    "nrrd: many lines": lambda p: nrrd(p, lineskip=10**18),
    "nrrd: gzip of nothing": lambda p: nrrd(p, encoding="gzip", sizes="99999 99999 99"),
    "bmp: wide": lambda p: bmp(p, 100_000, 100_000),
    "bmp: colours": lambda p: bmp(p, colours=2**32 - 1),
    "bmp: upside down": lambda p: bmp(p, 2**31 - 1, -(2**31)),
    "hdf5: itself": itself,
    "hdf5: itself by two links": lambda p: linked_on(p, ("a.h5", "/v")),
    "hdf5: links in a circle": lambda p: linked_on(p, ("a.h5", "/link")),
    "hdf5: a pipe by two links": linked_to_pipe,
    "hdf5: a chunk of 3 GB": lambda p: hdf5(p, (3, 1024, 1024**2), compression="gzip"),
    "hdf5: an empty chunk of 3 GB": lambda p: hdf5(p, (3, 1024, 1024**2)),
    "itk: itself": lambda p: in_disguise(p, "a.dat", virtual_of_itself),
    "itk: itself, later": lambda p: in_disguise(p, "a.dat", virtual_of_itself, 1024),
    "minc: itself": lambda p: in_disguise(p, "a.mnc", virtual_of_itself),
    "dicom: a pipe": pipe_among_slices,
    "dicom: a long element": long_slice,
    "npy: deep": lambda p: npy(p, "{'descr': " + "(" * 60 + ", 'shape': (2,)}"),
    "npy: large": lambda p: npy(
        p, f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({10**18}, {10**18}, 2)}}"
    ),
}


@pytest.mark.parametrize("name", ["a.dat", "a.mnc"])
def test_who_follows_anywhere_meets_no_circle(child, tmp_path, name):
    """Of what SimpleITK would follow until the stack ends."""
    said = child.read(in_disguise(tmp_path, name, virtual_of_itself), follow="anywhere")

    assert "leads back to itself" in said


@pytest.mark.parametrize("name", FILES)
def test_hostile_files(child, tmp_path, name):
    """Within the budget, or named."""
    child.read(FILES[name](tmp_path))


METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs")


def test_hostile_metadata(attacks, child, tmp_path):
    """Whatever the documents of a zarr say, the reader names the file."""
    shards = {"chunks": (1, 1, 1), "shards": (2, 2, 2)}
    sound = [
        zarr_at(tmp_path / "plain"),
        zarr_at(tmp_path / "shards", **shards),
        zarr_at(tmp_path / "old", zarr_format=2),
        image_at(tmp_path / "image"),
    ]

    def attempt(seed):
        random = Random(seed)
        place = tmp_path / f"{seed}.zarr"
        shutil.copytree(random.choice(sound), place)
        try:
            documents = [p for p in place.rglob("*") if p.name in METADATA]
            file = random.choice(sorted(documents))
            document, _ = mutated(json.loads(file.read_text()), random)
            file.write_text(as_text(document))
            child.read(place)
        finally:
            shutil.rmtree(place)

    attacks.each(attempt, quick=10, whole=1500)


def image_at(place):
    from voxpipe.volumes import Volume, convert

    convert(Volume(SMALL), place / "a.nii.zarr")
    return place / "a.nii.zarr"
