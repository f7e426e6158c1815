"""One DICOM file, by pydicom: its frames, their places, and their pixels.

A slice is a file of one frame. Every frame has its own place, rescale and facts. Native pixels are
read from the file; SimpleITK decodes compressed frames, one by one.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import BadHeader, CorruptVolume, TruncatedVolume, UnknownFormat, VolumeError
from ...volumes.formats.stored_file import LocalStoredFile, import_package, library_errors

_MAGIC, _MAGIC_AT = b"DICM", 128
_NO_LENGTH = 2**32 - 1
# Tags of pixels, and the type of those that are floats.
_PIXELS = {0x7FE00008: "f4", 0x7FE00009: "f8", 0x7FE00010: ""}
_IMPLICIT, _EXPLICIT = "1.2.840.10008.1.2", "1.2.840.10008.1.2.1"
_BIG, _DEFLATE = "1.2.840.10008.1.2.2", "1.2.840.10008.1.2.1.99"
_NATIVE = ("", _IMPLICIT, _EXPLICIT, _BIG, _DEFLATE)
_RUN_LENGTHS = f"{_IMPLICIT}.5"
# JPEG (baseline, extended, lossless), JPEG-LS, JPEG 2000, which SimpleITK decodes; run lengths.
_CODECS = ("4.50", "4.51", "4.57", "4.70", "4.80", "4.81", "4.90", "4.91", "5")
_WIDEST_CODE = 16  # bits: SimpleITK decodes more to other numbers.
# The start of a code, markers of a frame in it, and the bytes of JPEG 2000 before its precision.
_JPEG, _JPEG_2000, _SIZES_BEFORE = b"\xff\xd8", b"\xff\x4f\xff\x51", 42
_FRAME_MARKERS = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_ITEM, _DELIMITER = b"\xfe\xff\x00\xe0", b"\xfe\xff\xdd\xe0"
# Bytes of a deflated file that hold its header elements.
_MOST_HEADER_BYTES = 64 * 1024**2
_MOST_FRAMES = 2**16  # no scanner makes more
# The best of the compressions: JPEG stores 192 bytes in 3 bits.
_BEST_RATIO = 2000
_GREYS, _PALETTE = ("MONOCHROME1", "MONOCHROME2"), "PALETTE COLOR"
_COLOURS = ("RGB", "YBR_FULL", "YBR_RCT", "YBR_ICT", "YBR_FULL_422")
_PARAMETRIC_MAP, _SEGMENTATION = "1.2.840.10008.5.1.4.1.1.30", "1.2.840.10008.5.1.4.1.1.66.4"
_RT_DOSE, _SECONDARY = "1.2.840.10008.5.1.4.1.1.481.2", "1.2.840.10008.5.1.4.1.1.7"

SELECTORS = str.split(
    "TemporalPositionIndex TemporalPositionIdentifier AcquisitionNumber EchoNumbers EchoTime "
    "EffectiveEchoTime DiffusionBValue DiffusionGradientOrientation TriggerTime InversionTime "
    "FlipAngle StackID NominalPercentageOfCardiacPhase NominalCardiacTriggerDelayTime "
    "ReferencedSegmentNumber ImageType FrameType ComplexImageComponent ConvolutionKernel "
    "TemporalPositionTimeOffset FrameReferenceTime AcquisitionTime FrameReferenceDateTime "
    "ContentTime SOPInstanceUID"
)
"""Keywords that may distinguish frames at one place, the most usual first."""
FACTS = {"Modality": "modality", "SeriesDescription": "description", "StudyInstanceUID": "study"}
# Keywords that all slices of a volume have or lack, have to share, and usually share.
SCALES = ("RescaleSlope", "RescaleIntercept")
KINDS = str.split(
    "Units RescaleType PhotometricInterpretation EchoNumbers EchoTime EffectiveEchoTime "
    "DiffusionBValue DiffusionGradientOrientation ComplexImageComponent ConvolutionKernel "
    "Modality SOPClassUID DecayCorrection"
)
OWNERS = ("FrameOfReferenceUID", "PatientID", "ImageType")
_FACT_KEYS = (*SELECTORS, *FACTS, *SCALES, *KINDS, *OWNERS, "SpacingBetweenSlices")
_OF_FRAME = str.split(
    "ImagePositionPatient ImageOrientationPatient PixelSpacing ImagerPixelSpacing SliceThickness "
    "SpacingBetweenSlices NominalScannedPixelSpacing RescaleSlope RescaleIntercept "
    "RealWorldValueSlope RealWorldValueIntercept RealWorldValueLUTData"
)
_PALETTES = [
    f"{prefix}{colour}PaletteColorLookupTable{part}"
    for colour in ("Red", "Green", "Blue")
    for prefix, part in (("", "Descriptor"), ("", "Data"), ("Segmented", "Data"))
]
_OF_FILE = str.split(
    "Rows Columns SamplesPerPixel PhotometricInterpretation PixelRepresentation BitsAllocated "
    "BitsStored HighBit SOPClassUID SeriesInstanceUID NumberOfFrames PlanarConfiguration "
    "GridFrameOffsetVector DoseGridScaling ModalityLUTSequence SegmentationType "
    "MaximumFractionalValue SharedFunctionalGroupsSequence PerFrameFunctionalGroupsSequence "
    "ExtendedOffsetTable ExtendedOffsetTableLengths"
)
_PIXEL_SIZES = ("PixelSpacing", "ImagerPixelSpacing", "NominalScannedPixelSpacing")
_COUNTS = {**dict.fromkeys(_PIXEL_SIZES, 2), "ImagePositionPatient": 3}
_COUNTS["ImageOrientationPatient"] = 6
_PLANE_KEYS = ("PixelSpacing", "ImageOrientationPatient")
# Names of the kinds of images whose planes have a size and a direction in the patient.
_PLANES = ("CT Image", "MR Image", "Positron", "RT Dose", "Enhanced", "Legacy Converted Enhanced")
# Tolerance of a direction: its length is 1, and rows and columns are at right angles.
_OFF = 1e-2
# Millimetres.
_ONE_PLACE = 1e-3


def is_dicom(path: str) -> bool:
    """Whether a local file begins as DICOM: with its magic, or with elements of group 2 or 8."""
    try:
        with LocalStoredFile(path).open() as file:
            head = file.read(_MAGIC_AT + len(_MAGIC))
    except (OSError, VolumeError):  # opening it raises the reason
        return False
    has_type = head[4:6].isalpha() and head[4:6].isupper()
    is_short = int.from_bytes(head[4:8], "little") < len(head)
    is_first = head[:2] in (b"\x02\0", b"\x08\0") and head[3:4] == b"\0"
    return head[_MAGIC_AT:] == _MAGIC or (is_first and (has_type or is_short))


@dataclass(frozen=True)
class Frame:
    """One slice: a file of a series, or a frame of an object."""

    file: LocalStoredFile
    number: int  # in its file
    layout: tuple[int, int, int]  # columns, rows and channels
    dtype: np.dtype[Any]  # of the pixels before they are rescaled, in native byte order
    steps: tuple[tuple[float, ...], tuple[float, ...]]  # along a row and a column, in mm, LPS
    place: tuple[float, ...] | None  # of the first pixel, LPS; None where the file is silent
    thickness: float  # 0 where the file has none
    missing: str  # keywords of its geometry, for an error
    is_plane: bool  # whether its kind or its direction needs a place in the patient
    scale: tuple[float, float]  # slope and intercept
    span: tuple[float, float]  # the smallest and the largest number that a pixel can be
    facts: Mapping[str, Any]  # values of ``SELECTORS``, and of shared and the user's keywords


class DicomFile:
    """The header of one file; it holds no pixels."""

    def __init__(self, file: LocalStoredFile, select: Sequence[str] = ()) -> None:
        self.file, self.name = file, file.name
        self._keywords = tuple(dict.fromkeys((*_FACT_KEYS, *select)))
        self._at = self._length = self._deflated_at = 0  # of the pixels
        self._float = ""  # the type of pixels that are floats
        if not file.size:
            raise TruncatedVolume(f"{self.name} is empty: it holds 0 bytes.")
        if not is_dicom(file.path):
            do = "Copy it again, or give it the suffix of its format."
            raise BadHeader(f"{self.name} does not begin as a DICOM file.", do=do)
        with library_errors(f"{self.name} cannot be read as DICOM"), self._map() as data:
            self._read(data)

    @contextmanager
    def _map(self) -> Iterator[Any]:
        with (
            self.file.open() as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            yield data

    def _read(self, data: Any) -> None:
        from pydicom.datadict import tag_for_keyword
        from pydicom.filereader import read_dataset, read_preamble

        read_preamble(data, True)
        meta = read_dataset(data, False, True, stop_when=lambda tag, *_: tag.group != 2)
        self.syntax, start = str(meta.get("TransferSyntaxUID", "")), data.tell()
        body, size = data, len(data)
        if self.syntax == _DEFLATE:
            content = _inflate(data[start:], _MOST_HEADER_BYTES)
            self._deflated_at, body, size = start, BytesIO(content), len(content)

        def stop(tag: int, kind: str | None, length: int) -> bool:
            at = body.tell()
            if tag in _PIXELS:
                self._at, self._length, self._float = at, length, _PIXELS[tag]
                self._is_words = kind != "OB"
            elif length != _NO_LENGTH and length > size - at:
                raise self._short(f"{length} bytes of element {tag}", size - at)
            return tag in _PIXELS

        has_type = data[start + 4 : start + 6].isalpha() and data[start + 4 : start + 6].isupper()
        is_implicit = self.syntax == _IMPLICIT or not (self.syntax or has_type)
        keywords = (*_OF_FILE, *_PALETTES, *_OF_FRAME, *self._keywords)
        tags = [tag for tag in map(tag_for_keyword, keywords) if tag is not None]
        how: dict[str, Any] = {"stop_when": stop, "specific_tags": tags}
        self._dataset: Any = read_dataset(body, is_implicit, self.syntax != _BIG, **how)
        self._kind = str(self._get("SOPClassUID", meta.get("MediaStorageSOPClassUID", "")))
        self._describe_pixels()
        self._cut = self._other_than_said(data) if self._at and not self._deflated_at else None

    def _describe_pixels(self) -> None:
        self.series = str(self._get("SeriesInstanceUID", "")).strip()
        self.count = int(self._get("NumberOfFrames", 1))
        self.samples = self._get("SamplesPerPixel", 1)
        self.rows, self.columns = self._get("Rows", 0), self._get("Columns", 0)
        self.bits = self._get("BitsAllocated", 8 * int(self._float[1:] or 0))
        self.depth = self._get("BitsStored", self.bits)
        if self.depth < self.bits and self._get("HighBit", self.depth - 1) != self.depth - 1:
            high = f"HighBit {self._get('HighBit', 0)} with BitsStored {self.depth}"
            do = f"Write the file again with HighBit {self.depth - 1}."
            raise BadHeader(f"{self.name} has {high}, which readers take differently.", do=do)
        self.photometric = str(self._get("PhotometricInterpretation", "")).strip()
        kind = "i" if self._get("PixelRepresentation", 0) else "u"
        order = ">" if self.syntax == _BIG else "<"
        self.dtype = np.dtype(order + (self._float or f"{kind}{max(1, self.bits // 8)}"))
        self.is_native = self.syntax in _NATIVE

    def _get(self, key: str, default: Any) -> Any:
        value = self._dataset.get(key)
        return default if value is None or value == "" else value

    def _short(self, what: str, there: int) -> TruncatedVolume:
        return TruncatedVolume(f"{self.name} declares {what}, and holds {max(there, 0)} of them.")

    def _other_than_said(self, data: Any) -> VolumeError | None:
        at, there = self._at, len(data) - self._at
        if self._length != _NO_LENGTH:
            what = f"{self._length} bytes of pixels"
            return self._short(what, there) if self._length > there else None
        starts, is_run = 0, self.syntax == _RUN_LENGTHS  # of frames; the first item is a table
        while at < len(data) and data[at : at + 4] != _DELIMITER:
            item, there = int.from_bytes(data[at + 4 : at + 8], "little"), len(data) - at - 8
            if data[at : at + 4] != _ITEM or item > there:
                return self._short(f"{item} bytes of a compressed frame", there)
            is_code = is_run or data[at + 8 : at + 12].startswith((_JPEG + b"\xff", _JPEG_2000))
            starts += at > self._at and is_code
            at += 8 + item
        more = starts > self.count
        return self._more_than(self.count, starts, "compressed frames") if more else None

    @property
    def is_image(self) -> bool:
        """Whether it holds pixels: folders of images also contain reports and plans."""
        from pydicom.uid import UID

        # One that was cut before its first pixel is no report.
        name = UID(self._kind).name if self._kind else "Image"
        is_kind = "Image" in name or self._kind in (_RT_DOSE, _SEGMENTATION, _PARAMETRIC_MAP)
        return bool(self._at or self.rows) or is_kind

    def frames(self) -> list[Frame]:
        """Return the frames in the order of the file; refuse kinds that are not supported."""
        with library_errors(f"{self.name} has no sound DICOM header"):
            self._check()
            own = self._get("PerFrameFunctionalGroupsSequence", ())
            if len(own) not in (0, self.count):
                raise BadHeader(f"{self.name} describes {len(own)} of its {self.count} frames.")
            numbers = frozenset((*_OF_FRAME, *self._keywords))
            whole = {key: self._dataset[key].value for key in numbers if key in self._dataset}
            common = _of_groups(self._get("SharedFunctionalGroupsSequence", ()), numbers)
            facts = [{**whole, **common, **_of_groups([item], numbers)} for item in own]
            facts = facts or [{**whole, **common}] * self.count
            return [self._frame(number, each) for number, each in enumerate(facts)]

    def _check(self) -> None:
        """Refuse pixels that contradict their header, or that no reader here supports."""
        if not self.is_image:
            raise UnknownFormat(f"{self.name} is DICOM without an image ({self._kind}).")
        # pydicom requires them as well: the first four for floats, the last for some bits only.
        keys = _OF_FILE[: 4 if self._float else 8 if self.depth < self.bits else 7]
        absent = " and no ".join(key for key in keys if self._get(key, None) is None)
        if absent and self._at:
            do = f"Write the file again with its true {absent.replace('and no', 'and')}."
            raise BadHeader(f"{self.name} has no {absent}, which its pixels need.", do=do)
        if not self._at or min(self.count, self.rows, self.columns) < 1:
            raise TruncatedVolume(f"{self.name} is an image, and ends before its pixels.")
        if self._cut is not None:
            raise self._cut
        colour, is_colour = self.photometric, self.photometric in _COLOURS
        is_grey = self.samples == 1 and colour in (*_GREYS, _PALETTE)
        odd: Any = None
        if not is_grey and not (self.samples == 3 and is_colour):
            odd = f"{self.samples} samples a pixel of {colour or 'no colour'}"
        elif not self.is_native and self.syntax not in [f"{_IMPLICIT}.{e}" for e in _CODECS]:
            odd = f"pixels of the transfer syntax {self.syntax}"
        elif self.bits not in (1, 8, 16, 32, 64) or not 0 < self.depth <= self.bits:
            odd = f"numbers of {self.depth} bits in {self.bits}"
        elif not self.is_native and self.syntax != _RUN_LENGTHS and self.depth > _WIDEST_CODE:
            odd = f"compressed numbers of {self.depth} bits"
        elif self.is_native and colour == "YBR_FULL_422":
            odd = "colours of every other pixel (YBR_FULL_422)"
        elif self.syntax == _BIG and self.bits == 8 and self._is_words:
            odd = "bytes in swapped pairs (OW, big endian)"
        elif self.count > _MOST_FRAMES:
            odd = f"{self.count} frames"
        elif "MOSAIC" in _plain(self._get("ImageType", "")):
            odd = "slices side by side in one image (MOSAIC)"
        elif self._dataset.get("ModalityLUTSequence"):
            odd = "a table of values (Modality LUT Sequence)"
        if odd:
            do = "Convert it with dcmtk, dcm2niix or highdicom, for instance."
            raise UnknownFormat(f"{self.name} holds {odd}, which is not read.", do=do)
        numbers = self.count * self.rows * self.columns * self.samples
        size = -(-numbers * self.bits // 8)
        there = _BEST_RATIO * self.file.size
        there = min(there, self._length) if self.is_native else there
        if there < size:
            raise self._short(f"{size} bytes of pixels", there)
        # Native pixels are padded to an even length.
        if self.is_native and self._length > size + size % 2:
            raise self._more_than(size, self._length, "bytes of pixels")

    def _more_than(self, size: int, there: int, noun: str) -> BadHeader:
        form = f"{self.count} frames of {self.columns}x{self.rows}x{self.samples}, {self.bits} bits"
        what = f"{self.name} holds {there} {noun}, and its header says {size}: {form}."
        return BadHeader(what, do="Correct its NumberOfFrames, Rows, Columns or BitsAllocated.")

    def _frame(self, number: int, facts: Mapping[str, Any]) -> Frame:
        dtype, bits, samples = self.dtype, self.depth, self.samples
        if self.photometric == _PALETTE:  # which has numbers of its own
            bits, samples = int(self._dataset.RedPaletteColorLookupTableDescriptor[2]), 3
            dtype = np.dtype(f"u{bits // 8}")
        steps, place = self._geometry(number, facts)
        between = facts.get("SpacingBetweenSlices") or facts.get("SliceThickness") or 0
        span = (-math.inf, math.inf)
        if dtype.kind in "iu":
            low = -(2.0 ** (bits - 1)) if dtype.kind == "i" else 0.0
            span = (low, low + 2.0**bits - 1)
        return Frame(
            self.file,
            number,
            (self.columns, self.rows, samples),
            dtype.newbyteorder("="),
            steps,
            place,
            abs(float(between)),
            *self._missing(facts),
            self._scale(facts),
            span,
            {key: _plain(facts[key]) for key in self._keywords if key in facts},
        )

    def _scale(self, facts: Mapping[str, Any]) -> tuple[float, float]:
        keys, slope = ("RescaleSlope", "RescaleIntercept"), 1.0
        if self._kind == _PARAMETRIC_MAP:
            keys = ("RealWorldValueSlope", "RealWorldValueIntercept")
            if "RealWorldValueLUTData" in facts:
                raise UnknownFormat(f"{self.name} maps its numbers by a table, which is not read.")
            if any(f"{key} differs" in facts for key in keys):
                raise UnknownFormat(f"{self.name} has several real world mappings of one frame.")
        elif self._kind == _RT_DOSE:
            slope = float(self._get("DoseGridScaling", 1))
        elif self._get("SegmentationType", "") == "FRACTIONAL":
            slope = 1 / self._get("MaximumFractionalValue", 1)
        values = [facts.get(key) for key in keys]
        slope = slope if values[0] is None else float(values[0])
        intercept = float(values[1] or 0)
        if not (math.isfinite(slope) and math.isfinite(intercept) and slope):
            raise BadHeader(f"{self.name} has the rescale slope {slope}, intercept {intercept}.")
        return slope, intercept

    def _missing(self, facts: Mapping[str, Any]) -> tuple[str, bool]:
        """Return the keywords of the geometry that are missing, and whether it needs them."""
        from pydicom.uid import UID

        is_plane = UID(self._kind).name.startswith(_PLANES)
        if is_plane or facts.get("ImageOrientationPatient"):
            return " and no ".join(key for key in _PLANE_KEYS if not facts.get(key)), True
        return "" if any(map(facts.get, _PIXEL_SIZES)) else "PixelSpacing", False

    def _geometry(self, number: int, facts: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the steps along a row and a column, and the place."""
        directions = facts.get("ImageOrientationPatient")
        between = next((facts[key] for key in _PIXEL_SIZES if facts.get(key)), (1.0, 1.0))
        for keyword, count in _COUNTS.items():
            there = np.size(facts.get(keyword) or ())
            if there not in (0, count):
                raise BadHeader(f"{self.name} has {keyword} of {there} numbers, not {count}.")
        row, column = np.reshape(np.array(directions or (1, 0, 0, 0, 1, 0), dtype=float), (2, 3))
        lengths = np.linalg.norm(row), np.linalg.norm(column)
        between_rows, between_columns = map(float, between)
        away = max(*(abs(length - 1) for length in lengths), abs(row @ column))
        if not (away <= _OFF and min(between_rows, between_columns) > 0):
            raise BadHeader(f"{self.name} has directions {directions}, pixel spacing {between}.")
        steps = tuple((row * between_columns).tolist()), tuple((column * between_rows).tolist())
        place = facts.get("ImagePositionPatient") if directions else None
        if not place:
            return steps, None
        corner = np.array(place, dtype=float).reshape(3)
        offsets = self._dataset.get("GridFrameOffsetVector")
        if offsets is not None:  # of a dose: along the normal, or places along z
            offset, normal = np.atleast_1d(offsets).astype(float), np.cross(row, column)
            if len(offset) != self.count:
                msg = f"{self.name} has {len(offset)} offsets of {self.count} dose planes."
                raise BadHeader(msg)
            if offset[0] and (abs(offset[0] - corner[2]) > _ONE_PLACE or abs(normal[2]) < 1):
                raise BadHeader(f"{self.name} has dose planes from {offset[0]:g} on, not from 0.")
            along = np.array([0.0, 0, 1]) if offset[0] else normal
            corner = corner + (offset[number] - offset[0]) * along
        return steps, tuple(corner.tolist())

    def planes(self, numbers: Mapping[int, Any]) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield number and pixels, (rows, columns, channels), of the frames in ``numbers``."""
        what = f"{self.name} cannot be decoded"
        with library_errors(what, kind=CorruptVolume), self._map() as data:
            planes = self._native(data, numbers) if self.is_native else self._decode(data, numbers)
            for number, plane in planes:
                yield number, self._colours(plane)

    def _native(self, data: Any, numbers: Mapping[int, Any]) -> Iterator[tuple[int, NDArray[Any]]]:
        at = self._at
        shape, order = (self.rows, self.columns, self.samples), (0, 1, 2)
        if self._get("PlanarConfiguration", 0) and self.samples > 1:
            shape, order = (self.samples, self.rows, self.columns), (1, 2, 0)
        bits = math.prod(shape) * self.bits  # of a frame: frames of single bits share bytes
        if self._deflated_at:
            size = -(-self.count * bits // 8)
            data = _inflate(data[self._deflated_at :], at + size)
            if len(data) < at + size:
                raise self._short(f"{size} bytes of pixels", len(data) - at)
        for number in numbers:
            first, last = number * bits, (number + 1) * bits
            chunk = data[at + first // 8 : at - (-last // 8)]
            if self.bits == 1:
                flags = np.unpackbits(np.frombuffer(chunk, np.uint8), bitorder="little")
                array = flags[first % 8 :][:bits]
            else:
                array = np.frombuffer(chunk, self.dtype)
            yield number, array.reshape(shape).transpose(order)

    def _decode(self, data: Any, numbers: Mapping[int, Any]) -> Iterator[tuple[int, NDArray[Any]]]:
        """Yield compressed frames: run lengths by pydicom, others by SimpleITK, each by itself."""
        from pydicom.encaps import generate_frames
        from pydicom.pixels.utils import pixel_array

        is_run = self.syntax == _RUN_LENGTHS
        itk = None if is_run else import_package("SimpleITK", f"compressed pixels of {self.name}")
        data.seek(self._at)
        table = self._dataset.get("ExtendedOffsetTable")
        offsets = (table, self._dataset.get("ExtendedOffsetTableLengths")) if table else None
        frames = generate_frames(data, number_of_frames=self.count, extended_offsets=offsets)
        count = 0
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "frame.dcm")
            if itk is not None:  # its serious warnings are raised
                itk.ProcessObject.SetGlobalWarningDisplay(False)
            for number, frame in enumerate(frames):
                if number in numbers:
                    wide = 0 if is_run else _precision(frame)
                    if wide > self.bits:
                        raise self._wider(f"{wide} bits")
                    one = self._alone(frame, max(wide, self.depth))
                    if itk is None:
                        array = pixel_array(one, raw=True)
                    else:
                        one.save_as(path, enforce_file_format=True)
                        array = itk.GetArrayFromImage(itk.ReadImage(path))
                    array = array.reshape(self.rows, self.columns, self.samples)
                    # A code of fewer bits than are allocated holds the same numbers.
                    is_coded = is_run or 8 * array.itemsize <= _WIDEST_CODE
                    if not (is_coded and np.can_cast(array.dtype, self.dtype.newbyteorder("="))):
                        raise self._wider(str(array.dtype))
                    array = array.astype(self.dtype)
                    if wide > self.depth:
                        # Signed numbers may have zeros above their stored bits.
                        other = array != self._of_stored_bits(array)
                        if (other & (array >> self.depth != 0)).any():
                            raise self._wider(f"{wide} bits")
                    yield number, array
                    count += 1
        if count < len(numbers):
            raise self._short(f"{len(numbers)} compressed frames", count)

    def _alone(self, frame: bytes, depth: int) -> Any:
        """Return a compressed frame as an image of its own, which no rescale changes."""
        from pydicom.dataset import Dataset, FileMetaDataset
        from pydicom.encaps import encapsulate

        one, meta = Dataset(), FileMetaDataset()
        fields = {
            "SOPClassUID": _SECONDARY,
            "SOPInstanceUID": f"{_SECONDARY}.1",
            "SamplesPerPixel": self.samples,
            "PhotometricInterpretation": self.photometric if self.samples > 1 else _GREYS[1],
            "PlanarConfiguration": self._get("PlanarConfiguration", 0),
            "Rows": self.rows,
            "Columns": self.columns,
            "BitsAllocated": self.bits,
            "BitsStored": depth,  # SimpleITK would cut the numbers of a code of more bits
            "HighBit": depth - 1,
            "PixelRepresentation": self._get("PixelRepresentation", 0),
        }
        for key, value in fields.items():
            setattr(one, key, value)
        for key in ("SOPClassUID", "SOPInstanceUID"):
            setattr(meta, f"MediaStorage{key}", fields[key])
        setattr(meta, "TransferSyntaxUID", self.syntax)  # noqa: B010
        one.PixelData, one.file_meta = encapsulate([frame]), meta
        one["PixelData"].VR, one["PixelData"].is_undefined_length = "OB", True
        return one

    def _wider(self, form: str) -> CorruptVolume:
        msg = f"{self.name} decodes to {form}, not {self.depth} bits of {self.dtype}."
        do = "Convert it again with the true BitsAllocated and BitsStored."
        return CorruptVolume(msg, do=do)

    def _of_stored_bits(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return numbers without other bits; shifted back, they keep their sign."""
        return np.asarray((array << self.bits - self.depth) >> self.bits - self.depth)

    def _colours(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return pixels without bits that are not stored, and with palette and colours applied."""
        from pydicom.pixels.processing import apply_color_lut, convert_color_space

        if self.dtype.kind in "iu" and self.depth < self.bits:
            array = self._of_stored_bits(array)  # others are garbage or overlays
        if self.photometric == _PALETTE:
            return np.asarray(apply_color_lut(array[..., 0], self._dataset))
        is_raw = self.is_native or self.syntax == _RUN_LENGTHS  # SimpleITK converts the others
        if is_raw and self.photometric == "YBR_FULL":
            return np.asarray(convert_color_space(array, "YBR_FULL", "RGB"))
        return array


def _precision(code: bytes) -> int:
    """Return the bits of a number in a code of JPEG, JPEG-LS or JPEG 2000; 0 if unknown."""
    if code[:2] != _JPEG:
        at = code.find(_JPEG_2000) + _SIZES_BEFORE
        return (code[at] & 127) + 1 if _SIZES_BEFORE <= at < len(code) else 0
    at = 2
    while code[at : at + 1] == b"\xff" and at + 4 < len(code):
        if code[at + 1] in _FRAME_MARKERS:
            return code[at + 4]
        is_fill = code[at + 1] == 0xFF
        at += 1 if is_fill else 2 + int.from_bytes(code[at + 2 : at + 4])
    return 0


def _inflate(data: bytes, most: int) -> bytes:
    return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, most)


def _of_groups(groups: Sequence[Any], numbers: frozenset[str]) -> dict[str, Any]:
    from pydicom.datadict import keyword_for_tag

    facts: dict[str, Any] = {}
    for macro in (element for group in groups for element in group if element.VR == "SQ"):
        values: dict[str, Any] = {}
        for item in macro.value:
            for key in numbers.intersection(map(keyword_for_tag, item.keys())):
                if values.setdefault(key, item[key].value) != item[key].value:
                    facts[f"{key} differs"] = True  # between items of one sequence
        facts |= values
    return facts


def _plain(value: Any) -> Any:
    if isinstance(value, (str, bytes)) or value is None:
        return str(value or "").strip()
    if isinstance(value, Sequence):
        return "\\".join(map(str, value))
    try:
        return int(value) if float(value).is_integer() else float(value)
    except TypeError:  # a name of a person
        return str(value)
