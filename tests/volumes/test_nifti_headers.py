"""NIfTI headers, sound and broken, byte by byte."""

import gzip
import warnings

import nibabel
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nifti_files import crafted

import voxpipe as vp
from voxpipe.core.errors import (
    BadHeader,
    LikelyMistake,
    TruncatedVolume,
    UnknownFormat,
    VolumeError,
)
from voxpipe.volumes import Volume
from voxpipe.volumes.formats.nifti import parse_nifti

VOXELS = np.arange(8, dtype="<i2").tobytes()


def written(tmp_path, raw, name="a.nii"):
    path = tmp_path / name
    path.write_bytes(raw)
    return Volume(path)


def test_a_sound_header(tmp_path):
    """The crafted header itself is fine: what the other tests change is what they test."""
    volume = written(tmp_path, crafted() + VOXELS)

    assert volume.shape == (1, 2, 2, 2)
    assert volume.spacing == (2, 3, 4)
    assert volume.affine[:3, 3].tolist() == [5, 6, 7]
    assert volume.numpy()[0, :, 0, 0].tolist() == [0, 1]
    assert volume.numpy()[0, 0, 0, :].tolist() == [0, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizeof_hdr": 349}, "begins with"),
        ({"magic": b"nope"}, "magic"),
        ({"magic": b"ni1\0"}, "separate .img"),
        ({"offset": 0.0}, "begin at byte 0"),
        ({"offset": 348.0}, "begin at byte 348"),
        ({"offset": 352.5}, "begin at byte 352.5"),
        ({"offset": float("nan")}, "begin at byte nan"),
        ({"offset": float("inf")}, "begin at byte inf"),
        ({"offset": -352.0}, "begin at byte -352"),
        ({"dim": (0, 2, 2, 2, 1, 1, 1, 1)}, "dimensions"),
        ({"dim": (8, 2, 2, 2, 1, 1, 1, 1)}, "dimensions"),
        ({"dim": (3, 2, -2, 2, 1, 1, 1, 1)}, "dimensions"),
        ({"dim": (4, 2, 2, 2, 0, 1, 1, 1)}, "dimensions"),
        ({"datatype": 999}, "data type 999"),
        ({"inter": float("nan")}, "intercept is nan"),
        ({"rows": (float("nan"),) * 12}, "not a finite 4x4"),
        ({"sform": 0, "qform": 1, "quaternion": (9, 9, 9, 0, 0, 0)}, "orientation"),
    ],
)
def test_nonsense_is_refused(tmp_path, change, message):
    """A header that makes no sense is a BadHeader that names the file."""
    volume = written(tmp_path, crafted(**change) + VOXELS)

    with pytest.raises(BadHeader, match=message) as caught:
        _ = volume.shape

    assert "a.nii" in str(caught.value)


@pytest.mark.parametrize(
    ("datatype", "what"), [(1536, "float128"), (2048, "complex256"), (1, "binary"), (0, "none")]
)
def test_voxels_that_are_no_plain_numbers_are_refused(tmp_path, datatype, what):
    """Single bits and 128-bit floats are named, not misread."""
    volume = written(tmp_path, crafted(datatype=datatype) + bytes(1000))

    with pytest.raises(UnknownFormat, match=what):
        _ = volume.dtype


@pytest.mark.parametrize(("datatype", "colours"), [(128, 3), (2304, 4)])
def test_colours_are_channels_and_never_scaled(tmp_path, datatype, colours):
    """RGB24 and RGBA32 are bytes side by side; a slope is meant for numbers."""
    raw = crafted((2, 1, 2), datatype=datatype, bitpix=8 * colours, slope=2.0)

    volume = written(tmp_path, raw + bytes(range(4 * colours)))

    assert (volume.shape, volume.dtype, volume.disk_dtype) == ((colours, 2, 1, 2), "u1", "u1")
    assert volume.numpy()[:, 1, 0, 0].tolist() == list(range(colours, 2 * colours))


