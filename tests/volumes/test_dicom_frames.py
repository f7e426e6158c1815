"""DICOM objects of many frames, and series whose slices differ; pydicom writes and judges."""

from __future__ import annotations

import datetime
import shutil
import tracemalloc
import warnings

import numpy as np
import pydicom
import pytest
import SimpleITK
from medical_files import warm
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.pixels import convert_color_space
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

import voxpipe as vp
from voxpipe.core.errors import (
    BadHeader,
    CasesLeftOut,
    CorruptVolume,
    LikelyMistake,
    SampleError,
    TruncatedVolume,
    UnknownFormat,
    VolumeError,
    VolumeNotFound,
)
from voxpipe.volumes import Volume, close_volumes

MR, CT = "1.2.840.10008.5.1.4.1.1.4.1", "1.2.840.10008.5.1.4.1.1.2"
DOSE, SEGMENTS = "1.2.840.10008.5.1.4.1.1.481.2", "1.2.840.10008.5.1.4.1.1.66.4"
FRAMES = np.arange(4 * 6 * 8).reshape(4, 6, 8).astype(np.uint16)  # frame, row, column


@pytest.fixture(scope="module", autouse=True)
def writer_is_warm():
    """Nothing that GDCM keeps open counts as left behind."""
    warm()


def write(path, pixels, syntax=ExplicitVRLittleEndian, sop=CT, **fields):
    """Write frames (N, rows, columns[, colours]) or one (rows, columns)."""
    one, meta = Dataset(), FileMetaDataset()
    meta.TransferSyntaxUID, meta.MediaStorageSOPClassUID = syntax, sop
    one.SOPClassUID, one.SOPInstanceUID = sop, pydicom.uid.generate_uid(entropy_srcs=[str(path)])
    meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID
    one.Modality, one.StudyInstanceUID, one.SeriesInstanceUID = "MR", "1.2.3", "1.2.3.4"
    one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME2"
    shape = pixels.shape[1:] if pixels.ndim > 2 else pixels.shape
    one.Rows, one.Columns = shape[:2]
    if pixels.ndim > 2:
        one.NumberOfFrames = len(pixels)
    one.BitsAllocated = one.BitsStored = 8 * pixels.itemsize
    one.PixelRepresentation = int(pixels.dtype.kind == "i")
    one.HighBit = one.BitsStored - 1
    if sop == CT:
        one.ImageOrientationPatient, one.PixelSpacing = [1, 0, 0, 0, 1, 0], [1, 1]
        one.SliceThickness = 1
    for key, value in fields.items():
        setattr(one, key, value)
    one.file_meta = meta
    order = ">" if syntax == ExplicitVRBigEndian else "<"
    if not hasattr(one, "FloatPixelData"):
        one.PixelData = pixels.astype(pixels.dtype.newbyteorder(order)).tobytes()
        one["PixelData"].VR = "OW"
    if syntax == RLELossless:
        one.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        one.compress(RLELossless, generate_instance_uid=False)
    one.save_as(path, enforce_file_format=True)
    return path


def item(**fields):
    one = Dataset()
    for key, value in fields.items():
        setattr(one, key, value)
    return one


