"""Write draws-nnunet.npz: what nnU-Net's default training transforms draw, and what some make.

    python make_nnunet_references.py    # with nnunetv2==2.8.1, batchgeneratorsv2==0.3.6

The transforms are those of ``nnUNetTrainer.get_training_transforms``, for patches that are nearly
cubes and, under ``flat/``, for those that it augments in their plane. Each draws 10 000 times for
an image of two channels. ``name/acts`` is how often it acted, of so many times; ``name/number`` the
1001 quantiles of a parameter, ends included, and ``name/number/moments`` its mean, deviation and
count. ``made/`` are arrays: labels, and what becomes of them. ``preprocessed/`` are the plans that
nnU-Net makes of ``tests/tiny_nnunet.py``, and the arrays of its first case.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
DRAWS = 10_000
SEED = 4
IMAGE = (2, 6, 7, 8)
SCALES = [[1, 1, 1], [0.5, 0.5, 0.5], [0.5, 0.25, 0.25], [0.3, 1, 0.7]]


class Table:
    """What was drawn, by name."""

    def __init__(self) -> None:
        self.found: dict[str, np.ndarray] = {}

    def share(self, name: str, flags: Any) -> None:
        """Keep how often something was so."""
        self.found[name] = np.array([np.sum(flags), len(flags)])

    def numbers(self, name: str, values: Any) -> None:
        """Keep the distribution of numbers."""
        array = np.asarray(values, float).ravel()
        self.found[name] = np.quantile(array, np.linspace(0, 1, 1001)).astype(np.float32)
        self.found[f"{name}/moments"] = np.array([array.mean(), array.std(), array.size])

    def alike(self, name: str, one: Any, other: Any) -> None:
        """Keep the correlation of two numbers, and of how many."""
        self.found[name] = np.array([np.corrcoef(one, other)[0, 1], len(one)])


def drawn(transform: Any, times: int = DRAWS) -> tuple[list[bool], list[dict[str, Any]]]:
    """Return whether a transform acted, and its parameters where it did."""
    import torch

    image = torch.zeros(IMAGE)
    acts, params = [], []
    inner = getattr(transform, "transform", transform)
    for _ in range(times):
        one = transform is inner or transform.get_parameters()["apply_transform"]
        acts.append(one)
        if one:
            params.append(inner.get_parameters(image=image))
    return acts, params


def spatial(table: Table, name: str, transform: Any) -> None:
    """Keep angles and scales: of the matrix, which is all that is kept of them."""
    import torch

    flat = len(transform.patch_size) == 2
    image = torch.zeros(IMAGE[:3] if flat else IMAGE)
    matrices = [transform.get_parameters(image=image)["affine"] for _ in range(DRAWS)]
    scales = [1.0 if m is None else abs(np.linalg.det(m)) ** (1 / len(m)) for m in matrices]
    zoomed = [abs(scale - 1) > 1e-12 for scale in scales]
    turns = [None if m is None else m / s for m, s in zip(matrices, scales, strict=True)]
    turned = [t is not None and not np.allclose(t, np.eye(len(t)), atol=1e-12) for t in turns]
    table.share(f"{name}zoom/acts", zoomed)
    table.numbers(f"{name}zoom/scale", [s for s, on in zip(scales, zoomed, strict=True) if on])
    table.share(f"{name}rotate/acts", turned)
    kept: list[Any] = [t for t, on in zip(turns, turned, strict=True) if on]
    if flat:
        table.numbers(f"{name}rotate/0", [np.degrees(np.arctan2(t[1, 0], t[0, 0])) for t in kept])
        return
    # Rz Ry Rx: the angles by where the first column and the last row are.
    angles = [
        (np.arctan2(t[2, 1], t[2, 2]), np.arcsin(-t[2, 0]), np.arctan2(t[1, 0], t[0, 0]))
        for t in kept
    ]
    for axis in range(3):
        table.numbers(f"{name}rotate/{axis}", np.degrees([one[axis] for one in angles]))


def by_channel(table: Table, name: str, transform: Any, number: str) -> None:
    """Keep what is drawn for each channel."""
    acts, params = drawn(transform)
    table.share(f"{name}/acts", acts)
    values = [np.asarray(p[number], float).ravel() for p in params if p[number] is not None]
    table.numbers(f"{name}/{number}", np.concatenate(values))
    both = np.array([one for one in values if len(one) == 2])
    if len(both):
        table.alike(f"{name}/alike", both[:, 0], both[:, 1])


def values(table: Table, name: str, transforms: list[Any]) -> None:
    """Keep what is drawn for the values of an image, in nnU-Net's order."""
    noise, blur, brightness, contrast, coarse, inverted, gamma = transforms
    acts, params = drawn(noise)
    table.share(f"{name}noise/acts", acts)
    table.numbers(f"{name}noise/std", [one["sigmas"] for one in params])
    acts, params = drawn(blur)
    table.share(f"{name}blur/acts", acts)
    chosen = [bool(flag) for one in params for flag in one["apply_to_channel"]]
    table.share(f"{name}blur/channels", chosen)
    sigmas = np.array([each for one in params for each in one["sigmas"]])
    table.numbers(f"{name}blur/sigma", sigmas)
    table.alike(f"{name}blur/axes", sigmas[:, 0], sigmas[:, 2])
    by_channel(table, f"{name}brightness", brightness, "multipliers")
    by_channel(table, f"{name}contrast", contrast, "multipliers")
    acts, params = drawn(coarse)
    table.share(f"{name}low_resolution/acts", acts)
    scales = np.concatenate([np.reshape(one["scales"], (-1, 3)) for one in params])
    flags = [n in list(map(int, one["apply_to_channel"])) for one in params for n in (0, 1)]
    table.share(f"{name}low_resolution/channels", flags)
    for axis in range(3):
        table.numbers(f"{name}low_resolution/{axis}", scales[:, axis])
    by_channel(table, f"{name}inverted gamma", inverted, "gamma")
    by_channel(table, f"{name}gamma", gamma, "gamma")