def test_colours_that_change_in_time(tmp_path):
    """Channels on both sides of the voxels are folded in the order in which they are stored."""
    stored = np.arange(3 * 2 * 3 * 4 * 2, dtype=np.uint8).reshape(2, 4, 3, 2, 3)  # t, k, j, i, c
    raw = crafted((2, 3, 4, 2), datatype=128, bitpix=24)

    volume = written(tmp_path, raw + stored.tobytes())

    expected = stored.transpose(0, 4, 3, 2, 1).reshape(6, 2, 3, 4)
    assert volume.numpy().tolist() == expected.tolist()
    assert volume[4, 1, :, 2:].numpy().tolist() == expected[4:5, 1:2, :, 2:].tolist()


def test_missing_voxels_are_counted(tmp_path):
    """A file shorter than header and voxels says how many bytes it should have."""
    volume = written(tmp_path, crafted() + VOXELS[:-1])

    with pytest.raises(TruncatedVolume, match=r"367 bytes.*368"):
        _ = volume.shape


@pytest.mark.parametrize("length", [0, 1, 3, 4, 100, 347])
def test_a_cut_header_is_truncated(tmp_path, length):
    """A file shorter than its header is truncated, whatever is in it."""
    volume = written(tmp_path, crafted()[:length])

    with pytest.raises(TruncatedVolume, match=f"holds {length} bytes"):
        _ = volume.shape


def test_sizes_are_checked_before_memory_is_taken(tmp_path):
    """A header that speaks of terabytes fails at once, in .nii and .nii.gz alike."""
    raw = crafted(dim=(5, 30000, 30000, 30000, 100, 100, 1, 1)) + VOXELS

    with pytest.raises(TruncatedVolume, match="368 bytes"):
        _ = written(tmp_path, raw).shape
    with pytest.raises(TruncatedVolume, match="cannot decode to"):
        _ = written(tmp_path, gzip.compress(raw), "a.nii.gz").shape


def test_a_compressed_file_with_the_wrong_name(tmp_path):
    """Gzip data called .nii, and raw data called .nii.gz, are told apart by their content."""
    with pytest.raises(BadHeader, match="compressed with gzip"):
        _ = written(tmp_path, gzip.compress(crafted() + VOXELS) + bytes(348)).shape
    with pytest.raises(BadHeader, match="not compressed with gzip"):
        _ = written(tmp_path, crafted() + VOXELS, "b.nii.gz").shape


@pytest.mark.parametrize("cut", [1, 300, 400])
def test_gzip_of_a_short_first_member(tmp_path, cut):
    """A stream may have several members; Python's gzip reads the header over the first's end."""
    raw = nibabel.Nifti1Image(np.arange(60, dtype=np.int16).reshape(3, 4, 5), np.eye(4)).to_bytes()
    pieces = (raw[:cut], raw[cut : cut + 50], raw[cut + 50 :])

    volume = written(tmp_path, b"".join(map(gzip.compress, pieces)), "a.nii.gz")

    assert volume.numpy().ravel().tolist() == list(range(60))


@pytest.mark.parametrize(("units", "factor"), [(0, 1.0), (1, 1000.0), (2, 1.0), (3, 0.001)])
@pytest.mark.parametrize("form", [{"sform": 1}, {"sform": 0, "qform": 1}, {"sform": 0}])
def test_units_become_millimetres(tmp_path, units, factor, form):
    """Metres and micrometres are converted, wherever the affine comes from."""
    raw = crafted(units=units | 8, **form)  # 8: seconds, the unit of time
    reference = nibabel.Nifti1Header(raw[:348]).get_best_affine()
    reference[:3] *= factor

    volume = written(tmp_path, raw + VOXELS)

    np.testing.assert_allclose(volume.affine, reference, rtol=1e-12)