def enhanced(path, places, frames=FRAMES, *, slopes=None, own=(), sop=MR, turned=None, **fields):
    """Write frames with functional groups: a place each, a slope each, further macros each."""
    groups = []
    for k, place in enumerate(places):
        group = item(PlanePositionSequence=[item(ImagePositionPatient=list(place))])
        slope = 1 if slopes is None else slopes[k]
        rescale = item(RescaleSlope=slope, RescaleIntercept=-k if slopes else 0, RescaleType="US")
        group.PixelValueTransformationSequence = [rescale]
        if turned and k in turned:
            direction = item(ImageOrientationPatient=[1, 0, 0, 0, 0, 1])
            group.PlaneOrientationSequence = [direction]
        for keyword, values in own:
            setattr(group, keyword, [item(**values[k])])
        groups.append(group)
    shared = item(
        PlaneOrientationSequence=[item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
        PixelMeasuresSequence=[item(PixelSpacing=[0.8, 0.9], SliceThickness=2.5)],
    )
    fields = {"SharedFunctionalGroupsSequence": [shared], **fields}
    fields["PerFrameFunctionalGroupsSequence"] = groups
    return write(path, frames, sop=sop, **fields)


def along(*heights):
    return [(10, -20, height) for height in heights]


def by_height(volume):
    """Return what lies at each height: (columns, rows)."""
    array = np.asarray(volume)[0]
    return {
        round(float((volume.affine @ [0, 0, k, 1])[2]), 3): array[..., k]
        for k in range(array.shape[2])
    }


def series(folder, pixels, heights, **fields):
    folder.mkdir(exist_ok=True, parents=True)
    for k, (plane, height) in enumerate(zip(pixels, heights, strict=True)):
        own = {key: v[k] if isinstance(v, list) else v for key, v in fields.items()}
        place = {"ImagePositionPatient": [0, 0, height], "PixelSpacing": [1, 1]}
        place["ImageOrientationPatient"] = [1, 0, 0, 0, 1, 0]
        name = own.pop("name", f"{k}.dcm")
        write(folder / name, plane, **{**place, **own})
    return folder


@pytest.mark.parametrize("heights", [(0, 2.5, 5, 7.5), (7.5, 5, 2.5, 0), (0, 5, 2.5, 7.5)])
@pytest.mark.parametrize("slopes", [None, (1, 2, 3, 4), (1, 0.5, 0.25, 2)])
def test_each_frame_has_its_place_and_rescale(tmp_path, heights, slopes):
    """Whatever the order of the file; slopes that differ give floats, or whole numbers."""
    path = enhanced(tmp_path / "a.dcm", along(*heights), slopes=slopes)

    volume = Volume(path)

    assert volume.spacing == pytest.approx((0.9, 0.8, 2.5))
    assert volume.affine[:3, 3].tolist() == [-10, 20, 0]
    found = by_height(volume)
    for k, frame in enumerate(pydicom.dcmread(path).pixel_array):
        expected = frame * (1 if slopes is None else slopes[k]) - (k if slopes else 0)
        assert np.array_equal(found[heights[k]].T, expected)
    assert volume.dtype == (
        np.uint16 if slopes is None else np.int32 if slopes[1] == 2 else np.float32
    )


def test_a_tilted_stack_is_sheared(tmp_path):
    """With a gantry that is tilted, corners move along the rows; the affine says so."""
    places = [(10, -20 + 0.5 * k, 2.5 * k) for k in range(4)]

    volume = Volume(enhanced(tmp_path / "a.dcm", places))

    for k, place in enumerate(places):
        assert np.allclose((volume.affine @ [0, 0, k, 1])[:3], np.multiply(place, (-1, -1, 1)))


@pytest.mark.parametrize(
    ("heights", "turned", "words"),
    [
        ((0, 2.5, 7.5, 10), None, r"5 mm from \(10, -20, 2.5\) to \(10, -20, 7.5\)"),
        ((0, 2.5, 5, 8), None, "not evenly spaced"),
        ((0, 2.5, 5, 7.5), (2,), r"a.dcm has direction \(1, 0, 0, 0, 0, 1\), and .*0, 1, 0\)"),
    ],
)
def test_frames_that_are_no_stack(tmp_path, heights, turned, words):
    """Gaps are refused with their positions, and so are frames that are turned."""
    with pytest.raises(BadHeader, match=words):
        _ = Volume(enhanced(tmp_path / "a.dcm", along(*heights), turned=turned)).shape


SELECTED = {
    "TemporalPositionIndex": ("FrameContentSequence", (1, 1, 2, 2)),
    "StackID": ("FrameContentSequence", ("a", "a", "b", "b")),
    "EffectiveEchoTime": ("MREchoSequence", (10.0, 10.0, 22.5, 22.5)),
    "DiffusionBValue": ("MRDiffusionSequence", (0.0, 0.0, 1000.0, 1000.0)),
    "ReferencedSegmentNumber": ("SegmentIdentificationSequence", (1, 1, 2, 2)),
}


@pytest.mark.parametrize("keyword", SELECTED)
def test_several_frames_at_one_place(tmp_path, keyword):
    """Times, stacks, echoes and segments are chosen by ``where``; the error names the values."""
    macro, values = SELECTED[keyword]
    own = [(macro, [{keyword: value} for value in values])]
    path = enhanced(tmp_path / "a.dcm", along(0, 2.5, 0, 2.5), own=own)

    with pytest.raises(UnknownFormat, match=rf"{keyword} \(") as caught:
        _ = Volume(path).shape
    assert f"where={{'{keyword}': " in str(caught.value)
    for n in (0, 2):
        found = Volume(path, where={keyword: values[n]}).numpy()[0]
        assert np.array_equal(found.T, FRAMES[n : n + 2])
    with pytest.raises(UnknownFormat, match="no frame"):
        _ = Volume(path, where={keyword: 99}).shape


def test_times_and_echoes_together(tmp_path):
    """Where one keyword does not choose a volume, several do."""
    own = [
        ("FrameContentSequence", [{"TemporalPositionIndex": n} for n in (1, 1, 2, 2)]),
        ("MREchoSequence", [{"EffectiveEchoTime": n} for n in (1.0, 2.0, 1.0, 2.0)]),
    ]
    path = enhanced(tmp_path / "a.dcm", along(0, 0, 0, 0), own=own)

    with pytest.raises(UnknownFormat, match=r"TemporalPositionIndex.*EffectiveEchoTime"):
        _ = Volume(path).shape
    where = {"TemporalPositionIndex": 2, "EffectiveEchoTime": 1.0}
    assert np.array_equal(Volume(path, where=where).numpy()[0].T, FRAMES[2:3])


def test_frames_without_places(tmp_path):
    """A film or ultrasound says nowhere where its frames lie: the user does."""
    path = write(tmp_path / "a.dcm", FRAMES, sop="1.2.840.10008.5.1.4.1.1.3.1")

    with pytest.raises(BadHeader, match="affine="):
        _ = Volume(path).shape
    volume = Volume(path, affine=np.diag([2.0, 2, 3, 1]))
    assert np.array_equal(volume.numpy()[0].T, FRAMES)
    assert volume.spacing == (2, 2, 3)


PET = "1.2.840.10008.5.1.4.1.1.128"
PROJECTION, CAPTURE = "1.2.840.10008.5.1.4.1.1.1", "1.2.840.10008.5.1.4.1.1.7"


@pytest.mark.parametrize("keyword", ["PixelSpacing", "ImageOrientationPatient"])
@pytest.mark.parametrize("sop", [CT, PET])
def test_planes_without_a_geometry(tmp_path, sop, keyword):
    """One slice of a series without a size or a direction is refused; ``affine`` opens it."""
    path = write(tmp_path / "a.dcm", FRAMES[0], sop=sop, **{keyword: None})

    with pytest.raises(BadHeader, match=rf"a\.dcm has no .*{keyword}"):
        _ = Volume(path).shape
    assert Volume(path, affine=np.diag([2.0, 2, 3, 1])).spacing == (2, 2, 3)


@pytest.mark.parametrize(
    ("heights", "between", "is_warned"),
    [
        ((0, 3, 6, 9), 5, True),
        ((0, 6, 12, 18), 3, True),  # every other slice is lost
        ((9, 6, 3, 0), [3, 3, 3, 5], True),
        ((0, 3, 6, 9), 3.02, False),
        ((9, 6, 3, 0), -3, False),
        ((0, 3, 6, 9), None, False),
        ((0, 3, 6, 9), 0, False),
    ],
)
def test_spacing_between_slices_that_positions_contradict(tmp_path, heights, between, is_warned):
    """Both distances are named; the positions count, as in SimpleITK."""
    folder = series(tmp_path / "ct", FRAMES, heights, SpacingBetweenSlices=between)

    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        spacing = Volume(folder).spacing
        _ = Volume(folder, affine=np.eye(4)).shape
    texts = [str(note.message) for note in notes]
    words = f"{abs(heights[1] - heights[0])} mm apart by their positions"
    assert [words in text and "SpacingBetweenSlices is " in text for text in texts] == (
        [True] * is_warned
    )
    reader = SimpleITK.ImageSeriesReader()
    reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(folder)))
    if between != 0:  # which makes SimpleITK's spacing 0
        assert spacing == pytest.approx(reader.Execute().GetSpacing())


def test_spacing_between_slices_of_frames_and_tilted_slices(tmp_path):
    """The shared macro counts as well; a tilted stack may state either of its two distances."""
    shared = item(
        PlaneOrientationSequence=[item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])],
        PixelMeasuresSequence=[item(PixelSpacing=[1, 1], SpacingBetweenSlices=2.5)],
    )
    how = {"SharedFunctionalGroupsSequence": [shared]}
    lost = enhanced(tmp_path / "lost.dcm", along(0, 5, 10, 15), **how)
    with pytest.warns(
        LikelyMistake, match=r"5 mm apart .*SpacingBetweenSlices is 2\.5 mm in .*lost"
    ):
        assert Volume(lost).spacing == (1, 1, 5)
    for n, rise in enumerate((2.0, 2.5)):
        places = [(0, 1.5 * k, rise * k) for k in range(4)]
        assert Volume(enhanced(tmp_path / f"{n}.dcm", places, **how)).affine[2, 2] == rise


def test_uneven_slices_with_an_affine(tmp_path):
    """The user places slices whose positions jitter, and the error names this way out."""
    folder = series(tmp_path / "ct", FRAMES, (7.5, 2.55, 0, 4.95))

    with pytest.raises(BadHeader, match=r"(?s)not evenly spaced.*affine="):
        _ = Volume(folder).shape
    volume = Volume(folder, affine=np.diag([1, 1, 2.5, 1]))
    assert volume.spacing == (1, 1, 2.5)
    assert np.array_equal(volume.numpy()[0].T, FRAMES[[2, 1, 3, 0]])


