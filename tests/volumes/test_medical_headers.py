"""Headers of NRRD and MetaImage, sound and broken, line by line; SimpleITK is the judge."""

import sys
from dataclasses import replace

import fsspec
import nibabel
import numpy as np
import pytest
import SimpleITK
from hypothesis import example, given
from hypothesis import strategies as st
from medical_files import LPS
from reference_files import REFERENCES, collect

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import BadHeader, TruncatedVolume, UnknownFormat, VolumeError
from voxpipe.extensions.formats.text_header import ItkOnly, parse_metaimage, parse_nrrd
from voxpipe.storage.ranges import coalesce, rows_of_box
from voxpipe.volumes import Volume
from voxpipe.volumes.formats import raw as raw_backends
from voxpipe.volumes.formats.raw import RawHeader, fastest_first

VOXELS = np.arange(24, dtype="<i2").tobytes()
NRRD = "NRRD0004\ntype: short\ndimension: 3\nsizes: 2 3 4\nencoding: raw\nendian: little\n"
META = "NDims = 3\nDimSize = 2 3 4\nElementType = MET_SHORT\n"
DIRECTIONS = "space directions: (2,0,0) (0,3,1) (0,0,4)\nspace origin: (1,2,3)\n"
STRAIGHT = DIRECTIONS.replace(",1)", ",0)")

collect()


def nrrd(path, lines="", voxels=VOXELS, start=NRRD):
    path = path / "a.nrrd"
    path.write_bytes(start.encode() + lines.encode() + b"\n" + voxels)
    return path


def meta(path, lines="", voxels=VOXELS, start=META):
    path = path / "a.mha"
    path.write_bytes(start.encode() + lines.encode() + b"ElementDataFile = LOCAL\n" + voxels)
    return path


def judged(path):
    """Return voxels and affine, RAS, as SimpleITK reads three axes."""
    image = SimpleITK.ReadImage(path)
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(image.GetDirection(), (3, 3)) * image.GetSpacing()
    affine[:3, 3] = image.GetOrigin()
    return SimpleITK.GetArrayFromImage(image).T, LPS @ affine


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "spacings: 1.5 2 3\n",
        "spacings: 1.5 nan 3\n",
        "spacings: 1.5 2 3\naxis mins: 10 20 30\n",
        "spacings: 1.5 2 3\naxis mins: 10 20 30\ncenterings: cell cell cell\n",
        "spacings: 1.5 2 3\naxis mins: 10 20 30\ncenterings: node node node\n",
        "space: RAS\n" + STRAIGHT,
        "space: left-anterior-superior\n" + STRAIGHT,
        "space: left-posterior-superior\n" + STRAIGHT,
        "space: scanner-xyz\n" + STRAIGHT,
        "space dimension: 3\n" + STRAIGHT,
        "# a comment\nwhat:=ever: it is\ncontent: none\n",
    ],
)
def test_nrrd_lies_where_simpleitk_says(tmp_path, lines):
    """Spaces, spacings and origins mean what ITK takes them for."""
    path = nrrd(tmp_path, lines)
    voxels, affine = judged(path)

    volume = Volume(path)

    np.testing.assert_allclose(volume.affine, affine, atol=1e-12)
    assert volume.numpy()[0].tolist() == voxels.tolist()


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "BinaryData = True\nElementSpacing = 1 2 3\nElementSize = 4 5 6\n",
        "ElementSize = 4 5 6\n",
        "ElementToIntensityFunctionSlope = 2\nElementToIntensityFunctionOffset = 5\n",
        "Origin = 1 2 3\nRotation = 0 1 0 1 0 0 0 0 1\n",
        "Position = 1 2 3\nOffset = 1 2 3.0\n",
        "TransformMatrix = 0 0 1 1 0 0 0 1 0\nElementSpacing = 1 2 3\nCenterOfRotation = 1 2 3\n",
        "ElementByteOrderMSB = True\n",
        "HeaderSize = -1\n",
        "DistanceUnits = ?\n",
        "DistanceUnits = mm\n",
        "ObjectSubType = Scan\nName = a\nID = 1\nParentID = -1\nElementNBits = 16\n",
        "ElementSpacing: 1 2 3\nOffset:4 5 6\n",
        "ElementSpacing := 1 2 3\nOffset == 4 5 6\n",
        "AcquisitionDate = 12:30\nComment: a = b\n",
    ],
)
def test_metaimage_lies_where_simpleitk_says(tmp_path, lines):
    """Synonyms, defaults and the rows of the matrix mean what ITK takes them for."""
    path = meta(tmp_path, lines)
    voxels, affine = judged(path)

    volume = Volume(path)

    np.testing.assert_allclose(volume.affine, affine, atol=1e-12)
    assert volume.numpy()[0].tolist() == voxels.tolist()


