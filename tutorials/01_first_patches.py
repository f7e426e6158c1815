# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # First patches
#
# From files to augmented batches, without reading any unneeded voxel. The tutorial writes its own
# scans. Run it with `python tutorials/01_first_patches.py`.

# %%
import tempfile

import scans

import voxpipe as vp
from voxpipe.core import IO_COUNTERS

temporary = tempfile.TemporaryDirectory()
folder = scans.write_scans(temporary.name)

# %% [markdown]
# ## Describe
#
# A chain is a description. No file is opened here, and no voxel is read.

# %%
pipe = (
    vp.list_cases(f"{folder}/*/", image="ct.nii.gz", label="seg.nii.gz")
    .shuffle()
    .open_volume()
    .lazy_patch((32, 32, 16), samples_per_volume=4)
    .shuffle()
    .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
    .clamp(-150, 250)
    .normalize()
    .batch_patches(4)
)
print("reads:", IO_COUNTERS.reads)

# %% [markdown]
# ## Look at the plan
#
# `explain()` reads headers. It shows the costs of a patch, and how each file is read.

# %%
loader = vp.DataLoader2(pipe, [vp.Profile()], seed=7)
print(loader.explain())

# %% [markdown]
# ## Iterate
#
# For worker processes, add `vp.MultiProcessingReadingService(num_workers=2)`. The batches stay the
# same. The entry `meta` says where each patch comes from.

# %%
batches = list(loader)
first = batches[0]
print({key: tuple(first[key].shape) for key in ("image", "label")})
print("this patch:", first["meta"][0]["case"], first["meta"][0]["sources"]["image"]["region"])

# %% [markdown]
# ## Stop anywhere, continue anywhere
#
# A state is a few numbers. A new loader continues with the second batch and reads only what it
# needs for it.

# %%
again = vp.DataLoader2(pipe, seed=7)
next(iter(again))
state = again.state_dict()

resumed = vp.DataLoader2(pipe)
resumed.load_state_dict(state)
rest = list(resumed)
assert all((a["image"] == b["image"]).all() for a, b in zip(rest, batches[1:], strict=True))
print("resumed after one batch:", len(rest), "equal batches")

# %% [markdown]
# ## Costs

# %%
print(loader.profile())

# %%
scans.save(scans.planes(first), "first_patches")
temporary.cleanup()
