"""Write random-monai.npz and random-torchio.npz: what the peers' random transforms drew and made.

    python make_random_references.py monai      # with monai==1.6.1
    python make_random_references.py torchio    # with torchio==1.2.1

A row is a call of the peer: ``row/linear`` and ``row/nearest`` are its arrays, in sixteenths,
int16; whatever else is under its name is what it drew, in the peer's own units. MONAI makes the
same lazily and eagerly, else nothing is written. The volume and its grids are those of
``make_op_references.py``. MONAI's are on the oblique grid; TorchIO's on the one whose axes are at
right angles, but for the elastic deformation, where they are those of the world: ITK moves along
the axes of the world.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from make_op_references import AFFINE, DIAGONAL, STRAIGHT, VOLUME, sixteenths

HERE = Path(__file__).parent
SEED = 3
GRIDS = (((20, 17, 9), (8, 8, 4), (2, 4, 0)), ((8, 8, 8), (8, 4, 3), (0, 2, 2)))
"""Shape, patch size and overlap of patches that cover a volume; TorchIO wants even overlaps."""
CONTROL_POINTS = (7, 6, 7)
MOST = (0.9, 0.8, 1.4)
"""Millimetres that a control point may move along each axis."""
KEY = 12345
"""From which the control points are drawn, by NumPy's Philox."""
COARSER = 1.5


def monai_arrays() -> dict[str, np.ndarray]:
    import monai.transforms as mt
    import torch
    from monai.data import MetaTensor
    from monai.data.utils import dense_patch_slices
    from monai.transforms.lazy.functional import apply_pending

    turn, scale = (0.4, 0.3, 0.5), (0.2, 0.15, 0.25)
    slide, move = (0.2, 0.1, 0.15, 0.05, 0.1, 0.2), (2.0, 1.5, 1.0)
    every = {"rotate_range": turn, "scale_range": scale, "padding_mode": "border", "prob": 1}
    transforms = {
        "rand_affine": mt.RandAffine(shear_range=slide, translate_range=move, **every),
        "rand_affine_bundle": mt.RandAffine(**every),
        "rand_rotate": mt.RandRotate(*turn, prob=1, padding_mode="border"),
    }
    found: dict[str, np.ndarray] = {}
    for name, transform in transforms.items():
        for mode in ("linear", "nearest"):
            transform.set_random_state(SEED)
            image = MetaTensor(torch.tensor(VOLUME.astype(np.float32)), affine=AFFINE)
            how = {"mode": "bilinear" if mode == "linear" else mode}
            found[f"{name}/{mode}"] = sixteenths(transform(image, **how))
            transform.set_random_state(SEED)
            pending = transform(image, lazy=True)
            lazy, _ = apply_pending(pending, overrides={"padding_mode": "border", **how})
            if np.abs(sixteenths(lazy) - found[f"{name}/{mode}"].astype(float)).max() > 2:
                raise SystemExit(f"{name}/{mode}: lazily MONAI makes something else")
        if name == "rand_rotate":
            drawn = {"rotate": (transform.x, transform.y, transform.z)}
        else:
            grid = transform.rand_affine_grid
            drawn = {"rotate": grid.rotate_params, "scale": grid.scale_params}
            drawn |= {"shear": grid.shear_params, "translate": grid.translate_params}
        found |= {f"{name}/{what}": np.array(numbers) for what, numbers in drawn.items() if numbers}
    for number, (shape, size, overlap) in enumerate(GRIDS):
        step = [s - o for s, o in zip(size, overlap, strict=True)]
        boxes = dense_patch_slices(shape, size, step)
        found[f"grid/{number}"] = np.array([[part.start for part in box] for box in boxes])
    return found


def torchio_arrays() -> dict[str, np.ndarray]:
    import torch
    import torchio as tio

    how = {"default_pad_value": -50}
    every = {"scales": 0.2, "degrees": 15, "translation": 3, **how}
    about_z = {"scales": 0.2, "degrees": (0, 0, 0, 0, -15, 15), "isotropic": True, **how}
    transforms = {
        "random_affine": lambda mode: tio.RandomAffine(**every, image_interpolation=mode),
        "random_affine_z": lambda mode: tio.RandomAffine(**about_z, image_interpolation=mode),
        "elastic": lambda mode: tio.ElasticDeformation(
            in_itk_order(control_points(locked=0)), MOST, image_interpolation=mode
        ),
        "elastic_locked": lambda mode: tio.ElasticDeformation(
            in_itk_order(control_points(locked=1)), MOST, image_interpolation=mode
        ),
        "anisotropy": lambda mode: tio.RandomAnisotropy(
            axes=2, downsampling=(COARSER, COARSER), image_interpolation=mode
        ),
    }
    found: dict[str, np.ndarray] = {}
    for name, make in transforms.items():
        affine = DIAGONAL if name.startswith("elastic") else STRAIGHT
        for mode in ("linear", "nearest"):
            torch.manual_seed(SEED)
            image = tio.ScalarImage(tensor=torch.tensor(VOLUME.astype(np.float32)), affine=affine)
            made = make(mode)(tio.Subject(image=image))
            found[f"{name}/{mode}"] = sixteenths(made.image.data)
        if name.startswith("random_affine"):
            done = made.history[-1]
            for what in ("scales", "degrees", "translation"):
                found[f"{name}/{what}"] = np.array(getattr(done, what))
    for locked, name in enumerate(("elastic", "elastic_locked")):
        found[f"{name}/points"] = control_points(locked)
        found[f"{name}/key"], found[f"{name}/most"] = np.array(KEY), np.array(MOST)
    drawn = tio.RandomElasticDeformation.get_params(CONTROL_POINTS, MOST, 2)
    found["elastic_locked/moves"] = drawn.any(axis=-1)
    found["anisotropy/factor"] = np.array(COARSER)
    for number, (shape, size, overlap) in enumerate(GRIDS):
        places = tio.GridSampler._get_patches_locations(shape, size, overlap)
        found[f"grid/{number}"] = places[:, :3]
    return found


def control_points(locked: int) -> np.ndarray:
    """Return (3, a, b, c) millimetres to the right, to the front and up.

    The outermost points are as their neighbours, of which ``locked`` layers stay where they are.
    """
    generator = np.random.Generator(np.random.Philox(key=KEY))
    points = 2 * generator.random((3, *(n - 2 for n in CONTROL_POINTS))) - 1
    points *= np.reshape(MOST, (3, 1, 1, 1))
    if locked:
        inner = (slice(None), *[slice(locked, -locked)] * 3)
        kept = np.zeros_like(points)
        kept[inner] = points[inner]
        points = kept
    return np.pad(points, [(0, 0), *[(1, 1)] * 3], mode="edge")


def in_itk_order(points: np.ndarray) -> np.ndarray:
    """Return the points as ITK has them, which looks from the left, and from the back."""
    return np.moveaxis(points[:, ::-1, ::-1], 0, -1) * (-1, -1, 1)


def main() -> None:
    warnings.simplefilter("ignore")
    peer = sys.argv[1]
    arrays = monai_arrays() if peer == "monai" else torchio_arrays()
    np.savez_compressed(HERE / f"random-{peer}.npz", **arrays)


if __name__ == "__main__":
    main()
