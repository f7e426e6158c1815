# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Train, predict a whole volume, save, look
#
# A small network learns the organ and the lesion of the phantoms in seconds. Then it labels a whole
# scan that it has never seen. The scan may be larger than the memory.

# %%
import tempfile
from pathlib import Path

import nibabel
import numpy as np
import scans
import torch
from matplotlib.figure import Figure

import voxpipe as vp

temporary = tempfile.TemporaryDirectory()
folder = scans.write_scans(temporary.name, count=5)
train = [folder / f"case{number}" for number in range(4)]
held_out = folder / "case4"


def prepared(folders):
    """Return the volumes of cases, with the same preprocessing for training and prediction."""
    cases = [{"image": f"{one}/ct.nii.gz", "label": f"{one}/seg.nii.gz"} for one in folders]
    return vp.from_cases(cases).shuffle().open_volume().clamp(-150, 250).normalize(50.0, 80.0)


# %% [markdown]
# ## Training

# %%
patches = (
    prepared(train)
    .lazy_patch((32, 32, 16), samples_per_volume=20, mask="label", oversample=0.5)
    .shuffle()
    .augment(rotate=(-15, 15), flip=0.5)
    .batch_patches(4)
)
torch.manual_seed(0)
network = torch.nn.Sequential(
    torch.nn.Conv3d(1, 8, 5, padding=2),
    torch.nn.ReLU(),
    torch.nn.Conv3d(8, 8, 5, padding=2),
    torch.nn.ReLU(),
    torch.nn.Conv3d(8, 3, 3, padding=1),
)
optimizer = torch.optim.Adam(network.parameters(), 5e-3)
weight = torch.tensor([1.0, 2.0, 6.0])

with vp.DataLoader2(patches, seed=1) as loader:
    for epoch in range(3):
        losses = []
        for batch in loader:
            target = batch["label"][:, 0].long()
            loss = torch.nn.functional.cross_entropy(network(batch["image"]), target, weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}")

# %% [markdown]
# ## Prediction
#
# The chain of the held-out case has the preprocessing of the training. Windows overlap by half. The
# result has the grid and the affine of the stored scan.

# %%
output = Path(temporary.name) / "labels.nii.gz"
windows = prepared([held_out]).lazy_patch((48, 48, 24), sampling="grid", overlap=(24, 24, 12))
vp.predict(network, windows, str(output))

found = np.asarray(nibabel.load(output).dataobj)
truth = np.asarray(nibabel.load(held_out / "seg.nii.gz").dataobj)
assert (nibabel.load(output).affine == nibabel.load(held_out / "ct.nii.gz").affine).all()
dice = 2 * ((found > 0) & (truth > 0)).sum() / ((found > 0).sum() + (truth > 0).sum())
print(f"Dice of the organ: {dice:.2f}")
assert dice > 0.8

# %% [markdown]
# ## Look

# %%
scan = np.asarray(nibabel.load(held_out / "ct.nii.gz").dataobj)
plane = int(np.argmax((truth == 2).sum((0, 1))))
figure = Figure(figsize=(7, 3.7), layout="constrained")
for axes, (name, labels) in zip(
    figure.subplots(1, 2), {"truth": truth, "prediction": found}.items(), strict=True
):
    axes.imshow(scan[:, :, plane].T, cmap="gray", vmin=-150, vmax=250, origin="lower")
    axes.contour(labels[:, :, plane].T, levels=[0.5, 1.5], colors=["tab:cyan", "tab:red"])
    axes.set_title(f"{name}, plane {plane}")
    axes.set_axis_off()
scans.save(figure, "prediction")
temporary.cleanup()
