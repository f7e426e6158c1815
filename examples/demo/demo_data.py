"""Cases for the demo: one real brain, written as a clinic would have stored it.

The ICBM 152 template (T1 with its grey and white matter maps) comes inside the nilearn
package, so nothing is downloaded. Each variant cuts it elsewhere, turns its axes, moves
its origin, changes its contrast and adds noise, and stores it in one of three formats.
All variants show one head: the demo's Dice says that a network learns from what the
pipeline delivers, not how well it would do on another person.

nibabel and zarr write the files: the demo must not read what voxpipe itself has written.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from voxpipe.core import Affine, Stream
from voxpipe.core.errors import MissingDependency, UnknownFormat, VolumeError

BACKGROUND, GREY, WHITE = 0, 1, 2
CLASSES = {GREY: "grey matter", WHITE: "white matter"}
# The template's maps are stored as 0..255 for a probability of 0..1.
CERTAIN = 255
# Twelve-bit greys, as scanners store them.
BRIGHTEST = 4095
# Standard deviation of the noise inside the head, as a share of BRIGHTEST.
NOISE = 0.02
# Cut out of the template's 197 x 233 x 189 voxels; the head is 145 x 181 x 155 of them.
CASE_SHAPE = (164, 200, 160)
# Changing how cases are made makes older ones on disk stale.
RECIPE_VERSION = 1
MANIFEST = "cases.json"
DATA_SEED = 152
TEMPLATE_FILE = "mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"
# 64 cubed int16 voxels are 512 KiB before compression: large enough to read at once from a
# disk, small enough that a patch of 48 touches eight at most where it lies badly.
CHUNK = 64
# NIfTI's code for coordinates of the scanner that made the image.
SCANNER = 1


@dataclass(frozen=True)
class Variant:
    """How one case differs from the template."""

    name: str
    """Name of the case and of its folder."""
    suffix: str
    """``.nii``, ``.nii.gz`` or ``.nii.zarr``."""
    axes: str
    """Where the array's axes point: ``LPS`` is left, posterior, superior."""
    start: tuple[int, int, int]
    """First voxel of the template that is in the case."""
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """How far the head lay from the template's place, in millimetres."""
    gamma: float = 1.0
    """Exponent of the contrast; below 1 brightens grey matter."""
    held_out: bool = False
    """Whether the case is for testing only."""


VARIANTS = (
    Variant("head-0", ".nii.gz", "RAS", (16, 20, 0)),
    Variant("head-1", ".nii", "LPS", (10, 14, 4), (12.0, -30.0, 8.5), 0.9),
    Variant("head-2", ".nii.zarr", "RSA", (24, 24, 2), (0.5, 4.0, -2.25), 1.1),
    Variant("head-3", ".nii.zarr", "PIR", (18, 10, 0), (-6.0, 0.0, 40.0), 0.85),
    Variant("head-4", ".nii", "ASL", (12, 26, 6), (3.0, 17.5, 1.0), 1.15),
    Variant("head-5", ".nii.gz", "RPI", (20, 16, 3), (-20.0, 5.0, -9.0), 0.95),
    Variant("held-out-0", ".nii.zarr", "LAS", (14, 22, 1), (7.0, -2.5, 3.0), 1.05, held_out=True),
    Variant("held-out-1", ".nii.gz", "SAR", (22, 12, 5), (-1.5, 9.0, 0.0), 0.92, held_out=True),
)
"""The cases that the demo writes: six to train on, two to test with."""


@dataclass(frozen=True)
class Case:
    """One case on disk, or in a bucket."""

    name: str
    """Name, as in :class:`Variant`."""
    image: Path | str
    """The T1, int16; a URL where it is in a bucket."""
    label: Path | str
    """Background, grey and white matter, uint8."""
    held_out: bool
    """Whether the case is for testing only."""


@dataclass(frozen=True)
class Head:
    """The template as arrays of one shape (I, J, K)."""

    t1: NDArray[np.uint8]
    """Greys, 0..255; 0 outside the head."""
    label: NDArray[np.uint8]
    """BACKGROUND, GREY or WHITE."""
    affine: Affine
    """Voxel index to world millimetres, RAS+."""


