"""Formats NIfTI-1 and -2, in one file or two, Analyze and MGH.

nibabel's classes read the fields of the headers. This module interprets them and refuses invalid
ones before it allocates memory for their sizes.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...core.call_site import warn
from ...core.errors import (
    BadHeader,
    LikelyMistake,
    MissingDependency,
    TruncatedVolume,
    UnknownFormat,
)
from ..backend import Backend
from ..header import PLACEMENT, affine_entries, refuse_unreadable, stored_affine
from .chunked_backend import millimetres_in
from .raw import RawHeader, fastest_first, open_raw
from .stored_file import (
    Format,
    LocalStoredFile,
    StoredFile,
    library_errors,
    place_in_archive,
    what_to_do,
)

NIFTI1_BYTES = 348
NIFTI2_BYTES = 540
# Four bytes after the header of a single file announce extensions.
_EXTENSION_FLAG_BYTES = 4
_GZIP_MAGIC = b"\x1f\x8b"
# xyzt_units, lowest three bits: 0 is unknown.
UNITS = (None, "m", "mm", "um", *(f"xyzt_units {code}" for code in range(4, 8)))
UNIT_BITS = 0b111
COLOURS = (("R", "G", "B"), ("R", "G", "B", "A"))
"""Fields of RGB24 and RGBA32, voxels of three and four bytes."""
# The format has seven axes; an unused one has length 1.
_MOST_AXES = 7
_CIFTI = range(3000, 3100)  # intent codes (nifti.nimh.nih.gov, CIFTI-2)
# FreeSurfer's smallest sphere (ico3) has 642 vertices.
_MOST_VOXELS_OF_A_ROW = 641


def parse_nifti(raw: bytes, name: str, *, single_file: bool = True) -> RawHeader:
    """Parse the first 348 or 540 bytes of a NIfTI file; colours (RGB24, RGBA32) become channels.

    Without ``single_file`` the voxels are elsewhere, so magic and offset are ignored.
    """
    fields, size = fields_of(raw, name)
    magic = bytes(fields["magic"].item())
    if single_file and magic.startswith((b"ni1", b"ni2")):
        why = "its voxels are in a separate .img file, so its own name must end in .hdr"
        raise bad_nifti(name, why)
    if single_file and not magic.startswith((b"n+1", b"n+2")):
        raise bad_nifti(name, f"its magic is {magic!r}")
    lowest = size + _EXTENSION_FLAG_BYTES if single_file else None
    return raw_header(fields, lowest, name)


def raw_header(fields: Any, lowest: int | None, name: str) -> RawHeader:
    """Return the raw header from nibabel's fields of a NIfTI or Analyze header.

    Voxels begin at byte ``lowest`` or later; None ignores their offset.
    """
    from nibabel.spatialimages import HeaderDataError

    dims = [int(n) for n in fields["dim"]]
    shape = [int(n) for n in fields.get_data_shape()]
    if not 1 <= dims[0] <= _MOST_AXES or min(shape) < 1:
        raise bad_nifti(name, f"its dimensions are {dims}")
    if "intent_code" in fields and int(fields["intent_code"]) in _CIFTI:
        what = (
            f"{name} is CIFTI-2 (intent {int(fields['intent_code'])}): rows of numbers, no voxels."
        )
        raise UnknownFormat(what, do="Write its volume with wb_command -cifti-separate.")
    if max(shape) > _MOST_VOXELS_OF_A_ROW:
        warn_of_surface(shape, name)
    slope, intercept = None, 0.0
    why = f"its data type {int(fields['datatype'])} is unknown"
    try:
        dtype: np.dtype[Any] = fields.get_data_dtype()
        if dtype.itemsize and dtype.names not in COLOURS:
            refuse_unreadable(dtype, name)
            why = f"its intercept is {fields.get('scl_inter', 0.0)}"
            slope, intercept = fields.get_slope_inter()
    except (HeaderDataError, KeyError, ValueError) as error:
        raise bad_nifti(name, f"{why} ({error})") from None
    if dtype.itemsize == 0:  # single bits, or a float that this machine lacks
        raise UnknownFormat(
            f"{name} holds voxels of NIfTI data type {int(fields['datatype'])} "
            f"({fields.get_value_label('datatype')}), which cannot be read.",
            do="Convert the voxels to integers, or to floats of up to 64 bits.",
        )
    offset = 0.0 if lowest is None else float(fields["vox_offset"])
    if not offset >= (lowest or 0) or offset != int(min(offset, 2.0**62)):
        why = f"its voxels begin at byte {offset:g}, and the header ends at {lowest}"
        do = f"Set its vox_offset to {lowest} if no extension follows, or write it again."
        raise bad_nifti(name, why, do if lowest else "")
    entries = stored_affine(_orientation, fields, name)
    if dtype.names is not None:
        layout, dtype = fastest_first(shape, colours=len(dtype.names)), np.dtype("u1")
        return RawHeader(layout, dtype, int(offset), entries)
    scale = (1.0, 0.0) if slope is None else (float(slope), float(intercept))
    return RawHeader(fastest_first(shape), dtype, int(offset), entries, *scale)


def warn_of_surface(shape: Sequence[int], name: str) -> None:
    """Warn of one long row, which may be values at the vertices of a surface."""
    if shape[0] > _MOST_VOXELS_OF_A_ROW and not any(n > 1 for n in shape[1:3]):
        msg = f"{name} has the shape {tuple(shape)}, like values at the vertices of a surface."
        warn(f"{msg} Neighbours in it need not be neighbours in space.", LikelyMistake)


# Tolerances: relative for voxel sizes (quaternion and pixdim are float32), in voxels for places.
_OTHER_SIZE, _OTHER_PLACE = 1e-3, 0.1
_MOST_CODE, _UNIT_CODES = 5, (0, 1, 2, 3)


def contradictions(file: StoredFile) -> str:
    """Return the contradictions within a NIfTI header; empty if it is consistent."""
    suffix = place_in_archive(file.name).lower().removesuffix(".gz")
    if not suffix.endswith((".nii", ".hdr")):
        return ""
    raw = head_of(file, place_in_archive(file.name).lower().endswith(".gz"))
    fields, size = fields_of(raw, file.name)
    if not raw[_MAGIC_AT[size] :].startswith(_MAGICS):
        return ""
    dims, pixdim = [int(n) for n in fields["dim"]], np.abs(fields["pixdim"][1:4].astype(float))
    codes = {key: int(fields[f"{key}_code"]) for key in ("sform", "qform")}
    units, doubts = int(fields["xyzt_units"]) & UNIT_BITS, list[str]()
    forms = {key: getattr(fields, f"get_{key}")() for key, code in codes.items() if code > 0}
    for key, affine in forms.items():
        sizes = np.linalg.norm(affine[:3, :3], axis=0)
        count = min(3, dims[0])
        if not np.allclose(sizes[:count], pixdim[:count], rtol=_OTHER_SIZE):
            doubts.append(f"{key} has voxels of {_text(sizes)} and pixdim of {_text(pixdim)}")
    if len(forms) == 2 and not doubts:
        corners = np.array(list(np.ndindex(2, 2, 2))) * (np.array([*dims[1:4]]) - 1)
        step = np.diff([corners @ a[:3, :3].T + a[:3, 3] for a in forms.values()], axis=0)
        away = float(np.linalg.norm(step, axis=-1).max())
        if away > _OTHER_PLACE * float(pixdim[: dims[0]].min()):
            doubts.append(f"sform and qform are up to {away:.3g} apart (codes {codes})")
    doubts += [f"its {key}_code is {n}" for key, n in codes.items() if not 0 <= n <= _MOST_CODE]
    if units not in _UNIT_CODES:
        doubts.append(f"its unit of length is {units}")
    if any(n > 1 for n in dims[dims[0] + 1 :]):
        doubts.append(f"its dim is {dims}: {dims[0]} axes, but lengths of more")
    bits = 8 * fields.get_data_dtype().itemsize
    if int(fields["bitpix"]) not in (bits, 0):
        doubts.append(f"its data type has {bits} bits, and its bitpix is {int(fields['bitpix'])}")
    return "; ".join(doubts)


def _text(numbers: Any) -> str:
    return " x ".join(f"{number:.4g}" for number in numbers)


def _orientation(fields: Any, name: str) -> tuple[float, ...]:
    from nibabel.spatialimages import HeaderDataError

    for key in filter(fields.keys().__contains__, ("qform_code", "sform_code")):
        if not 0 <= (code := int(fields[key])) <= _MOST_CODE:
            fields[key] = 0  # as nibabel and ITK do
            if not PLACEMENT.get().has_affine:
                msg = f"{name} has the {key} {code}, which NIfTI does not define; 0 is used."
                warn(f"unknown-code: {msg} Pass ⟦affine=⟧ to place the voxels.", LikelyMistake)
    try:
        # NumPy would warn of a signalling NaN in a damaged header.
        with np.errstate(invalid="ignore"):
            affine = np.array(fields.get_best_affine(), dtype=np.float64)
            has_form = "sform_code" in fields and (fields["sform_code"] or fields["qform_code"])
            if not has_form and (fields["pixdim"][1 : 1 + min(3, fields["dim"][0])] < 0).any():
                raise ValueError("pixdim[1,2,3] should be positive")
    except (HeaderDataError, ValueError) as error:
        why = f"its orientation cannot be read ({error})"
        raise bad_nifti(name, why, "Pass ⟦affine=⟧ to place the voxels.") from None
    if "xyzt_units" in fields:  # Analyze has none
        affine[:3] *= millimetres_in(UNITS[int(fields["xyzt_units"]) & UNIT_BITS], name)
    return affine_entries(affine, name)


def bad_nifti(name: str, why: str, do: str = "") -> BadHeader:
    """Return the error for an invalid header."""
    return BadHeader(f"{name} has no sound NIfTI header: {why}.", do=do)


def fields_of(raw: bytes, name: str) -> tuple[Any, int]:
    """Return nibabel's fields and the length of the header."""
    if len(raw) < NIFTI1_BYTES:
        what = f"{name} holds {len(raw)} bytes, and a NIfTI header has {NIFTI1_BYTES}."
        raise TruncatedVolume(what, do=what_to_do(raw))
    orders = {struct.unpack(order + "i", raw[:4])[0]: order for order in ("<", ">")}
    size = next((size for size in (NIFTI1_BYTES, NIFTI2_BYTES) if size in orders), 0)
    if not size and raw.startswith(_GZIP_MAGIC):
        raise BadHeader(f"{name} is compressed with gzip.", do="Name it .nii.gz, or decompress it.")
    if not size:
        why = f"it begins with {raw[:4]!r}, not with 348 or 540"
        raise bad_nifti(name, why, what_to_do(raw))
    if len(raw) < size:
        raise TruncatedVolume(f"{name} holds {len(raw)} bytes, and its NIfTI header has {size}.")
    from nibabel.nifti1 import Nifti1Header
    from nibabel.nifti2 import Nifti2Header

    build: Any = Nifti1Header if size == NIFTI1_BYTES else Nifti2Header
    fields = build(binaryblock=raw[:size], endianness=orders[size], check=False)
    # The handedness of the quaternion's axes; the format defines 0 as 1.
    fields["pixdim"][0] = fields["pixdim"][0] or 1
    return fields, size


