"""`select_channels` reads the channels that it keeps, and no other."""

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import IO_COUNTERS

zarr = pytest.importorskip("zarr")

SHAPE = (6, 20, 18, 16)
ONE = SHAPE[1] * SHAPE[2] * SHAPE[3] * 2  # bytes of a channel


def written(folder, form):
    """Write six channels by the library of a format; return the path, and them as (C, I, J, K)."""
    voxels = np.random.default_rng(0).integers(-99, 999, SHAPE).astype("i2")
    path = folder / f"a.{form.partition(' ')[0]}"
    if form.startswith("nii"):
        nibabel.save(nibabel.Nifti1Image(np.moveaxis(voxels, 0, -1), np.eye(4)), path)
    elif form == "npy":
        np.save(path, voxels)
    else:
        chunks = (2 if form.endswith("pairs") else 1, 8, 8, 8)
        zarr.create_array(path, data=voxels, chunks=chunks)
    return path, voxels


def batch_of(pipe):
    """Return a batch, its reads and bytes as they are counted, and as they are foreseen."""
    with vp.DataLoader2(pipe.batch_patches(2), seed=3) as loader:
        before = IO_COUNTERS.snapshot()
        batch = next(iter(loader))
        return batch, IO_COUNTERS - before


FORMS = ["nii", "nii.gz", "npy", "zarr", "zarr pairs"]
PICKS = [(4,), (1, 2), (5, 0), (3, 3, 1), tuple(range(6))]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("picks", PICKS)
def test_a_copy_reads_the_channels_kept(tmp_path, form, picks):
    """In the order given; bytes are those of the channels, or of the chunks that they share."""
    path, voxels = written(tmp_path, form)
    case = {"image": path}
    pipe = vp.from_cases([case] * 2).open_volume(labels=()).select_channels(picks)

    batch, done = batch_of(pipe)

    np.testing.assert_array_equal(batch["image"][1].numpy(), voxels[list(picks)])
    at_once = 2 if form.endswith("pairs") else 1
    touched = {n // at_once for n in picks}
    assert done.bytes_read == 2 * len(touched) * at_once * ONE


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("labels", [(), ("image",)])
def test_after_a_turn_the_voxels_are_those_of_all_channels(tmp_path, form, labels):
    """Before and after spatial ops, interpolated or nearest, with a step before the fill."""
    path, voxels = written(tmp_path, form)

    def turned(source, after, picks):
        pipe = vp.from_cases([{"image": source, "case": "a"}] * 2).open_volume(labels=labels)
        pipe = pipe if after else pipe.select_channels(picks, keys="image")
        pipe = pipe.lazy_patch(9, samples_per_volume=2).rotate((-40, 40))
        return pipe.select_channels(picks, keys="image") if after else pipe

    expected, _ = batch_of(turned(voxels[[4, 1]], False, (0, 1)))
    for after in (False, True):
        found, done = batch_of(turned(path, after, (4, 1)))
        np.testing.assert_array_equal(found["image"], expected["image"])
        assert found["meta"][0]["sources"]["image"]["stored_shape"] == list(SHAPE)
        assert done.bytes_read < 2 * 4 * ONE


def test_the_report_foresees_the_bytes(tmp_path):
    """One channel of a plain file is a sixth of it."""
    path, _ = written(tmp_path, "nii")
    pipe = vp.from_cases([{"image": path}]).open_volume(labels=()).select_channels(2)
    text = str(pipe.explain())
    assert f"per patch: 1 reads, {ONE / 1e6:.3g} MB" in text


def test_steps_after_the_selection_act_on_what_is_kept(tmp_path):
    """A second selection counts among the first one's channels; statistics are those of these."""
    path, voxels = written(tmp_path, "nii")
    case = vp.from_cases([{"image": path}] * 2).open_volume(labels=())
    chain = case.select_channels((5, 3, 1)).select_channels((2, 0)).normalize()
    batch, _ = batch_of(chain)

    kept = voxels[[1, 5]].astype("f8")
    np.testing.assert_allclose(batch["image"][0], (kept - kept.mean()) / kept.std(), atol=1e-4)


def test_a_channel_that_is_not_there_is_named(tmp_path):
    """Before anything is read."""
    path, _ = written(tmp_path, "nii")
    pipe = vp.from_cases([{"image": path}] * 2).open_volume(labels=()).select_channels(6)
    with pytest.raises(vp.errors.VolumeError, match=r"is to keep .*, of 6 channels"):
        batch_of(pipe)