@pytest.mark.parametrize("separator", [": ", ":", " : ", " := ", "=\t= "])
def test_separators_of_metaimage(tmp_path, separator):
    """ITK takes any row of equals signs and colons for one separator, in every line."""
    path = meta(tmp_path, "ElementSpacing = 1 2 3\nOffset = 4 5 6\n")
    head, end, voxels = path.read_bytes().partition(b"LOCAL")
    path.write_bytes(head.replace(b" = ", separator.encode()) + end + voxels)
    expected, affine = judged(path)

    assert np.array_equal(Volume(path).affine, affine)
    assert Volume(path).numpy()[0].tolist() == expected.tolist()


@pytest.mark.parametrize(
    "lines",
    [
        "Position = 1 2 3\nOffset = 4 5 6\n",
        "Offset = 1 2 3\nOrigin = 9 9 9\n",
        "Rotation = 0 1 0 1 0 0 0 0 1\nTransformMatrix = 1 0 0 0 1 0 0 0 1\n",
    ],
)
def test_two_places_of_metaimage(tmp_path, lines):
    """ITK takes one of two synonyms, without a warning."""
    with pytest.raises(BadHeader, match=r"its \w+ and \w+ differ(.|\n)*affine="):
        _ = Volume(meta(tmp_path, lines)).affine


def test_distance_units_of_metaimage(tmp_path):
    """By the format's definition: ITK ignores them."""
    volume = Volume(meta(tmp_path, "DistanceUnits = um\nElementSpacing = 1 2 3\nOffset = 4 5 6\n"))

    expected = np.diag([-0.001, -0.002, 0.003, 1])
    expected[:3, 3] = -0.004, -0.005, 0.006
    np.testing.assert_allclose(volume.affine, expected)
    assert volume.lengths == "1 x 2 x 3 um"


@pytest.mark.parametrize("form", ["nrrd", "metaimage"])
def test_units_of_voxels_as_text(tmp_path, form):
    """SimpleITK reads these voxels, and the units of the header count all the same."""
    text = b" ".join(b"%d" % n for n in range(24)) + b"\n"
    if form == "nrrd":
        start = NRRD.replace("raw", "ascii") + 'spacings: 1 2 3\nunits: "um" "um" "um"\n'
        volume = Volume(nrrd(tmp_path, start=start, voxels=text))
    else:
        lines = "BinaryData = False\nDistanceUnits = um\nElementSpacing = 1 2 3\n"
        volume = Volume(meta(tmp_path, lines, text))

    assert volume.spacing == pytest.approx((0.001, 0.002, 0.003))
    assert volume.numpy()[0].ravel(order="F").tolist() == list(range(24))


def test_oblique_directions_and_units(tmp_path):
    """Columns that are not at right angles are kept, and micrometres are converted."""
    path = nrrd(tmp_path, 'space: RAS\nspace units: "um" "mm" "m"\n' + DIRECTIONS)

    expected = [[0.002, 0, 0, 0.001], [0, 3, 0, 2], [0, 1000, 4000, 3000], [0, 0, 0, 1]]
    np.testing.assert_allclose(Volume(path).affine, expected)