def prepare(
    folder: Path, variants: Sequence[Variant] = VARIANTS, head: Head | None = None
) -> list[Case]:
    """Write the cases into ``folder`` and return them; what is already there is kept.

    Parameters
    ----------
    folder
        Made if it does not exist. Cases of an older recipe in it are replaced.
    variants
        What to write.
    head
        What to write variants of; the template in nilearn by default.

    Raises
    ------
    MissingDependency
        If the template is needed and nilearn is not installed.
    VolumeError
        If ``folder`` holds files that this function did not write.
    """
    recipe = fingerprint(variants)
    if _recipe_of(folder) != recipe:
        head = head or read_template()
        # Beside the final place, and moved there at the end: an interrupted run leaves no half.
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}.part")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for variant in variants:
            write_case(fresh, variant, head)
        (fresh / MANIFEST).write_text(json.dumps({"recipe": recipe}), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return [_case(folder, variant) for variant in variants]


def fingerprint(variants: Sequence[Variant]) -> str:
    """Return a short text that changes when the cases would.

    Examples
    --------
    >>> fingerprint(VARIANTS) == fingerprint(VARIANTS[:3])
    False
    """
    text = repr((RECIPE_VERSION, DATA_SEED, NOISE, CASE_SHAPE, tuple(variants)))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read_template() -> Head:
    """Return the ICBM 152 template from the files inside nilearn, which is not imported."""
    import nibabel

    folder = _template_folder()
    files = [folder / TEMPLATE_FILE.format(kind) for kind in ("t1", "gm", "wm")]
    images = [nibabel.Nifti1Image.from_filename(file) for file in files]
    t1, grey, white = (np.asanyarray(image.dataobj) for image in images)
    return Head(t1, tissue_labels(grey, white), np.array(images[0].affine, dtype=np.float64))


def tissue_labels(grey: NDArray[np.uint8], white: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the likeliest of background, grey and white matter in every voxel.

    The two maps hold 0..255 for a probability of 0..1; the rest is background.

    Examples
    --------
    >>> tissue_labels(np.array([0, 200, 60], "u1"), np.array([10, 55, 195], "u1"))
    array([0, 1, 2], dtype=uint8)
    """
    rest = CERTAIN - grey.astype(np.int16) - white
    label = np.where(grey >= white, GREY, WHITE)
    return np.where(rest > np.maximum(grey, white), BACKGROUND, label).astype(np.uint8)


def write_case(folder: Path, variant: Variant, head: Head) -> Case:
    """Write the image and the label of one variant, and return where they are."""
    case = _case(folder, variant)
    Path(case.image).parent.mkdir()
    inside = tuple(
        slice(start, min(start + size, full))
        for start, size, full in zip(variant.start, CASE_SHAPE, head.t1.shape, strict=True)
    )
    affine = np.array(head.affine)
    affine[:3, 3] += affine[:3, :3] @ variant.start + variant.shift
    t1, label = scanned(head.t1[inside], variant), head.label[inside]
    for path, voxels in ((case.image, t1), (case.label, label)):
        turned, turned_affine = turn(voxels, affine, variant.axes)
        write_volume(Path(path), turned, turned_affine)
    return case


def scanned(t1: NDArray[np.uint8], variant: Variant) -> NDArray[np.int16]:
    """Return the greys as another scanner would have stored them: contrast, range and noise."""
    generator = Stream(DATA_SEED, 0, variant.start, variant.name).generator()
    greys = (t1.astype(np.float32) / CERTAIN) ** variant.gamma
    greys += generator.normal(0.0, NOISE, t1.shape).astype(np.float32)
    # Outside the head there is nothing, noise included: the template is cut out.
    stored = np.clip(np.rint(greys * BRIGHTEST), 0, BRIGHTEST) * (t1 > 0)
    return stored.astype(np.int16)


def turn(voxels: NDArray[Any], affine: Affine, axes: str) -> tuple[NDArray[Any], Affine]:
    """Return the same volume stored along other axes, without moving it in the world.

    Examples
    --------
    >>> voxels, affine = turn(np.arange(3).reshape(3, 1, 1), np.eye(4), "LAS")
    >>> voxels.ravel()
    array([2, 1, 0])
    >>> (affine @ (0, 0, 0, 1)).tolist()
    [2.0, 0.0, 0.0, 1.0]
    """
    from nibabel import orientations

    change = orientations.ornt_transform(
        orientations.io_orientation(affine), orientations.axcodes2ornt(tuple(axes))
    )
    turned = orientations.apply_orientation(voxels, change)
    back = orientations.inv_ornt_aff(change, voxels.shape)
    return np.ascontiguousarray(turned), affine @ back


def _case(folder: Path, variant: Variant) -> Case:
    place = folder / variant.name
    image, label = (place / f"{kind}{variant.suffix}" for kind in ("t1", "label"))
    return Case(variant.name, image, label, variant.held_out)


def _recipe_of(folder: Path) -> str:
    """Return what the cases in ``folder`` were made from; empty if there are none."""
    manifest = folder / MANIFEST
    if manifest.is_file():
        return str(json.loads(manifest.read_text("utf-8")).get("recipe", ""))
    if folder.exists() and any(folder.iterdir()):
        # Replacing it could delete somebody's work.
        raise VolumeError(
            f"{folder} holds files that the demo did not write",
            do="Choose another folder with --output, or empty this one.",
        )
    return ""


def _template_folder() -> Path:
    # Importing nilearn takes seconds and brings pandas and scikit-learn; its files are enough.
    found = importlib.util.find_spec("nilearn")
    if found is None or not found.submodule_search_locations:
        raise MissingDependency(
            "the demo's data are inside nilearn, which is not installed",
            do='Install it: pip install "voxpipe[demo]".',
        )
    return Path(found.submodule_search_locations[0]) / "datasets" / "data"


def write_volume(path: Path, voxels: NDArray[Any], affine: Affine) -> None:
    """Write ``voxels`` (I, J, K) in the format that the name of ``path`` asks for.

    Parameters
    ----------
    path
        Ends in ``.nii``, ``.nii.gz`` or ``.nii.zarr``; its folder exists.
    voxels
        Any type that NIfTI has.
    affine
        4x4, voxel index to world millimetres, RAS+.

    Raises
    ------
    UnknownFormat
        If the name ends otherwise.
    """
    if path.name.endswith((".nii", ".nii.gz")):
        _image(voxels, affine).to_filename(path)
    elif path.name.endswith(".nii.zarr"):
        _write_nifti_zarr(path, voxels, affine)
    else:
        raise UnknownFormat(f"cannot write {path.name}", do="Name it .nii, .nii.gz or .nii.zarr.")


def _image(voxels: NDArray[Any], affine: Affine) -> Any:
    import nibabel

    image = nibabel.Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    image.set_qform(affine, code=SCANNER)
    image.set_sform(affine, code=SCANNER)
    return image


def _write_nifti_zarr(path: Path, voxels: NDArray[Any], affine: Affine) -> None:
    """Write a group with the voxels as ``0`` (z, y, x) and the bytes of a NIfTI header."""
    import zarr

    image = _image(voxels, affine)
    image.update_header()
    header = np.frombuffer(image.header.binaryblock, dtype=np.uint8)
    spacing = [float(s) for s in image.header.get_zooms()]

    group: Any = zarr.open_group(str(path), mode="w")
    group.attrs.update(_ome_metadata(path.name, spacing))
    stored: Any = zarr.open_array(
        str(path / "0"),
        mode="w",
        shape=voxels.shape[::-1],
        chunks=tuple(min(CHUNK, n) for n in voxels.shape[::-1]),
        dtype=voxels.dtype,
        dimension_names=["z", "y", "x"],
    )
    stored[...] = voxels.T
    block: Any = zarr.open_array(
        str(path / "nifti"), mode="w", shape=header.shape, chunks=header.shape, dtype=np.uint8
    )
    block[...] = header


def _ome_metadata(name: str, spacing: list[float]) -> dict[str, Any]:
    """Return the attributes that make the group an OME-Zarr image of one level."""
    scale = {"type": "scale", "scale": spacing[::-1]}
    image = {
        "name": name,
        "axes": [{"name": axis, "type": "space", "unit": "millimeter"} for axis in "zyx"],
        "datasets": [{"path": "0", "coordinateTransformations": [scale]}],
    }
    return {"ome": {"version": "0.5", "multiscales": [image]}}