# Enough compressed bytes to decode any header from.
HEAD_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS


def _open_by_head(
    file: StoredFile, parse: Callable[[bytes, str], RawHeader], do: str = ""
) -> Backend:
    """Open a file by the header in its first bytes.

    ``do`` is the advice for a file that is not compressed; with it, other bytes may follow the
    voxels.
    """
    place = place_in_archive(file.name) if "::" in file.name else file.name
    is_gzip = place.lower().endswith((".gz", ".mgz"))
    head = head_of(file, is_gzip, do) if is_gzip else file.head(NIFTI2_BYTES)
    fields, encoding = parse(head, file.name), "gzip" if is_gzip else "raw"
    return open_raw(fields, [file], file.name, encoding=encoding, trailing=bool(do))


def head_of(file: StoredFile, is_gzip: bool, do: str = "") -> bytes:
    """Return the first bytes of a file, decoded if ``is_gzip``, enough for a NIfTI header."""
    if not is_gzip:
        return file.head(NIFTI2_BYTES)
    head = file.head(HEAD_BYTES)
    try:
        decoder = zlib.decompressobj(_GZIP)
        raw = decoder.decompress(head, NIFTI2_BYTES)
        # A short member may begin a stream of several.
        while len(raw) < NIFTI2_BYTES and decoder.unused_data.startswith(_GZIP_MAGIC):
            rest, decoder = decoder.unused_data, zlib.decompressobj(_GZIP)
            raw += decoder.decompress(rest, NIFTI2_BYTES - len(raw))
        if raw.startswith(_GZIP_MAGIC):
            raise BadHeader(f"{file.name} is compressed with gzip twice.", do="Decompress it once.")
        return raw
    except zlib.error:
        what = f"{file.name} is not compressed with gzip: it begins with {head[:4]!r}."
        do = do or "Remove .gz from its name if it is not compressed."
        raise BadHeader(what, do=what_to_do(head, do)) from None