TURNED = [[1, 0, 0, 0, 1, 0]] * 3 + [[1, 0, 0, 0, 0, -1]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"PixelSpacing": [[0.7, 0.7]] * 3 + [[0.8, 0.7]]},
            r"3\.dcm has pixel spacing \(0\.8, 0\.7\), and .* pixel spacing \(0\.7, 0\.7\)\.",
        ),
        (
            {"ImageOrientationPatient": TURNED},
            r"3\.dcm has direction \(1, 0, 0, 0, 0, -1\), and .* has direction \(1, 0, 0, 0, 1",
        ),
        (
            {"PixelSpacing": [[1, 1]] * 3 + [[2, 2]], "ImageOrientationPatient": TURNED},
            r"3\.dcm has pixel spacing \(2, 2\) and direction \(1, 0, 0, 0, 0, -1\), and ",
        ),
    ],
)
def test_the_difference_of_slices_is_named(tmp_path, fields, words):
    """A slice of another spacing, or a localizer among them, is named with both values."""
    folder = series(tmp_path / "ct", FRAMES, (0, 3, 6, 9), **fields)

    with pytest.raises(BadHeader, match=words):
        _ = Volume(folder).shape


def test_a_slice_of_another_size_is_named(tmp_path):
    """Only the size differs, and only the size is named."""
    folder = series(tmp_path / "ct", FRAMES[:3], (0, 3, 6))
    series(folder, FRAMES[3:, :5], [9], name="3.dcm")

    with pytest.raises(BadHeader, match=r"3\.dcm .* size 8x5x1, and .*0\.dcm .* size 8x6x1\."):
        _ = Volume(folder).shape


def test_a_new_volume_sees_slices_that_come_and_go(tmp_path):
    """The folder belongs to the version of a series."""
    folder = series(tmp_path / "ct", FRAMES[:3], (0, 3, 6))
    seen = [Volume(folder).shape[3]]
    series(folder, FRAMES[3:], [9], name="3.dcm")
    seen.append(Volume(folder).shape[3])
    (folder / "3.dcm").unlink()
    (folder / "2.dcm").unlink()
    seen.append(Volume(folder).shape[3])

    assert seen == [3, 4, 2]


@pytest.mark.parametrize(
    ("keyword", "numbers", "words"),
    [
        ("PixelSpacing", [2], "PixelSpacing of 1 numbers, not 2"),
        ("PixelSpacing", [2, 2, 2], "PixelSpacing of 3 numbers, not 2"),
        ("ImagePositionPatient", [0, 0], "ImagePositionPatient of 2 numbers, not 3"),
        ("ImageOrientationPatient", [1, 0, 0], "ImageOrientationPatient of 3 numbers, not 6"),
    ],
)
def test_geometry_with_other_counts(tmp_path, keyword, numbers, words):
    """Attributes of the wrong length are refused by name."""
    path = write(tmp_path / "a.dcm", FRAMES[0], sop=CT, **{keyword: numbers})

    with pytest.raises(BadHeader, match=rf"a\.dcm has {words}"):
        _ = Volume(path).shape


def test_one_slice_without_pixel_spacing(tmp_path):
    """It is named among others; the spacing of a detector is not that of a plane."""
    spacing = [[2, 2], [2, 2], None, [2, 2]]
    imager = {"ImagerPixelSpacing": [[2, 2]] * 4}
    folder = series(tmp_path / "ct", FRAMES, (0, 3, 6, 9), PixelSpacing=spacing, **imager)

    with pytest.raises(BadHeader, match=r"2\.dcm .*has no PixelSpacing"):
        _ = Volume(folder).shape


@pytest.mark.parametrize(
    ("sop", "keyword"),
    [(PROJECTION, "ImagerPixelSpacing"), (CAPTURE, "NominalScannedPixelSpacing"), (CAPTURE, "")],
)
def test_projections_and_captures(tmp_path, sop, keyword):
    """They have a size of their own, or none, which is warned of."""
    path = write(tmp_path / "a.dcm", FRAMES[0], sop=sop, **({keyword: [2, 3]} if keyword else {}))

    if keyword:
        assert Volume(path).spacing == (3, 2, 1)
    else:
        with pytest.warns(LikelyMistake, match="has no PixelSpacing; .* 1 mm wide"):
            assert Volume(path).spacing == (1, 1, 1)


def test_a_slice_without_a_thickness(tmp_path):
    """One slice is warned of; of several, the places say how far they are apart."""
    path = write(tmp_path / "a.dcm", FRAMES[0], SliceThickness=None)
    folder = series(tmp_path / "ct", FRAMES, (0, 3, 6, 9), SliceThickness=None)

    with pytest.warns(LikelyMistake, match=r"a\.dcm has no SliceThickness; .* 1 mm thick"):
        assert Volume(path).spacing == (1, 1, 1)
    assert Volume(folder).spacing == (1, 1, 3)


@pytest.mark.parametrize("offsets", [(0, 3, 6, 9), (30, 33, 36, 39), (0, -3, -6, -9)])
def test_doses(tmp_path, offsets):
    """Planes lie at their offsets, and numbers are multiplied by the scaling of the dose."""
    where = {"ImagePositionPatient": [10, -20, 30], "ImageOrientationPatient": [1, 0, 0, 0, 1, 0]}
    fields = {
        "GridFrameOffsetVector": list(offsets),
        "DoseGridScaling": "0.25",
        "PixelSpacing": [2, 3],
    }
    path = write(tmp_path / "a.dcm", FRAMES.astype(np.uint32), sop=DOSE, **where, **fields)

    found = by_height(Volume(path))

    for k, offset in enumerate(offsets):
        assert np.array_equal(found[offset if offsets[0] else 30 + offset].T, FRAMES[k] * 0.25)


