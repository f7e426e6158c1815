"""TIFF, OME-TIFF and ImageJ stacks, written by tifffile."""

import contextlib
import logging
import random
import sys
import warnings

import fsspec
import numpy as np
import pytest
import torch
from nifti_files import numbered

from voxpipe import convert, from_cases
from voxpipe.core import IO_COUNTERS, OrientedBox, Region
from voxpipe.core.errors import (
    BadHeader,
    CorruptVolume,
    EmptyVolume,
    LikelyMistake,
    MissingDependency,
    TruncatedVolume,
    UnknownFormat,
    VolumeError,
    VolumeNotFound,
)
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume, close_volumes

tifffile = pytest.importorskip("tifffile")
Image = pytest.importorskip("PIL.Image")

MICRO = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.25, "PhysicalSizeZ": 2.0}
AFFINE = np.diag([0.0005, 0.00025, 0.002, 1.0])

# All time points of a file are its channels, and so are its planes of colours.
pytestmark = pytest.mark.filterwarnings("ignore:times-and-channels", "ignore:colours-or-planes")


def write(path, array, axes="ZYX", said=MICRO, **how):
    """Write an OME-TIFF."""
    how = {"photometric": "minisblack"} | how
    tifffile.imwrite(path, array, ome=True, metadata={"axes": axes} | said, **how)
    return path


class TestMappedStack(StoreContract):
    """Uncompressed pages one after another: a view of the mapped file."""

    @pytest.fixture(params=["<", ">"], ids=["little", "big"])
    def case(self, tmp_path, request):
        array = numbered((5, 6, 7), f"{request.param}u2")
        path = tmp_path / "a.tif"
        tifffile.imwrite(path, array, byteorder=request.param, photometric="minisblack")
        assert Volume(path).access == "view"
        assert Volume(path).disk_dtype == array.dtype
        return StoreCase(path, array.transpose(2, 1, 0)[None].astype("u2"), np.eye(4))


class TestOmeTiles(StoreContract):
    @pytest.fixture(params=["zlib", "lzw", "zstd", None], ids=str)
    def case(self, tmp_path, request):
        array = numbered((2, 3, 4, 37, 21), np.int16)
        path = write(
            tmp_path / "a.ome.tif",
            array,
            "TCZYX",
            tile=(16, 16),
            compression=request.param,
            predictor=request.param is not None,
        )
        assert Volume(path).chunks == (16, 16, 1)
        return StoreCase(path, array.reshape(6, 4, 37, 21).transpose(0, 3, 2, 1), AFFINE)


class TestStrips(StoreContract):
    @pytest.fixture(params=["<", ">"], ids=["little", "big"])
    def case(self, tmp_path, request):
        array = numbered((4, 11, 13), np.float32)
        path = tmp_path / "a.tiff"
        how = {"rowsperstrip": 4, "compression": "zlib", "byteorder": request.param}
        tifffile.imwrite(path, array, photometric="minisblack", **how)
        assert Volume(path).chunks == (13, 4, 1)
        return StoreCase(path, array.transpose(2, 1, 0)[None], np.eye(4))


class TestColours(StoreContract):
    @pytest.fixture(params=["contig", "separate"])
    def case(self, tmp_path, request):
        how = {"photometric": "rgb", "planarconfig": request.param, "compression": "zlib"}
        array = numbered((4, 8, 9, 3), np.uint8)  # z, y, x, colour
        stored = array if request.param == "contig" else array.transpose(0, 3, 1, 2)
        tifffile.imwrite(tmp_path / "a.tif", stored, **how)
        return StoreCase(tmp_path / "a.tif", array.transpose(3, 2, 1, 0), np.eye(4))


class TestImageJ(StoreContract):
    """One array of time, z and channels that ImageJ stores as t, z, c: not foldable as a view."""

    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((2, 4, 3, 5, 6), np.uint16)
        said = {"axes": "TZCYX", "spacing": 3.0, "unit": "um"}
        path = tmp_path / "a.tif"
        tifffile.imwrite(path, array, imagej=True, resolution=(2.0, 4.0), metadata=said)
        expected = array.transpose(0, 2, 4, 3, 1).reshape(6, 6, 5, 4)
        return StoreCase(path, expected, np.diag([0.0005, 0.00025, 0.003, 1.0]))


class TestRemoteTiff(StoreContract):
    spawnable = False  # fsspec's memory file system

    @pytest.fixture(params=["zlib", None], ids=str)
    def case(self, tmp_path, request):
        array = numbered((4, 20, 21), np.int16)
        path = write(tmp_path / "a.ome.tif", array, tile=(16, 16), compression=request.param)
        key = f"remote/{tmp_path.name}.ome.tif"
        fsspec.filesystem("memory").put(str(path), f"/{key}")
        return StoreCase(f"memory://{key}", array.transpose(2, 1, 0)[None], AFFINE)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_levels_lie_on_each_other(tmp_path, level):
    """A coarser level covers the same place; it has its own voxels."""
    arrays = [numbered((3, 64 >> n, 32 >> n), np.uint16) + n for n in range(3)]
    path = tmp_path / "a.ome.tif"
    with tifffile.TiffWriter(path, ome=True) as writer:
        how = {"tile": (16, 16), "photometric": "minisblack"}
        writer.write(arrays[0], subifds=2, metadata={"axes": "ZYX"} | MICRO, **how)
        for array in arrays[1:]:
            writer.write(array, subfiletype=1, **how)

    volume = Volume(path, level=level)

    assert volume.numpy()[0].transpose(2, 1, 0).tolist() == arrays[level].tolist()
    step = 2**level
    expected = AFFINE @ np.diag([step, step, 1, 1])
    expected[:2, 3] = np.diag(AFFINE)[:2] * (step - 1) / 2
    np.testing.assert_allclose(volume.affine, expected)
    with pytest.raises(BadHeader, match=r"a\.ome\.tif has no level 3, but 0 to 2"):
        _ = Volume(path, level=3).shape