@pytest.mark.parametrize(
    ("lines", "spacing"),
    [
        ('spacings: 1 2 3\nunits: "um" "mm" "cm"\n', (0.001, 2, 30)),
        ('space: LPS\nunits: "um" "um" "um"\n' + STRAIGHT, (2e-3, 3e-3, 4e-3)),
        ("space: LPS\nspace units: um um um\n" + STRAIGHT, (2e-3, 3e-3, 4e-3)),
        ("spacings: 1 2 3\naxis mins: 0 0 0\naxis maxs: 1 6 9\n", (1, 2, 3)),
        ("axis mins: 0 0 0\naxis maxs: 4 6 4\n", (2, 2, 1)),
        ("axis mins: 0 0 0\naxis maxs: 4 6 6\ncenters: node node node\n", (4, 3, 2)),
        ("spacings: nan 2 3\naxis mins: 0 0 0\naxis maxs: 4 6 9\n", (2, 2, 3)),
    ],
)
def test_units_and_extents_of_nrrd(tmp_path, lines, spacing):
    """By the format's definition: ITK ignores units and extents of axes."""
    assert Volume(nrrd(tmp_path, lines)).spacing == pytest.approx(spacing)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('space: LPS\nspace units: "um" "um" ""\n' + DIRECTIONS, "some axes only, by units of x"),
        ('spacings: 1 2 3\nunits: "um" "" "um"\n', "some axes only, by units of x: 'um', y: ''"),
        ("spacings: 1 2 3\naxis mins: 0 0 0\naxis maxs: 5 6 9\n", "spacings and its axis mins"),
        (
            "spacings: 2 3 3\naxis mins: 0 0 0\naxis maxs: 4 6 9\ncenters: cell cell cell\n",
            "differ",
        ),
        ('space: LPS\nspace units: "um"\n' + DIRECTIONS, "Write 3 units in quotes"),
        ('spacings: 1 2 3\nunits: "um" "um"\n', "its units are"),
        ('space: LPS\nunits: "um" "mm" "mm"\n' + DIRECTIONS, "do not fit its space"),
        ("space: LPS\nspace directions: (1,0) (0,1) none\n", "directions have others"),
        ("space: upside-down\n" + DIRECTIONS, "its space is 'upside-down'"),
        ("spacings: inf 3 4\n", "not a finite 4x4 matrix"),
    ],
)
def test_a_world_of_nrrd_that_makes_no_sense(tmp_path, lines, words):
    """It is refused with a way out that works."""
    path, affine = nrrd(tmp_path, lines), np.diag([2.0, 3, 4, 1])

    with pytest.raises(BadHeader, match=words):
        Volume(path).probe()
    assert Volume(path, affine=affine).affine.tolist() == affine.tolist()


@pytest.mark.parametrize("start", [NRRD, META])
def test_a_given_affine_opens_steps_of_zero(tmp_path, start):
    """The affine of the user replaces one without an inverse."""
    write, key = (nrrd, "spacings: ") if start == NRRD else (meta, "ElementSpacing = ")
    affine = np.diag([2.0, 3, 4, 1])

    for numbers in ("1 0 1", "x 1 1"):
        volume = Volume(write(tmp_path, f"{key}{numbers}\n", start=start), affine=affine)
        assert volume.affine.tolist() == affine.tolist()
        assert volume.shape == (1, 2, 3, 4)


@pytest.mark.parametrize(
    "steps", [((1, 0, 0), (0, 2, 0)), ((0, 1, 0), (0, 0, 2)), ((0, 0.6, 0.8), (2, 0, 0))]
)
def test_a_plane_in_the_world(tmp_path, steps):
    """The third axis of a 2-D NRRD is its normal, 1 mm long, as in the same plane of 3 axes."""
    start = NRRD.replace("dimension: 3", "dimension: 2").replace("2 3 4", "4 6")
    start += "space: left-posterior-superior\nspace origin: (1,2,3)\n"
    path = nrrd(tmp_path, f"space directions: {' '.join(map(str, steps))}\n", start=start)

    affine = Volume(path).affine

    normal = np.cross(*steps) / 2
    assert np.array_equal(affine[:3, :2], LPS[:3, :3] @ np.transpose(steps))
    assert np.allclose(np.abs(affine[:3, 2]), np.abs(normal))
    assert np.allclose(affine[:3, 2] @ affine[:3, :2], 0)