def test_segments_of_single_bits(tmp_path):
    """Frames of single bits share bytes: 4 of 35 pixels take 18."""
    flags = np.random.default_rng(0).integers(0, 2, (4, 5, 7)).astype(np.uint8)
    packed = np.packbits(flags.ravel(), bitorder="little")
    own = [
        ("SegmentIdentificationSequence", [{"ReferencedSegmentNumber": n} for n in (1, 1, 2, 2)])
    ]
    fields = {"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0, "SegmentationType": "BINARY"}
    path = enhanced(
        tmp_path / "a.dcm", along(0, 1, 0, 1), flags, own=own, sop=SEGMENTS,
        PixelData=packed.tobytes(), **fields,
    )  # fmt: skip
    one = pydicom.dcmread(path)
    one.PixelData = packed.tobytes()
    one.save_as(path)

    for n in (1, 2):
        found = Volume(path, where={"ReferencedSegmentNumber": n}, kind="label").numpy()[0]
        assert np.array_equal(found.T, one.pixel_array[2 * n - 2 : 2 * n])


def test_a_map_of_floats(tmp_path):
    """Float pixels, with the real world's slope of each frame."""
    floats = FRAMES.astype(np.float32) / 8
    own = [
        (
            "RealWorldValueMappingSequence",
            [{"RealWorldValueSlope": k + 1.0, "RealWorldValueIntercept": 0.5} for k in range(4)],
        )
    ]
    path = enhanced(
        tmp_path / "a.dcm", along(0, 1, 2, 3), floats, own=own,
        sop="1.2.840.10008.5.1.4.1.1.30", FloatPixelData=floats.tobytes(), BitsAllocated=32,
    )  # fmt: skip

    found = Volume(path).numpy()[0]

    assert np.allclose(found.T, [floats[k] * (k + 1) + 0.5 for k in range(4)])


def test_a_map_of_several_ranges(tmp_path):
    """Each range of numbers has a slope of its own: the first is not that of all."""
    own = [("RealWorldValueMappingSequence", [{"RealWorldValueIntercept": 0.0}] * 4)]
    path = enhanced(
        tmp_path / "a.dcm", along(0, 1, 2, 3), FRAMES, own=own, sop="1.2.840.10008.5.1.4.1.1.30"
    )
    one = pydicom.dcmread(path)
    for group in one.PerFrameFunctionalGroupsSequence:
        group.RealWorldValueMappingSequence = [
            item(RealWorldValueSlope=slope, RealWorldValueIntercept=0.0) for slope in (2.0, 5.0)
        ]
    one.save_as(path)

    with pytest.raises(UnknownFormat, match="several real world mappings"):
        _ = Volume(path).shape


SYNTAXES = (
    ImplicitVRLittleEndian,
    ExplicitVRBigEndian,
    DeflatedExplicitVRLittleEndian,
    RLELossless,
)


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16])
def test_syntaxes(tmp_path, syntax, dtype):
    """Byte orders, deflated files and run lengths; what is not read is named."""
    frame = (FRAMES[0] * 900).astype(dtype)
    path = write(tmp_path / "a.dcm", frame, syntax)

    if syntax == ExplicitVRBigEndian and dtype == np.uint8:
        with pytest.raises(UnknownFormat, match="swapped"):
            _ = Volume(path).shape
        return
    found = Volume(path).numpy()[0, :, :, 0].T

    assert found.dtype == dtype
    assert np.array_equal(found, pydicom.dcmread(path).pixel_array)


def test_frames_that_are_compressed(tmp_path):
    """Each is decoded by itself, and has its own rescale and place."""
    path = enhanced(tmp_path / "a.dcm", along(5, 0, 2.5, 7.5), slopes=(1, 2, 3, 4))
    one = pydicom.dcmread(path)
    one.compress(RLELossless, generate_instance_uid=False)
    one.save_as(path)

    found = by_height(Volume(path))

    for k, height in enumerate((5, 0, 2.5, 7.5)):
        assert np.array_equal(found[height].T, FRAMES[k] * float(k + 1) - k)


def test_jpeg_2000(tmp_path):
    """SimpleITK writes a slice with its rescale; the values are those that it reads."""
    image = SimpleITK.GetImageFromArray(FRAMES[:1].astype(np.int16))
    for key, value in (("0028|1052", "-5"), ("0028|1053", "2"), ("0020|0032", "1\\2\\3")):
        image.SetMetaData(key, value)
    writer = SimpleITK.ImageFileWriter()
    writer.SetFileName(str(tmp_path / "a.dcm"))
    writer.UseCompressionOn()
    writer.SetCompressor("JPEG2000")
    writer.Execute(image)
    assert pydicom.dcmread(tmp_path / "a.dcm").file_meta.TransferSyntaxUID == JPEG2000Lossless

    found = Volume(tmp_path / "a.dcm").numpy()[0].T

    expected = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(tmp_path / "a.dcm"))
    assert np.array_equal(found, expected)


def jpeg_2000(path, pixels, allocated, stored):
    """Write a slice whose code has the bits of ``pixels``, and its header other ones."""
    imagecodecs = pytest.importorskip("imagecodecs")
    code = imagecodecs.jpeg2k_encode(pixels, codecformat="j2k", reversible=True, level=0)
    return coded(path, pixels, code, JPEG2000Lossless, allocated, stored)


def coded(path, pixels, code, syntax, allocated, stored):
    """Write a slice with a code and any header."""
    write(path, pixels.astype(f"{pixels.dtype.kind}{allocated // 8}"))
    one = pydicom.dcmread(path)
    one.BitsStored, one.HighBit = stored, stored - 1
    one.PixelData = pydicom.encaps.encapsulate([code])
    one["PixelData"].VR, one["PixelData"].is_undefined_length = "OB", True
    one.file_meta.TransferSyntaxUID = syntax
    one.save_as(path, enforce_file_format=True)
    return path


@pytest.mark.parametrize(
    ("code", "allocated", "stored"),
    [
        ("u1", 16, 8),
        ("u1", 16, 12),
        ("u1", 16, 16),
        ("i1", 16, 8),
        ("i1", 16, 16),
        ("u1", 32, 8),
        ("u2", 32, 16),
        ("i2", 32, 16),
        ("i2", 16, 12),
        ("i1", 8, 8),
    ],
)
def test_a_code_of_fewer_bits_than_are_allocated(tmp_path, code, allocated, stored):
    """Pydicom reads the same numbers."""
    pixels = (FRAMES[0] * 2 - (48 if code[0] == "i" else 0)).astype(code)
    path = jpeg_2000(tmp_path / "a.dcm", pixels, allocated, stored)

    found = Volume(path).numpy()[0, :, :, 0].T

    expected = pydicom.dcmread(path).pixel_array
    assert found.dtype == expected.dtype == f"{code[0]}{allocated // 8}"
    assert np.array_equal(found, expected)
    assert np.array_equal(found, pixels)


@pytest.mark.parametrize("stored", [17, 24, 32])
def test_codes_of_more_than_16_bits(tmp_path, stored):
    """SimpleITK decodes them to other numbers, and pydicom refuses them."""
    path = jpeg_2000(tmp_path / "a.dcm", FRAMES[1].astype(np.uint32) * 2000, 32, stored)

    with pytest.raises(UnknownFormat, match=f"compressed numbers of {stored} bits"):
        _ = Volume(path).shape
    one = pydicom.dcmread(path)
    one.BitsStored, one.HighBit = 16, 15
    one.save_as(path)
    with pytest.raises(CorruptVolume, match="decodes to uint32, not 16 bits"):
        Volume(path).numpy()


@pytest.mark.parametrize("codec", ["jpegls", "ljpeg", "jpeg2k"])
@pytest.mark.parametrize(
    ("bits", "allocated", "stored", "factor"),
    [(16, 8, 8, 2), (16, 8, 8, 500), (12, 8, 8, 40), (16, 16, 12, 500), (12, 16, 8, 40)],
)
def test_a_code_of_more_bits_than_are_stored(tmp_path, codec, bits, allocated, stored, factor):
    """Its numbers would be cut, or their bytes be read as pixels."""
    imagecodecs = pytest.importorskip("imagecodecs")
    pixels = FRAMES[0].astype(np.uint16) * factor
    syntax, how = {
        "jpegls": (JPEGLSLossless, {}),
        "ljpeg": (JPEGLosslessSV1, {"bitspersample": bits}),
        "jpeg2k": (JPEG2000Lossless, {"codecformat": "j2k", "level": 0, "bitspersample": bits}),
    }[codec]
    code = getattr(imagecodecs, f"{codec}_encode")(pixels, **how)
    form = tmp_path / "a.dcm", pixels, code, syntax
    close_volumes()
    assert np.array_equal(Volume(coded(*form, 16, 16)).numpy()[0, :, :, 0].T, pixels)

    close_volumes()
    with pytest.raises(CorruptVolume, match=rf"a.dcm decodes to .*, not {stored} bits of uint"):
        Volume(coded(*form, allocated, stored)).numpy()


