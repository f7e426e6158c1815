# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # A Ray cluster on a laptop
#
# When the cores of the training machine cannot feed its GPUs, workers run on other machines. Here
# the other machines are two nodes of Ray on this one (`pip install "voxpipe[ray]"`, Linux).

# %%
import importlib.util
import os
import sys

if sys.platform != "linux" or not importlib.util.find_spec("ray"):
    print("skipped: this tutorial needs Linux and Ray")
    raise SystemExit

# %%
import hashlib
import tempfile
import time

import ray
import scans
from matplotlib.figure import Figure
from ray.cluster_utils import Cluster

import voxpipe as vp

temporary = tempfile.TemporaryDirectory()
folder = scans.write_scans(temporary.name)
pipe = (
    vp.list_cases(f"{folder}/*/", image="ct.nii.gz", label="seg.nii.gz")
    .shuffle()
    .open_volume()
    .lazy_patch((48, 48, 24), samples_per_volume=32)
    .shuffle()
    .augment(rotate=(-20, 20), zoom=(0.9, 1.1), flip=0.5)
    .normalize(mean=0.0, std=200.0)
    .batch_patches(4)
)


def epoch_of(service):
    """Return the hash of an epoch, and its batches per second."""
    digest, count = hashlib.sha256(), 0
    with vp.DataLoader2(pipe, reading_service=service, seed=7) as loader:
        for batch in loader:  # the first epoch starts the workers
            digest.update(batch["image"].numpy().tobytes())
        start = time.perf_counter()
        for _batch in loader:
            count += 1
        return digest.hexdigest()[:16], count / (time.perf_counter() - start)


# %% [markdown]
# ## Without and with other nodes
#
# The batches are the same: the hash of an epoch does not depend on the workers.

# %%
found = {"this process": epoch_of(None)}

cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False},
)
for _ in range(2):
    cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
service = vp.RayReadingService(num_workers=2, local_workers=0, address=cluster.address)
found["two workers on two nodes"] = epoch_of(service)
ray.shutdown()
cluster.shutdown()

for name, (digest, rate) in found.items():
    print(f"{name:26} {digest}   {rate:.0f} batches/s")
assert len({digest for digest, _ in found.values()}) == 1

# %% [markdown]
# On a laptop all nodes share its cores, so nothing is gained here. The page on clusters in the
# documentation says how many workers a rate needs.

# %%
figure = Figure(figsize=(5, 1.8), layout="constrained")
axes = figure.subplots()
axes.barh(list(found), [rate for _, rate in found.values()])
axes.set_xlabel("batches per second")
scans.save(figure, "cluster")
temporary.cleanup()
os.environ.pop("RAY_ADDRESS", None)