def test_a_fourth_axis_is_time(tmp_path):
    """A world of four axes, as SimpleITK writes it, gives channels and a place in space."""
    array = np.arange(120, dtype=np.uint8).reshape(2, 3, 4, 5)
    image = SimpleITK.GetImageFromArray(array, isVector=False)
    image.SetOrigin((1.0, 2.0, 3.0, 9.0))
    for name in ("a.nrrd", "a.mha"):
        SimpleITK.WriteImage(image, tmp_path / name)

        volume = Volume(tmp_path / name)

        assert volume.numpy().tolist() == array.transpose(0, 3, 2, 1).tolist()
        assert volume.affine[:3, 3].tolist() == [-1, -2, 3]


@pytest.mark.parametrize(
    "lines",
    ["byte skip: 4\n", "byteskip: -1\n", "line skip: 2\n", "lineskip: 1\nbyte skip: 2\n"],
)
def test_bytes_and_lines_are_skipped(tmp_path, lines):
    """What stands between the header and the voxels is left out, lines first."""
    junk = {"byte skip: 4\n": b"junk", "lineskip: 1\nbyte skip: 2\n": b"one\n--"}
    path = nrrd(tmp_path, lines, junk.get(lines, b"one\ntwo\n") + VOXELS)

    assert Volume(path).numpy()[0].ravel(order="F").tolist() == list(range(24))


def test_a_header_of_the_raw_file_is_skipped(tmp_path):
    """HeaderSize counts from the beginning of the file that holds the voxels."""
    (tmp_path / "b.raw").write_bytes(b"junk" + VOXELS)
    for size in (4, -1):
        path = tmp_path / f"a{size}.mhd"
        path.write_text(f"{META}HeaderSize = {size}\nElementDataFile = b.raw\n")

        assert Volume(path).numpy()[0].ravel(order="F").tolist() == list(range(24))


@pytest.mark.parametrize(
    ("start", "lines", "message"),
    [
        (NRRD.replace("NRRD0004", "NRRD0009"), "", "begins with"),
        (NRRD.replace("short", "block"), "", "type is 'block'"),
        (NRRD.replace("sizes: 2 3 4", "sizes: 2 3"), "", "sizes"),
        (NRRD.replace("sizes: 2 3 4", "sizes: 2 -3 4"), "", "sizes"),
        (NRRD.replace("raw", "rar"), "", "encoding is 'rar'"),
        (NRRD.replace("endian: little\n", ""), "", "endian is None"),
        (NRRD, "kinds: domain domain\n", "2 kinds"),
        (NRRD, "kinds: list list list\n", "none of its axes"),
        (NRRD, "space: LPS\nspace directions: (1,0) (0,1) (1,1)\n", "world has 3 axes"),
        (NRRD, "space: LPS\nspace directions: (1,0,0 (0,1,0)\n", "spacedirections"),
        (NRRD, "space: LPS\nspace directions: (inf,0,0) (0,1,0) (0,0,1)\n", "finite 4x4"),
        (NRRD, "type: short\n", "'type' twice"),
        (NRRD, "a line of text\n", "a line"),
        (NRRD, "byte skip: -2\n", "skips"),
        (NRRD, "line skip: 99\n", "fewer lines"),
        (NRRD, "spacings: 1 2\n", "spacings"),
        (NRRD, "spacings: 1 2 0\n", "no inverse"),
        (NRRD, DIRECTIONS.replace("0,0,4", "0,3,1"), "no inverse"),
    ],
)
def test_broken_nrrd(tmp_path, start, lines, message):
    """A header that makes no sense is a BadHeader that names the file."""
    with pytest.raises(BadHeader, match=message) as caught:
        _ = Volume(nrrd(tmp_path, lines, start=start)).shape

    assert "a.nrrd" in str(caught.value)