@pytest.mark.parametrize("dtype", [np.int16, np.uint16])
def test_bits_that_are_not_stored(tmp_path, dtype):
    """Overlays in the other bits of a number are left out, and the sign is that of the stored."""
    stored = np.arange(48).reshape(6, 8) * 80  # of 12 bits
    numbers = (stored | (1 << 15)).astype(np.uint16).view(dtype)
    path = write(tmp_path / "a.dcm", numbers, BitsStored=12, HighBit=11)

    found = Volume(path).numpy()[0, :, :, 0].T

    signed = np.where(stored >= 2048, stored - 4096, stored)
    assert np.array_equal(found, signed if dtype == np.int16 else stored)


@pytest.mark.parametrize("high", [10, 13, 15])
def test_a_high_bit_that_does_not_fit(tmp_path, high):
    """The standard once shifted such numbers; pydicom and SimpleITK do not."""
    numbers = np.arange(48, dtype=np.uint16).reshape(6, 8)
    with pytest.raises(BadHeader, match=f"HighBit {high} with BitsStored 12(.|\n)*HighBit 11"):
        _ = Volume(write(tmp_path / "a.dcm", numbers, BitsStored=12, HighBit=high)).shape


@pytest.mark.parametrize("planar", [0, 1])
def test_colours(tmp_path, planar):
    """Three samples of a pixel, or three planes, are channels."""
    colours = np.arange(6 * 8 * 3).reshape(6, 8, 3).astype(np.uint8)
    stored = colours.transpose(2, 0, 1) if planar else colours
    path = tmp_path / "a.dcm"
    write(
        path,
        colours[..., 0],
        SamplesPerPixel=3,
        PlanarConfiguration=planar,
        PhotometricInterpretation="RGB",
    )
    one = pydicom.dcmread(path)
    one.PixelData = np.ascontiguousarray(stored).tobytes()
    one.save_as(path)

    found = Volume(path).numpy()[..., 0]

    assert np.array_equal(found.transpose(2, 1, 0), one.pixel_array)


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, RLELossless])
def test_luma_and_chroma(tmp_path, syntax):
    """YBR_FULL becomes RGB, of native pixels and of run lengths."""
    stored = np.random.default_rng(0).integers(0, 256, (1, 6, 8, 3)).astype(np.uint8)
    said = {"SamplesPerPixel": 3, "PlanarConfiguration": 0}
    path = write(tmp_path / "a.dcm", stored, syntax, PhotometricInterpretation="YBR_FULL", **said)

    found = Volume(path).numpy()[..., 0]

    expected = convert_color_space(stored[0], "YBR_FULL", "RGB")
    assert np.array_equal(found.transpose(2, 1, 0), expected)


def test_palettes(tmp_path):
    """A palette gives colours, as pydicom applies it."""
    path = write(
        tmp_path / "a.dcm", FRAMES[0].astype(np.uint8), PhotometricInterpretation="PALETTE COLOR"
    )
    one = pydicom.dcmread(path)
    for n, colour in enumerate(("Red", "Green", "Blue")):
        descriptor = f"{colour}PaletteColorLookupTableDescriptor"
        setattr(one, descriptor, [256, 0, 8])
        one[descriptor].VR = "US"
        table = (np.arange(256) * (n + 3) % 256).astype(np.uint8)
        setattr(one, f"{colour}PaletteColorLookupTableData", table.tobytes())
    one.save_as(path)

    found = Volume(path).numpy()[..., 0]

    expected = pydicom.pixels.apply_color_lut(one.pixel_array, one)
    assert np.array_equal(found.transpose(2, 1, 0), expected)


REFUSED = {
    "a table": {"ModalityLUTSequence": [item(LUTDescriptor=[1, 0, 16], LUTData=b"\0\0")]},
    "samples": {"PhotometricInterpretation": "HSV"},
    "bits": {"BitsStored": 17},
    "side by side": {"ImageType": ["ORIGINAL", "PRIMARY", "M", "MOSAIC"]},
    "rescale slope": {"RescaleSlope": "0", "RescaleIntercept": "1"},
    "directions": {"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]},
    "pixel spacing": {"PixelSpacing": [0, 1]},
}


@pytest.mark.parametrize("words", REFUSED)
def test_refusals(tmp_path, words):
    """What is not read is named."""
    path = write(tmp_path / "a.dcm", FRAMES[0], **REFUSED[words])

    with pytest.raises(VolumeError, match=words):
        _ = Volume(path).shape


def test_frames_beyond_reason(tmp_path):
    """A compressed file cannot hold so many; no memory is taken for them."""
    path = write(tmp_path / "a.dcm", FRAMES[0], RLELossless)
    one = pydicom.dcmread(path)
    one.NumberOfFrames, one.Rows, one.Columns = 10**8, 1, 1
    one.save_as(path)

    with pytest.raises(VolumeError, match=r"a\.dcm"):
        _ = Volume(path).shape


def test_deflated_pixels_that_end_early(tmp_path):
    """They are missed when they are decoded."""
    frame = np.random.default_rng(0).integers(0, 4000, (64, 64)).astype(np.uint16)
    path = write(tmp_path / "a.dcm", frame, DeflatedExplicitVRLittleEndian)
    path.write_bytes(path.read_bytes()[:-500])

    with pytest.raises(TruncatedVolume, match=r"a\.dcm"):
        Volume(path).numpy()


def test_deflated_pixels_beyond_the_image(tmp_path):
    """They are refused, and no more is inflated than the header needs."""
    path = write(tmp_path / "a.dcm", np.zeros((4, 4), np.uint16), DeflatedExplicitVRLittleEndian)
    one = pydicom.dcmread(path)
    one.PixelData = bytes(200 * 2**20)
    one.save_as(path)
    del one

    tracemalloc.start()
    try:
        with pytest.raises(BadHeader, match="holds 209715200 bytes of pixels"):
            Volume(path).numpy()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 160 * 2**20  # of which the header is looked for in 64 MiB


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, DeflatedExplicitVRLittleEndian])
@pytest.mark.parametrize(
    "fields", [{"NumberOfFrames": None}, {"NumberOfFrames": 3}, {"Rows": 5}, {"BitsAllocated": 8}]
)
def test_more_pixels_than_the_header_says(tmp_path, syntax, fields):
    """Frames, rows and bits that are left out would be lost: the error names both sizes."""
    if "BitsAllocated" in fields:
        fields = {**fields, "BitsStored": 8, "HighBit": 7}
    path = write(tmp_path / "a.dcm", FRAMES, syntax, **fields)

    with pytest.raises(BadHeader, match=r"(?s)a\.dcm holds 384 bytes of pixels.*NumberOf"):
        _ = Volume(path).shape


