"""What the project promises, each number in one place: the benchmarks judge by these.

Rates are about 2 workers on 2 cores and the patches of ``throughput.py``; times are about the same
machine's own alternatives, so that they hold on others. ``docs/performance.md`` has the table of
promises beside what was found.
"""

from __future__ import annotations

PATCH = 96
WORKERS = 2
"""Rows of other patches and of another number of workers are not judged."""

# How many times faster voxpipe is from ``.nii`` than a row of a peer.
FASTER = {
    "nnunet recipe: blosc2": 18.0,
    "nnunet recipe: default": 30.0,
    "monai lazy: lazy, one crop a load": 70.0,
    "monai lazy: lazy": 30.0,
    "torchio queue: augment patch": 40.0,
}
# How many times faster than nnU-Net's recipe from chunks; from b2nd both read the same files.
FROM_CHUNKS = {"converted": 10.0, "b2nd": 9.0, "shard128": 4.0}
THREADS = 0.95
"""Rate of threads as a part of that of as many processes."""
GZIP = 0.8
"""Rate of ``.nii.gz`` after its first touch as a part of that of ``.nii``."""
BUCKET = 0.85
"""Rate from a bucket as a part of that from the local disk."""
FIRST_BATCH_S = 3.0
"""Seconds to the first batch, with a fork server."""

PEAK_MB = {"nii": 460, "converted": 500}
"""Memory of all processes, at its peak, with worker processes."""
BUCKET_PEAK_MB = 700
THREADS_PEAK_MB = 400
ONE_VOLUME_PEAK_MB = 600
"""Of ``memory.py``: one volume of 4 GB."""

# The resampling kernel beside ``affine_grid`` and ``grid_sample``, at one hot place: how many times
# faster, by class of plan and stored type.
KERNEL = {
    ("affine", "i2"): 25.0,
    ("affine", "f4"): 20.0,
    ("affine, nearest", "u1"): 50.0,
    ("elastic", "i2"): 15.0,
    ("elastic", "f4"): 15.0,
    ("elastic turned", "i2"): 10.0,
    ("elastic turned", "f4"): 10.0,
}
COPY = {"i2": 1.3, "u1": 2.0}
"""How many times as long as ``memcpy`` of as many bytes a copy takes at most."""

PLANS_PER_SECOND = 60_000
"""Patches planned per second, on one core."""
CONSUMER_MS = 0.3
"""What a batch costs the training process, from the worker's message to tensors."""
RATIO_OF_VOLUMES = 1.10
"""What a patch costs from a volume of 66 GB, beside one of 66 MB."""
FORECAST = 0.25
"""A forecast differs from what then happens by this part of it at most."""

CLUSTER_LOCAL, CLUSTER_SAME_NODE = 0.98, 0.85
"""Rate of ``RayReadingService`` as a part of that of worker processes: with local workers only, and
with actors on the trainer's node."""
CLUSTER_MAIN_MS, CLUSTER_NODE_MS = 2.0, 12.0
"""Processor time that a batch of 17.7 MB of another node costs the trainer's main thread, and the
trainer with the raylet of its node."""
CLUSTER_HALF_SPEED, CLUSTER_TENTH_SPEED = 0.9, 0.7
"""Part of the ideal rate while one of four actors has half of its speed, or a tenth."""
