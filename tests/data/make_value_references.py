"""Write what MONAI and TorchIO make of one small volume, as tests/data/values-*.npz.

    pip install monai==1.6.1 && python tests/data/make_value_references.py monai
    pip install torchio==1.2.1 && python tests/data/make_value_references.py torchio

The tests install neither: they compare the arrays in these files, a few kB each.
"""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent
ORDER = 3
SHAPE = (1, 9, 8, 7)


def volume() -> torch.Tensor:
    """Return positive values of which no two are alike."""
    return torch.from_numpy(np.random.default_rng(5).uniform(1, 100, SHAPE).astype(np.float32))


def monai(image: torch.Tensor) -> dict[str, np.ndarray]:
    """Return what MONAI's array transforms make of it."""
    from monai.transforms import (
        AdjustContrast,
        GaussianSmooth,
        NormalizeIntensity,
        ScaleIntensity,
        ScaleIntensityRange,
        ScaleIntensityRangePercentiles,
    )

    transforms = {
        "gamma": AdjustContrast(0.7),
        "blur": GaussianSmooth(1.2, approx="sampled"),
        "normalize": NormalizeIntensity(),
        "normalize_nonzero": NormalizeIntensity(nonzero=True),
        "rescale": ScaleIntensity(-1, 2),
        "rescale_given": ScaleIntensityRange(10, 60, 0, 1, clip=True),
        "percentiles": ScaleIntensityRangePercentiles(5, 90, 0, 1, clip=True),
    }
    given = image.clone()
    given[:, :3] = 0
    return {
        name: np.asarray(transform((given if "nonzero" in name else image).clone()))
        for name, transform in transforms.items()
    }


def torchio(image: torch.Tensor) -> dict[str, np.ndarray]:
    """Return what TorchIO's transforms make of it."""
    import torchio as tio
    from torchio.transforms.augmentation.intensity.random_bias_field import BiasField

    count = (ORDER + 1) * (ORDER + 2) * (ORDER + 3) // 6
    coefficients = np.random.default_rng(6).uniform(-0.5, 0.5, count)
    transforms = {
        "gamma": tio.Gamma(0.7),
        "blur": tio.Blur(1.2),
        "percentiles": tio.RescaleIntensity((0, 1), percentiles=(5, 90)),
        "normalize": tio.ZNormalization(),
    }
    made = {n: t(tio.ScalarImage(tensor=image.clone())).data.numpy() for n, t in transforms.items()}
    made["coefficients"] = coefficients
    made["bias_field"] = BiasField.generate_bias_field(image, ORDER, coefficients)
    return made


if __name__ == "__main__":
    peer = sys.argv[1]
    made = {"monai": monai, "torchio": torchio}[peer](volume())
    made["version"] = np.array(importlib.metadata.version(peer))
    compact = {n: a.astype(np.float32) if n != "version" else a for n, a in made.items()}
    np.savez_compressed(HERE / f"values-{peer}.npz", volume=volume().numpy(), **compact)
