"""Write ops-monai.npz and ops-torchio.npz: what the peers' spatial transforms make of one volume.

    python make_op_references.py monai      # with monai==1.6.1
    python make_op_references.py torchio    # with torchio==1.2.1

A row is a call of the peer; its arrays are ``row/how/mode`` and ``row/how/affine``, ``how`` being
``both`` where MONAI gives the same lazily and eagerly, else ``eager`` or ``lazy``; TorchIO's are
``eager``. Values are in sixteenths, int16. The volume is noise on an oblique grid of unequal
voxels; each transform starts from it. MONAI's ``Spacing`` and TorchIO get one whose axes are at
right angles: the first takes shears out, ITK has none. With ``scale_extent`` MONAI's origin is
right only where the axes are those of the world. Linear and nearest are both stored, but for
transforms that move whole voxels only.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
SHAPE = (8, 7, 6)
AFFINE = np.array([[1.1, 0.2, 0.0, -40], [-0.2, 0.9, 0.3, 12], [0.1, -0.2, 2.5, 7], [0, 0, 0, 1.0]])
# Columns at right angles, as ITK wants them: a rotation times a spacing of 1.2, 0.9 and 2.5 mm.
ANGLE_Z, ANGLE_X = 0.3, -0.2
STRAIGHT = np.eye(4)
STRAIGHT[:3, :3] = (
    np.array(
        [
            [np.cos(ANGLE_Z), -np.sin(ANGLE_Z), 0],
            [np.sin(ANGLE_Z), np.cos(ANGLE_Z), 0],
            [0, 0, 1],
        ]
    )
    @ np.array(
        [
            [1, 0, 0],
            [0, np.cos(ANGLE_X), -np.sin(ANGLE_X)],
            [0, np.sin(ANGLE_X), np.cos(ANGLE_X)],
        ]
    )
    @ np.diag([1.2, 0.9, 2.5])
)
STRAIGHT[:3, 3] = (-40, 12, 7)
DIAGONAL = np.diag([1.2, 0.9, 2.5, 1.0])
DIAGONAL[:3, 3] = (40, 12, 7)
VOLUME = np.random.default_rng(0).integers(0, 1000, (1, *SHAPE), np.int16)
TARGET_SHAPE = (5, 6, 7)
TARGET = np.array([[0, 1.3, 0.1, -39], [-1.2, 0, 0.2, 17], [0.2, 0, 1.7, 8.3], [0, 0, 0, 1.0]])
GENERAL = np.array(
    [[1.1, 0.1, 0, 0.7], [0.05, 0.9, 0.2, -1.2], [0.1, 0, 1.05, 0.4], [0, 0, 0, 1.0]]
)


def monai_rows() -> dict[str, object]:
    import monai.transforms as mt

    def crops(**arguments: object) -> object:
        return mt.SpatialCrop(**arguments)

    return {
        "spatial_resample": mt.SpatialResample(padding_mode="border"),
        "resample_to_match": mt.ResampleToMatch(padding_mode="border"),
        "spacing": mt.Spacing((0.85, 1.3, 1.9)),
        "spacing_scale_extent": mt.Spacing((0.8, 0.63, 1.25), scale_extent=True),
        "resize": mt.Resize((6, 9, 4), mode="trilinear"),
        "resize_align_corners": mt.Resize((6, 9, 4), mode="trilinear", align_corners=True),
        "resize_longest": mt.Resize(11, size_mode="longest", mode="trilinear"),
        "zoom_grid": mt.Zoom((1.5, 2, 1), keep_size=False, mode="trilinear"),
        "zoom": mt.Zoom((10 / 8, 9 / 7, 8 / 6), keep_size=True, mode="trilinear"),
        "rotate": mt.Rotate((0.3, -0.2, 0.4), keep_size=True),
        "rotate_growing": mt.Rotate((0.3, -0.2, 0.4), keep_size=False),
        "rotate_growing_far": mt.Rotate((0.5, -0.6, 0.9), keep_size=False),
        "rotate_growing_odd": mt.Rotate((0.0, 0.0, 0.5), keep_size=False),
        "rotate90": mt.Rotate90(k=1, spatial_axes=(0, 2)),
        "flip": mt.Flip((0, 2)),
        "axis_flip": mt.Flip(1),
        "orientation": mt.Orientation("PIR"),
        "canonical": mt.Orientation(as_closest_canonical=True),
        "affine": mt.Affine(affine=GENERAL, padding_mode="border", image_only=True),
        "affine_sized": mt.Affine(
            affine=GENERAL, spatial_size=(6, 11, 8), padding_mode="border", image_only=True
        ),
        "affine_rotate": mt.Affine(
            rotate_params=(0.3, -0.2, 0.4), padding_mode="border", image_only=True
        ),
        "affine_shear": mt.Affine(
            shear_params=(0.1, 0.2, 0, 0.3, 0, 0), padding_mode="border", image_only=True
        ),
        "affine_translate": mt.Affine(
            translate_params=(1.3, -0.7, 0.4), padding_mode="border", image_only=True
        ),
        "affine_scale": mt.Affine(
            scale_params=(1.2, 0.8, 1.1), padding_mode="border", image_only=True
        ),
        "crop_center": crops(roi_center=(4, 4, 3), roi_size=(5, 4, 3)),
        "crop_start_end": crops(roi_start=(1, 2, 0), roi_end=(6, 7, 5)),
        "crop_slices": crops(roi_slices=(slice(1, 7), slice(None, -2), slice(-4, None))),
        "center_crop": mt.CenterSpatialCrop((6, 4, 4)),
        "center_scale_crop": mt.CenterScaleCrop((0.5, 0.7, 0.9)),
        "pad_size": mt.SpatialPad((11, 7, 9), mode="edge"),
        "pad_size_end": mt.SpatialPad((11, 7, 9), method="end", mode="edge"),
        "border_pad": mt.BorderPad((1, 2, 0, 3, 2, 1), mode="edge"),
        "divisible_pad": mt.DivisiblePad((4, 4, 8), mode="edge"),
        "divisible_pad_end": mt.DivisiblePad((4, 4, 8), method="end", mode="edge"),
        "crop_or_pad": mt.ResizeWithPadOrCrop((6, 9, 6), mode="edge"),
        # Odd differences, of even and odd sizes: where the odd voxel goes shows.
        "crop_or_pad_odd": mt.ResizeWithPadOrCrop((5, 10, 9), mode="edge"),
        "crop_or_pad_odder": mt.ResizeWithPadOrCrop((9, 4, 3), mode="edge"),
        "center_crop_odd": mt.CenterSpatialCrop((5, 4, 3)),
        "divisible_pad_odd": mt.DivisiblePad((3, 5, 7), mode="edge"),
    }


LATTICE = {
    *("rotate90", "flip", "axis_flip", "orientation", "canonical", "crop_center"),
    *("crop_start_end", "crop_slices", "center_crop", "center_scale_crop", "pad_size"),
    *("pad_size_end", "border_pad", "divisible_pad", "divisible_pad_end", "crop_or_pad"),
    *("crop_or_pad_odd", "crop_or_pad_odder", "center_crop_odd", "divisible_pad_odd"),
}


def monai_arrays() -> dict[str, np.ndarray]:
    import torch
    from monai.data import MetaTensor
    from monai.transforms.lazy.functional import apply_pending

    found: dict[str, np.ndarray] = {}
    for name, transform in monai_rows().items():
        for how in ("eager", "lazy"):
            for mode in ("linear", "nearest"):
                if name in LATTICE and mode == "linear":
                    continue
                if (name, how, mode) == ("resize_align_corners", "eager", "nearest"):
                    continue  # refused by torch
                affine = {"spacing": STRAIGHT, "spacing_scale_extent": DIAGONAL}.get(name, AFFINE)
                image = MetaTensor(torch.tensor(VOLUME.astype(np.float32)), affine=affine)
                more: dict[str, object] = {}
                if name == "spatial_resample":
                    more = {"dst_affine": TARGET, "spatial_size": TARGET_SHAPE}
                if name == "resample_to_match":
                    other = MetaTensor(torch.zeros(1, *TARGET_SHAPE), affine=TARGET)
                    more = {"img_dst": other}
                if name not in LATTICE:
                    scales = name.split("_")[0] in ("resize", "zoom")
                    linear = "trilinear" if scales else "bilinear"
                    more["mode"] = "nearest" if mode == "nearest" else linear
                if how == "lazy":
                    made = transform(image, lazy=True, **more)
                    override = {"mode": "nearest" if mode == "nearest" else "bilinear"}
                    override["padding_mode"] = "border"
                    made, _ = apply_pending(made, overrides=override)
                else:
                    made = transform(image, **more)
                found[f"{name}/{how}/{mode}"] = sixteenths(made)
                found[f"{name}/{how}/affine"] = np.asarray(made.affine, dtype=np.float64)
    return merged(found)


def sixteenths(values: object) -> np.ndarray:
    return np.rint(np.asarray(values, dtype=np.float64) * 16).astype(np.int16)


def merged(found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays under ``both`` where eager and lazy give the same."""
    result = {}
    for key, array in found.items():
        name, how, what = key.split("/")
        other = found.get(f"{name}/{'eager' if how == 'lazy' else 'lazy'}/{what}")
        same = other is not None and other.shape == array.shape
        same = same and np.abs(other - array.astype(float)).max() <= (
            1e-6 if what == "affine" else 2
        )
        result[f"{name}/{'both' if same else how}/{what}"] = array
    return result