def test_micrometres_are_millimetres_here_and_not_in_nibabel(tmp_path):
    """The documented difference: the same file by path, as an image, and with nibabel's numbers."""
    image = nibabel.Nifti1Image(np.zeros((2, 3, 4), np.int16), np.diag([5.0, 5, 5, 1]))
    image.header.set_xyzt_units("micron")
    nibabel.save(image, tmp_path / "a.nii")
    loaded = nibabel.load(tmp_path / "a.nii")

    for source in (tmp_path / "a.nii", loaded, image):
        np.testing.assert_allclose(Volume(source).spacing, [0.005] * 3)
    assert loaded.header.get_zooms() == (5, 5, 5)
    assert Volume(tmp_path / "a.nii", affine=loaded.affine).spacing == (5, 5, 5)


@pytest.mark.parametrize("slope", [0.0, float("nan"), float("inf")])
def test_a_slope_that_means_nothing_scales_nothing(tmp_path, slope):
    """A slope of 0 or nan asks for no scaling, as the format says; the intercept goes with it."""
    volume = written(tmp_path, crafted(slope=slope, inter=5.0) + VOXELS)

    assert volume.dtype == np.int16
    assert volume.numpy()[0, 1, 1, 1] == 7


@pytest.mark.parametrize(
    ("datatype", "stored", "scaled"),
    [
        (2, np.uint8, np.float32),
        (256, np.int8, np.float32),
        (4, np.int16, np.float32),
        (512, np.uint16, np.float32),
        (8, np.int32, np.float64),
        (768, np.uint32, np.float64),
        (1024, np.int64, np.float64),
        (1280, np.uint64, np.float64),
        (16, np.float32, np.float32),
        (64, np.float64, np.float64),
    ],
)
def test_types(tmp_path, datatype, stored, scaled):
    """Unscaled values keep the stored type, scaled ones get a float that is wide enough."""
    data = np.arange(8, dtype=stored).tobytes()
    bits = 8 * np.dtype(stored).itemsize

    plain = written(tmp_path, crafted(datatype=datatype, bitpix=bits) + data)
    other = written(tmp_path, crafted(datatype=datatype, bitpix=bits, slope=2.0) + data, "b.nii")

    assert plain.dtype == stored
    assert plain.data.numpy().dtype == stored
    assert other.dtype == scaled
    assert other.data.numpy()[0, 1, 1, 1] == 14


@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 3, 1), (1, 2, 3, 1, 1), (1, 1, 1, 2, 3)])
def test_fewer_and_more_axes(tmp_path, shape):
    """Missing axes have length one, further ones are folded into C."""
    data = np.arange(6, dtype="<i2")

    volume = written(tmp_path, crafted(shape) + data.tobytes())

    i, j, k, *rest = (*shape, 1, 1)[: max(3, len(shape))]
    expected = data.reshape((i, j, k, -1) if rest else (i, j, k, 1), order="F")
    assert volume.numpy().tolist() == np.moveaxis(expected, -1, 0).tolist()


def test_an_extension_before_the_voxels(tmp_path):
    """The voxels begin where the header says, behind any extension."""
    raw = crafted(offset=352 + 16) + bytes(16) + VOXELS

    assert written(tmp_path, raw).numpy().ravel(order="F").tolist() == list(range(8))


@given(st.binary(max_size=700))
def test_arbitrary_bytes_never_fail_otherwise(raw):
    """Whatever the bytes, the answer is a header or one of our errors."""
    try:
        header = parse_nifti(raw, "a.nii")
    except VolumeError:
        return
    assert header.voxel_bytes > 0


@given(st.integers(0, 347), st.binary(min_size=1, max_size=40))
@example(at=282, noise=b"\x81\x7f")  # a signalling NaN in the sform
@pytest.mark.filterwarnings("ignore:unknown-unit", "ignore:unknown-code")
def test_damaged_headers_never_fail_otherwise(at, noise):
    """A sound header with some bytes overwritten is read or refused with one of our errors."""
    raw = bytearray(crafted())
    raw[at : at + len(noise)] = noise

    try:
        header = parse_nifti(bytes(raw), "a.nii")
    except VolumeError:
        return
    assert header.voxel_bytes > 0