@pytest.mark.parametrize(
    ("start", "lines", "message"),
    [
        (META.replace("NDims = 3", "NDims = 11"), "", "NDims"),
        (META.replace("2 3 4", "2 3 four"), "", "DimSize"),
        (META.replace("MET_SHORT", "MET_STRING"), "", "ElementType"),
        (META, "ElementSpacing = 1 2\n", "ElementSpacing"),
        (META, "ElementSpacing = inf 1 1\n", "finite 4x4"),
        (META, "ElementSpacing = 1 0 1\n", "no inverse"),
        (META, "TransformMatrix = 1 0 0 1 0 0 0 0 1\n", "no inverse"),
        (
            META,
            "ElementSpacing = 1e300 1 1\nTransformMatrix = 1e300 0 0 0 1 0 0 0 1\n",
            "finite 4x4",
        ),
        (META, "TransformMatrix = 1 0 0 0 1 0 0 0 nan\n", "finite 4x4"),
        (META, "CompressedData = maybe\n", "CompressedData"),
        (META, "ElementNumberOfChannels = 0\n", "0 channels"),
        (META, "HeaderSize = -2\n", "HeaderSize"),
        (META, "a line of text\n", "a line"),
        (
            META,
            "BinaryDataByteOrderMSB = True\nElementByteOrderMSB = False\n",
            "ByteOrderMSB differ",
        ),
    ],
)
def test_broken_metaimage(tmp_path, start, lines, message):
    """A header that makes no sense is a BadHeader that names the file."""
    with pytest.raises(BadHeader, match=message) as caught:
        _ = Volume(meta(tmp_path, lines, start=start)).shape

    assert "a.mha" in str(caught.value)


@pytest.mark.parametrize("encoding", ["raw", "gzip", "bzip2", "ascii"])
def test_claims_of_nrrd_cost_nothing(tmp_path, encoding):
    """A header that speaks of 10^15 voxels is refused before memory or disk is taken."""
    start = NRRD.replace("2 3 4", "100000 100000 100000").replace("raw", encoding)

    with pytest.raises(VolumeError, match=r"a\.nrrd"):
        Volume(nrrd(tmp_path, start=start)).numpy()


@pytest.mark.parametrize("lines", ["", "CompressedData = True\n"])
def test_claims_of_metaimage_cost_nothing(tmp_path, lines):
    """The same for MetaImage, raw and compressed."""
    start = META.replace("2 3 4", "100000 100000 100000")

    with pytest.raises(TruncatedVolume, match=r"a\.mha"):
        Volume(meta(tmp_path, lines, start=start)).numpy()


@pytest.mark.parametrize("name", ["/dev/zero", "folder", "none.raw", "nul\0.raw", "x" * 999])
def test_a_voxel_file_that_is_none(tmp_path, name):
    """Devices, folders and impossible names are refused; the header is named."""
    (tmp_path / "folder").mkdir()
    path = tmp_path / "a.mhd"
    path.write_text(f"{META}ElementDataFile = {name}\n")

    with pytest.raises(VolumeError, match=r"a\.mhd"):
        _ = Volume(path).shape


def test_raw_voxels_are_mapped_and_the_header_reads_none(tmp_path):
    """Geometry costs no voxel, and a region is a view of the file."""
    found = REFERENCES["nrrd, vectors"](tmp_path)
    volume = Volume(found.path)
    before = IO_COUNTERS.snapshot()
    assert volume.spacing == pytest.approx((1.5, 2, 3))
    spent = IO_COUNTERS - before
    whole = volume.read(Region.of_shape(volume.spatial_shape)).array
    part = volume.read(Region((1, 2, 3), (2, 4, 6))).array

    assert (spent.headers, spent.reads, spent.bytes_read) == (1, 0, 0)
    assert volume.access == "view"
    assert np.shares_memory(whole, part)
    assert not part.flags.writeable


@pytest.mark.parametrize("name", ["nrrd, text", "vtk"])
def test_without_simpleitk_the_message_says_so(tmp_path, monkeypatch, name):
    """The optional package is named where it would help."""
    found = REFERENCES[name](tmp_path)
    monkeypatch.setitem(sys.modules, "SimpleITK", None)
    monkeypatch.setattr("voxpipe.volumes.registry._is_installed", lambda _: False)

    with pytest.raises(UnknownFormat, match="pip install SimpleITK"):
        _ = Volume(found.path).shape


