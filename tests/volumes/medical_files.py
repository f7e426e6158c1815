"""Medical files by nibabel, SimpleITK and pynrrd, never by the code under test."""

import gzip
import tempfile
import zlib
from dataclasses import replace
from pathlib import Path

import nibabel
import nrrd
import numpy as np
import SimpleITK
from nifti_files import AFFINE, channels_first, numbered, write_nifti
from reference_files import Reference, reference

LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
SHAPE = (5, 6, 7)
SERIES = "1.2.826.0.1.3680043.2.1125.1"
# Of what ``write_series`` writes.
DICOM_AFFINE = np.array([[-1.5, 0, 0, -10], [0, -2.0, 0, 20], [0, 0, 3.0, 30], [0, 0, 0, 1]])


def reordered(array):
    """Return (I, J, K) or (C, I, J, K) as SimpleITK wants it: (K, J, I) or (K, J, I, C)."""
    return np.moveaxis(array, 0, -1).transpose(2, 1, 0, 3) if array.ndim == 4 else array.T


def itk_image(array, affine=AFFINE):
    """Return an image of SimpleITK; four axes are (C, I, J, K)."""
    image = SimpleITK.GetImageFromArray(
        np.ascontiguousarray(reordered(array)), isVector=array.ndim == 4
    )
    lps = LPS @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    image.SetSpacing(spacing.tolist())
    image.SetDirection((lps[:3, :3] / spacing).ravel().tolist())
    image.SetOrigin(lps[:3, 3].tolist())
    return image


def nrrd_fields(affine=AFFINE, space="left-posterior-superior", before=0, after=0, **fields):
    """Return a header for pynrrd, with channel axes before or after the spatial ones."""
    signs = {"left-posterior-superior": LPS, "right-anterior-superior": np.eye(4)}
    signs["left-anterior-superior"] = np.diag([-1.0, 1, 1, 1])
    world = signs[space] @ affine
    none = [[np.nan] * 3]
    return {
        "space": space,
        "space directions": np.array([*none * before, *world[:3, :3].T.tolist(), *none * after]),
        "space origin": world[:3, 3],
        "kinds": ["vector"] * before + ["domain"] * 3 + ["list"] * after,
        **fields,
    }


def write_mgh(path, array, affine=AFFINE):
    """Write (I, J, K) or (C, I, J, K) with nibabel, and tags behind it as FreeSurfer does."""
    frames = np.moveaxis(array, 0, -1) if array.ndim == 4 else array
    nibabel.MGHImage(frames, affine).to_filename(path)
    opened = gzip.open if path.suffix == ".mgz" else open
    with opened(path, "rb") as file:
        content = file.read()
    with opened(path, "wb") as file:
        file.write(content + b"\0\0\0\x03 mri_convert " * 9)
    return path


def one(path, array, affine=AFFINE, **facts):
    """Return the reference of an array (I, J, K) or (C, I, J, K)."""
    return Reference(path, array if array.ndim == 4 else array[None], affine, **facts)


@reference("nii")
def nii(folder):
    return one(write_nifti(folder / "a.nii", numbered(SHAPE)), numbered(SHAPE))


@reference("nii, scaled")
def nii_scaled(folder):
    array = numbered(SHAPE)
    path = write_nifti(folder / "a.nii", array, scaling=(0.5, -3.0))
    return one(path, (array * 0.5 - 3).astype(np.float32), disk_dtype="<i2")


@reference("nii, big-endian, in time")
def nii_in_time(folder):
    array = numbered((*SHAPE, 2))
    path = write_nifti(folder / "a.nii", array, version=2, order=">")
    return one(path, channels_first(array), disk_dtype=">i2")


@reference("nii.gz")
def nii_gz(folder):
    return one(write_nifti(folder / "a.nii.gz", numbered(SHAPE)), numbered(SHAPE))