_MAGIC_AT = {NIFTI1_BYTES: 344, NIFTI2_BYTES: 4}
# nibabel also accepts pairs with the magic of a single file.
_MAGICS = (b"ni1", b"n+1", b"ni2", b"n+2")
# SPM's two matrices of 4 x 4 take 400 bytes; deflated contents may expand a thousand times.
_MOST_MAT_BYTES = 64 * 1024


def open_pair(file: StoredFile) -> Backend:
    """Open a pair by either of its names; both files are compressed, or none.

    Analyze pairs must be local, because only local reads include the ``.mat`` with their place.
    """
    name = file.name
    place = place_in_archive(name).lower()
    is_gzip, is_header = place.endswith(".gz"), place.removesuffix(".gz").endswith(".hdr")
    header = file if is_header else file.with_suffix(".img", ".hdr")
    voxels = file.with_suffix(".hdr", ".img") if is_header else file
    raw, files = head_of(header, is_gzip), [header, voxels]
    fields, size = fields_of(raw, header.name)
    if raw[_MAGIC_AT[size] :].startswith(_MAGICS):
        raw_fields = raw_header(fields, 0, header.name)
    elif size == NIFTI1_BYTES:
        raw_fields, mats = _parse_analyze(raw, fields.endianness, header)
        files = [*mats, *files]
    else:
        raise bad_nifti(header.name, f"its magic is {raw[4:8]!r}")
    return open_raw(raw_fields, files, name, encoding="gzip" if is_gzip else "raw")