def test_a_padding_byte(tmp_path):
    """Native pixels have an even length: one byte of padding is legal, two are not."""
    frame = np.arange(15, dtype=np.uint8).reshape(3, 5)
    for count in (0, 1, 2):
        path = write(tmp_path / f"{count}.dcm", frame)
        one = pydicom.dcmread(path)
        one.PixelData = frame.tobytes() + bytes(2 * count + 1)
        one.save_as(path)
        if count:
            with pytest.raises(BadHeader, match="its header says 15"):
                _ = Volume(path).shape
        else:
            assert np.array_equal(Volume(path).numpy()[0, :, :, 0].T, one.pixel_array)


@pytest.mark.parametrize("has_table", [False, True])
@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless])
def test_more_compressed_frames_than_the_header_says(tmp_path, syntax, has_table):
    """One frame of four would be read."""
    path = write(tmp_path / "a.dcm", FRAMES)
    one = pydicom.dcmread(path)
    one.compress(RLELossless, generate_instance_uid=False)
    codes = [*pydicom.encaps.generate_frames(one.PixelData, number_of_frames=4)]
    if syntax == JPEG2000Lossless:
        imagecodecs = pytest.importorskip("imagecodecs")
        codes = [imagecodecs.jpeg2k_encode(plane, codecformat="j2k") for plane in FRAMES]
    one.file_meta.TransferSyntaxUID = syntax
    one.PixelData = pydicom.encaps.encapsulate(codes, has_bot=has_table)
    one.NumberOfFrames = None
    one.save_as(path)

    with pytest.raises(BadHeader, match="holds 4 compressed frames, and its header says 1"):
        _ = Volume(path).shape


def test_a_compressed_frame_in_fragments(tmp_path):
    """One frame may have several items, of which one begins a code."""
    imagecodecs = pytest.importorskip("imagecodecs")
    path = write(tmp_path / "a.dcm", FRAMES[0])
    one = pydicom.dcmread(path)
    code = imagecodecs.jpeg2k_encode(FRAMES[0], codecformat="j2k", reversible=True, level=0)
    one.PixelData = pydicom.encaps.encapsulate([code], fragments_per_frame=3)
    one["PixelData"].VR, one["PixelData"].is_undefined_length = "OB", True
    one.file_meta.TransferSyntaxUID = JPEG2000Lossless
    one.save_as(path)

    assert np.array_equal(Volume(path).numpy()[0, :, :, 0].T, FRAMES[0])


REQUIRED = (
    "PixelRepresentation BitsAllocated BitsStored HighBit SamplesPerPixel "
    "PhotometricInterpretation Rows Columns"
)


@pytest.mark.parametrize("keyword", REQUIRED.split())
def test_pixels_without_a_description(tmp_path, keyword):
    """A guess may turn -30 into 65506: the error names what is missing."""
    fields = {"BitsStored": 12, "HighBit": 11, keyword: None}
    path = write(tmp_path / "a.dcm", np.full((4, 6), -30, np.int16), **fields)

    with pytest.raises(BadHeader, match=rf"a\.dcm has no {keyword}, which its pixels need"):
        _ = Volume(path).shape


def test_descriptions_that_pixels_do_not_need(tmp_path):
    """Floats have no sign or bits, and numbers of all bits have no highest one."""
    floats = FRAMES[0].astype(np.float32) / 8
    none = dict.fromkeys(("PixelRepresentation", "BitsStored", "HighBit"))
    path = write(tmp_path / "f.dcm", floats, FloatPixelData=floats.tobytes(), **none)
    other = write(tmp_path / "i.dcm", -FRAMES[0].astype(np.int16), HighBit=None)

    for each in (path, other):
        assert np.array_equal(Volume(each).numpy()[0, :, :, 0].T, pydicom.dcmread(each).pixel_array)


def test_slices_of_a_pet_series(tmp_path):
    """Each slice has its own slope, and the folder is one volume."""
    slopes = [1, 0.5, 0.25, 2]
    folder = series(tmp_path / "pet", FRAMES, (0, 3, 6, 9), RescaleSlope=slopes, RescaleIntercept=0)

    found = Volume(folder).numpy()[0]

    for k in range(4):
        single = SimpleITK.GetArrayFromImage(SimpleITK.ReadImage(folder / f"{k}.dcm"))[0]
        assert np.array_equal(found[..., k].T, single)


@pytest.mark.parametrize("keyword", ["RescaleSlope", "RescaleIntercept"])
def test_a_slice_without_its_rescale(tmp_path, keyword):
    """The number of one slice would mean something else than those of the others."""
    rescale = {"RescaleSlope": 2, "RescaleIntercept": 0}
    folder = series(tmp_path / "pet", FRAMES, (0, 3, 6, 9), **rescale)
    one = pydicom.dcmread(folder / "2.dcm")
    delattr(one, keyword)
    one.save_as(folder / "2.dcm")

    with pytest.raises(BadHeader, match=rf"2\.dcm has no {keyword}"):
        _ = Volume(folder).shape


@pytest.mark.parametrize(
    ("keyword", "values"),
    [
        ("Units", ["BQML", "BQML", "CNTS", "BQML"]),
        ("RescaleType", ["HU", "US", "HU", "HU"]),
        ("PhotometricInterpretation", ["MONOCHROME2", "MONOCHROME2", "MONOCHROME1", "MONOCHROME2"]),
        ("EchoTime", [5.0, 10.0, 5.0, 10.0]),
        ("EchoNumbers", [1, 1, 2, 2]),
        ("DiffusionBValue", [0.0, 1000.0, 0.0, 1000.0]),
        ("ConvolutionKernel", ["B30f", "B30f", "B70f", "B30f"]),
        ("Modality", ["CT", "CT", "MR", "CT"]),
        ("SOPClassUID", [CT, CT, MR, CT]),
        ("DiffusionGradientOrientation", [[1, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]]),
        ("DecayCorrection", ["START", "START", "NONE", "START"]),
        ("ImageType", [["ORIGINAL", "PRIMARY", kind] for kind in "MMPM"]),
        ("FrameOfReferenceUID", ["1.2", "1.2", "1.3", "1.2"]),
        ("PatientID", ["p1", "p1", "p1", "p2"]),
    ],
)
def test_slices_that_are_no_one_scan(tmp_path, keyword, values):
    """Other units or echoes are refused; another patient or frame of reference is warned of."""
    folder = series(tmp_path / "pet", FRAMES, (0, 3, 6, 9), **{keyword: values})

    if keyword not in ("PatientID", "FrameOfReferenceUID", "ImageType"):
        with pytest.raises(BadHeader, match=f"differ in {keyword}: .*dcm"):
            _ = Volume(folder).shape
    else:
        with pytest.warns(LikelyMistake, match=f"differ in {keyword}.*dcm"):
            assert Volume(folder).shape == (1, 8, 6, 4)
    assert Volume(folder, where={keyword: values[0]}, files="0.dcm").shape == (1, 8, 6, 1)


