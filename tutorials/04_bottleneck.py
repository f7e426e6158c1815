# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Find the bottleneck
#
# A training loop waits for data. Which part is slow: reading, decoding, resampling, a function of
# yours, or the network? The tutorial slows one function down, and finds it.

# %%
import tempfile

import scans
import torch
from matplotlib.figure import Figure

import voxpipe as vp

folder = tempfile.TemporaryDirectory()
scans.write_scans(folder.name)


def slow_gamma(batch):
    """Change the contrast with far too much work."""
    image = batch["image"]
    for _ in range(60):
        image = image.sign() * image.abs() ** 1.001
    return {**batch, "image": image}


pipe = (
    vp.list_cases(f"{folder.name}/*/", image="ct.nii.gz", label="seg.nii.gz")
    .shuffle()
    .open_volume()
    .lazy_patch((32, 32, 16), samples_per_volume=8)
    .shuffle()
    .augment(rotate=(-15, 15), flip=0.5)
    .normalize(mean=0.0, std=200.0)
    .batch_patches(4)
    .map(slow_gamma)
)

# %% [markdown]
# ## A profile of an epoch
#
# The adapter `Profile` counts items, seconds, reads and interpolations of each pipe. `Timeout`
# ends a wait of more than a minute with an error that names the pipe.

# %%
profile = vp.Profile()
loader = vp.DataLoader2(pipe, [vp.Timeout(item=60), profile], seed=1)
for _batch in loader:
    pass
print(profile)

# %% [markdown]
# ## A diagnosis
#
# `diagnose()` measures each part of the loader alone. The report ends with the slowest part and its
# cure. Pass your training step, so that the report can compare the loader with the network.

# %%
network = torch.nn.Conv3d(1, 8, 3)
diagnosis = loader.diagnose(step=lambda batch: network(batch["image"]).mean())
print(diagnosis)

# %%
figure = Figure(figsize=(7, 2.6), layout="constrained")
axes = figure.subplots()
rows = profile.to_json()
names = [f"{number} {row['pipe'].partition('(')[0]}" for number, row in enumerate(rows)]
axes.barh(names, [row["seconds"] for row in rows])
axes.invert_yaxis()
axes.set_xlabel("seconds of an epoch")
scans.save(figure, "bottleneck")
loader.shutdown()
folder.cleanup()