def _parse_analyze(
    raw: bytes, order: str, header: StoredFile
) -> tuple[RawHeader, list[LocalStoredFile]]:
    """Return the raw header of an Analyze header, by nibabel's rules, and its ``.mat`` files."""
    # Plain, SPM99 or SPM2. The first axis runs to the left and the origin is SPM's field or the
    # centre. A ``.mat`` in the folder has precedence.
    from nibabel.spm2analyze import Spm2AnalyzeHeader

    fields: Any = Spm2AnalyzeHeader(binaryblock=raw[:NIFTI1_BYTES], endianness=order, check=False)
    raw_fields = raw_header(fields, 0, header.name)
    if not isinstance(header, LocalStoredFile):
        msg = f"{header.name} is an Analyze header, which is only read from local disks."
        raise BadHeader(msg, do="Copy both files, or convert them to .nii.")
    stem, ending = os.path.splitext(header.path.removesuffix(".gz"))[0], header.path[-3:]
    paths = [f"{stem}.mat", f"{stem}.mat.gz"] if ending == ".gz" else [f"{stem}.mat"]
    mats = [LocalStoredFile(path, optional=True) for path in paths]
    size, do = max(mat.size for mat in mats), "Remove it if it does not belong to the image."
    if size < 0 or (len(mats) > 1 and PLACEMENT.get().has_affine):
        return raw_fields, mats
    if len(mats) > 1:
        msg = f"{header.name} is compressed, and nibabel ignores its {paths[0]}, but not .mat.gz."
        raise BadHeader(msg, do="Decompress the image and its .mat, or pass ⟦affine=⟧.")
    if size > _MOST_MAT_BYTES:
        msg = f"{paths[0]} takes {size} bytes, and the matrices of an image {_MOST_MAT_BYTES}"
        raise BadHeader(f"{msg} at most.", do=do)
    import nibabel

    place = f"the .mat of {header.name}"
    with library_errors(f"{place} cannot be read", do, but=(ImportError,)):
        try:
            image: Any = nibabel.load(header.path)
        except ImportError as error:
            raise MissingDependency(f"{place} needs scipy.", do="pip install scipy") from error
    return replace(raw_fields, affine=affine_entries(image.affine, header.name)), mats