def test_phases_under_one_series(tmp_path):
    """``where`` chooses by what differs, and ``from_dicom`` lists a case for each."""
    heights, numbers = (0, 3, 0, 3), [1, 1, 2, 2]
    folder = series(tmp_path / "ct", FRAMES, heights, AcquisitionNumber=numbers)

    with pytest.raises(UnknownFormat, match=r"AcquisitionNumber \(1, 2\)"):
        _ = Volume(folder).shape
    second = Volume(folder, series="1.2.3.4", where={"AcquisitionNumber": 2}).numpy()[0]
    assert np.array_equal(second.T, FRAMES[2:])
    cases = {sample.case: sample for sample in vp.from_dicom(tmp_path)}
    assert sorted(cases) == ["ct/AcquisitionNumber=1", "ct/AcquisitionNumber=2"]
    assert np.array_equal(cases["ct/AcquisitionNumber=1"]["image"].numpy()[0].T, FRAMES[:2])
    assert cases["ct/AcquisitionNumber=2"]["dicom"]["AcquisitionNumber"] == 2


@pytest.mark.parametrize("folders", [["IM1", "IM1", "IM2", "IM3"], ["", "", "a", "a/b"]])
def test_slices_of_one_series_in_several_folders(tmp_path, folders):
    """``from_dicom`` lists one case; ``Volume`` reads them with the folders below."""
    names = [f"{folder}/{k}.dcm".lstrip("/") for k, folder in enumerate(folders)]
    for name in names:
        (tmp_path / "scan" / name).parent.mkdir(exist_ok=True, parents=True)
    folder = series(tmp_path / "scan", FRAMES, (0, 3, 6, 9), name=names)
    series(tmp_path / "scan" / "other", FRAMES, (0, 3, 6, 9), SeriesInstanceUID="1.5")

    cases = {sample.case: sample["image"] for sample in vp.from_dicom(tmp_path)}

    assert sorted(cases) == ["scan", "scan/other"]
    files = sorted({f"{parent}/*".lstrip("/") for parent in folders})
    for volume in (cases["scan"], Volume(folder, series="1.2.3.4"), Volume(folder, files=files)):
        assert np.array_equal(volume.numpy()[0].T, FRAMES)
        assert volume.spacing[2] == 3
    if "" in folders:
        assert np.array_equal(Volume(folder).numpy()[0].T, FRAMES)
        assert Volume(folder, files="*").shape == (1, 8, 6, 2)


def test_a_localizer_in_a_folder_of_its_own(tmp_path):
    """Slices of another size or direction are another case; the others are joined."""
    turned = [[1, 0, 0, 0, 0, 1]] * 2
    series(tmp_path / "scan" / "a", FRAMES[:2], (0, 3))
    series(tmp_path / "scan" / "b", FRAMES[2:], (6, 9))
    series(tmp_path / "scan" / "small", FRAMES[:1, :3], (50,))
    places = [[0, 3 * k, 0] for k in range(2)]
    turns = {"ImageOrientationPatient": turned, "ImagePositionPatient": places}
    series(tmp_path / "scan" / "turned", FRAMES[:2], (0, 0), SliceThickness=3, **turns)

    shapes = {sample.case: sample["image"].shape for sample in vp.from_dicom(tmp_path)}

    assert shapes == {
        "scan": (1, 8, 6, 4),
        "scan/small": (1, 8, 3, 1),
        "scan/turned": (1, 8, 6, 2),
    }


def test_a_gap_between_folders(tmp_path):
    """Two halves of a series with a slice missing between them are no two volumes."""
    series(tmp_path / "scan" / "a", FRAMES[:2], (0, 3))
    series(tmp_path / "scan" / "b", FRAMES[:2], (9, 12))

    with pytest.raises(BadHeader, match="not evenly spaced"):
        vp.from_dicom(tmp_path)


def test_folders_that_share_some_places(tmp_path):
    """One slice in two folders: nothing says which volume has it."""
    series(tmp_path / "scan" / "a", FRAMES[:3], (0, 3, 6))
    series(tmp_path / "scan" / "b", FRAMES[:2], (6, 9))

    with pytest.raises(UnknownFormat, match=r"scan/a and in .*scan/b, and folders share some"):
        vp.from_dicom(tmp_path)


def test_phases_in_folders_of_their_own(tmp_path):
    """Each is a case, also where one folder is in the other."""
    outer = series(tmp_path / "scan", FRAMES[:2], (0, 3))
    series(tmp_path / "scan" / "late", FRAMES[2:], (0, 3))

    cases = {sample.case: sample["image"] for sample in vp.from_dicom(tmp_path)}

    assert {case: int(volume.numpy()[0, 0, 0, 0]) for case, volume in cases.items()} == {
        "scan": FRAMES[0, 0, 0],
        "scan/late": FRAMES[2, 0, 0],
    }
    with pytest.raises(UnknownFormat, match=r"4 slices of .* lie at 2 places"):
        _ = Volume(outer).shape


def test_a_copy_of_a_series(tmp_path):
    """The same images in two folders are warned of, with both names."""
    folder = series(tmp_path / "scan", FRAMES, (0, 3, 6, 9))
    shutil.copytree(folder, tmp_path / "spare")

    with pytest.warns(LikelyMistake, match=r"(?s)/scan is in .*/spare again"):
        cases = [sample.case for sample in vp.from_dicom(tmp_path)]

    assert cases == ["scan", "spare"]


def test_a_directory_record_among_folders(tmp_path):
    """``DICOMDIR`` is no image: the series is in the folders below."""
    record = write(tmp_path / "DICOMDIR", FRAMES[0])
    one = pydicom.dcmread(record)
    for key in ("PixelData", "Rows", "Columns", "SeriesInstanceUID"):
        delattr(one, key)
    one.SOPClassUID = one.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.1.3.10"
    one.save_as(record)
    for k in range(4):
        series(tmp_path / f"IM{k}", FRAMES[k : k + 1], [3 * k])

    assert np.array_equal(Volume(tmp_path).numpy()[0].T, FRAMES)
    (case,) = vp.from_dicom(tmp_path)
    assert np.array_equal(case["image"].numpy()[0].T, FRAMES)