def form(spacing, angle=0.0, origin=0.0):
    """Return an affine that is turned about K."""
    turned = np.eye(4)
    turned[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    turned[:3, 3] = origin
    return turned @ np.diag([*spacing, 1.0])


SIZES = (0.5, 0.5, 1.25)
SAID_TWICE = {
    "agrees": ({}, ""),
    "agrees with a turn": ({"sform": form(SIZES, 0.3), "qform": form(SIZES, 0.3)}, ""),
    "qform alone": ({"sform": None, "qform": form(SIZES, 0.3)}, ""),
    "sizes of sform": ({"sform": form((1, 1, 1))}, "sform has voxels of 1 x 1 x 1 and pixdim"),
    "sizes, no qform": ({"sform": form((1, 1, 1)), "qform": None}, "sform has voxels of 1 x 1 x 1"),
    "turned": ({"qform": form(SIZES, 0.3)}, "sform and qform are up to"),
    "elsewhere": ({"qform": form(SIZES, 0, 5.0)}, "up to 8.66 apart"),
    "unknown code": ({"sform_code": 9}, "sform_code is 9"),
    "unknown unit": ({"xyzt_units": 6}, "unit of length is 6"),
    "lost axis": ({"dim": (3, 4, 4, 4, 2, 1, 1, 1)}, "3 axes, but lengths of more"),
    "bits": ({"bitpix": 8}, "16 bits, and its bitpix is 8"),
}


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
@pytest.mark.parametrize("name", SAID_TWICE)
def test_check_reports_what_a_header_says_twice(tmp_path, name, suffix):
    """Sizes, turns, codes, units and lengths that disagree are findings; patches go on."""
    fields, words = SAID_TWICE[name]
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape((4, 4, 4))
    for key in ("qform", "sform"):
        affine = fields.get(key, form(SIZES))
        getattr(header, f"set_{key}")(affine, 0 if affine is None else 1)
    header["pixdim"][1:4], header["vox_offset"], header["magic"] = SIZES, 352, b"n+1"
    for key, value in fields.items():
        if key not in ("qform", "sform"):
            header[key] = value
    raw = header.binaryblock + bytes(4 + 2 * 64)
    path = tmp_path / f"a{suffix}"
    path.write_bytes(gzip.compress(raw) if suffix == ".nii.gz" else raw)

    (found,) = vp.check(path).findings

    assert found.error == ("Contradiction" if words else "")
    assert words in found.reason
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert Volume(path).shape == (1, 4, 4, 4)
        assert Volume(nibabel.load(path)).shape == (1, 4, 4, 4)
    told = [str(one.message) for one in seen if "unknown-unit" in str(one.message)]
    assert len(told) >= 2 * (name == "unknown unit")
    assert bool(told) is (name == "unknown unit")
    assert all("xyzt_units 6" in text for text in told)


@pytest.mark.parametrize(("key", "parts"), [("label", 1), ("image", 2), ("label", 2)])
def test_check_reports_it_of_float_labels_and_of_stacked_channels(tmp_path, key, parts):
    """The finding names the file, also for a label or a channel of a stack."""
    image = nibabel.Nifti1Image(np.ones((4, 4, 4), np.float32), np.eye(4))
    nibabel.save(image, tmp_path / "a.nii")
    image.set_qform(np.diag([1.0, 1, 1, 1]) + np.eye(4, k=3) * 5, 1)
    nibabel.save(image, tmp_path / "b.nii")
    files = [tmp_path / name for name in ("a.nii", "b.nii")][-parts:]

    (found,) = vp.check([{key: files if parts > 1 else files[0]}], num_workers=1).bad

    assert found.error == "Contradiction"
    assert "b.nii: sform and qform are up to" in found.reason


@pytest.mark.parametrize("field", ["pixdim", "srow_x", "quatern_b"])
def test_a_given_affine_replaces_a_senseless_orientation(tmp_path, field):
    """The advice of the error for such a file works."""
    image = nibabel.Nifti1Image(np.arange(24, dtype="i2").reshape(2, 3, 4), np.eye(4))
    fields = image.header
    codes = {"pixdim": (0, 0), "srow_x": (0, 1), "quatern_b": (1, 0)}[field]
    nibabel.save(image, tmp_path / "a.nii")
    content = bytearray((tmp_path / "a.nii").read_bytes())
    fields = nibabel.Nifti1Header(bytes(content[:348]))
    fields["qform_code"], fields["sform_code"] = codes
    fields[field] = 9 if field == "quatern_b" else np.nan
    (tmp_path / "a.nii").write_bytes(bytes(fields.binaryblock) + bytes(content[348:]))

    with pytest.raises(BadHeader, match=r"a\.nii"):
        _ = Volume(tmp_path / "a.nii").shape
    volume = Volume(tmp_path / "a.nii", affine=np.diag([1.0, 2, 3, 1]))
    assert volume.spacing == (1.0, 2.0, 3.0)
    assert volume.numpy()[0].ravel().tolist() == list(range(24))


@pytest.mark.parametrize("codes", [{"qform": 1, "sform": 0}, {"qform": 0, "sform": 0}])
@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 1)])
def test_a_step_of_zero_along_one_voxel_is_one(tmp_path, shape, codes):
    """Nibabel repairs it in the same way; here a warning names the file."""
    raw = crafted(shape, pixdim=(1, 2, 3, 0, 1, 1, 1, 1), **codes) + VOXELS[:8]
    path = tmp_path / "a.nii"
    path.write_bytes(raw)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")

        affine = Volume(path).affine

    assert np.array_equal(affine, nibabel.load(path).affine)
    is_used = len(shape) == 3 or codes["qform"]
    assert [note.category for note in notes] == [LikelyMistake] * bool(is_used)
    assert all("a.nii has a step of 0 mm" in str(note.message) for note in notes)