def test_series_are_chosen(tmp_path):
    """A file of two images holds two volumes, each with its own spacing."""
    path = tmp_path / "a.ome.tif"
    one, two = numbered((3, 8, 9)), numbered((2, 5, 6), np.uint8)
    with tifffile.TiffWriter(path, ome=True) as writer:
        writer.write(one, photometric="minisblack", metadata={"axes": "ZYX"} | MICRO)
        writer.write(two, photometric="minisblack", metadata={"axes": "ZYX"})

    assert Volume(path).shape == (1, 9, 8, 3)
    assert Volume(path, series=1).numpy()[0].T.tolist() == two.tolist()
    np.testing.assert_allclose(Volume(path).affine, AFFINE)
    np.testing.assert_allclose(Volume(path, series=1).affine, np.eye(4))
    with pytest.raises(BadHeader, match="no series 2"):
        _ = Volume(path, series=2).shape
    with pytest.raises(BadHeader, match="no series True"):
        _ = Volume(path, series=True).shape
    with pytest.raises(TypeError, match="lvel"):
        _ = Volume(path, lvel=1).shape


@pytest.mark.parametrize(
    ("unit", "factor"), [("nm", 1e-6), ("mm", 1.0), ("µm", 1e-3), (None, 1e-3), ("m", 1e3)]
)
def test_units_become_millimetres(tmp_path, unit, factor):
    """Each axis has a unit of its own, which is micrometres where the file is silent."""
    said = MICRO | {f"PhysicalSize{axis}Unit": unit for axis in "XYZ" if unit}
    path = write(tmp_path / "a.ome.tif", numbered((2, 3, 4)), said=said)

    assert Volume(path).spacing == pytest.approx((0.5 * factor, 0.25 * factor, 2 * factor))


@pytest.mark.parametrize("unit", ["pixel", "reference frame", "furlong"])
def test_sizes_without_a_unit_of_length_are_warned_of(tmp_path, unit):
    """Their ratios are known; beside a length, they are refused, and ``affine=`` places them."""
    said = MICRO | {f"PhysicalSize{axis}Unit": unit for axis in "XYZ"}
    path = write(tmp_path / "a.ome.tif", numbered((2, 3, 4)), said=said)
    with pytest.warns(LikelyMistake, match=unit) as record:
        assert Volume(path).spacing == (0.5, 0.25, 2.0)
    assert len(record) == 1

    said["PhysicalSizeYUnit"] = "um"
    path = write(tmp_path / "b.ome.tif", numbered((2, 3, 4)), said=said)
    with pytest.raises(BadHeader, match=rf"X: '{unit}', Y: 'um', Z: '{unit}'"):
        _ = Volume(path).shape
    assert Volume(path, affine=np.diag([1.0, 2, 3, 1])).spacing == (1.0, 2.0, 3.0)


def test_an_axis_without_a_size_is_warned_of(tmp_path):
    """Micrometres along two axes and millimetres along the third are a likely mistake."""
    said = {"PhysicalSizeX": 0.5, "PhysicalSizeY": 0.5}
    stack = write(tmp_path / "a.ome.tif", numbered((2, 3, 4)), said=said)
    plane = write(tmp_path / "b.ome.tif", numbered((1, 3, 4)), said=said)

    with pytest.warns(LikelyMistake, match=r"a\.ome\.tif has PhysicalSizeX, Y and no .*SizeZ"):
        assert Volume(stack).spacing == (0.0005, 0.0005, 1.0)
    assert Volume(plane).spacing == (0.0005, 0.0005, 1.0)


def test_planes_and_booleans(tmp_path):
    """One page is a volume with K = 1; bits become booleans."""
    array = numbered((9, 10)) % 3 == 0
    tifffile.imwrite(tmp_path / "a.tif", array)

    volume = Volume(tmp_path / "a.tif", kind="label")

    assert (volume.shape, volume.disk_dtype, volume.dtype.name) == ((1, 10, 9, 1), bool, "bool")
    assert volume.numpy()[0, :, :, 0].T.tolist() == array.tolist()


def test_an_image_in_several_files(tmp_path, caplog):
    """OME-TIFF may spread planes over files; the first knows where the others are."""
    array = numbered((2, 5, 6), np.uint16)
    planes = "".join(
        f'<TiffData FirstZ="{n}" PlaneCount="1"><UUID FileName="{n}.ome.tif">{n}</UUID></TiffData>'
        for n in range(2)
    )
    pixels = (
        'DimensionOrder="XYZCT" Type="uint16" SizeX="6" SizeY="5" SizeZ="2" SizeC="1" SizeT="1"'
    )
    for n in range(2):
        text = (
            f'<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
            f'UUID="{n}"><Image ID="Image:0"><Pixels ID="Pixels:0" {pixels}>{planes}</Pixels>'
            "</Image></OME>"
        )
        how = {"description": text, "metadata": None, "compression": "zlib"}
        tifffile.imwrite(tmp_path / f"{n}.ome.tif", array[n], **how)

    assert Volume(tmp_path / "0.ome.tif").numpy()[0].T.tolist() == array.tolist()
    (tmp_path / "1.ome.tif").unlink()
    caplog.set_level(logging.CRITICAL, "tifffile")
    with pytest.raises(VolumeNotFound, match=r"has no file for 1 of 2 planes: 1\.ome\.tif"):
        _ = Volume(tmp_path / "0.ome.tif", series=0).shape


