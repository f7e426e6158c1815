"""Every op keeps the contract of spatial ops."""

from __future__ import annotations

import numpy as np

from voxpipe.spatial import (
    Affine,
    Augment,
    CenterCrop,
    Crop,
    CropOrPad,
    FixedPatch,
    Flip,
    Pad,
    Rotate,
    Rotate90,
    Shear,
    SpatialOp,
    Translate,
    UniformPatch,
    Zoom,
)
from voxpipe.testing import SpatialOpContract

WHOLE = SpatialOpContract.GRID.shape


class TestCrop(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Crop((2, 1, 3), (5, 6, 3))

    def make_nothing(self) -> SpatialOp:
        return Crop((0, 0, 0), WHOLE)


class TestHardCrop(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Crop((2, 1, 3), (5, 6, 3), hard=True)

    def make_nothing(self) -> SpatialOp:
        return Crop((0, 0, 0), WHOLE, hard=True)


class TestCenterCrop(SpatialOpContract):
    def make(self) -> SpatialOp:
        return CenterCrop((4, 4, 4))

    def make_nothing(self) -> SpatialOp:
        return CenterCrop(WHOLE)


class TestPad(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Pad(((1, 2), (0, 3), (2, 0)))

    def make_nothing(self) -> SpatialOp:
        return Pad(0)


class TestCropOrPad(SpatialOpContract):
    def make(self) -> SpatialOp:
        return CropOrPad((12, 5, 7))

    def make_nothing(self) -> SpatialOp:
        return CropOrPad(WHOLE)


class TestFlip(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Flip((0, 2))

    def make_nothing(self) -> SpatialOp:
        return Flip((0, 2), p=0)


class TestRotate90(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Rotate90(1, (0, 2))

    def make_nothing(self) -> SpatialOp:
        return Rotate90(0, (0, 2))


class TestRotate(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Rotate((-25, 25))

    def make_nothing(self) -> SpatialOp:
        return Rotate(0)


class TestRotateInVoxels(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Rotate((-25, 25), space="voxel")

    def make_nothing(self) -> SpatialOp:
        return Rotate(0, space="voxel")


class TestZoom(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Zoom((0.7, 1.4))

    def make_nothing(self) -> SpatialOp:
        return Zoom(1)


class TestZoomInAPlane(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Zoom((0.7, 1.4), space="voxel", axes=(1, 2), by_inverse=True)

    def make_nothing(self) -> SpatialOp:
        return Zoom(1, axes=(1, 2), by_inverse=True)


class TestTranslate(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Translate((-2, 2))

    def make_nothing(self) -> SpatialOp:
        return Translate(0)


class TestShear(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Shear((-0.3, 0.3))

    def make_nothing(self) -> SpatialOp:
        return Shear(0)


class TestAffine(SpatialOpContract):
    def make(self) -> SpatialOp:
        matrix = np.array([[1.1, 0.1, 0, 1], [0, 0.9, 0.2, -1], [0.1, 0, 1, 0.5], [0, 0, 0, 1]])
        return Affine(matrix, shape=(6, 7, 8))

    def make_nothing(self) -> SpatialOp:
        return Affine(np.eye(4))


class TestAugment(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Augment(rotate=(-20, 20), zoom=(0.8, 1.2), translate=(-2, 2), shear=0.1, flip=0.5)

    def make_nothing(self) -> SpatialOp:
        return Augment()


class TestUniformPatch(SpatialOpContract):
    def make(self) -> SpatialOp:
        return UniformPatch((4, 5, 6))

    def make_nothing(self) -> SpatialOp:
        return UniformPatch(WHOLE)


class TestFixedPatch(SpatialOpContract):
    def make(self) -> SpatialOp:
        return FixedPatch((-1, 2, 3), (4, 5, 6))

    def make_nothing(self) -> SpatialOp:
        return FixedPatch((0, 0, 0), WHOLE)
