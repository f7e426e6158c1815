"""Array files by zarr, tifffile, h5py, blosc2 and NumPy, never by the code under test."""

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
from nifti_files import numbered
from reference_files import Reference, reference

DATA = Path(__file__).parents[1] / "data"
SHAPE = (5, 6, 7)
UNIT = np.eye(4)
# Of the archives in ``tests/data``, which nifti-zarr and ome-zarr wrote.
SFORM = np.array([[0, -2, 0, 10], [1.5, 0, 0, -20], [0, 0, -3, 30], [0, 0, 0, 1.0]])
NIFTI = (np.arange(8 * 10 * 12).reshape(1, 8, 10, 12) * 0.5 - 3).astype(np.float32)
OME = np.arange(2 * 2 * 3 * 8 * 8, dtype=np.uint16).reshape(4, 3, 8, 8).transpose(0, 3, 2, 1)
MICRO = np.diag([0.00025, 0.0005, 0.002, 1.0])


def has(*modules):
    """Whether all of these can be imported; zarr must be the third, which writes version 3."""
    if any(importlib.util.find_spec(module) is None for module in modules):
        return False
    return "zarr" not in modules or importlib.import_module("zarr").__version__ >= "3"


def optional(name, *modules):
    """Put a reference into the list where the libraries that write it are installed."""
    return reference(name) if has(*modules) else lambda function: function


def zarr_array(folder, array, name="a.zarr", header="zarr.json", **how):
    import zarr

    how = {"chunks": (2, 4, 4)} | how
    zarr.create_array(folder / name, data=array, **how)
    return Reference(
        folder / name,
        array[None].astype(array.dtype.newbyteorder("=")),
        UNIT,
        header=(f"{name}/{header}", 0),
        disk_dtype=array.dtype.str,
        tables=True,
    )


@optional("zarr v2, big-endian", "zarr")
def zarr_v2(folder):
    return zarr_array(folder, numbered(SHAPE, ">i2"), header=".zarray", zarr_format=2)


@optional("zarr v3", "zarr")
def zarr_v3(folder):
    return zarr_array(folder, numbered(SHAPE))


@optional("zarr v3, sharded", "zarr")
def zarr_shards(folder):
    return zarr_array(folder, numbered(SHAPE, np.float32), shards=(4, 8, 8))


@optional("zarr in a zip", "zarr")
def zarr_zip(folder):
    import zarr

    with zarr.storage.ZipStore(folder / "a.zarr.zip", mode="w") as store:
        zarr.create_array(store, data=numbered(SHAPE), chunks=(2, 4, 4), shards=(4, 4, 8))
    return Reference(folder / "a.zarr.zip", numbered(SHAPE)[None], UNIT, tables=True)


def unpacked(folder, archive, array, affine, **facts):
    with zipfile.ZipFile(DATA / f"{archive}.zip") as packed:
        packed.extractall(folder / archive)
    return Reference(folder / archive, array, affine, tables=True, **facts)


@reference("OME-Zarr 0.4")
def ome_zarr_4(folder):
    header = ("ome-2.ome.zarr/.zattrs", 0)
    return unpacked(folder, "ome-2.ome.zarr", OME, MICRO, header=header)


@reference("OME-Zarr 0.5")
def ome_zarr_5(folder):
    header = ("ome-3.ome.zarr/zarr.json", 0)
    return unpacked(folder, "ome-3.ome.zarr", OME, MICRO, header=header)


@reference("NIfTI-Zarr of v2")
def nifti_zarr_2(folder):
    header = ("nifti-2.nii.zarr/0/.zarray", 0)
    return unpacked(folder, "nifti-2.nii.zarr", NIFTI, SFORM, header=header, disk_dtype="<i2")


@reference("NIfTI-Zarr of v3")
def nifti_zarr_3(folder):
    header = ("nifti-3.nii.zarr/0/zarr.json", 0)
    return unpacked(folder, "nifti-3.nii.zarr", NIFTI, SFORM, header=header, disk_dtype="<i2")


