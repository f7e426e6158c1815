"""What the kernel is compared with, and the volume that all of them sample.

Each peer gets what its users have: a box of stored voxels and a matrix. For torch the box becomes a
float32 tensor, the matrix normalised coordinates, and a displacement a dense field.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import affine_grid, grid_sample, interpolate

from voxpipe.spatial import Displacement
from voxpipe.spatial.resampling import native_resampler as native

Region = Callable[[NDArray[np.float64]], tuple[NDArray[Any], NDArray[np.float64]]]
"""The middle of a patch to its voxels and the 3x4 matrix from output index to index in them."""


def mapped_volume(path: Path, stored: str, order: str, size: int) -> NDArray[Any]:
    """Return a volume of about ``size`` bytes, (1, n, n, n), mapped from a file it writes."""
    dtype = np.dtype(stored)
    edge = max(40, round((size / dtype.itemsize) ** (1 / 3)))
    rng = np.random.default_rng(1)
    written = np.memmap(path, dtype, "w+", shape=(edge, edge, edge))
    for part in written:  # a slice at a time: memory stays small
        part[...] = rng.integers(0, 100, (edge, edge))
    written.flush()
    volume = np.memmap(path, dtype, "r", shape=(edge, edge, edge))
    volume.max()  # every page is in place
    return (volume if order == "C" else volume.T)[None]


class TimedLibrary:
    """The kernel's library, with a list of how long each job took."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.seconds: list[float] = []

    def voxpipe_run(self, job: bytes) -> int:
        """Do the job."""
        started = time.thread_time()
        status = int(self.library.voxpipe_run(job))
        self.seconds.append(time.thread_time() - started)
        return status


@contextmanager
def seconds_in_kernel() -> Iterator[list[float]]:
    """Collect how long each job of the kernel takes, apart from the call around it."""
    find = native._library
    library = find()
    timed = TimedLibrary(library)
    if library is not None:
        native._library = lambda: timed  # type: ignore[assignment]
    try:
        yield timed.seconds
    finally:
        native._library = find


def normalised(matrix: NDArray[np.float64], shape: Sequence[int], size: Sequence[int]) -> Any:
    """Return a pull-back for ``affine_grid``, whose axes are (k, j, i) and run from -1 to 1."""
    to_index = np.diag([*(n / 2 for n in shape), 1.0])
    to_index[:3, 3] = [(n - 1) / 2 for n in shape]
    from_index = np.diag([*(2 / n for n in size), 1.0])
    from_index[:3, 3] = [1 / n - 1 for n in size]
    whole = from_index @ np.vstack([matrix, [0, 0, 0, 1]]) @ to_index
    theta = whole[[2, 1, 0, 3]][:, [2, 1, 0, 3]][:3]
    return torch.from_numpy(theta[None].astype(np.float32))


def torch_sampler(
    region: Region, shape: Sequence[int], mode: str, field: Displacement | None
) -> Callable[[NDArray[np.float64]], float]:
    """Return the recipe of MONAI and nnU-Net; its answer is the seconds of the conversion.

    A displacement is brought to the size of the patch by trilinear interpolation, which is the
    cheapest way there is: a spline, or a smoothed dense field, takes longer.
    """
    torch.set_num_threads(1)
    coarse = None
    if field is not None:
        coarse = torch.from_numpy(field.control[None].astype(np.float32))
    torch_mode = {"linear": "bilinear", "nearest": "nearest"}[mode]

    def sample(middle: NDArray[np.float64]) -> float:
        voxels, matrix = region(middle)
        started = time.thread_time()
        values = torch.from_numpy(np.ascontiguousarray(voxels, np.float32))[None, None]
        converted = time.thread_time() - started
        theta = normalised(matrix, shape, voxels.shape)
        grid = affine_grid(theta, [1, 1, *shape], align_corners=False)
        if coarse is not None:
            dense = interpolate(coarse, size=tuple(shape), mode="trilinear", align_corners=True)
            scale = torch.tensor([2 / n for n in voxels.shape])[None, :, None, None, None]
            grid += (dense * scale).flip(1).permute(0, 2, 3, 4, 1)
        grid_sample(values, grid, torch_mode, padding_mode="border", align_corners=False)
        return converted

    return sample


def scipy_is_there() -> bool:
    """Whether the comparison with SciPy can be made."""
    return importlib.util.find_spec("scipy") is not None


def scipy_sampler(
    region: Region, out: NDArray[Any], mode: str, field: Displacement | None
) -> Callable[[NDArray[np.float64]], None]:
    """Return ``affine_transform``, or with a displacement ``map_coordinates`` of a dense field.

    Cubic is its spline, which filters the box first: a better and a slower interpolant.
    """
    from scipy import ndimage

    order = {"nearest": 0, "linear": 1, "cubic": 3}[mode]
    shape = out.shape[1:]

    def known(voxels: NDArray[Any]) -> NDArray[Any]:
        return voxels.astype(np.float32) if voxels.dtype == np.float16 else voxels

    def affine(middle: NDArray[np.float64]) -> None:
        voxels, matrix = region(middle)
        ndimage.affine_transform(
            *(known(voxels), matrix[:, :3], matrix[:, 3], shape, out[0], order), mode="nearest"
        )

    def elastic(middle: NDArray[np.float64]) -> None:
        voxels, matrix = region(middle)
        i, j, k = np.indices(shape, sparse=True)
        places = np.stack([row[0] * i + row[1] * j + row[2] * k + row[3] for row in matrix])
        for place, control in zip(places, field.control, strict=True):  # type: ignore[union-attr]
            factors = [n / m for n, m in zip(shape, control.shape, strict=True)]
            place += ndimage.zoom(control, factors, order=1)
        ndimage.map_coordinates(known(voxels), places, out[0], order, mode="nearest")

    return affine if field is None else elastic
