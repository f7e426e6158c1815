# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
# ---

# %% [markdown]
# # Train from a bucket
#
# Patches come from volumes in a bucket, without a download of whole volumes. The tutorial starts an
# S3 server on this machine (`pip install "moto[server]" s3fs`). With a real bucket, leave out the
# server and `storage_options`: the usual variables of AWS apply.

# %%
import logging
import tempfile

import scans
from moto.server import ThreadedMotoServer

import voxpipe as vp

logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it would print each request
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
options = {"key": "user", "secret": "secret", "endpoint_url": f"http://{host}:{port}"}

# %% [markdown]
# ## Convert once
#
# A `.nii.gz` has to be decompressed from its beginning. Sharded zarr has small chunks in few
# objects, so a patch costs a few ranges. `chunk=16` fits the small patches of this tutorial. The
# default of `convert()` fits patches of 96³.
#
# `explain()` below warns that chunks save nothing for volumes of this size. The toy scans have
# 2 million voxels. Convert your own volumes if they are much larger than a patch.

# %%
import s3fs

s3fs.S3FileSystem(**options).mkdir("scans")
folder = tempfile.TemporaryDirectory()
for case in sorted(scans.write_scans(folder.name, shape=(144, 144, 96)).iterdir()):
    for key in ("ct", "seg"):
        vp.convert(
            case / f"{key}.nii.gz",
            f"s3://scans/{case.name}/{key}.zarr",
            chunk=16,
            storage_options=options,
        )
folder.cleanup()

files = s3fs.S3FileSystem(**options)
stored = sum(files.du(f"scans/{name.rpartition('/')[2]}") for name in files.ls("scans"))
print(f"in the bucket: {stored / 1e6:.2f} MB")

# %% [markdown]
# ## Patches
#
# Only the source changes: a URL with a star instead of a folder. Reads of a batch run together, and
# later batches are read ahead. Requests are retried. `VOXPIPE_CACHE` names the folder of the disk
# cache.

# %%
pipe = (
    vp.list_cases("s3://scans/*/", image="ct.zarr", label="seg.zarr", storage_options=options)
    .shuffle()
    .open_volume()
    .lazy_patch((32, 32, 16), samples_per_volume=1)
    .augment(rotate=(-15, 15), flip=0.5)
    .clamp(-150, 250)
    .batch_patches(4)
)
loader = vp.DataLoader2(pipe, seed=3)
batch = next(iter(loader))
print({key: tuple(batch[key].shape) for key in ("image", "label")})

# %%
print(loader.explain())

# %%
scans.save(scans.planes(batch), "bucket")
loader.shutdown()
server.stop()
