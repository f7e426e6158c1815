"""How voxels are read is agreed once, shown, and never changes what a batch holds."""

import fsspec
import nibabel
import numpy as np
import pytest
import zarr
from scenes import full_chain, write_cases

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import BudgetExceeded
from voxpipe.dataloader2.compiler import Negotiation
from voxpipe.volumes import Volume, register_backend, unregister_backend
from voxpipe.volumes.chunks.chunk_cache import CHUNKS, DEFAULT_BYTES
from voxpipe.volumes.scheme import ReadScheme, SchemeRefusal

SHAPE = (26, 24, 28)
VOLUMES = 3
LARGE = 10**9
CHUNK_BYTES = 8**3 * 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The same volumes as .nii, .nii.gz and zarr."""
    folder = tmp_path_factory.mktemp("schemes")
    rng = np.random.default_rng(0)
    for number in range(VOLUMES):
        array = rng.integers(-1000, 1000, SHAPE, dtype=np.int16)
        for suffix in (".nii", ".nii.gz"):
            nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), folder / f"{number}{suffix}")
        zarr.create_array(folder / f"{number}.zarr", data=array, chunks=(8, 8, 8))
    return folder


def chain(folder, suffix, scattered=True, **region):
    """Return a chain whose patches come in any order, or volume after volume."""
    cases = [{"case": str(n), "image": str(folder / f"{n}{suffix}")} for n in range(VOLUMES)]
    patches = (
        vp.from_cases(cases)
        .shuffle()
        .open_volume()
        .lazy_patch(8, samples_per_volume=6, **region)
        .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
    )
    return (patches.shuffle() if scattered else patches).batch_patches(4)


def loader_of(pipe, workers=0, memory=LARGE, **settings):
    service = vp.MultiProcessingReadingService(workers, memory_bytes=memory, **settings)
    return vp.DataLoader2(pipe, reading_service=service, seed=3)


def without_cache(folder):
    """Return the memory for everything but decoded chunks."""
    with loader_of(chain(folder, ".zarr")) as loader:
        scheme = loader.schemes()["image"]
    return scheme.projected_bytes - scheme.memory["kept chunks"]


def images(loader):
    return [batch["image"].numpy().copy() for batch in loader]


def test_every_mode_gives_the_same_bits(folder):
    """view, resident, direct and spool."""
    found, modes = [], []
    for suffix, memory in [
        (".nii", LARGE),
        (".zarr", LARGE),
        (".zarr", without_cache(folder)),
        (".nii.gz", LARGE),
    ]:
        with loader_of(chain(folder, suffix), memory=memory) as loader:
            modes.append(loader.schemes()["image"].mode)
            found.append(np.concatenate(images(loader)))

    assert modes == ["view", "resident", "direct", "spool"]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_resident_decodes_each_chunk_once(folder):
    """As many chunks were missed as are kept: none twice, and none was dropped."""
    with loader_of(chain(folder, ".zarr")) as loader:
        scheme = loader.schemes()["image"]
        missed, found = CHUNKS.misses, CHUNKS.hits
        batches = iter(loader)
        for _ in range(len(loader)):
            next(batches)
        missed, found = CHUNKS.misses - missed, CHUNKS.hits - found
        held = CHUNKS.held_bytes // CHUNK_BYTES
        del batches

    assert scheme.mode == "resident"
    assert scheme.cache_bytes == VOLUMES * 4 * 3 * 4 * CHUNK_BYTES
    assert missed == held
    assert found > 0


def test_a_volume_that_was_visited_is_let_go_of(folder):
    """Where its patches come together, chunks of two visits are kept, and none is decoded twice."""
    pipe = chain(folder, ".zarr", scattered=False, region=16, align=8)
    with loader_of(pipe) as loader:
        scheme = loader.schemes()["image"]
        missed = CHUNKS.misses
        list(loader)
        missed = CHUNKS.misses - missed
    with loader_of(pipe, 1, persistent_workers=True) as loader:
        again = loader.schemes()["image"]

    assert scheme.mode == again.mode == "resident"
    assert scheme.cache_bytes < again.cache_bytes == VOLUMES * 4 * 3 * 4 * CHUNK_BYTES
    assert 0 < missed <= VOLUMES * 4 * 3 * 4


def test_every_process_keeps_its_own(folder):
    """The projection counts the chunks of all workers."""
    with loader_of(chain(folder, ".zarr"), workers=3) as loader:
        scheme = loader.schemes()["image"]

    assert scheme.memory["kept chunks"] == 3 * scheme.cache_bytes > 0


def test_chunks_are_kept_during_an_epoch_only(folder):
    """The cache is empty and keeps nothing before and after, however the epoch ends."""
    with loader_of(chain(folder, ".zarr")) as loader:
        kept = loader.schemes()["image"].cache_bytes
        assert CHUNKS.most_bytes == 0
        batches = iter(loader)
        next(batches)
        assert CHUNKS.most_bytes == kept
        assert 0 < CHUNKS.held_bytes <= kept
        del batches
        assert (CHUNKS.most_bytes, CHUNKS.held_bytes) == (0, 0)
        list(loader)
        assert (CHUNKS.most_bytes, CHUNKS.held_bytes) == (0, 0)


def test_a_plain_read_sees_what_was_stored_since(tmp_path):
    """Outside a loader nothing is kept."""
    array = zarr.create_array(tmp_path / "a.zarr", data=np.full((4, 4, 4), 2.0), chunks=(4, 4, 4))
    volume = Volume(tmp_path / "a.zarr")
    before = volume.numpy().sum()
    array[...] = 1.0

    assert (before, volume.numpy().sum()) == (128, 64)


def test_construction_opens_nothing(folder):
    """The first epoch does; the headers that it takes are those of its own volumes."""
    before = IO_COUNTERS.snapshot()
    with loader_of(chain(folder, ".zarr")) as loader:
        assert (IO_COUNTERS - before).headers == 0
        batches = iter(loader)
        assert (IO_COUNTERS - before).headers == 0
        list(batches)

    assert (IO_COUNTERS - before).headers == VOLUMES


@pytest.mark.parametrize("workers", [0, 2])
def test_too_little_memory_is_refused_before_anything_is_read(folder, workers):
    """By the term, as a MemoryError, with the place of the chain; and explain() says so."""
    before = IO_COUNTERS.snapshot()
    with loader_of(chain(folder, ".zarr"), workers, memory=1000) as loader:
        with pytest.raises(MemoryError, match=r"most of it are batches: [0-9]+ bytes") as caught:
            next(iter(loader))
        assert "refused: reading would take" in loader.explain()

    assert isinstance(caught.value, BudgetExceeded)
    assert "test_schemes.py" in str(caught.value)
    assert (IO_COUNTERS - before).reads == 0


def test_explain_shows_the_scheme(folder):
    """Mode, amplification and memory, by key."""
    with loader_of(chain(folder, ".zarr"), memory=without_cache(folder)) as loader:
        text = loader.explain().split("\n\n")[-1]

    assert text.startswith("image: direct: ")
    assert "times the voxels needed" in text
    assert "read buffers" in text


def test_what_cannot_be_looked_at_ahead_is_not_negotiated(folder):
    """Functions of the user's are not run for it; chunks of one batch are kept as ever."""
    with loader_of(chain(folder, ".zarr").filter(bool)) as loader:
        assert loader.schemes() == {}
        assert "not negotiated" in loader.explain()
        batches = iter(loader)
        next(batches)
        assert CHUNKS.most_bytes == DEFAULT_BYTES
        del batches