def tiff(folder, array, name="a.tif", affine=UNIT, **how):
    """Write z, y, x; the header of a TIFF is anywhere in it."""
    import tifffile

    path = folder / name
    tifffile.imwrite(path, array, **{"photometric": "minisblack"} | how)
    expected = array.transpose(2, 1, 0)[None].astype(array.dtype.newbyteorder("="))
    size = path.stat().st_size
    disk_dtype = array.dtype.newbyteorder(how.get("byteorder", "<")).str
    return Reference(path, expected, affine, header=("", size), disk_dtype=disk_dtype, tables=True)


@optional("tiff, as it is, big-endian", "tifffile")
def tiff_plain(folder):
    return tiff(folder, numbered(SHAPE, np.uint16), byteorder=">")


@optional("tiff, strips", "tifffile")
def tiff_strips(folder):
    how = {"rowsperstrip": 4, "compression": "zlib", "predictor": True}
    return tiff(folder, numbered((4, 11, 13), np.int32), "a.tiff", **how)


@optional("OME-TIFF, tiles", "tifffile")
def ome_tiff(folder):
    said = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.25, "PhysicalSizeZ": 2.0, "axes": "ZYX"}
    how = {"tile": (16, 16), "compression": "zlib", "ome": True, "metadata": said}
    affine = np.diag([0.0005, 0.00025, 0.002, 1])
    return tiff(folder, numbered((3, 20, 21)), "a.ome.tif", affine, **how)


@optional("ImageJ", "tifffile")
def imagej(folder):
    said = {"axes": "ZYX", "spacing": 3.0, "unit": "um"}
    affine = np.diag([0.0005, 0.00025, 0.003, 1])
    how = {"imagej": True, "resolution": (2.0, 4.0), "metadata": said, "byteorder": ">"}
    return tiff(folder, numbered(SHAPE, np.uint16), affine=affine, **how)


def hdf5(folder, array, **how):
    import h5py

    with h5py.File(folder / "a.h5", "w") as file:
        made = file.create_dataset("volumes/raw", data=array, **how)
        made.attrs["element_size_um"] = (2000, 500, 250)
    expected = array if array.ndim == 4 else array[None]
    return Reference(
        folder / "a.h5",
        expected.astype(array.dtype.newbyteorder("=")),
        np.diag([2, 0.5, 0.25, 1]),
        header=("", (folder / "a.h5").stat().st_size),
        disk_dtype=array.dtype.str,
        options={"dataset": "volumes/raw"},
        tables=True,
    )


@optional("hdf5, in one piece", "h5py")
def hdf5_plain(folder):
    return hdf5(folder, numbered(SHAPE, np.float32))


@optional("hdf5, chunks, big-endian", "h5py")
def hdf5_chunks(folder):
    array = numbered((2, *SHAPE), ">i2")
    return hdf5(folder, array, chunks=(1, 2, 4, 4), compression="gzip", shuffle=True)


@optional("hdf5, check sums", "h5py")
def hdf5_checked(folder):
    return hdf5(folder, numbered(SHAPE, np.uint8), chunks=(2, 4, 4), fletcher32=True)


def b2nd(folder, array, chunks, blocks):
    import blosc2

    path = folder / "a.b2nd"
    how = {"codec": blosc2.Codec.ZSTD, "clevel": 8}
    blosc2.asarray(array, urlpath=str(path), chunks=chunks, blocks=blocks, cparams=how)
    expected = array if array.ndim == 4 else array[None]
    return Reference(path, expected, UNIT, header=("", path.stat().st_size), tables=True)


@optional("b2nd, as nnU-Net's", "blosc2")
def b2nd_channels(folder):
    array = numbered((2, *SHAPE), np.float32) / 4
    return b2nd(folder, array, (1, 5, 4, 4), (1, 3, 2, 2))


@optional("b2nd, three axes", "blosc2")
def b2nd_spatial(folder):
    return b2nd(folder, numbered(SHAPE, np.uint8), SHAPE, (2, 3, 4))


@reference("npy, Fortran order, big-endian")
def npy(folder):
    array = numbered((2, *SHAPE), ">i2")
    np.save(folder / "a.npy", np.asfortranarray(array))
    return Reference(folder / "a.npy", array.astype("i2"), UNIT, header=("", 128), disk_dtype=">i2")


@reference("npy, booleans")
def npy_flags(folder):
    array = numbered(SHAPE) % 3 == 0
    np.save(folder / "a.npy", array)
    return Reference(folder / "a.npy", array[None], UNIT, header=("", 128), disk_dtype="|b1")
