# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Two views of one place
#
# Self-supervised methods (SimCLR, BYOL, DINO) compare two augmentations of one place. Both views
# read the same chunks once, and draw their own transforms.

# %%
import scans
import torch
from matplotlib.figure import Figure

import voxpipe as vp

cases = [{"image": scans.phantom(number)[0], "case": f"scan {number}"} for number in range(6)]


def view(patches):
    return (
        patches.augment(rotate=(-40, 40), zoom=(0.8, 1.25), flip=0.5)
        .blur((0.5, 1.5), unit="voxel", p=0.3)
        .brightness((0.7, 1.3))
        .noise((0, 0.15), p=0.5)
    )


pipe = vp.recipes.two_views(
    vp.from_cases(cases), (32, 32, 16), view=view, samples_per_volume=8, batch_size=6
)
print(pipe)

# %% [markdown]
# ## A few steps of a contrastive loss
#
# The encoder learns to give both views of a place the same vector, and other places other vectors.

# %%
torch.manual_seed(0)
encoder = torch.nn.Sequential(
    torch.nn.Conv3d(1, 16, 5, stride=2),
    torch.nn.ReLU(),
    torch.nn.Conv3d(16, 32, 3, stride=2),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool3d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(32, 32),
)
optimizer = torch.optim.Adam(encoder.parameters(), 2e-3)

with vp.DataLoader2(pipe, seed=2) as loader:
    for epoch in range(4):
        losses = []
        for batch in loader:
            first, second = (
                torch.nn.functional.normalize(encoder(batch[key]), dim=1)
                for key in ("view_1", "view_2")
            )
            likeness = first @ second.T / 0.2
            loss = torch.nn.functional.cross_entropy(likeness, torch.arange(len(first)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")

# %%
figure = Figure(figsize=(7.5, 3.6), layout="constrained")
rows = figure.subplots(2, 4)
for row, key in zip(rows, ("view_1", "view_2"), strict=True):
    for axes, patch, meta in zip(row, batch[key], batch["meta"], strict=False):
        axes.imshow(patch[0, :, :, 8].numpy().T, cmap="gray", origin="lower")
        axes.set_title(f"{meta['case']}, {key}", fontsize=8)
        axes.set_axis_off()
scans.save(figure, "two_views")
