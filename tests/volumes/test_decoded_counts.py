"""What a turned patch decodes: no chunk but those that it has taps in, whatever the format."""

import numpy as np
import pytest
from chunked_files import FORMATS, write_chunked

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.volumes import close_volumes

SHAPE = (128, 112, 144)
EDGE = 16
PATCH = 48
MOST = 1.2
"""Times the voxels of the chunks that hold taps; the margin is what a box around taps costs."""


def tapped(patch):
    """Return the voxels of all chunks in which a patch has a tap, found tap by tap."""
    matrix, last = patch.plan.matrix, np.array(patch.volume.shape[1:])[:, None] - 1
    index = np.indices(patch.plan.shape).reshape(3, -1)
    points = matrix[:3, :3] @ index + matrix[:3, 3:]
    if patch.policy.mode == "nearest":
        taps = [np.rint(points)]
    else:
        low = np.floor(points)
        # A second tap only where the first has not all of the weight.
        taps = [
            np.where(np.array(step)[:, None] & (points > low), low + 1, low)
            for step in np.ndindex(2, 2, 2)
        ]
    found = np.concatenate(taps, axis=1).astype(int)
    if patch.policy.padding == "border":
        found = np.clip(found, 0, last)
    else:
        found = found[:, ((found >= 0) & (found <= last)).all(axis=0)]
    seen = np.zeros([-(-n // EDGE) for n in SHAPE], bool)
    seen[tuple(found // EDGE)] = True
    return int(seen.sum()) * EDGE**3


@pytest.mark.parametrize("form", FORMATS)
def test_an_epoch_decodes_little_more_than_it_has_taps_in(tmp_path, form):
    """Image and label, turned by up to 30 degrees about three axes, from everywhere."""
    rng = np.random.default_rng(0)
    arrays = {"image": rng.normal(size=SHAPE).astype(np.float32)}
    arrays["label"] = rng.integers(0, 3, SHAPE).astype(np.uint8)
    files = {key: write_chunked(tmp_path / key, array, form, EDGE) for key, array in arrays.items()}
    pipe = vp.from_cases([{"case": "a", **files}]).open_volume()
    pipe = pipe.lazy_patch(PATCH, samples_per_volume=8).augment(rotate=(-30, 30), zoom=(0.9, 1.1))
    decoded = needed = 0
    with vp.DataLoader2(pipe, seed=0) as loader:
        patches = [sample[key] for sample in loader for key in arrays]
    for patch in patches:
        close_volumes()  # nothing is kept from patch to patch
        before = IO_COUNTERS.snapshot()
        patch.realize()
        itemsize = patch.volume.disk_dtype.itemsize
        decoded += (IO_COUNTERS.snapshot() - before).bytes_decoded // itemsize
        needed += tapped(patch)

    assert needed <= decoded <= MOST * needed


def test_kept_chunks_are_not_decoded_again(tmp_path):
    """Two patches of one batch at one place: the second decodes nothing."""
    array = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    path = write_chunked(tmp_path / "image", array, "zarr", EDGE)
    pipe = vp.from_cases([{"case": "a", "image": path}] * 2).open_volume().batch_patches(2)
    before = IO_COUNTERS.snapshot()

    with vp.DataLoader2(pipe, seed=0) as loader:
        list(loader)

    assert (IO_COUNTERS.snapshot() - before).bytes_decoded == array.nbytes
