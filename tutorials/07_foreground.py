# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Foreground, classes and weights
#
# Lesions are small. Patches at uniform places rarely show one. Three arguments of `lazy_patch()`
# choose places by a label or by a map.

# %%
import numpy as np
import scans
from matplotlib.figure import Figure

import voxpipe as vp

cases = []
for number in range(4):
    image, label = scans.phantom(number)
    cases.append({"image": image, "label": label, "likely": (label == 2).astype(np.float32) + 1e-3})

opened = vp.from_cases(cases).open_volume()
size = {"size": (16, 16, 8), "samples_per_volume": 60}

# %% [markdown]
# - `oversample=1/3`: a third of each batch is drawn about any foreground, as in nnU-Net.
# - `class_weights`: the centre has label 0, 1 or 2 equally often, however many voxels each has.
# - `weights`: the centre is drawn in proportion to a map, for instance the uncertainty of a model.

# %%
chains = {
    "uniform": opened.lazy_patch(**size),
    "oversample=1/3": opened.lazy_patch(**size, mask="label", oversample=1 / 3),
    "class_weights": opened.lazy_patch(**size, mask="label", class_weights={0: 1, 1: 1, 2: 1}),
    "weights": opened.lazy_patch(**size, weights="likely"),
}

counts = {}
for name, chain in chains.items():
    centres, shows_lesion = [], []
    with vp.DataLoader2(chain.shuffle().batch_patches(6), seed=1) as loader:
        for batch in loader:
            labels = batch["label"][:, 0]
            centres += labels[:, 8, 8, 4].tolist()
            shows_lesion += (labels == 2).flatten(1).any(1).tolist()
    counts[name] = [centres.count(value) / len(centres) for value in (0, 1, 2)]
    print(f"{name:16} lesion in {np.mean(shows_lesion):4.0%} of patches", end="")
    print("   labels of centres 0, 1, 2:", [f"{share:.2f}" for share in counts[name]])

# %%
figure = Figure(figsize=(7, 2.8), layout="constrained")
axes = figure.subplots()
for value, word in enumerate(("background", "organ", "lesion")):
    places = np.arange(len(counts)) + 0.27 * (value - 1)
    axes.bar(places, [shares[value] for shares in counts.values()], 0.25, label=word)
axes.set_xticks(range(len(counts)), list(counts))
axes.set_ylabel("share of patch centres")
axes.legend()
scans.save(figure, "foreground")
