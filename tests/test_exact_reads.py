"""No byte outside the chunks that the source region touches, counted at the store."""

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, ChunkGrid, Region

zarr = pytest.importorskip("zarr")

SHAPE, CHUNK = (40, 36, 44), (8, 8, 8)


@pytest.fixture
def stored():
    """Return a store that notes which keys are asked for, and the array in it."""
    from zarr.storage import MemoryStore, WrapperStore

    class Counting(WrapperStore):
        def __init__(self, store):
            super().__init__(store)
            self.asked = []

        def _with_store(self, store):
            # zarr asks for a read-only twin; both note into one list
            twin = type(self)(store)
            twin.asked = self.asked
            return twin

        async def get(self, key, prototype, byte_range=None):
            self.asked.append(key)
            return await super().get(key, prototype, byte_range)

    voxels = np.random.default_rng(0).integers(1, 1000, SHAPE, dtype=np.int16)
    memory = MemoryStore()
    array = zarr.create_array(memory, shape=SHAPE, chunks=CHUNK, dtype="int16")
    array[:] = voxels
    return Counting(memory), voxels


def test_a_rotated_patch_reads_the_chunks_of_its_region_once(stored):
    """Each chunk that the region touches is asked for once, and no other."""
    store, _ = stored
    pipe = vp.from_cases([{"image": store}]).open_volume().lazy_patch(10).rotate((-30, 30))
    pipe = pipe.batch_patches(1)

    with vp.DataLoader2(pipe, seed=3) as loader:
        before = IO_COUNTERS.snapshot()
        (batch,) = list(loader)
        done = IO_COUNTERS - before

    region = Region(*zip(*batch["meta"][0]["sources"]["image"]["region"], strict=True))
    touched = list(ChunkGrid(SHAPE, CHUNK).touched_parts(region))
    chunks = [key for key in store.asked if "/" in key]
    assert sorted(chunks) == sorted(f"c/{i}/{j}/{k}" for i, j, k in touched)
    assert len(touched) < ChunkGrid(SHAPE, CHUNK).counts[0] ** 3 / 2
    assert done.bytes_read == len(touched) * 8**3 * 2
    assert (done.reads, done.interpolations) == (1, 1)


def test_a_crop_equals_the_array(stored):
    """What is read that way is what was stored."""
    store, voxels = stored
    pipe = vp.from_cases([{"image": store}]).open_volume().crop((3, 9, 20), (10, 7, 9)).realize()

    (sample,) = list(pipe)

    assert (sample["image"][0].numpy() == voxels[3:13, 9:16, 20:29]).all()


def test_planning_reads_no_voxel(stored):
    """Listing, patching, augmenting and shuffling read a header at most."""
    store, _ = stored
    pipe = vp.from_cases([{"image": store}] * 3).open_volume().lazy_patch(10, sampling="grid")

    count = len(list(pipe.rotate((-30, 30)).shuffle()))

    assert count == 3 * 4 * 4 * 5
    assert [key for key in store.asked if "/" in key] == []
