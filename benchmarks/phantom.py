"""Volumes for the benchmarks: a body, organs in it, and noise.

    python benchmarks/phantom.py FOLDER --count 6 --shape 320 320 256 --formats nii nii.gz

Compression, page faults and interpolation behave on these as on a scan: smooth structures of
many sizes, about 5 bits of noise in every voxel, no run of equal values. Written in a process of
its own, because the libraries that write would otherwise count as memory of those that read.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMATS = ("nii", "nii.gz", "zarr64", "zarr32", "shard128", "converted", "b2nd", "h5")
"""zarr64 is zarr v3 in chunks of 64^3 voxels, compressed as zarr-python does by default;
shard128 is chunks of 32^3 in shards of 128^3; converted is what ``convert`` writes; b2nd is what
nnU-Net makes of the scan, normalised float32 and int8; h5 is chunks of 32^3, shuffled and
deflated."""
PATCH = 96
"""Edge of the patches for which b2nd chooses its chunks, in voxels."""
SHARDED_CHUNK = 32
AFFINE = np.array([[-0.8, 0, 0, 128], [0, -0.8, 0, 128], [0, 0, 1.25, -160], [0, 0, 0, 1.0]])
"""A CT of the trunk: 0.8 mm in the plane and 1.25 mm between planes."""
NOISE = 15.0
"""Standard deviation of a CT's noise in Hounsfield units."""
# (place as a part of the length, radius as a part of it, Hounsfield units above soft tissue).
ORGANS = (
    ((0.35, 0.45, 0.50), (0.12, 0.20, 0.30), -850.0),
    ((0.65, 0.45, 0.50), (0.12, 0.20, 0.30), -850.0),
    ((0.50, 0.70, 0.50), (0.05, 0.05, 0.45), 700.0),
    ((0.55, 0.35, 0.30), (0.15, 0.12, 0.15), 60.0),
)


def scan(
    shape: Sequence[int], rng: np.random.Generator, whole: Sequence[int], start: Sequence[int]
) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Return image and label of the box of ``shape`` that begins at ``start`` of a scan.

    Parameters
    ----------
    shape
        Shape of the box in voxels.
    rng
        Makes the noise.
    whole
        Shape of the whole scan.
    start
        First voxel of the box.
    """
    place = [
        ((np.arange(n, dtype=np.float32) + a) / w).reshape(
            [-1 if axis == b else 1 for b in range(3)]
        )
        for axis, (n, a, w) in enumerate(zip(shape, start, whole, strict=True))
    ]
    image = rng.standard_normal(tuple(shape), dtype=np.float32)
    image *= NOISE
    # Tissue is never flat: ripples of a few voxels up to a tenth of the body.
    ripples = [np.sin(2 * np.pi * x * waves) for x, waves in zip(place, (11, 17, 23), strict=True)]
    image += 20 * ripples[0] * ripples[1] + 15 * ripples[1] * ripples[2]
    image += _soft(place, (0.5, 0.5, 0.5), (0.46, 0.46, 0.8)) * 1040 - 1000
    label = np.zeros(tuple(shape), np.uint8)
    for number, (centre, radii, units) in enumerate(ORGANS, 1):
        inside = _soft(place, centre, radii)
        image += units * inside
        label[inside > 0.5] = number
    return np.rint(image).astype(np.int16), label


def _soft(place: Sequence[Any], centre: Sequence[float], radii: Sequence[float]) -> Any:
    """Return 1 inside an ellipsoid and 0 outside, with an edge that is a few voxels wide."""
    distance = sum(((x - c) / r) ** 2 for x, c, r in zip(place, centre, radii, strict=True))
    return 1 / (1 + np.exp(np.clip((distance - 1) * 40, -60, 60)))


def write_cases(
    folder: Path, count: int, shape: Sequence[int], formats: Sequence[str], patch: int = PATCH
) -> dict[str, list[dict[str, str]]]:
    """Write ``count`` cases of int16 image and uint8 label in each format."""
    for number in range(count):
        image, label = scan(shape, np.random.default_rng(number), shape, (0, 0, 0))
        for key, array in (("image", image), ("label", label)):
            for name in formats:
                path = path_of(folder, number, key, name)
                if name == "b2nd":
                    import b2nd

                    b2nd.write(b2nd.preprocessed(array, key), str(path), patch)
                elif name == "converted":
                    import voxpipe as vp

                    volume = vp.Volume(
                        array, affine=AFFINE, kind="label" if key == "label" else "intensity"
                    )
                    vp.convert(volume, path, patch=patch)
                else:
                    _write(path, array, name)
    return {name: cases(folder, count, name) for name in formats}


def cases(folder: Path, count: int, name: str) -> list[dict[str, str]]:
    """Return the paths of the cases in one format, as ``from_cases`` takes them."""
    return [
        {
            "case": f"case{number}",
            **{key: str(path_of(folder, number, key, name)) for key in ("image", "label")},
        }
        for number in range(count)
    ]


def path_of(folder: Path, number: int, key: str, name: str) -> Path:
    """Return where one volume lies."""
    suffix = f"{name}.zarr" if name.startswith(("zarr", "shard", "converted")) else name
    return folder / f"case{number}_{key}.{suffix}"


def _write(path: Path, array: NDArray[Any], name: str) -> None:
    if name.startswith("zarr"):
        import zarr

        edge = int(name.removeprefix("zarr"))
        chunks = tuple(min(edge, n) for n in array.shape)
        stored = zarr.create_array(path, shape=array.shape, chunks=chunks, dtype=array.dtype)
        stored[...] = array
        return
    if name.startswith("shard"):
        import zarr

        edge = int(name.removeprefix("shard"))
        stored = zarr.create_array(
            path,
            shape=array.shape,
            chunks=(SHARDED_CHUNK,) * 3,
            shards=(edge,) * 3,
            dtype=array.dtype,
        )
        stored[...] = array
        return
    if name == "h5":
        import h5py

        edges = tuple(min(SHARDED_CHUNK, n) for n in array.shape)
        with h5py.File(path, "w") as file:
            file.create_dataset("volume", data=array, chunks=edges, compression=1, shuffle=True)
        return
    import nibabel

    nibabel.save(nibabel.Nifti1Image(array, AFFINE), path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--shape", type=int, nargs=3, default=(320, 320, 256))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--patch", type=int, default=PATCH, help="for the chunks of b2nd")
    chosen = parser.parse_args()
    write_cases(chosen.folder, chosen.count, chosen.shape, chosen.formats, chosen.patch)


if __name__ == "__main__":
    main()
