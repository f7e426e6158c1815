"""Phantoms of CT scans for the tutorials, and the place where their pictures go."""

import io
import sys
from pathlib import Path

import nibabel
import numpy as np

AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])
"""Voxels of 1 x 1 x 2 mm."""


def phantom(number, shape=(72, 72, 40)):
    """Return a scan (int16) and its labels (uint8): 1 is an organ, 2 a lesion in it."""
    rng = np.random.default_rng(number)
    axes = [np.arange(n, dtype=np.float32) for n in shape]
    place = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    middle = np.array(shape) / 2
    body = _ellipsoid(place, middle, np.array(shape) * 0.44)
    organ = _ellipsoid(place, middle + rng.uniform(-5, 5, 3) * (1, 1, 0.5), (15, 11, 8))
    lesion = _ellipsoid(place, middle + rng.uniform(-4, 4, 3) * (1, 1, 0.5), (4, 4, 3)) & organ
    waves = np.sin(place / rng.uniform(3, 5, 3) + rng.uniform(0, 6, 3)).sum(-1)
    scan = np.where(body, 40, -1000) + 80 * organ + 90 * lesion + body * 12 * waves
    scan = scan + rng.normal(0, 15, shape)
    return scan.astype(np.int16), np.where(lesion, 2, organ).astype(np.uint8)


def _ellipsoid(place, middle, radii):
    return (((place - middle) / radii) ** 2).sum(-1) < 1


def write_scans(folder, count=4, shape=(72, 72, 40)):
    """Write cases ``case0/ct.nii.gz`` and ``case0/seg.nii.gz`` to a folder, and return it."""
    folder = Path(folder)
    for number in range(count):
        case = folder / f"case{number}"
        case.mkdir(parents=True)
        for name, voxels in zip(("ct", "seg"), phantom(number, shape), strict=True):
            nibabel.save(nibabel.Nifti1Image(voxels, AFFINE), case / f"{name}.nii.gz")
    return folder


def planes(batch, key="image", count=4):
    """Return a figure with the middle plane of some patches, and outlines of their labels."""
    from matplotlib.figure import Figure

    count = min(count, len(batch[key]))
    low, high = np.percentile(np.asarray(batch[key]), (1, 99.5))
    figure = Figure(figsize=(2.4 * count, 2.7), layout="constrained")
    for axes, number in zip(figure.subplots(1, count, squeeze=False)[0], range(count), strict=True):
        patch = np.asarray(batch[key][number])[0]
        plane = patch[:, :, patch.shape[2] // 2].T
        axes.imshow(plane, cmap="gray", origin="lower", vmin=low, vmax=high)
        if "label" in batch:
            label = np.asarray(batch["label"][number])[0]
            outline = label[:, :, patch.shape[2] // 2].T
            if outline.any():
                axes.contour(outline, levels=[0.5, 1.5], colors=["tab:cyan", "tab:red"])
        axes.set_title(batch["meta"][number]["case"])
        axes.set_axis_off()
    return figure


def save(figure, name):
    """Save a figure as ``tutorial-output/NAME.png``; show it if this is a notebook."""
    if "ipykernel" in sys.modules:
        from IPython.display import Image, display

        png = io.BytesIO()
        figure.savefig(png, dpi=110)
        display(Image(png.getvalue()))
        return
    path = Path("tutorial-output") / f"{name}.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    print("picture:", path)