@reference("nii with an extension")
def nii_extended(folder):
    image = nibabel.Nifti1Image(numbered(SHAPE), AFFINE)
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"a note"))
    image.to_filename(folder / "a.nii")
    return one(folder / "a.nii", numbered(SHAPE))


def coloured(folder, names, shape=SHAPE):
    array = numbered((*shape, len(names)), np.uint8)
    voxels = array.view([(name, "u1") for name in names])[..., 0]
    nibabel.Nifti1Image(voxels, AFFINE).to_filename(folder / "a.nii")
    return one(folder / "a.nii", np.moveaxis(array, -1, 0))


@reference("nii, RGB24")
def nii_rgb(folder):
    return coloured(folder, "RGB")


@reference("nii, RGBA32")
def nii_rgba(folder):
    return coloured(folder, "RGBA")


@reference("nii, complex64")
def nii_complex(folder):
    array = (numbered(SHAPE) * (1 - 2j)).astype(np.complex64)
    return one(write_nifti(folder / "a.nii", array), array)


@reference("nii, complex128, big-endian")
def nii_complex_big(folder):
    array = (numbered(SHAPE) * (1 - 2j)).astype(np.complex128)
    return one(write_nifti(folder / "a.nii", array, order=">"), array, disk_dtype=">c16")


def pair(folder, order="<", suffix="", kind=nibabel.Nifti1Pair):
    array = numbered(SHAPE)
    header = kind.header_class(endianness=order)
    header.set_data_dtype(array.dtype.newbyteorder(order))
    kind(array, AFFINE, header).to_filename(folder / f"a.img{suffix}")
    return one(folder / f"a.hdr{suffix}", array, disk_dtype=array.dtype.newbyteorder(order).str)


@reference("hdr and img")
def hdr(folder):
    return pair(folder)


@reference("hdr and img of NIfTI-2, big-endian, by the .img")
def hdr_big(folder):
    found = pair(folder, ">", kind=nibabel.Nifti2Pair)
    return replace(found, path=folder / "a.img", header=("a.hdr", 540))


@reference("hdr.gz and img.gz")
def hdr_gz(folder):
    return pair(folder, suffix=".gz")


def analyze_image(folder, kind, order="<", affine=None):
    array = numbered(SHAPE)
    header = kind.header_class(endianness=order)
    header.set_data_dtype(array.dtype.newbyteorder(order))
    header.set_data_shape(SHAPE)
    header.set_zooms((1.5, 2.0, 3.0))
    kind(array, affine, header).to_filename(folder / "a.img")
    image = nibabel.load(folder / "a.hdr")
    assert isinstance(image, nibabel.AnalyzeImage)
    disk_dtype = array.dtype.newbyteorder(order).str
    return one(folder / "a.hdr", array, image.affine, disk_dtype=disk_dtype)


@reference("Analyze, big-endian", local_only=True)
def analyze(folder):
    return analyze_image(folder, nibabel.AnalyzeImage, ">")


@reference("Analyze of SPM, moved by a .mat", local_only=True)
def analyze_of_spm(folder):
    return analyze_image(folder, nibabel.Spm99AnalyzeImage, affine=AFFINE)


def by_pynrrd(folder, array, suffix="nrrd", expected=None, **fields):
    nrrd.write(str(folder / f"a.{suffix}"), array, nrrd_fields(**fields), index_order="F")
    return one(folder / f"a.{suffix}", array if expected is None else expected)


@reference("nrrd")
def nrrd_raw(folder):
    return by_pynrrd(folder, numbered(SHAPE), encoding="raw")


@reference("nrrd, big-endian, RAS")
def nrrd_big(folder):
    array = numbered(SHAPE, np.float32)
    found = by_pynrrd(
        folder, array.astype(">f4"), space="right-anterior-superior", encoding="raw", endian="big"
    )
    return one(found.path, array, disk_dtype=">f4")


@reference("nrrd, gzip, LAS")
def nrrd_gzip(folder):
    return by_pynrrd(folder, numbered(SHAPE), space="left-anterior-superior", encoding="gzip")