# FreeSurfer's MGH: ``.mgh``, and ``.mgz`` as one gzip stream. Acquisition parameters and tags of
# any length follow the voxels.

# Offset of the voxels, after the fields and their reserve.
MGH_BYTES = 284
# End of the fields up to those of goodRASFlag; nibabel pads the rest.
_FIELD_BYTES = 90


def parse_mgh(raw: bytes, name: str) -> RawHeader:
    """Parse the first 284 bytes of an MGH file."""
    from nibabel.freesurfer.mghformat import MGHHeader

    if raw.startswith(_GZIP_MAGIC):
        raise BadHeader(f"{name} is compressed with gzip.", do="Name it .mgz, or decompress it.")
    if len(raw) < MGH_BYTES:
        what = f"{name} holds {len(raw)} bytes, and an MGH header has {MGH_BYTES}."
        raise TruncatedVolume(what, do=what_to_do(raw))
    fields: Any = MGHHeader(raw[:_FIELD_BYTES], check=False)
    dims = [int(n) for n in fields["dims"]]
    if int(fields["version"]) != 1 or min(dims) < 1:
        why = f"version {int(fields['version'])}, dimensions {dims}"
        raise BadHeader(f"{name} has no sound MGH header: {why}.", do=what_to_do(raw))
    try:
        dtype = fields.get_data_dtype()
    except KeyError:
        msg = f"{name} holds voxels of MGH type {int(fields['type'])}, which is not read."
        do = "Convert them with mri_convert -odt float, for instance."
        raise UnknownFormat(msg, do=do) from None
    # NumPy would warn of overflow by the numbers of a damaged header.
    with np.errstate(over="ignore", invalid="ignore"):
        affine = fields.get_affine()
    warn_of_surface(dims, name)
    millimetres_in("mm", name)  # of every MGH file
    # Frames, the fourth, become channels.
    return RawHeader(fastest_first(dims), dtype, MGH_BYTES, affine_entries(affine, name))


_open_mgh = partial(_open_by_head, parse=parse_mgh, do="Name it .mgh if it is not compressed.")
_open_nifti = partial(_open_by_head, parse=parse_nifti)
FORMATS = (
    Format("mgh", (".mgh", ".mgz", ".mgh.gz"), _open_mgh),
    Format("nifti", (".nii",), _open_nifti),
    Format("nifti-gz", (".nii.gz",), _open_nifti),
    Format("nifti-pair", (".hdr", ".img", ".hdr.gz", ".img.gz"), open_pair),
)