def cascade(table: Table, morphology: Any, component: Any) -> None:
    """Keep what is drawn for the masks of an earlier network."""

    def chosen(params: list[dict[str, Any]]) -> list[bool]:
        return [n in one["apply_to_channels"] for one in params for n in (-2, -1)]

    acts, params = drawn(morphology)
    table.share("morphology/acts", acts)
    table.share("morphology/channels", chosen(params))
    first = [p["apply_to_channels"][0] == -2 for p in params if len(p["apply_to_channels"]) == 2]
    table.share("morphology/first", first)
    table.numbers("morphology/radius", [r for p in params for r in p["strel_size"]])
    names = [o.__name__ for p in params for o in p["operators"]]
    for word in ("dilation", "erosion", "closing", "opening"):
        table.share(f"morphology/{word}", [word in name for name in names])
    acts, params = drawn(component)
    table.share("component/acts", acts)
    table.share("component/channels", chosen(params))


def made(table: Table) -> None:
    """Keep labels, and what the transforms that draw nothing make of them."""
    import torch
    from batchgeneratorsv2.transforms.utils.deep_supervision_downsampling import (
        DownsampleSegForDSTransform,
    )
    from batchgeneratorsv2.transforms.utils.nnunet_masking import MaskImageTransform
    from batchgeneratorsv2.transforms.utils.remove_label import RemoveLabelTransform
    from batchgeneratorsv2.transforms.utils.seg_to_regions import (
        ConvertSegmentationToRegionsTransform,
    )

    random = np.random.default_rng(SEED)
    label = random.integers(-1, 5, (1, 13, 10, 16)).astype(np.int16)
    image = random.normal(size=(2, 13, 10, 16)).astype(np.float32)
    table.found |= {"made/label": label, "made/image": image}

    def of(transform: Any) -> Any:
        copies = torch.from_numpy(image.copy()), torch.from_numpy(label.copy())
        return transform(image=copies[0], segmentation=copies[1])

    for n, one in enumerate(of(DownsampleSegForDSTransform(SCALES))["segmentation"]):
        table.found[f"made/scale {n}"] = one.numpy()
    table.found["made/masked"] = of(MaskImageTransform([1], 0, 0.0))["image"].numpy()
    table.found["made/removed"] = of(RemoveLabelTransform(-1, 0))["segmentation"].numpy()
    regions = ConvertSegmentationToRegionsTransform([(1, 2, 3), (2, 3), 3, 4], 0)
    table.found["made/regions"] = of(regions)["segmentation"].numpy()


def preprocessed(table: Table, folder: Path) -> None:
    """Keep what nnU-Net's planning and preprocessing make of a tiny dataset."""
    import blosc2

    sys.path.append(str(HERE.parent))
    from tiny_nnunet import CASES, write_raw

    name = "Dataset001_Tiny"
    write_raw(folder / "raw" / name)
    command = [sys.executable, "-c"]
    command += ["from nnunetv2.experiment_planning.plan_and_preprocess_entrypoints import *; "]
    command[-1] += "plan_and_preprocess_entry()"
    command += ["-d", "1", "-c", "3d_fullres", "-np", "1", "-npfp", "1"]
    subprocess.run(command, check=True)
    made = folder / "preprocessed" / name
    plans = (made / "nnUNetPlans.json").read_bytes()
    table.found["preprocessed/plans"] = np.frombuffer(plans, np.uint8)
    for key, end in (("image", ""), ("label", "_seg")):
        file = made / "nnUNetPlans_3d_fullres" / f"{CASES[0]}{end}.b2nd"
        table.found[f"preprocessed/{key}"] = blosc2.open(str(file))[:]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("raw", "preprocessed", "results"):
            os.environ[f"nnUNet_{name}"] = str(Path(folder, name))
            Path(folder, name).mkdir()
        table = Table()
        preprocessed(table, Path(folder))
        from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
    import torch

    np.random.seed(SEED)
    torch.manual_seed(SEED)
    turn = np.radians(30.0)
    every = nnUNetTrainer.get_training_transforms(
        (32, 32, 32), (-turn, turn), SCALES, (0, 1, 2), False, None, True, (1, 2)
    ).transforms
    spatial(table, "", every[0])
    values(table, "", every[1:8])
    axes = drawn(every[8])[1]
    for axis in range(3):
        table.share(f"mirror/{axis}", [axis in one["axes"] for one in axes])
    cascade(table, every[11], every[12])
    flat = nnUNetTrainer.get_training_transforms(
        (8, 32, 32), (-np.pi, np.pi), None, (0, 1, 2), True
    ).transforms
    spatial(table, "flat/", flat[1])
    values(table, "flat/", flat[3:10])
    made(table)
    np.savez_compressed(HERE / "draws-nnunet.npz", **table.found)


if __name__ == "__main__":
    main()