class Opinionated:
    """A backend by TorchIO's contract that keeps to itself what it decodes."""

    shape, dtype, affine = (1, *SHAPE), np.dtype(np.int16), np.eye(4)

    def __init__(self, request):
        pass

    def __getitem__(self, item):
        return np.zeros(self.shape, self.dtype)[item]

    def to_tensor(self):
        return self[...]

    def adjust(self, scheme):
        return SchemeRefusal("it is Tuesday")


def test_a_store_may_refuse_with_a_reason():
    """explain() shows it."""
    register_backend("moody", lambda r: str(r.path or "").endswith(".moody"), Opinionated)
    try:
        pipe = vp.from_cases([{"image": "a.moody"}]).open_volume().lazy_patch(8).batch_patches(1)
        with loader_of(pipe) as loader:
            scheme = loader.schemes()["image"]
            text = loader.explain()
    finally:
        unregister_backend("moody")

    assert (scheme.mode, scheme.cache_bytes) == ("direct", 0)
    assert scheme.vetoes == ("it is Tuesday",)
    assert "refused by the store: it is Tuesday" in text


def test_zarr_python_keeps_no_chunks(folder):
    """What voxpipe leaves to zarr-python is decoded for each patch, and the scheme says so."""
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, shape=SHAPE, dtype=np.int16, chunks=(8, 8, 8))
    pipe = vp.from_cases([{"image": array}]).open_volume().lazy_patch(8).batch_patches(1)
    with loader_of(pipe) as loader:
        scheme = loader.schemes()["image"]

    assert (scheme.mode, scheme.cache_bytes) == ("direct", 0)
    assert "keeps no chunks" in scheme.vetoes[0]


REGION = {"region": 16, "align": 8}