@pytest.mark.parametrize("codes", [{"qform": 1, "sform": 0}, {"qform": 0, "sform": 0}])
@pytest.mark.parametrize("step", [0, -3])
def test_steps_that_are_not_positive(tmp_path, step, codes):
    """A zero or negative voxel size is refused where the affine needs it."""
    raw = crafted(pixdim=(1, 2, step, 4, 1, 1, 1, 1), **codes) + VOXELS
    with pytest.raises(BadHeader, match=r"no inverse|should be positive"):
        _ = written(tmp_path, raw).shape
    raw = crafted(pixdim=(1, 2, step, 4, 1, 1, 1, 1)) + VOXELS
    assert written(tmp_path, raw, "sform.nii").spacing == (2, 3, 4)


@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
@pytest.mark.parametrize(
    ("sform", "qform"), [(-1, 1), (7, 1), (7, 0), (-1, 0), (6, 5), (0, 9), (9, -2), (1, 9), (5, 1)]
)
def test_codes_that_nifti_does_not_define_are_0(tmp_path, kind, sform, qform):
    """As nibabel loads them; here a warning names the file and the code."""
    image, path = kind(np.zeros((4, 3, 5), "i2"), np.eye(4)), tmp_path / "a.nii"
    image.set_qform(np.diag([-2.0, 3, 4, 1]), 1)
    image.set_sform(np.diag([9.0, 9, 9, 1]), 1)
    nibabel.save(image, path)
    raw, size = bytearray(path.read_bytes()), image.header.sizeof_hdr
    fields = kind.header_class(bytes(raw[:size]))
    fields["sform_code"], fields["qform_code"] = sform, qform
    path.write_bytes(bytes(fields.binaryblock) + bytes(raw[size:]))
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")

        affine = Volume(path).affine

    assert np.array_equal(affine, nibabel.load(path).affine)
    odd = [f"form_code {code}," for code in (qform, sform) if not 0 <= code <= 5]
    assert len(notes) == len(odd)
    assert all(text in str(note.message) for text, note in zip(odd, notes, strict=True))
    assert Volume(path, affine=np.eye(4)).spacing == (1, 1, 1)