@reference("nrrd, bzip2")
def nrrd_bzip2(folder):
    return by_pynrrd(folder, numbered(SHAPE, np.uint16), encoding="bzip2")


@reference("nrrd, vectors")
def nrrd_vectors(folder):
    array = numbered((3, *SHAPE), np.uint8)
    return by_pynrrd(folder, array, encoding="raw", before=1)


@reference("nrrd, list last, gzip")
def nrrd_list(folder):
    array = numbered((*SHAPE, 2), np.int32)
    return by_pynrrd(folder, array, encoding="gzip", after=1, expected=np.moveaxis(array, -1, 0))


@reference("nhdr")
def nhdr(folder):
    return by_pynrrd(folder, numbered(SHAPE), "nhdr", encoding="raw")


@reference("nhdr, gzip")
def nhdr_gzip(folder):
    return by_pynrrd(folder, numbered(SHAPE), "nhdr", encoding="gzip")


@reference("nrrd by SimpleITK, compressed vectors")
def nrrd_of_itk(folder):
    array = numbered((2, *SHAPE), np.float64)
    SimpleITK.WriteImage(itk_image(array), folder / "a.nrrd", useCompression=True)
    return one(folder / "a.nrrd", array)


def by_itk(folder, array, name, compress=False, **facts):
    SimpleITK.WriteImage(itk_image(array), folder / name, useCompression=compress)
    return one(folder / name, array, **facts)


@reference("mha")
def mha(folder):
    return by_itk(folder, numbered(SHAPE), "a.mha")


@reference("mha, compressed")
def mha_compressed(folder):
    return by_itk(folder, numbered(SHAPE, np.uint16), "a.mha", compress=True)


@reference("mha, vectors")
def mha_vectors(folder):
    return by_itk(folder, numbered((3, *SHAPE), np.float32), "a.mha")


@reference("mhd")
def mhd(folder):
    return by_itk(folder, numbered(SHAPE, np.int32), "a.mhd")


@reference("mhd, compressed vectors")
def mhd_compressed(folder):
    return by_itk(folder, numbered((2, *SHAPE)), "a.mhd", compress=True)


@reference("mhd, big-endian")
def mhd_big(folder):
    found = by_itk(folder, numbered(SHAPE), "a.mhd")
    (folder / "a.raw").write_bytes(numbered(SHAPE).astype(">i2").tobytes(order="F"))
    text = found.path.read_text()
    found.path.write_text(text.replace("MSB = False", "MSB = True"))
    assert (SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(found.path)) == numbered(SHAPE).T).all()
    return replace(found, disk_dtype=">i2")


@reference("mhd, a list of planes")
def mhd_list(folder):
    found = by_itk(folder, numbered(SHAPE), "a.mhd")
    names = [f"plane{k}.raw" for k in range(SHAPE[2])]
    for k, name in enumerate(names):
        (folder / name).write_bytes(numbered(SHAPE)[..., k].tobytes(order="F"))
    text = found.path.read_text().replace("= a.raw", "= LIST\n" + "\n".join(names))
    found.path.write_text(text)
    return found


@reference("mhd, a pattern of compressed planes")
def mhd_pattern(folder):
    found = by_itk(folder, numbered(SHAPE), "a.mhd", compress=True)
    for k in range(SHAPE[2]):
        plane = numbered(SHAPE)[..., k].tobytes(order="F")
        (folder / f"p{10 - k:02d}.z").write_bytes(zlib.compress(plane))
    (folder / "a.zraw").unlink()
    found.path.write_text(found.path.read_text().replace("= a.zraw", "= p%02d.z 10 4 -1"))
    return found