def torchio_rows() -> dict[str, object]:
    import torchio as tio

    target = (TARGET_SHAPE, target_of_torchio())
    return {
        "resample": lambda mode: tio.Resample((0.6, 0.7, 1.25), image_interpolation=mode),
        "resample_to": lambda mode: tio.Resample(target, image_interpolation=mode),
        "resize": lambda mode: tio.Resize((5, 7, 11), image_interpolation=mode),
        "canonical": lambda mode: tio.ToCanonical(),
        "orientation": lambda mode: tio.ToOrientation("PIR"),
        "crop": lambda mode: tio.Crop((1, 2, 0, 3, 2, 1)),
        "pad": lambda mode: tio.Pad((1, 2, 0, 3, 2, 1), padding_mode="edge"),
        "crop_or_pad": lambda mode: tio.CropOrPad((6, 9, 6), padding_mode="edge"),
        "shape_multiple": lambda mode: tio.EnsureShapeMultiple((2, 9, 8), method="pad"),
        "crop_or_pad_odd": lambda mode: tio.CropOrPad((5, 10, 9), padding_mode="edge"),
        "crop_or_pad_odder": lambda mode: tio.CropOrPad((9, 4, 3), padding_mode="edge"),
        "shape_multiple_odd": lambda mode: tio.EnsureShapeMultiple((3, 5, 7), method="pad"),
        "shape_multiple_crop": lambda mode: tio.EnsureShapeMultiple((3, 5, 4), method="crop"),
        "flip": lambda mode: tio.Flip((0, 2)),
        "affine": lambda mode: tio.Affine(
            (1.2, 0.8, 1.1),
            (12, -7, 20),
            (2, -3, 1.5),
            default_pad_value=-50,
            image_interpolation=mode,
        ),
        "affine_z": lambda mode: tio.Affine(
            1, (0, 0, 20), 0, default_pad_value=-50, image_interpolation=mode
        ),
        "affine_translate": lambda mode: tio.Affine(
            1, 0, (2, -3, 1.5), default_pad_value=-50, image_interpolation=mode
        ),
        "affine_scale": lambda mode: tio.Affine(
            (1.2, 0.8, 1.1), 0, 0, default_pad_value=-50, image_interpolation=mode
        ),
    }