def test_only_the_tiles_of_a_region_are_read(tmp_path):
    """Tiles beside a region, and those beside a turned box in it, are left on the disk."""
    path = write(tmp_path / "a.ome.tif", numbered((4, 64, 64)), tile=(16, 16), compression="zlib")
    volume = Volume(path)
    tile = 16 * 16 * 2
    assert volume.shape == (1, 64, 64, 4)

    before = IO_COUNTERS.snapshot()
    volume.read(Region((15, 16, 1), (17, 20, 3)))
    assert (IO_COUNTERS.snapshot() - before).bytes_read == 2 * 2 * tile

    turned = np.array([[0.7, -0.7, 0, 8], [0.7, 0.7, 0, 8], [0, 0, 1, 0]])
    box = OrientedBox(turned, (60, 4, 4), halo=(1.0, 1.0, 1.0))
    before = IO_COUNTERS.snapshot()
    volume.read(Region((0, 0, 0), (64, 64, 4), box))
    assert 0 < (IO_COUNTERS.snapshot() - before).bytes_read < 64 * tile * 0.8


def test_damage_is_named(tmp_path, caplog):
    """Cut short or changed in its tags: an error that names the file, or voxels; never a crash."""
    caplog.set_level(logging.CRITICAL, "tifffile")
    path = tmp_path / "a.ome.tif"
    write(path, numbered((3, 20, 21), np.uint16), tile=(16, 16), compression="zlib")
    whole = path.read_bytes()
    generator = random.Random(0)
    damaged = [whole[: n * len(whole) // 50] for n in range(50)]
    for _ in range(200):
        changed = bytearray(whole)
        changed[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        damaged.append(bytes(changed))
    refused = []
    for data in damaged:
        path.unlink()
        path.write_bytes(data)
        close_volumes()
        try:
            volume = Volume(path)
            sizes = tuple(min(32, n) for n in volume.spatial_shape)
            volume.read(Region((0, 0, 0), sizes))
        except VolumeError as error:
            refused.append(str(error))

    assert len(refused) > 50
    assert [text for text in refused if "a.ome.tif" not in text] == []


def test_a_damaged_tile_is_named(tmp_path):
    """An error while decoding says which voxels of which file it was."""
    path = write(tmp_path / "a.ome.tif", numbered((2, 32, 16)), tile=(16, 16), compression="zlib")
    with tifffile.TiffFile(path) as file:
        offset = file.pages[1].dataoffsets[1]
    data = bytearray(path.read_bytes())
    data[offset : offset + 8] = b"whatever"
    path.write_bytes(data)
    volume = Volume(path)

    assert volume.read(Region((0, 0, 0), (16, 16, 2))).array.shape == (1, 16, 16, 2)
    with pytest.raises(CorruptVolume, match=r"\[1:2, 16:32, 0:16\] of \S*a\.ome\.tif cannot"):
        volume.read(Region((0, 16, 1), (1, 17, 2)))


def test_what_is_no_tiff(tmp_path, monkeypatch):
    """A missing file, another file, a cut one and a missing library are told apart."""
    (tmp_path / "other.tif").write_bytes(b"II what is this?")
    tifffile.imwrite(tmp_path / "cut.tif", numbered((9, 50, 60)), photometric="minisblack")
    whole = (tmp_path / "cut.tif").read_bytes()
    (tmp_path / "cut.tif").write_bytes(whole[: len(whole) // 2])

    with pytest.raises(VolumeNotFound, match="none"):
        _ = Volume(tmp_path / "none.tif").shape
    with pytest.raises(BadHeader, match=r"other\.tif"):
        _ = Volume(tmp_path / "other.tif").shape
    with pytest.raises((TruncatedVolume, BadHeader, UnknownFormat), match=r"cut\.tif"):
        _ = Volume(tmp_path / "cut.tif").shape
    monkeypatch.setitem(sys.modules, "tifffile", None)
    with pytest.raises(MissingDependency, match=r"cut\.tif needs tifffile"):
        _ = Volume(tmp_path / "cut.tif").shape


_DIFFERENT = {
    "bits": ("dtype", {}),
    "sample format": ("dtype", {}),
    "compression": ("compression", {"compression": "zlib"}),
    "predictor": ("predictor", {"compression": "zlib", "predictor": True}),
    "photometric": ("photometric", {"photometric": "miniswhite"}),
    "strips": ("chunks", {"compression": "zlib", "rowsperstrip": 20}),
    "tiles": ("chunks", {"compression": "zlib", "tile": (16, 48)}),
    "orientation": ("orientation", {"extratags": [(274, 3, 1, 3, True)]}),
    "shape": ("shape", {}),
}


@pytest.mark.parametrize("imagej", [True, False])
@pytest.mark.parametrize("what", list(_DIFFERENT))
def test_a_page_that_differs_from_the_first_is_refused(tmp_path, what, imagej):
    """Tifffile takes the tags of the first page for those of all, or makes it several series."""
    pages = [np.full((32, 48), n, np.uint16) for n in range(12)]
    key, how = _DIFFERENT[what]
    usual = {"compression": "zlib"} if what in ("predictor", "strips", "tiles") else {}
    usual |= {"strips": {"rowsperstrip": 16}, "tiles": {"tile": (32, 32)}}.get(what, {})
    if what in ("bits", "sample format"):
        pages[5] = pages[5].astype("u1" if what == "bits" else "i2")
    elif what == "shape":
        pages[5] = pages[5][:16]
    text = "ImageJ=1.54p\nimages=12\nslices=12\nunit=um\nspacing=2\n" if imagej else None
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for n, page in enumerate(pages):
            own = {"photometric": "minisblack", **usual, **(how if n == 5 else {})}
            description = text if n == 0 else None
            file.write(page, contiguous=False, metadata=None, description=description, **own)

    with pytest.raises(UnknownFormat, match=rf"page 5 of .*a\.tif differs from page 0 in {key}"):
        _ = Volume(tmp_path / "a.tif").shape


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_tags_of_equal_pages_are_parsed_once(tmp_path, compression, monkeypatch):
    """However many pages: equal bytes of tags mean equal kinds."""
    array, counted = numbered((50, 8, 8), np.uint16), []
    tifffile.imwrite(tmp_path / "a.tif", array, compression=compression, photometric="minisblack")
    parse = tifffile.TiffPage.__init__

    def count(page, *more, **named):
        counted.append(parse(page, *more, **named))

    monkeypatch.setattr(tifffile.TiffPage, "__init__", count)

    assert Volume(tmp_path / "a.tif").shape == (1, 8, 8, 50)
    assert len(counted) < 6


def test_a_circular_chain_of_pages_is_refused(tmp_path):
    """Each page says where the next one is."""
    tifffile.imwrite(tmp_path / "a.tif", numbered((4, 8, 8), np.uint16), photometric="minisblack")
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        first, third = file.pages[0].offset, file.pages[2]
        at = third.offset + 2 + 12 * len(third.tags)
    data = bytearray((tmp_path / "a.tif").read_bytes())
    data[at : at + 4] = first.to_bytes(4, "little")
    (tmp_path / "b.tif").write_bytes(data)

    with pytest.raises(BadHeader, match="circular"):
        _ = Volume(tmp_path / "b.tif").shape


@pytest.mark.parametrize("same", [True, False])
def test_pages_of_one_palette_are_read_as_indices(tmp_path, same):
    """Pages of several palettes are refused: one index would mean several colours."""
    colours = [Image.fromarray(np.full((8, 9), n, np.uint8)).convert("P") for n in range(3)]
    for n, image in enumerate(colours):
        image.putdata([n] * 72)
        image.putpalette([0, 0, 0, 9 if same else 9 * n, 0, 0])
    colours[0].save(tmp_path / "a.tif", save_all=True, append_images=colours[1:])

    if same:
        assert Volume(tmp_path / "a.tif").numpy()[0, 0, 0].tolist() == [0, 1, 2]
    else:
        with pytest.raises(UnknownFormat, match="differs from page 0 in palette"):
            _ = Volume(tmp_path / "a.tif").shape


def test_a_tiff_of_which_nothing_is_stored_is_warned_of(tmp_path):
    """GDAL leaves out tiles of zeros, which reads as an empty volume does in zarr."""
    tifffile.imwrite(tmp_path / "a.tif", shape=(32, 32), dtype="u2", tile=(16, 16))
    with tifffile.TiffFile(tmp_path / "a.tif", mode="r+b") as file:
        for name in ("TileOffsets", "TileByteCounts"):
            file.pages[0].tags[name].overwrite([0] * 4)

    with pytest.warns(EmptyVolume, match="not one chunk"):
        assert not Volume(tmp_path / "a.tif").numpy().any()


def test_pages_of_other_kinds_are_several_images(tmp_path):
    """A series that is named is read: there tifffile has found pages that are alike."""
    first, second = np.full((2, 32, 48), 3, np.uint16), np.full((2, 32, 48), 4, np.uint16)
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for page in first:
            file.write(page, contiguous=False, metadata=None)
        for page in second:
            file.write(page, contiguous=False, metadata=None, compression="zlib")

    with pytest.raises(UnknownFormat, match=r"page 2 of .* differs from page 0 in compression"):
        _ = Volume(tmp_path / "a.tif").shape
    for series, value in ((0, 3), (1, 4)):
        voxels = Volume(tmp_path / "a.tif", series=series).numpy()
        assert (voxels.shape, np.unique(voxels).tolist()) == ((1, 48, 32, 2), [value])


@pytest.mark.parametrize("how", ["one writer", "append", "ome", "sizes", "sizes of pages"])
def test_a_stack_that_is_written_page_by_page(tmp_path, how):
    """Each call makes an image of its own, of which tifffile shows the first."""
    path, pages = tmp_path / "a.tif", list(numbered((5, 8, 9)))
    if how.startswith("sizes"):
        pages[3] = pages[3][:4]
    if how == "append":
        for page in pages:
            tifffile.imwrite(path, page, append=True)
    else:
        plain = {"metadata": None} if how == "sizes of pages" else {}
        with tifffile.TiffWriter(path, ome=how == "ome") as writer:
            for page in pages:
                writer.write(page, photometric="minisblack", contiguous=False, **plain)

    with pytest.raises(UnknownFormat, match=r"a\.tif (holds \d images: \d of .*8x9|differs)"):
        _ = Volume(path).shape
    found = Volume(path, series=1).numpy()
    expected = tifffile.imread(path, series=1)
    assert found[0].T.tolist() == np.atleast_3d(expected.T).T.tolist()


def test_axes_of_one_name_are_refused(tmp_path):
    """Of two stacks that nothing names, none is taken for z."""
    tifffile.imwrite(
        tmp_path / "a.tif", np.zeros((2, 3, 5, 8, 6), np.uint8), photometric="minisblack"
    )

    with pytest.raises(BadHeader, match="several axes of one name"):
        _ = Volume(tmp_path / "a.tif").shape


@pytest.mark.parametrize(
    ("unit", "tag", "factor"),
    [(None, "NONE", 1), ("pixel", "NONE", 1), (None, "CENTIMETER", 10), (None, "INCH", 25.4)],
)
def test_imagej_without_a_unit_keeps_the_ratio_of_lengths(tmp_path, unit, tag, factor):
    """The resolution is in pixels per unit of the tag, or of nothing."""
    metadata = {"axes": "ZYX", "spacing": 0.5, **({} if unit is None else {"unit": unit})}
    how = {"resolution": (10, 5), "resolutionunit": tag, "metadata": metadata}
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 5, 6), np.uint8), imagej=True, **how)

    expected = [0.1 * factor, 0.2 * factor, 0.5 * factor]
    warns = pytest.warns(LikelyMistake, match=r"0\.1 x 0\.2 x 0\.5 without a unit.*affine=numpy")
    with warns if tag == "NONE" else contextlib.nullcontext():
        assert Volume(tmp_path / "a.tif").spacing == pytest.approx(expected)


def test_two_units_of_imagej_are_reported(tmp_path):
    """ImageJ uses that of the text; a bad length is reported with the argument that replaces it."""
    path = tmp_path / "a.tif"
    how = {"resolution": (2, 2), "resolutionunit": "CENTIMETER", "imagej": True}
    metadata = {"axes": "ZYX", "spacing": 2.0, "unit": "um"}
    tifffile.imwrite(path, np.zeros((4, 5, 6), np.uint8), metadata=metadata, **how)
    with pytest.warns(LikelyMistake, match=r"two-spacings.*'um'.*cm in its tag.*affine=numpy"):
        assert Volume(path).spacing == pytest.approx((0.0005, 0.0005, 0.002))

    metadata |= {"spacing": 0.0}
    tifffile.imwrite(path, np.zeros((4, 5, 6), np.uint8), metadata=metadata, **how)
    with pytest.warns(LikelyMistake), pytest.raises(BadHeader, match=r"affine=numpy\.diag"):
        _ = Volume(path).shape
    metadata |= {"spacing": 2.0, "zunit": "pixel"}
    how["resolutionunit"] = "NONE"
    tifffile.imwrite(path, np.zeros((4, 5, 6), np.uint8), metadata=metadata, **how)
    with pytest.raises(BadHeader, match=r"along some axes only[^.]*\.\s+Pass affine=[^.]*\.$"):
        _ = Volume(path).shape


def test_imagej_with_units_of_axes(tmp_path):
    """``yunit`` and ``zunit`` count; a length along some axes only is refused."""
    path, array = tmp_path / "a.tif", np.zeros((4, 5, 6), np.uint8)
    more = {"axes": "ZYX", "unit": "um", "spacing": 3.0, "yunit": "mm"}
    how = {"imagej": True, "resolution": (2, 2)}
    tifffile.imwrite(path, array, metadata={**more, "zunit": "nm"}, **how)
    assert Volume(path).spacing == pytest.approx((0.0005, 0.5, 3e-6))
    tifffile.imwrite(path, array, metadata={**more, "zunit": "pixel"}, **how)
    with pytest.raises(BadHeader, match="some axes only, by units of x: 'um', y: 'mm', z: 'pixel'"):
        Volume(path).probe()


@pytest.mark.parametrize(
    ("terms", "is_neutral"),
    [({"cf": 0, "c0": -32768.0, "c1": 1.0}, False), ({"cf": 0, "c0": 0.0, "c1": 2.0}, False),
     ({"cf": 4, "c0": 0.0, "c1": 1.0}, False), ({"cf": 0, "c0": 0.0, "c1": 1.0}, True),
     ({"c0": -32768.0, "c1": 1.0}, False), ({"cf": 21}, False), ({"cf": 20}, True)],
)  # fmt: skip
def test_a_calibration_of_imagej(tmp_path, terms, is_neutral):
    """One that changes values is refused."""
    path, array = tmp_path / "a.tif", np.full((4, 5, 6), 33000, np.uint16)
    tifffile.imwrite(path, array, imagej=True, metadata={"axes": "ZYX", **terms})

    if is_neutral:
        assert (Volume(path).numpy() == 33000).all()
    else:
        with pytest.raises(UnknownFormat, match=r"has the attribute c.* which changes its values"):
            Volume(path).probe()


@pytest.mark.parametrize("kind", ["ome", "imagej"])
def test_a_given_affine_replaces_a_senseless_spacing_of_a_tiff(tmp_path, kind):
    """A single plane often has a length of 0 along z."""
    how = {"ome": True, "metadata": {"axes": "TYX", "PhysicalSizeX": 0.5, "PhysicalSizeZ": 0}}
    if kind == "imagej":
        how = {"imagej": True, "metadata": {"axes": "ZYX", "spacing": -0.3, "unit": "um"}}
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((4, 5, 6), np.uint8), **how)

    assert Volume(tmp_path / "a.tif", affine=np.diag([1.0, 2, 3, 1])).spacing == (1.0, 2.0, 3.0)
    with pytest.raises(BadHeader, match="Pass affine="):
        _ = Volume(tmp_path / "a.tif").shape


@pytest.mark.parametrize(("role", "neutral"), [("scale", "1.0"), ("offset", "0")])
def test_a_scale_of_gdal_is_refused(tmp_path, role, neutral):
    """Of any band; one that changes nothing, and an item of another role, are accepted."""
    for name, value in (("a", "0.5"), ("b", neutral)):
        items = f'<Item name="MEAN">7</Item><Item sample="1" role="{role}">{value}</Item>'
        tag = (42112, "s", 0, f"<GDALMetadata>{items}</GDALMetadata>", True)
        tifffile.imwrite(tmp_path / f"{name}.tif", np.ones((4, 4), np.int16), extratags=[tag])

    with pytest.raises(UnknownFormat, match=rf"a\.tif has the attribute {role} = '0\.5'"):
        Volume(tmp_path / "a.tif").probe()
    assert Volume(tmp_path / "b.tif").numpy().all()


GDAL = {
    "scale": (
        42112,
        '<GDALMetadata><Item name="s" sample="0" role="scale">5</Item></GDALMetadata>',
    ),
    "offset": (
        42112,
        '<GDALMetadata><Item name="o" sample="0" role="offset">-3</Item></GDALMetadata>',
    ),
    "GDAL_NODATA": (42113, "-9999.25"),
}


@pytest.mark.parametrize("key", GDAL)
@pytest.mark.parametrize("pages", [(1, 2, 3), (3,)])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_a_later_page_with_metadata_of_gdal(tmp_path, key, pages, compression):
    """Any page may have a scale or mark missing values; equal marks give one warning."""
    tag, text = GDAL[key]
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for n, page in enumerate(np.full((4, 5, 6), 7, np.uint16)):
            tags = [(tag, "s", 0, text, True)] if n in pages else []
            how = {"photometric": "minisblack", "metadata": None, "compression": compression}
            file.write(page, contiguous=False, extratags=tags, **how)

    if tag == 42112:
        with pytest.raises(UnknownFormat, match=rf"a\.tif has the attribute {key} = "):
            Volume(tmp_path / "a.tif").probe()
        return
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        assert np.unique(Volume(tmp_path / "a.tif").numpy()).tolist() == [7]
    assert ["GDAL_NODATA = '-9999.25'" in str(note.message) for note in notes] == [True]


GEO = [(33550, "d", 3, (0.5, 0.5, 0.0), True), (33922, "d", 6, (0, 0, 0, 10, 20, 0), True)]


@pytest.mark.parametrize(
    ("how", "names"),
    [
        ({"resolution": (100, 100), "resolutionunit": "CENTIMETER"}, "XResolution and YResolution"),
        ({"resolution": (2540, 2540), "resolutionunit": "INCH"}, "XResolution and YResolution"),
        ({"resolution": (72, 96), "resolutionunit": "INCH"}, "XResolution and YResolution"),
        ({"resolution": (2, 1), "resolutionunit": "NONE"}, "XResolution and YResolution"),
        ({"extratags": GEO}, "ModelPixelScaleTag"),
        ({"metadata": {"spacing": 3.0}}, "tifffile's spacing"),
        ({"ome": True, "resolution": (100, 100), "resolutionunit": 3}, "XResolution and YRes"),
        ({}, ""),
        ({"resolution": (72, 72), "resolutionunit": "INCH"}, ""),
        ({"resolution": (96, 96), "resolutionunit": "INCH"}, ""),
        ({"resolution": (28, 28), "resolutionunit": "CENTIMETER"}, ""),  # 72 per inch, rounded
        ({"resolution": (1, 1), "resolutionunit": "CENTIMETER"}, ""),
        ({"resolution": (5, 5), "resolutionunit": "NONE"}, ""),
        ({"imagej": True, "resolution": (2, 2), "metadata": {"unit": "mm", "spacing": 0.5}}, ""),
    ],
)
def test_sizes_in_tags_are_warned_of(tmp_path, how, names):
    """They are not read: their meaning depends on the writer; OME and ImageJ count before them."""
    how = {"photometric": "minisblack", "metadata": None if names != "" else {}, **how}
    if how.get("ome"):
        how["metadata"] = {"axes": "ZYX"}
    tifffile.imwrite(tmp_path / "a.tif", numbered((2, 5, 6), np.uint8), **how)

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        spacing = Volume(tmp_path / "a.tif").spacing
        _ = Volume(tmp_path / "a.tif", affine=np.eye(4)).shape
    assert spacing == ((0.5,) * 3 if "imagej" in how else (1, 1, 1))
    texts = [str(note.message) for note in notes]
    assert [f"a.tif has resolutions in {names}" in text for text in texts] == [True] * bool(names)


@pytest.mark.parametrize("compression", [None, "zlib", "zstd"])
@pytest.mark.parametrize(
    ("shape", "how"),
    [
        ((1, 32, 33), {}),
        ((1, 1, 32, 33, 3), {"photometric": "rgb"}),
        ((3, 1, 32, 33), {"photometric": "rgb", "planarconfig": "separate"}),
        ((3, 4, 32, 33), {"photometric": "rgb", "planarconfig": "separate"}),
        ((3, 32, 33), {}),  # a depth that tiles do not divide
    ],
)
def test_tiles_with_a_depth(tmp_path, shape, how, compression):
    """The tiles of one plane may be deeper than it, also of colours in separate planes."""
    array = np.random.default_rng(0).integers(0, 255, shape).astype(np.uint8)
    how = {"photometric": "minisblack", "metadata": None, "compression": compression, **how}
    tifffile.imwrite(tmp_path / "a.tif", array, tile=(2, 16, 16), volumetric=True, **how)

    expected = tifffile.imread(tmp_path / "a.tif")
    if how.get("planarconfig"):  # (S, Z, Y, X)
        expected = expected.reshape(shape).transpose(0, 3, 2, 1)
    elif shape[-1] == 3:
        expected = expected.transpose(2, 1, 0)[..., None]
    else:
        expected = expected.reshape(shape).transpose(2, 1, 0)[None]
    assert np.array_equal(Volume(tmp_path / "a.tif").numpy(), expected)


@pytest.mark.parametrize("how", [{}, {"compression": "zlib"}, {"imagej": True}])
@pytest.mark.parametrize(("mark", "is_warned"), [("-1", True), ("1e3", True), ("nan", False)])
def test_missing_values_of_gdal_are_warned_of(tmp_path, how, mark, is_warned):
    """As of `_FillValue`: NaN marks itself, and other numbers are read as values."""
    array = np.full((2, 3, 4), float(mark), np.float32)
    tag = (42113, "s", 0, mark, True)
    tifffile.imwrite(tmp_path / "a.tif", array, extratags=[tag], photometric="minisblack", **how)

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        found = Volume(tmp_path / "a.tif", axes="zyx", affine=np.eye(4)).numpy()
    assert np.array_equal(found[0], array.T, equal_nan=True)
    texts = [str(note.message) for note in notes if note.category is LikelyMistake]
    assert ["GDAL_NODATA = '" + mark in text for text in texts] == [True] * is_warned


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("kind", ["ome", "imagej"])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_sizes_that_do_not_fit_the_pages_are_refused(tmp_path, kind, count, compression):
    """Some pages would not be read, or some planes are nowhere."""
    how = {"metadata": {"axes": "ZYX"}, "compression": compression, kind: True}
    tifffile.imwrite(tmp_path / "a.tif", numbered((4, 5, 6), np.uint8), **how)
    assert Volume(tmp_path / "a.tif").spatial_shape == (6, 5, 4)
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        text = file.pages[0].description
    old, new = 'SizeZ="4"', f'SizeZ="{count}"'
    if kind == "imagej":  # of which frames without slices are a stack
        old, new = "slices=4", f"frames={count}" if count > 1 else "slices=1\nchannels=3"
    tifffile.tiffcomment(tmp_path / "a.tif", text.replace(old, new).encode())

    close_volumes()
    with pytest.raises(VolumeError, match=r"a\.tif has 4 pages|4 pages of|holds 4 of the"):
        Volume(tmp_path / "a.tif").probe()


@pytest.mark.parametrize("axes", ["TZC", "ZTY", "ZXC"])
def test_pages_without_x_or_y_are_refused(tmp_path, axes):
    """A volume of one column of voxels is not meant; `axes=` names them otherwise."""
    array = numbered((2, 3, 4), np.uint8)
    how = {"metadata": {"axes": axes}, "photometric": "minisblack"}
    tifffile.imwrite(tmp_path / "a.tif", array, **how)

    with pytest.raises(BadHeader, match=rf"its axes {', '.join(axes.lower())}, without x or y"):
        Volume(tmp_path / "a.tif").probe()
    assert np.array_equal(Volume(tmp_path / "a.tif", axes="zyx").numpy()[0], array.T)


def test_a_page_that_is_turned_is_refused(tmp_path):
    """Tifffile returns the pixels as they are stored; the tag says that they are mirrored."""
    tags = [(274, "H", 1, 2, True)]
    tifffile.imwrite(tmp_path / "a.tif", np.zeros((2, 3, 4), np.uint8), extratags=tags)

    with pytest.raises(UnknownFormat, match="its pages are turned: orientation 2"):
        Volume(tmp_path / "a.tif").probe()


@pytest.mark.parametrize(
    ("axes", "shape"),
    [("XYZ", (6, 5, 4)), ("ZXY", (4, 6, 5)), ("YXZ", (5, 6, 4)), ("ZYXC", (4, 5, 6, 2)),
     ("ZYXC", (4, 5, 6, 7)), ("TYXZ", (2, 5, 6, 4)), ("CXYZ", (2, 6, 5, 4)), ("YXC", (5, 6, 1)),
     ("ZYX", (3, 5, 6)), ("ZYX", (4, 5, 6))],
)  # fmt: skip
@pytest.mark.parametrize("how", [None, "zlib"])
def test_axes_of_the_series_name_those_of_the_pages(tmp_path, axes, shape, how):
    """The axes of tifffile's metadata may end in others than y and x."""
    metadata = {"axes": axes}
    how = {"photometric": "minisblack", "compression": how, "metadata": metadata}
    tifffile.imwrite(tmp_path / "a.tif", numbered(shape), **how)
    expected = tifffile.imread(tmp_path / "a.tif")
    lengths = dict(zip(axes, shape, strict=True))
    channels = [axis for axis in axes if axis not in "XYZ"]
    order = [axes.index(axis) for axis in (*channels, *(a for a in "XYZ" if a in lengths))]
    expected = expected.reshape(shape).transpose(order)
    expected = expected.reshape(-1, *(lengths.get(axis, 1) for axis in "XYZ"))

    np.testing.assert_array_equal(Volume(tmp_path / "a.tif").numpy(), expected)


def test_a_stack_of_three_planes_before_another_image(tmp_path):
    """Tifffile takes three planes for colours; the metadata name them z."""
    array = numbered((3, 20, 30), np.uint8)
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        file.write(array, planarconfig="separate", photometric="rgb", metadata={"axes": "ZYX"})
        file.write(np.ones((9, 5, 6), np.uint8), photometric="minisblack", metadata={"axes": "ZYX"})

    expected = tifffile.imread(tmp_path / "a.tif", series=0).transpose(2, 1, 0)[None]
    np.testing.assert_array_equal(Volume(tmp_path / "a.tif", series=0).numpy(), expected)


_OME = '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06">'


def ome_images(planes, sizes=(7, 6, 5)):
    """Return OME-XML with one image for each text of planes."""
    images = (
        f'<Image ID="Image:{n}"><Pixels ID="Pixels:{n}" DimensionOrder="XYZCT" Type="uint16" '
        f'SizeX="{size}" SizeY="6" SizeZ="1" SizeC="1" SizeT="1" PhysicalSizeX="{n + 1}" '
        f'PhysicalSizeY="{n + 1}">{text}</Pixels></Image>'
        for n, (text, size) in enumerate(zip(planes, sizes, strict=False))
    )
    return _OME + "".join(images) + "</OME>"


def test_an_ome_image_without_planes_has_no_series(tmp_path):
    """The spacing of a series is that of its own image; other sizes are refused."""
    planes = ["<MetadataOnly/>", *(f'<TiffData IFD="{n}" PlaneCount="1"/>' for n in range(2))]
    with tifffile.TiffWriter(tmp_path / "a.ome.tif") as file:
        for n, width in enumerate((6, 5)):
            text = ome_images(planes) if not n else None
            page = np.zeros((6, width), np.uint16)
            file.write(page, description=text, metadata=None, photometric="minisblack")

    with tifffile.TiffFile(tmp_path / "a.ome.tif") as file:
        assert [one.shape for one in file.series] == [(6, 6), (6, 5)]
    for series, size in enumerate((0.002, 0.003)):
        assert Volume(tmp_path / "a.ome.tif", series=series).spacing[0] == pytest.approx(size)

    how = {"metadata": None, "photometric": "minisblack"}
    path, page = tmp_path / "b.ome.tif", np.zeros((6, 9), np.uint16)
    tifffile.imwrite(path, page, description=ome_images(planes[1:2]), **how)
    with pytest.raises(BadHeader, match=r"has SizeX 7, not 9\.\s+Pass affine="):
        Volume(path).probe()
    assert Volume(path, affine=np.eye(4)).shape == (1, 9, 6, 1)


def test_a_part_of_an_ome_tiff_is_refused(tmp_path):
    """Its metadata are in the main file; affine= reads the part alone."""
    text = _OME + '<BinaryOnly MetadataFile="main.ome.tif" UUID="urn:uuid:0"/></OME>'
    page = np.ones((6, 8), np.uint16)
    tifffile.imwrite(tmp_path / "a.ome.tif", page, description=text, metadata=None)

    with pytest.raises(BadHeader, match=r"'main\.ome\.tif'[^.]*\.\s+Open 'main.*affine="):
        Volume(tmp_path / "a.ome.tif").probe()
    assert Volume(tmp_path / "a.ome.tif", affine=np.eye(4)).shape == (1, 8, 6, 1)


def test_each_file_of_an_ome_tiff_counts_to_its_identity(tmp_path):
    """A second file that is written again makes another volume, of other statistics."""
    planes = "".join(
        f'<TiffData FirstZ="{n}" PlaneCount="1"><UUID FileName="{n}.ome.tif">{n}</UUID></TiffData>'
        for n in range(2)
    )
    text = ome_images([planes]).replace('SizeZ="1"', 'SizeZ="2" PhysicalSizeZ="1"')
    how = {"description": text, "metadata": None, "compression": "zlib"}
    for n in range(2):
        tifffile.imwrite(tmp_path / f"{n}.ome.tif", np.full((6, 7), n, np.uint16), **how)

    def read():
        pipe = from_cases([{"image": tmp_path / "0.ome.tif"}]).open_volume().rescale((0, 1))
        return float(next(iter(pipe))["image"].realize().max())

    assert read() == pytest.approx(1)
    tifffile.imwrite(tmp_path / "1.ome.tif", np.full((6, 7), 1000, np.uint16), **how)
    close_volumes()
    assert read() == pytest.approx(1)
    assert Volume(tmp_path / "0.ome.tif").numpy().max() == 1000


@pytest.mark.parametrize("dtype", ["<u8", ">u8", "<i8"])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_integers_of_64_bits_become_tensors(tmp_path, dtype, compression):
    """NumPy has two types of each; torch and zarr know one."""
    array, path = numbered((4, 3, 2), dtype), tmp_path / "a.tif"
    how = {"byteorder": dtype[0], "photometric": "minisblack"}
    tifffile.imwrite(path, array, compression=compression, **how)

    expected = torch.from_numpy(tifffile.imread(path).astype(dtype[1:]).transpose(2, 1, 0).copy())
    assert torch.equal(Volume(path).data[0], expected)
    patches = from_cases([{"image": path}]).open_volume().lazy_patch((2, 3, 4)).batch_patches(1)
    assert torch.equal(next(iter(patches))["image"][0, 0], expected)
    convert(path, tmp_path / "out.nii.zarr")
    assert torch.equal(Volume(tmp_path / "out.nii.zarr").data[0], expected)