@reference("nhdr, a list of gzipped slabs")
def nhdr_list(folder):
    array = numbered((4, 5, 6))
    found = by_pynrrd(folder, array, "nhdr", encoding="gzip")
    for name, slab in (("x.gz", array[..., :3]), ("y.gz", array[..., 3:])):
        (folder / name).write_bytes(gzip.compress(slab.tobytes(order="F")))
    (folder / "a.raw.gz").unlink()
    text = found.path.read_text().rstrip("\n").replace(": a.raw.gz", ": LIST 3\nx.gz\ny.gz\n")
    found.path.write_text(text)
    assert (SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(found.path)) == array.T).all()
    return found


@reference("nrrd, text", local_only=True)
def nrrd_text(folder):
    array = numbered(SHAPE)
    nrrd.write(str(folder / "a.nrrd"), array, nrrd_fields(encoding="ascii"))
    # pynrrd writes text in C order, whatever it is told; the format means the other one.
    head, _, _ = (folder / "a.nrrd").read_bytes().partition(b"\n\n")
    text = " ".join(map(str, array.ravel(order="F").tolist()))
    (folder / "a.nrrd").write_bytes(head + b"\n\n" + text.encode() + b"\n")
    return one(folder / "a.nrrd", array)


@reference("vtk", local_only=True)
def vtk(folder):
    plain = np.diag([-1.5, -2.0, 3.0, 1.0])  # no direction is stored
    SimpleITK.WriteImage(itk_image(numbered(SHAPE), plain), folder / "a.vtk")
    return one(folder / "a.vtk", numbered(SHAPE), plain)


@reference("gipl", local_only=True)
def gipl(folder):
    plain = np.diag([-1.5, -2.0, 3.0, 1.0])
    SimpleITK.WriteImage(itk_image(numbered(SHAPE), plain), folder / "a.gipl")
    return one(folder / "a.gipl", numbered(SHAPE), plain, header=("a.gipl", 256))


@reference("png", local_only=True)
def png(folder):
    array = numbered((12, 10), np.uint8)
    image = SimpleITK.GetImageFromArray(np.ascontiguousarray(array.T))
    SimpleITK.WriteImage(image, folder / "a.png")
    # No place in the world, as a plain TIFF.
    return Reference(folder / "a.png", array[None, :, :, None], np.eye(4))


def write_series(folder, array, series=SERIES, heights=None):
    """Write slices along K with SimpleITK; their names say nothing about their order."""
    folder.mkdir(exist_ok=True)
    writer = SimpleITK.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    for k in range(array.shape[2]):
        image = SimpleITK.GetImageFromArray(np.ascontiguousarray(array[:, :, k : k + 1].T))
        image.SetSpacing((1.5, 2, 3))
        height = 30 + 3 * k if heights is None else heights[k]
        fields = {
            "0008|0018": f"{series}.{k}",
            "0008|0060": "CT",
            "0018|0050": "3",
            "0020|000d": f"{SERIES[:-1]}2",
            "0020|000e": series,
            "0020|0013": str(k),
            "0020|0032": f"10\\-20\\{height}",
            "0020|0037": "1\\0\\0\\0\\1\\0",
        }
        for key, value in fields.items():
            image.SetMetaData(key, value)
        writer.SetFileName(str(folder / f"{series[-1]}-{9 - k}.dcm"))
        writer.Execute(image)
    return folder


@reference("dicom", local_only=True)
def dicom(folder):
    array = numbered((7, 6, 5))
    path = write_series(folder / "scan", array)
    return one(path, array, DICOM_AFFINE, header=("scan/1-9.dcm", 512))


def warm():
    """Let GDCM open its source of random identifiers, which it keeps open."""
    with tempfile.TemporaryDirectory() as folder:
        write_series(Path(folder), numbered((2, 2, 1)))


@reference("mgh, float32")
def mgh_floats(folder):
    array = numbered((5, 6, 7), np.float32)
    path = write_mgh(folder / "a.mgh", array)
    return one(path, array, disk_dtype=">f4", header=("", 284))


@reference("mgz, frames of int16")
def mgz_frames(folder):
    array = numbered((3, 5, 6, 7), np.int16)
    return one(write_mgh(folder / "a.mgz", array), array, disk_dtype=">i2")