@pytest.mark.parametrize(
    ("change", "way_out"),
    [
        ({"pixdim": (1, -2, 3, 4, 1, 1, 1, 1), "sform": 0}, "affine="),
        ({"pixdim": (2, 2, 3, 4, 1, 1, 1, 1), "sform": 0, "qform": 1}, "affine="),
        ({"quaternion": (1.0001, 0, 0, 5, 6, 7), "sform": 0, "qform": 1}, "affine="),
        ({"offset": 0.0}, "vox_offset to 352"),
        ({"offset": 348.0}, "vox_offset to 352"),
    ],
)
def test_a_refused_header_names_the_way_out(tmp_path, change, way_out):
    """The same file opens when its advice is followed."""
    with pytest.raises(BadHeader) as refused:
        _ = written(tmp_path, crafted(**change) + VOXELS).shape
    assert way_out in str(refused.value)
    if "offset" in change:
        path, options = tmp_path / "a.nii", {}
        path.write_bytes(crafted(**{**change, "offset": 352.0}) + VOXELS)
        assert np.array_equal(Volume(path).affine, nibabel.load(path).affine)
    else:
        options = {"affine": np.diag([2.0, 3, 4, 1])}
    volume = Volume(tmp_path / "a.nii", **options)
    assert volume.spacing == (2, 3, 4)
    assert volume.numpy().T.ravel().tolist() == list(range(8))


def test_the_handedness_zero_is_one(tmp_path):
    """The definition of NIfTI and nibabel take ``pixdim[0]`` 0 for 1."""
    raw = crafted(pixdim=(0, 2, 3, 4, 1, 1, 1, 1), qform=1, sform=0) + VOXELS

    affine = written(tmp_path, raw).affine

    assert np.array_equal(affine, nibabel.load(tmp_path / "a.nii").affine)


@pytest.mark.parametrize("slope", [1.0, -2.0])
def test_objects_without_an_inverse(slope):
    """An image in memory follows the rule of files."""
    affine = np.eye(4)
    affine[:2, :2] = [[1, slope], [1, slope]]
    image = nibabel.Nifti1Image(np.zeros((2, 2, 2), np.int16), affine)

    with pytest.raises(BadHeader, match="no inverse"):
        _ = Volume(image).shape


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("intent", [3000, 3002, 3099])
def test_cifti(tmp_path, version, intent):
    """Rows of surface vertices and voxels are no volume."""
    kind = nibabel.Nifti1Image if version == 1 else nibabel.Nifti2Image
    image = kind(np.zeros((1, 1, 1, 1, 2, 9), np.float32), np.eye(4))
    image.header["intent_code"] = intent
    nibabel.save(image, tmp_path / "a.dscalar.nii")

    with pytest.raises(UnknownFormat, match=rf"a\.dscalar\.nii is CIFTI-2 \(intent {intent}\)"):
        _ = Volume(tmp_path / "a.dscalar.nii").shape


def test_images_of_nibabel_that_are_no_volumes():
    """CIFTI-2 has rows, GIFTI a surface; each is refused by the name of its class."""
    scalars = nibabel.cifti2.ScalarAxis(["thickness"])
    parts = nibabel.cifti2.BrainModelAxis.from_mask(np.ones((2, 2, 2), bool), affine=np.eye(4))
    rows = nibabel.Cifti2Image(np.zeros((1, 8), np.float32), (scalars, parts))

    with pytest.raises(UnknownFormat, match=r"Cifti2Image of nibabel.*\n.*-cifti-separate"):
        Volume(rows, affine=np.eye(4))
    with pytest.raises(UnknownFormat, match=r"from a nibabel\.GiftiImage"):
        Volume(nibabel.GiftiImage())


@pytest.mark.parametrize("name", ["lh.mgh", "lh.mgz", "lh.nii"])
@pytest.mark.parametrize("length", [9, 642])
def test_values_of_a_surface(tmp_path, name, length):
    """One long row is warned of; a short one is a line of voxels."""
    kind = nibabel.Nifti1Image if name == "lh.nii" else nibabel.MGHImage
    nibabel.save(kind(np.ones((length, 1, 1), np.float32), np.eye(4)), tmp_path / name)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")

        assert Volume(tmp_path / name).shape == (1, length, 1, 1)

    assert ["vertices" in str(note.message) for note in notes] == [True] * (length > 9)