def test_text_behind_a_url_is_refused(tmp_path):
    """What only SimpleITK reads has to be a local file."""
    found = REFERENCES["nrrd, text"](tmp_path)
    fsspec.filesystem("memory").pipe("/text/a.nrrd", found.path.read_bytes())

    with pytest.raises(UnknownFormat, match="local disk"):
        _ = Volume("memory://text/a.nrrd").shape


@given(st.binary(max_size=200), st.integers(0, len(NRRD)))
@example(b"sizes: " + b"9" * 5000 + b"\n", len(NRRD))
@example(b"://", 0)
@example(b"://", len(META))
def test_arbitrary_headers_never_fail_otherwise(noise, at):
    """Whatever the bytes, the answer is a header or one of our errors."""
    for parse, sound in ((parse_nrrd, NRRD), (parse_metaimage, META)):
        for raw in (noise, sound[:at].encode() + noise + sound[at:].encode() + b"\n"):
            try:
                found = parse(raw, "a.file")
            except (VolumeError, ItkOnly):
                continue
            assert found.raw.voxel_bytes > 0


@given(st.data())
def test_ranges_give_what_a_map_gives(data):
    """The runs of a region, wherever its channels are stored, hold the voxels of the view."""
    count = data.draw(st.integers(3, 5))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=count, max_size=count)))
    axes = sorted(data.draw(st.permutations(range(count)))[:3])
    layout = fastest_first(shape, tuple(axes))
    fields = RawHeader(layout, np.dtype("<i2"), 6)
    ends = [
        sorted((data.draw(st.integers(0, n - 1)), data.draw(st.integers(1, n))))
        for n in (shape[axis] for axis in axes)
    ]
    region = Region(tuple(min(a, b - 1) for a, b in ends), tuple(b for _, b in ends))
    first = data.draw(st.integers(0, layout.shape[0] - 1))
    channels = (first, data.draw(st.integers(first + 1, layout.shape[0])))
    stored = bytes(6) + np.arange(np.prod(shape), dtype="<i2").tobytes()
    most = data.draw(st.integers(2, 64))

    index, part = layout.index(region, channels)
    rows = rows_of_box(fields.box(index), most)
    flat = np.frombuffer(b"".join(stored[a:b] for a, b in rows), "<i2")
    found = layout.fold(flat.reshape(index.shape))[slice(*part)]

    # Fastest first, as SimpleITK and nibabel count: the axes that are not spatial are channels.
    others = [axis for axis in range(count) if axis not in axes]
    view = np.frombuffer(stored, "<i2", offset=6).reshape(shape, order="F")
    channel_first = view.transpose(*others, *axes).reshape(-1, *(shape[a] for a in axes), order="F")
    expected = channel_first[(slice(*channels), *region.slices)]
    assert found.tolist() == expected.tolist()
    assert rows == sorted(rows)
    assert coalesce(rows, 0, 1 << 30)[0][0] >= 6
    longest = max(b - a for a, b in rows)
    fastest = layout.sizes[-1]
    assert longest <= max(most, 2 * fastest)


def test_remote_raw_voxels_are_read_in_ranges(tmp_path, monkeypatch):
    """A plane of a remote .mhd costs its own bytes, not the file's."""
    monkeypatch.setattr(raw_backends, "REMOTE_ROWS_GAP", 0)
    found = REFERENCES["mhd"](tmp_path)
    system = fsspec.filesystem("memory")
    for name in ("a.mhd", "a.raw"):
        system.pipe(f"/ranges/{name}", (tmp_path / name).read_bytes())
    volume = Volume("memory://ranges/a.mhd")
    assert volume.access == "range"
    asked = []
    real = type(system).cat_file

    def spy(self, path, start=None, end=None, **kwargs):
        asked.append((start, end))
        return real(self, path, start=start, end=end, **kwargs)

    monkeypatch.setattr(type(system), "cat_file", spy)

    assert volume[..., 2].numpy().tolist() == found.array[..., 2:3].tolist()
    assert asked == [(2 * 30 * 4, 3 * 30 * 4)]


