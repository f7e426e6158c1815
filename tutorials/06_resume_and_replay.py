# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Stop, resume elsewhere, replay one batch
#
# A batch is a function of the chain, the seed, the epoch and its number. So a run can stop at any
# batch, continue with other workers, and make any batch again.

# %%
import json
import tempfile
from pathlib import Path

import scans

import voxpipe as vp

temporary = tempfile.TemporaryDirectory()
folder = scans.write_scans(temporary.name)


def make_pipe():
    return (
        vp.list_cases(f"{folder}/*/", image="ct.nii.gz", label="seg.nii.gz")
        .shuffle()
        .open_volume()
        .lazy_patch((40, 40, 20), samples_per_volume=6)
        .shuffle()
        .augment(rotate=(-20, 20), flip=0.5)
        .elastic((0, 3))
        .clamp(-150, 250)
        .batch_patches(3)
    )


# %% [markdown]
# ## A run that stops after five batches
#
# The state is JSON: a few numbers and hashes. It holds no voxels and no credentials.

# %%
loader = vp.DataLoader2(make_pipe(), seed=11)
batches = iter(loader)
seen = [next(batches) for _ in range(5)]
state_file = Path(temporary.name) / "state.json"
state_file.write_text(json.dumps(loader.state_dict()))
loader.shutdown()
print(state_file.stat().st_size, "bytes:", state_file.read_text()[:160], "...")

# %% [markdown]
# ## Elsewhere: two worker processes instead of none
#
# The new loader continues with batch 5. It reads none of the delivered batches.

# %%
service = vp.MultiProcessingReadingService(num_workers=2)
with vp.DataLoader2(make_pipe(), None, service) as elsewhere:
    elsewhere.load_state_dict(json.loads(state_file.read_text()))
    rest = list(elsewhere)

with vp.DataLoader2(make_pipe(), seed=11) as whole:
    epoch = list(whole)
together = [*seen, *rest]
assert len(together) == len(epoch)
assert all((a["image"] == b["image"]).all() for a, b in zip(together, epoch, strict=True))
print(f"{len(seen)} + {len(rest)} batches, equal to an epoch without a stop")

# %% [markdown]
# ## Replay one batch
#
# The loss of step 4 was NaN? Make this batch again, alone, in another program. `meta` has the case,
# the region and all draws of each patch.

# %%
with vp.DataLoader2(make_pipe(), seed=11) as again:
    suspect = again.batch(4, epoch=0)
assert (suspect["image"] == epoch[4]["image"]).all()
print(suspect["meta"][0]["case"], suspect["meta"][0]["draws"])

# %%
scans.save(scans.planes(suspect), "replay")
temporary.cleanup()