@pytest.mark.parametrize(
    "where",
    [
        {"PatientName": "Doe^Jane"},
        {(0x0010, 0x0010): "Doe^Jane"},
        {"StudyDate": datetime.date(2020, 1, 2)},
        {"StudyDate": 20200102},
        {"ImageType": ["ORIGINAL", "PRIMARY"]},
        {"PatientSex": None},
        {"PixelSpacing": [1, 1.0]},
    ],
)
def test_where_compares_all_kinds_of_values(tmp_path, where):
    """Names and texts as text, dates, lists, and elements that are missing."""
    for n, own in enumerate(("Doe^Jane", "Doe^John")):
        kind = [("ORIGINAL", "DERIVED")[n], "PRIMARY"]
        fields = {"PatientSex": "F"} if n else {}
        fields |= {"StudyDate": f"2020010{2 + n}", "ImageType": [kind] * 2}
        fields |= {"PixelSpacing": [[1 + n, 1]] * 2}
        name, places = [f"{n}-{k}.dcm" for k in range(2)], (3 * n, 3 * n + 1)
        folder = series(tmp_path / "ct", FRAMES[:2], places, PatientName=own, name=name, **fields)

    assert np.array_equal(Volume(folder, where=where).numpy()[0].T, FRAMES[:2])
    assert Volume(folder, where=where).affine[2, 3] == 0


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"EchoTim": 5}, "'EchoTim' in where= .* no keyword of DICOM\n.*EchoTime"),
        ({(1, 2, 3): 5}, r"\(1, 2, 3\) in where= .* no keyword"),
        ({"ProcedureCodeSequence": "1"}, "ProcedureCodeSequence in where= .* is a sequence"),
        ("EchoTime", "where= .* is 'EchoTime', and takes a dict"),
    ],
)
def test_elements_that_where_cannot_compare(tmp_path, where, words):
    """The library warns of nothing, and no file is named as damaged."""
    folder = series(tmp_path / "ct", FRAMES, (0, 1, 2, 3))

    with pytest.raises(SampleError, match=words):
        _ = Volume(folder, where=where).shape


@pytest.mark.parametrize("content", [b"", b"no DICOM " * 30])
def test_files_that_are_dicom_by_name_only(tmp_path, content):
    """Alone, and among slices."""
    series(tmp_path / "ct", FRAMES, (0, 1, 2, 3))
    (tmp_path / "ct" / "z.dcm").write_bytes(content)
    kind, words = (BadHeader, "does not begin as") if content else (TruncatedVolume, "is empty")

    for path in (tmp_path / "ct" / "z.dcm", tmp_path / "ct"):
        with pytest.raises(kind, match=rf"z\.dcm.* {words}"):
            _ = Volume(path).shape


def test_a_folder_of_folders_names_a_volume_below(tmp_path):
    """At any depth; a folder of nothing names none."""
    series(tmp_path / "a" / "b", FRAMES, (0, 1, 2, 3))
    (tmp_path / "none" / "below").mkdir(parents=True)

    for folder in (tmp_path, tmp_path / "a"):
        with pytest.raises(UnknownFormat, match=f"such as {tmp_path / 'a' / 'b'}, or"):
            _ = Volume(folder).shape
    with pytest.raises(UnknownFormat, match="one volume, or"):
        _ = Volume(tmp_path / "none").shape


def test_phases_that_only_their_names_tell_apart(tmp_path):
    """``files`` chooses them; a list of paths gives channels, and its error names the folder."""
    names = ["p0-0.dcm", "p0-1.dcm", "p1-0.dcm", "p1-1.dcm"]
    folder = series(tmp_path / "ct", FRAMES, (0, 3, 0, 3), name=names)

    with pytest.raises(UnknownFormat, match=r"(?s)tells them apart.*files="):
        _ = Volume(folder).shape
    for files in ("p1-*.dcm", names[2:], [folder / name for name in names[2:]]):
        assert np.array_equal(Volume(folder, files=files).numpy()[0].T, FRAMES[2:])
    with pytest.raises(ValueError, match="give their folder"):
        _ = Volume([folder / name for name in names]).shape


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["0.dcm", "typo.dcm"], "'typo.dcm' of files= matches no file in .*ct"),
        ("nomatch*", r"'nomatch\*' of files= matches no file"),
        (["0.dcm", "/elsewhere/1.dcm"], "'/elsewhere/1.dcm' of files= matches no file"),
        ("other/*.dcm", r"'other/\*.dcm' of files= matches no file"),
        ([], "files= names no file"),
    ],
)
def test_files_that_are_not_in_the_folder(tmp_path, files, words):
    """Each name or pattern matches, so that no slice is missing without a word."""
    folder = series(tmp_path / "ct", FRAMES, (0, 3, 6, 9))

    with pytest.raises(VolumeNotFound, match=words):
        _ = Volume(folder, files=files).shape
    assert Volume(folder, files=["0.dcm", "./1.dcm", f"{folder}/[23].dcm"]).shape == (1, 8, 6, 4)


def test_options_that_do_not_fit_a_file(tmp_path):
    """A file has one series, and no other files."""
    path = write(tmp_path / "a.dcm", FRAMES[0])

    assert Volume(path, series="1.2.3.4").shape == (1, 8, 6, 1)
    with pytest.raises(UnknownFormat, match=r"not 9\."):
        _ = Volume(path, series="9").shape
    with pytest.raises(UnknownFormat, match="files="):
        _ = Volume(path, files="a*").shape
    with pytest.raises(UnknownFormat, match="local disk"):
        _ = Volume("memory://scans/a.dcm").shape


def test_selections_of_one_file_are_cached_apart(tmp_path):
    """Two volumes of the same compressed file have the same files, and other voxels."""
    own = [("FrameContentSequence", [{"TemporalPositionIndex": n} for n in (1, 1, 2, 2)])]
    path = enhanced(tmp_path / "a.dcm", along(0, 2.5, 0, 2.5), own=own)

    keys = {Volume(path, where={"TemporalPositionIndex": n}).content_key for n in (1, 2)}

    assert len(keys) == 2


@pytest.mark.parametrize("cut", [20, -1])
def test_one_damaged_slice_hides_no_other_study(tmp_path, cut):
    """``from_dicom`` warns of it by name; ``check`` names it too."""
    for name in ("good", "cut"):
        series(tmp_path / name, FRAMES, (0, 3, 6, 9))
    path = tmp_path / "cut" / "3.dcm"  # the last: no gap tells of it
    path.write_bytes(path.read_bytes()[: -cut if cut > 0 else 90])

    with pytest.warns(CasesLeftOut, match=r"cut/3\.dcm"):
        cases = [sample.case for sample in vp.from_dicom(tmp_path)]

    assert cases == ["good"]
    with pytest.raises(VolumeError, match=r"cut/3\.dcm"):
        _ = Volume(tmp_path / "cut").shape
    (bad,) = (one for one in vp.check(str(tmp_path)).findings if one.is_bad)
    assert "3.dcm" in bad.reason


def test_reports_among_images(tmp_path):
    """A structured report has no pixels and is no slice; an image that lost them is damaged."""
    folder = series(tmp_path / "ct", FRAMES, (0, 3, 6, 9))
    report = pydicom.dcmread(folder / "0.dcm")
    del report.PixelData, report.Rows, report.Columns
    report.SOPClassUID = report.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.88.11"
    report.save_as(folder / "report.dcm")

    assert Volume(folder).shape == (1, 8, 6, 4)
    with pytest.raises(UnknownFormat, match="without an image"):
        _ = Volume(folder / "report.dcm").shape
    report.SOPClassUID = report.file_meta.MediaStorageSOPClassUID = CT
    other = series(tmp_path / "other", FRAMES, (0, 3, 6, 9))
    report.save_as(other / "report.dcm")
    with pytest.raises(TruncatedVolume, match="ends before its pixels"):
        _ = Volume(other).shape
