"""Write what MONAI and TorchIO make of one small volume, as tests/data/values-*.npz.

    pip install monai==1.6.1 && python tests/data/make_value_references.py monai
    pip install torchio==1.2.1 && python tests/data/make_value_references.py torchio

The tests install neither: they compare the arrays in these files, a few kB each. Of what is drawn
for every voxel, quantiles are kept.
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
COARSE_SHAPE = (1, 9, 6, 12)
"""Thirds are whole."""
SHARP_SHAPE = (1, 12, 11, 10)
NOISY_SHAPE = (1, 64, 64, 64)
LEVEL, MEAN, STD = 15.0, 1.0, 10.0
"""What noise is added to, and its mean and deviation."""
RANKS = np.linspace(0.01, 0.99, 25)


def volume() -> torch.Tensor:
    """Return positive values of which no two are alike."""
    return torch.from_numpy(np.random.default_rng(5).uniform(1, 100, SHAPE).astype(np.float32))


def coarse_volume() -> torch.Tensor:
    """Return a volume of which every third voxel can be kept."""
    noise = np.random.default_rng(7).uniform(1, 100, COARSE_SHAPE)
    return torch.from_numpy(noise.astype(np.float32))


def labels() -> torch.Tensor:
    """Return labels 0, 1 and 2."""
    return torch.from_numpy(np.random.default_rng(8).integers(0, 3, SHAPE).astype(np.uint8))


def quantiles(noisy: torch.Tensor) -> np.ndarray:
    """Return the quantiles of what noise made of a constant."""
    return np.quantile(np.asarray(noisy, dtype=np.float64), RANKS)


def monai(image: torch.Tensor) -> dict[str, np.ndarray]:
    """Return what MONAI's array transforms make of it."""
    from monai.transforms import (
        AdjustContrast,
        AsDiscrete,
        GaussianSharpen,
        GaussianSmooth,
        Lambda,
        MapLabelValue,
        NormalizeIntensity,
        RandGaussianNoise,
        RandRicianNoise,
        RandSimulateLowResolution,
        ScaleIntensity,
        ScaleIntensityFixedMean,
        ScaleIntensityRange,
        ScaleIntensityRangePercentiles,
        ShiftIntensity,
        ThresholdIntensity,
    )

    transforms = {
        "gamma": AdjustContrast(0.7),
        "blur": GaussianSmooth(1.2, approx="sampled"),
        "normalize": NormalizeIntensity(),
        "normalize_nonzero": NormalizeIntensity(nonzero=True),
        "rescale": ScaleIntensity(-1, 2),
        "rescale_given": ScaleIntensityRange(10, 60, 0, 1, clip=True),
        "percentiles": ScaleIntensityRangePercentiles(5, 90, 0, 1, clip=True),
        "shift": ShiftIntensity(7),
        "scale": ScaleIntensity(minv=None, maxv=None, factor=0.1),
        "contrast": ScaleIntensityFixedMean(0.5),
        "contrast_kept": ScaleIntensityFixedMean(0.5, preserve_range=True),
        "map_values": Lambda(torch.sqrt),
    }
    given = image.clone()
    given[:, :3] = 0
    made = {
        name: np.asarray(transform((given if "nonzero" in name else image).clone()))
        for name, transform in transforms.items()
    }
    sharpened = GaussianSharpen(sigma1=1, sigma2=0.8, alpha=2, approx="sampled")
    made["sharp"] = np.random.default_rng(9).uniform(1, 100, SHARP_SHAPE).astype(np.float32)
    made["sharpen"] = np.asarray(sharpened(torch.from_numpy(made["sharp"])))
    below = ThresholdIntensity(60, above=False, cval=60)(image.clone())
    made["clamp"] = np.asarray(ThresholdIntensity(10, above=True, cval=10)(below))
    third = RandSimulateLowResolution(prob=1, zoom_range=(1 / 3, 1 / 3))
    made["low_resolution"] = np.asarray(third(coarse_volume()))
    made["one_hot"] = np.asarray(AsDiscrete(to_onehot=3)(labels()))
    made["remap_labels"] = np.asarray(MapLabelValue([1, 2], [5, 1])(labels()))
    flat = torch.full(NOISY_SHAPE, LEVEL)
    for name, kind in {"noise": RandGaussianNoise, "rician_noise": RandRicianNoise}.items():
        mean = MEAN if name == "noise" else 0
        noise = kind(prob=1, mean=mean, std=STD, sample_std=False).set_random_state(3)
        made[name] = quantiles(noise(flat.clone()))
    return made


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
        "rescale": tio.RescaleIntensity((-1, 2)),
        "clamp": tio.Clamp(10, 60),
        "map_values": tio.Lambda(torch.sqrt),
    }
    made = {n: t(tio.ScalarImage(tensor=image.clone())).data.numpy() for n, t in transforms.items()}
    subject = tio.Subject(
        image=tio.ScalarImage(tensor=image.clone()), label=tio.LabelMap(tensor=labels())
    )
    inside = tio.ZNormalization(masking_method="label")(subject)
    made["normalize_inside"] = inside.image.data.numpy()
    made["one_hot"] = tio.OneHot(3)(tio.LabelMap(tensor=labels())).data.numpy()
    remap = tio.RemapLabels({1: 5, 2: 1})
    made["remap_labels"] = remap(tio.LabelMap(tensor=labels())).data.numpy()
    third = tio.RandomAnisotropy(axes=0, downsampling=(3, 3))
    made["anisotropy"] = third(tio.ScalarImage(tensor=coarse_volume())).data.numpy()
    flat = tio.ScalarImage(tensor=torch.full(NOISY_SHAPE, LEVEL))
    made["noise"] = quantiles(tio.Noise(MEAN, STD, seed=3)(flat).data)
    made["coefficients"] = coefficients
    made["bias_field"] = BiasField.generate_bias_field(image, ORDER, coefficients)
    return made


if __name__ == "__main__":
    peer = sys.argv[1]
    made = {"monai": monai, "torchio": torchio}[peer](volume())
    made["version"] = np.array(importlib.metadata.version(peer))
    compact = {n: a.astype(np.float32) if n != "version" else a for n, a in made.items()}
    given = {"volume": volume().numpy(), "coarse": coarse_volume().numpy()}
    given |= {"labels": labels().numpy(), "ranks": RANKS}
    np.savez_compressed(HERE / f"values-{peer}.npz", **given, **compact)