def test_a_raw_header_is_a_value():
    """Formats change what they know of it by making another."""
    fields = RawHeader(fastest_first((2, 3, 4)), np.dtype("u1"), 0)

    other = replace(fields, offset=5)

    assert (other.offset, other.voxel_bytes) == (5, 24)


@pytest.mark.parametrize("key", ["0008|0060", "Scan Date", "scanner-id", "a.b (c)", "plain"])
def test_notes_of_any_key_in_metaimage(tmp_path, key):
    """ITK writes the meta data of an image as lines, DICOM tags and keys with blanks too."""
    image = SimpleITK.GetImageFromArray(np.arange(60, dtype=np.int16).reshape(3, 4, 5))
    image.SetMetaData(key, "CT = 1")
    SimpleITK.WriteImage(image, tmp_path / "a.mha")

    found = Volume(tmp_path / "a.mha").numpy()[0]

    assert np.array_equal(found.T, SimpleITK.GetArrayFromImage(image))


@pytest.mark.parametrize(
    ("key", "damaged"), [("DimSize", "DimSise"), ("ElementSpacing", "ElementSpac1ng")]
)
def test_a_field_of_metaimage_with_a_mistake_is_no_note(tmp_path, key, damaged):
    """A damaged field would be left out without a word, and its default taken."""
    image = SimpleITK.GetImageFromArray(np.zeros((3, 4, 5), np.int16))
    SimpleITK.WriteImage(image, tmp_path / "a.mhd")
    text = (tmp_path / "a.mhd").read_text()
    (tmp_path / "a.mhd").write_text(text.replace(key, damaged), encoding="latin-1")

    with pytest.raises(BadHeader, match=f"should that be {key.split()[0]}"):
        _ = Volume(tmp_path / "a.mhd").shape


@pytest.mark.parametrize(
    ("key", "damaged"),
    [("DistanceUnits", str.lower), ("ElementSpacing", str.upper), ("Offset", str.upper)],
)
def test_fields_of_metaimage_count_case(tmp_path, key, damaged):
    """SimpleITK ignores a field in another case, which would change the geometry unnoticed."""
    image = SimpleITK.GetImageFromArray(np.zeros((3, 4, 5), np.int16))
    image.SetSpacing((2, 3, 4))
    image.SetOrigin((1, 2, 3))
    SimpleITK.WriteImage(image, path := tmp_path / "a.mhd")
    text = f"DistanceUnits = mm\n{path.read_text()}"
    path.write_text(text.replace(key, damaged(key)))
    read = SimpleITK.ReadImage(path)

    assert (read.GetSpacing() == (2, 3, 4)) is (key != "ElementSpacing")
    assert (read.GetOrigin() == (1, 2, 3)) is (key != "Offset")
    with pytest.raises(BadHeader, match=f"{damaged(key)}'; should that be {key}") as info:
        _ = Volume(path).shape
    assert "Correct the name, or pass affine=" in str(info.value)
    assert Volume(path, affine=np.eye(4)).shape == (1, 5, 4, 3)


def test_notes_of_other_formats_are_no_mistakes(tmp_path):
    """SimpleITK copies the fields of NIfTI, such as toffset, into the notes of MetaImage."""
    nibabel.save(nibabel.Nifti1Image(np.zeros((3, 4, 5), np.int16), np.eye(4)), tmp_path / "a.nii")
    SimpleITK.WriteImage(SimpleITK.ReadImage(tmp_path / "a.nii"), tmp_path / "a.mhd")

    assert "toffset" in (tmp_path / "a.mhd").read_text()
    assert Volume(tmp_path / "a.mhd").shape == (1, 3, 4, 5)


