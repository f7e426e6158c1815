# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Formats of your own
#
# Two files that no library knows: a `.npy` with its affine in a text file, and frames of a detector
# with a header before each frame. Both are read lazily, as any other volume.

# %%
import tempfile
from pathlib import Path

import numpy as np
import scans

import voxpipe as vp

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)

# %% [markdown]
# ## A function that reads
#
# `reader=` takes a function from a path to voxels and affine. A memory map keeps the read lazy:
# only the pages that a patch touches are read.

# %%
image, label = scans.phantom(0)
np.save(folder / "scan.npy", image)
np.savetxt(folder / "scan.txt", scans.AFFINE)


def read_npy(path):
    return np.load(path, mmap_mode="r"), np.loadtxt(Path(path).with_suffix(".txt"))


volume = vp.Volume(folder / "scan.npy", reader=read_npy)
print(volume)

# %% [markdown]
# ## Frames with headers
#
# A detector writes one file for 20 frames. Each frame has 64 bytes of header, and each file begins
# with 128 bytes. `raw_volume()` needs only the layout.

# %%
files = []
for number in range(2):
    path = folder / f"run_{number}.bin"
    with path.open("wb") as file:
        file.write(b"R" * 128)
        for k in range(20):
            file.write(b"F" * 64)
            file.write(image[:, :, 20 * number + k].T.astype(">i2").tobytes())
    files.append(path)

frames = vp.raw_volume(
    files,
    dtype=">i2",
    shape=(40, 72, 72),
    axes="zyx",
    offset=128,
    frame_header_bytes=64,
    affine=scans.AFFINE,
)
print(frames)
box = vp.Region((30, 20, 18), (46, 36, 26))  # frames of both files
assert (frames[:, 30:46, 20:36, 18:26].numpy()[0] == image[box.slices]).all()

# %% [markdown]
# ## The same chain for both
#
# Volumes can stand in cases like paths. The patches of both files are equal, voxel by voxel.

# %%
mask = vp.Volume(label, affine=scans.AFFINE, kind="label")
batches = {}
for name, source in {"npy": volume, "frames": frames}.items():
    cases = [{"image": source, "label": mask, "case": name}]
    patches = vp.from_cases(cases).open_volume().lazy_patch((40, 40, 20), samples_per_volume=4)
    with vp.DataLoader2(patches.rotate((-20, 20)).clamp(-150, 250).batch_patches(4), seed=1) as own:
        batches[name] = next(iter(own))
assert (batches["npy"]["image"] == batches["frames"]["image"]).all()
print("equal patches of both files")

# %% [markdown]
# A format with its own suffix, for buckets, workers and `voxpipe check`, is a `Format` in a package
# of yours: see the page on formats in the documentation.

# %%
scans.save(scans.planes(batches["frames"]), "formats")
temporary.cleanup()
