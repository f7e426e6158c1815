# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Write an adapter
#
# A chain is a graph of pipes. An adapter rewrites the graph when the loader is made; the chain
# stays as the user wrote it. This tutorial replaces a function on batches by a value pipe, which
# the resampler applies while it writes the batch.

# %%
import scans
from matplotlib.figure import Figure

import voxpipe as vp
from voxpipe.adapters import Adapter
from voxpipe.datapipes.iter import Mapper
from voxpipe.graph import Refused, Rule, explain_graph, parents_of


def halve(batch):
    """Halve the intensities."""
    return {**batch, "image": batch["image"] * 0.5}


image, label = scans.phantom(0)
pipe = (
    vp.from_cases([{"image": image, "label": label}])
    .open_volume()
    .lazy_patch((48, 48, 24), samples_per_volume=8)
    .rotate((-20, 20))
    .batch_patches(4)
    .map(halve)
)
print(explain_graph(pipe))

# %% [markdown]
# ## A rule
#
# `match` looks at one pipe. It returns a finding, None, or `Refused` with the reason. `build`
# receives the finding and returns the new pipe: here the value pipe, and a new batch after it.


# %%
def match(site):
    if not isinstance(site.pipe, Mapper) or site.pipe.fn is not halve:
        return None
    (batch,) = parents_of(site.pipe)
    return Refused("two pipes read the batch") if site.is_shared(batch) else batch


def build(batch):
    return parents_of(batch)[0].brightness(0.5).batch_patches(batch.batch_size)


class Halve(Adapter):
    """Halve intensities during the write of a batch: ``map(halve)`` becomes ``brightness(0.5)``."""

    def rules(self):
        return (Rule("halve in passing", match, build),)


print(explain_graph(Halve()(pipe)))

# %% [markdown]
# ## The same batches
#
# `explain()` of a loader shows the chain as written and as it runs, with the adapter's name.

# %%
plain = vp.DataLoader2(pipe, seed=5)
adapted = vp.DataLoader2(pipe, [Halve()], seed=5)
print(adapted.explain())

difference = 0.0
for first, second in zip(plain, adapted, strict=True):
    difference = max(difference, float((first["image"] - second["image"]).abs().max()))
print(f"largest difference: {difference:g}")
assert difference < 1e-3

# %%
figure = Figure(figsize=(6.5, 3.2), layout="constrained")
pair = {"map(halve)": first, "brightness(0.5)": second}
for axes, (name, batch) in zip(figure.subplots(1, 2), pair.items(), strict=True):
    axes.imshow(batch["image"][0, 0, :, :, 12].numpy().T, cmap="gray", vmin=-75, vmax=125)
    axes.set_title(name)
    axes.set_axis_off()
scans.save(figure, "adapter")