@pytest.mark.parametrize("line", ["spacing: 2 3 4", "spacings_: 2 3 4", "Spacings: 2 3 4"])
def test_misspelt_fields_of_nrrd_are_refused(tmp_path, line):
    """Names of NRRD ignore case; SimpleITK refuses a name that the format does not know."""
    path, known = tmp_path / "a.nrrd", line.startswith("Spacings:")
    lines = f"type: short\ndimension: 3\nsizes: 3 4 5\n{line}\nendian: little\nencoding: raw"
    path.write_bytes(f"NRRD0004\n{lines}\n\n".encode() + bytes(120))
    if known:
        assert Volume(path).spacing == SimpleITK.ReadImage(path).GetSpacing() == (2, 3, 4)
        return
    with pytest.raises(RuntimeError, match="failed to parse"):
        SimpleITK.ReadImage(path)
    with pytest.raises(BadHeader, match="should that be spacings"):
        _ = Volume(path).shape


@pytest.mark.parametrize("kind", ["nhdr", "nhdr list", "mhd", "mhd list"])
@pytest.mark.parametrize(("head", "tail", "skip"), [(b"", b"FOOT", 0), (b"HEAD", b"", -1)])
def test_files_of_planes_with_more_than_voxels(tmp_path, kind, head, tail, skip):
    """As SimpleITK reads them: what follows the voxels is left, and -1 counts from the end."""
    array = np.arange(360, dtype=np.int16).reshape(8, 9, 5)
    for k in range(5):
        plane = array[:, :, k].tobytes(order="F")
        (tmp_path / f"s{k}.raw").write_bytes(head + plane + tail)
    names = "LIST\n" + "\n".join(f"s{k}.raw" for k in range(5)) if "list" in kind else ""
    path = tmp_path / f"v.{kind[:4].strip()}"
    if path.suffix == ".nhdr":
        lines = "NRRD0004\ntype: int16\ndimension: 3\nsizes: 8 9 5\nendian: little\nencoding: raw"
        path.write_text(f"{lines}\nbyte skip: {skip}\ndata file: {names or 's%d.raw 0 4 1 2'}\n")
    else:
        lines = (
            "NDims = 3\nDimSize = 8 9 5\nElementType = MET_SHORT\nBinaryDataByteOrderMSB = False"
        )
        lines += f"\nHeaderSize = {skip}"
        path.write_text(f"{lines}\nElementDataFile = {names or 's%d.raw 0 4 1'}\n")

    found = Volume(path).numpy()[0]

    reference = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(path)).T
    assert np.array_equal(found, reference)
    assert np.array_equal(found, array)


def test_files_of_planes_that_end_early(tmp_path):
    """A plane that is cut is named, wherever its voxels begin."""
    path = tmp_path / "v.mhd"
    for k in range(2):
        (tmp_path / f"s{k}.raw").write_bytes(bytes(143 + k))
    lines = "NDims = 3\nDimSize = 8 9 2\nElementType = MET_SHORT\nHeaderSize = -1"
    path.write_text(f"{lines}\nElementDataFile = s%d.raw 0 1 1\n")

    with pytest.raises(TruncatedVolume, match=r"s0\.raw"):
        _ = Volume(path).shape


@pytest.mark.parametrize("reference", ["own", "LIST\nother\nown"])
@pytest.mark.parametrize("name", ["a.nhdr", "a.mhd"])
def test_a_header_that_names_itself(tmp_path, name, reference):
    """Its own text is no voxels, alone or in a list."""
    start, key = (NRRD, "data file: ") if name == "a.nhdr" else (META, "ElementDataFile = ")
    (tmp_path / "other").write_bytes(VOXELS)
    (tmp_path / name).write_text(f"{start}{key}{reference.replace('own', name)}\n\n")

    with pytest.raises(BadHeader, match=rf"{name} names itself"):
        _ = Volume(tmp_path / name).shape


def test_voxels_behind_a_header_that_names_itself(tmp_path):
    """The last bytes of the file are voxels, where the header says so."""
    head = f"{META}HeaderSize = -1\nElementDataFile = a.mhd\n"
    (tmp_path / "a.mhd").write_bytes(head.encode() + VOXELS)

    array = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(tmp_path / "a.mhd"))
    assert np.array_equal(Volume(tmp_path / "a.mhd").numpy()[0].T, array)