def target_of_torchio() -> np.ndarray:
    target = np.diag([1.3, 1.1, 1.9, 1.0])
    target[:3, 3] = (-37, 10, 6)
    return target


WHOLE = {
    *("canonical", "orientation", "crop", "pad", "crop_or_pad", "shape_multiple", "flip"),
    *("crop_or_pad_odd", "crop_or_pad_odder", "shape_multiple_odd", "shape_multiple_crop"),
}


def torchio_arrays() -> dict[str, np.ndarray]:
    import torch
    import torchio as tio

    found: dict[str, np.ndarray] = {}
    for name, make in torchio_rows().items():
        for mode in ("linear", "nearest"):
            if name in WHOLE and mode == "linear":
                continue
            image = tio.ScalarImage(tensor=torch.tensor(VOLUME.astype(np.float32)), affine=STRAIGHT)
            made = make(mode)(image)
            found[f"{name}/eager/{mode}"] = sixteenths(made.data)
            found[f"{name}/eager/affine"] = np.asarray(made.affine, dtype=np.float64)
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    peer = sys.argv[1]
    arrays = monai_arrays() if peer == "monai" else torchio_arrays()
    arrays |= {"volume": VOLUME, "oblique": AFFINE, "straight": STRAIGHT, "diagonal": DIAGONAL}
    np.savez_compressed(HERE / f"ops-{peer}.npz", **arrays)


if __name__ == "__main__":
    main()
