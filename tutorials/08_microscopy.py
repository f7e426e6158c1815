# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Microscopy: levels, anisotropy, micrometres
#
# Nuclei in a stack with voxels of 2 x 0.5 x 0.5 micrometres (z, y, x). The stack is an OME-Zarr
# image with coarser levels and a group of labels.

# %%
import tempfile

import numpy as np
import scans
import zarr
from matplotlib.figure import Figure

import voxpipe as vp

SPACING_UM = np.array([2.0, 0.5, 0.5])  # z, y, x


def nuclei(seed, shape=(24, 128, 128), count=40):
    """Return round nuclei in z, y, x (uint16), and their numbers (uint16)."""
    rng = np.random.default_rng(seed)
    index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1) * SPACING_UM
    labels = np.zeros(shape, np.uint16)
    for number in range(1, count + 1):
        middle = rng.uniform(0, np.array(shape) * SPACING_UM)
        labels[((index - middle) ** 2).sum(-1) < rng.uniform(3, 5) ** 2] = number
    light = 300 + 800 * (labels > 0) + rng.normal(0, 40, shape)
    return light.astype(np.uint16), labels


# %% [markdown]
# ## Write an image with levels and labels
#
# Arrays in memory have no names of axes, so `axes="zyx"` names them. The affine is in millimetres.

# %%
temporary = tempfile.TemporaryDirectory()
affine = np.diag([*SPACING_UM[::-1] / 1000, 1.0])  # x, y, z
for number in range(3):
    image, labels = nuclei(number)
    place = f"{temporary.name}/embryo{number}.ome.zarr"
    vp.save(place, vp.Volume(image, axes="zyx", affine=affine), levels=2)
    mask = vp.Volume(labels, axes="zyx", affine=affine, kind="label")
    vp.save(f"{place}/labels/nuclei", mask, like=place)

volume = vp.Volume(place)
print(volume)
print("stored:", {path: array.shape for path, array in zarr.open_group(place, mode="r").arrays()})

# %% [markdown]
# ## Patches in z, y, x
#
# `from_ome()` finds images, wells, times and label groups. `to_axes("zyx")` gives sizes, angles and
# tensors the order of the microscope. Turns about z keep the coarse axis. The deformation moves
# voxels by as many micrometres along z as along y and x, although the voxels are longer along z.

# %%
pipe = (
    vp.from_ome(temporary.name, label="nuclei")
    .shuffle()
    .open_volume()
    .to_axes("zyx")
    .lazy_patch((12, 64, 64), samples_per_volume=4, mask="label")
    .shuffle()
    .rotate(((-180, 180), 0, 0))
    .elastic(2, spacing=16, unit="um")
    .normalize(statistics="level 1")
    .batch_patches(4)
)
with vp.DataLoader2(pipe, seed=1) as loader:
    print(loader.explain())
    batch = next(iter(loader))
print({key: tuple(batch[key].shape) for key in ("image", "label")}, batch["label"].dtype)
assert batch["image"].shape == (4, 1, 12, 64, 64)

# %% [markdown]
# ## Look
#
# The largest projection along z, with outlines of the nuclei.

# %%
figure = Figure(figsize=(9.5, 2.7), layout="constrained")
for axes, patch, label, meta in zip(
    figure.subplots(1, 4), batch["image"], batch["label"], batch["meta"], strict=True
):
    axes.imshow(patch[0].numpy().max(0), cmap="gray")
    axes.contour(label[0].numpy().max(0) > 0, levels=[0.5], colors="tab:cyan", linewidths=0.8)
    axes.set_title(meta["case"])
    axes.set_axis_off()
scans.save(figure, "microscopy")
temporary.cleanup()
