"""The shapes of chunks and blocks that nnU-Net gives a volume in blosc2's format."""

from __future__ import annotations

import math
from collections.abc import Sequence

KIB = 1024
# nnU-Net's rule of June 2026: blocks for the first-level cache, chunks for the last.
BLOCK_BYTES = 128 * KIB
CHUNK_BYTES = 6 * KIB * KIB
MOST_OF_PATCH = 1.5
"""A chunk is at most this many times the patch along each axis."""


def partition(
    shape: Sequence[int], patch: Sequence[int], item_bytes: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of chunk and block, in voxels.

    Parameters
    ----------
    shape
        Shape of the volume in voxels.
    patch
        Shape of the patches that will be read.
    item_bytes
        Bytes of one voxel.
    """
    target = [min(n, math.floor(MOST_OF_PATCH * p)) for n, p in zip(shape, patch, strict=True)]
    axes = range(len(target))
    block = [min(1 << (p - 1).bit_length(), n) for n, p in zip(shape, patch, strict=True)]
    while math.prod(block) * item_bytes > BLOCK_BYTES:
        # Ties go to the last axis.
        axis = max(axes, key=lambda a: (block[a] / target[a], a))
        # The power of two below, also where the block was cut to the volume.
        block[axis] = 1 << ((block[axis] - 1).bit_length() - 1)
    chunk = list(block)
    while True:
        larger = {}
        for axis in axes:
            grown = min(chunk[axis] + block[axis], target[axis])
            size = math.prod(chunk) // chunk[axis] * grown * item_bytes
            if grown > chunk[axis] and size <= CHUNK_BYTES:
                larger[axis] = grown
        if not larger:
            return tuple(chunk), tuple(block)
        # Ties go to the axis along which the volume is larger.
        axis = min(larger, key=lambda a: (chunk[a] / target[a], -shape[a]))
        chunk[axis] = larger[axis]