@pytest.mark.parametrize("workers", [0, 2])
def test_regional_is_reproducible(folder, workers):
    """The same patches under any number of workers, from any format, and after resuming."""
    with loader_of(chain(folder, ".nii", **REGION)) as loader:
        expected = images(loader)
    with loader_of(chain(folder, ".zarr", **REGION), workers) as loader:
        batches = iter(loader)
        first = [next(batches)["image"].numpy().copy() for _ in range(2)]
        state = loader.state_dict()
        del batches
    with loader_of(chain(folder, ".zarr", **REGION), workers) as loader:
        loader.load_state_dict(state)
        rest = images(loader)

    np.testing.assert_array_equal(np.concatenate(first + rest), np.concatenate(expected))


def test_regional_is_recorded_in_the_state(folder):
    """A state of another region, or of none, is refused."""
    with loader_of(chain(folder, ".nii", **REGION)) as loader:
        state = loader.state_dict()
    for other in ({}, {"region": 24, "align": 8}, {"region": 16, "align": 4}):
        with (
            loader_of(chain(folder, ".nii", **other)) as loader,
            pytest.raises(vp.errors.StateMismatch),
        ):
            loader.load_state_dict(state)


def test_regional_decodes_fewer_chunks(folder):
    """With room for two regions: six patches share the chunks of one, and else they do not."""
    memory, decoded, running = without_cache(folder) + 2 * 27 * CHUNK_BYTES, [], []
    for region in ({}, {"region": 24, "align": 8}):
        pipe = chain(folder, ".zarr", scattered=False, **region)
        with loader_of(pipe, memory=memory) as loader:
            running.append(loader.schemes()["image"].running)
            before = CHUNKS.misses
            list(loader)
            decoded.append(CHUNKS.misses - before)

    assert running == ["direct", "regional"]
    assert decoded[1] < decoded[0]


def test_a_chain_without_lazy_volumes_is_left_alone():
    """Nothing is read lazily, so there is nothing to agree on."""
    with vp.DataLoader2(vp.from_cases([{"x": 1}])) as loader:
        assert loader.schemes() == {}
        assert len(list(loader)) == 1


def test_two_loaders_each_lend_their_own(folder, tmp_path):
    """An epoch inside another one: the cache has room for both, and then for the other."""
    with loader_of(chain(folder, ".zarr")) as outer, loader_of(chain(folder, ".zarr")) as inner:
        first = iter(outer)
        next(first)
        alone = CHUNKS.most_bytes
        list(inner)
        assert CHUNKS.most_bytes == alone
        second = iter(inner)
        next(second)
        assert CHUNKS.most_bytes == 2 * alone
        del first, second

    assert CHUNKS.most_bytes == 0


def test_mapped_files_need_no_buffers(tmp_path):
    """Image and label lie bare: views, and the batches are all that is projected."""
    with vp.DataLoader2(full_chain(write_cases(tmp_path))) as loader:
        schemes = loader.schemes()

    assert {key: scheme.mode for key, scheme in schemes.items()} == {
        "image": "view",
        "label": "view",
    }
    assert all(set(scheme.memory) == {"batches"} for scheme in schemes.values())


def test_diagnose_passes_the_advice_on(folder, monkeypatch):
    """Once, where several keys are advised the same."""
    better = ReadScheme(
        "regional",
        meanwhile="direct",
        region=(16, 16, 16),
        align=(8, 8, 8),
        draws=4,
        chunks=9.0,
        chunks_then=2.0,
    )
    outcome = Negotiation({"image": better, "label": better})
    monkeypatch.setattr("voxpipe.dataloader2.dataloader2.negotiate", lambda *run: outcome)
    with loader_of(chain(folder, ".nii")) as loader:
        notes = loader.diagnose(batches=2, seconds=1e-6).notes

    told = [note for note in notes if "lazy_patch(region=(16, 16, 16), align=(8, 8, 8)" in note]
    assert len(told) == 1
    assert told[0].startswith("image: ")
    assert "about 2 chunks per patch instead of 9" in told[0]


class ToldAhead:
    """Puts what its process may fetch for later patches into the batch."""

    def __call__(self, batch):
        from voxpipe.storage.read_ahead import AHEAD

        return {**batch, "ahead": AHEAD.most_bytes}


def test_what_is_fetched_for_later_rules_in_the_workers(folder):
    """The figure of the scheme is the bound of each worker."""
    system = fsspec.filesystem("memory")
    for number in range(VOLUMES):
        system.put(str(folder / f"{number}.zarr"), f"/ahead/{number}.zarr", recursive=True)
    cases = [{"case": str(n), "image": f"memory://ahead/{n}.zarr"} for n in range(VOLUMES)]
    pipe = vp.from_cases(cases).open_volume().lazy_patch(8).batch_patches(2).map(ToldAhead())

    with loader_of(pipe, workers=1, multiprocessing_context="fork") as loader:
        scheme = loader.schemes()["image"]
        found = {batch["ahead"] for batch in loader}

    assert 0 < scheme.ahead_bytes < LARGE
    assert found == {scheme.ahead_bytes}
    system.rm("/ahead", recursive=True)
