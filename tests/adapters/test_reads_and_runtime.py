"""Joined reads, prefetching, threads, processes, devices: the batches stay the same."""

import os
import threading

import numpy as np
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.adapters import RuntimeHints, note_of
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import GraphError
from voxpipe.storage.ranges import LocalRanges
from voxpipe.volumes import close_volumes

zarr = pytest.importorskip("zarr")
SEEN = []


def where(sample):
    SEEN.append((os.getpid(), threading.get_ident()))
    return sample.with_data(pid=os.getpid())


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A volume in chunks of 8^3, one file each."""
    folder = tmp_path_factory.mktemp("joined")
    array = np.random.default_rng(0).integers(-999, 999, (32, 32, 32)).astype(np.int16)
    zarr.create_array(folder / "a.zarr", data=array, chunks=(8, 8, 8))
    return str(folder / "a.zarr")


def grid(source, *, rotate=0.0):
    """Patches side by side, four of them in a batch."""
    pipe = vp.from_cases([{"image": source}]).open_volume().lazy_patch(8, sampling="grid")
    return (pipe.rotate(rotate) if rotate else pipe).batch_patches(4)


def epoch(pipe, adapters, workers=0):
    close_volumes()
    service = vp.MultiProcessingReadingService(workers)
    with vp.DataLoader2(pipe, adapters, service, seed=1) as loader:
        return [batch["image"].numpy().tobytes() for batch in loader]


@pytest.mark.parametrize("rotate", [0.0, 10.0])
@pytest.mark.parametrize("workers", [0, 2])
def test_joined_reads_give_the_same_batches(stored, rotate, workers):
    """To the last bit, in process and in workers, turned or not."""
    pipe = grid(stored, rotate=rotate)
    fused = [vp.FuseSpatial(), vp.FuseReads()]

    assert epoch(pipe, fused, workers) == epoch(pipe, [vp.FuseSpatial()])


def test_neighbours_are_read_once(stored, monkeypatch):
    """Four patches side by side are one read and one request for their chunks, not four."""
    requests = []
    ranges = LocalRanges.get_ranges

    def noting(self, wanted, most=0):
        requests.append(len(wanted))
        return ranges(self, wanted, most)

    monkeypatch.setattr(LocalRanges, "get_ranges", noting)
    counts = {}
    for name, adapters in (
        ("apart", [vp.FuseSpatial()]),
        ("joined", [vp.FuseSpatial(), vp.FuseReads()]),
    ):
        requests.clear()
        before = IO_COUNTERS.snapshot()
        epoch(grid(stored), adapters)
        spent = IO_COUNTERS.snapshot() - before
        counts[name] = (spent.reads, len(requests), spent.bytes_decoded)

    assert counts["apart"][0] == 64
    assert counts["joined"][0] == 16
    assert counts["joined"][1] < counts["apart"][1]
    assert counts["joined"][2] == counts["apart"][2]


def test_patches_far_apart_are_left_apart(stored):
    """A block that takes more chunks than the patches themselves is not read."""
    pipe = vp.from_cases([{"image": stored}]).open_volume().lazy_patch(4, samples_per_volume=8)
    pipe = pipe.batch_patches(8)
    spent = []
    for adapters in ([vp.FuseSpatial()], [vp.FuseSpatial(), vp.FuseReads()]):
        before = IO_COUNTERS.snapshot()
        batches = epoch(pipe, adapters)
        spent.append((IO_COUNTERS.snapshot() - before, batches))

    (apart, plain), (joined, fused) = spent
    assert fused == plain
    assert joined.bytes_decoded <= apart.bytes_decoded
    assert joined.reads <= apart.reads


def test_what_is_realized_before_is_not_joined(stored):
    """The refusal says which adapter is missing, and explain() shows it."""
    pipe = vp.from_cases([{"image": stored}]).open_volume().lazy_patch(8).batch_patches(2)
    with vp.DataLoader2(pipe, vp.FuseReads()) as loader:
        assert "give FuseSpatial before FuseReads" in loader.explain()


def test_prefetch_is_put_at_the_end_once():
    """Bounded in items and bytes; a second one adds nothing."""
    pipe = vp.Prefetch(3, bytes=1000)(IterableWrapper(range(5)).map(str))

    assert (pipe.buffer_size, pipe.buffer_bytes) == (3, 1000)
    assert list(pipe) == list("01234")
    assert vp.Prefetch()(pipe) is pipe


def test_prefetch_can_stand_after_pipes_by_name():
    """Each pipe of that name gets one, of the same graph; the user's graph stays."""
    source = IterableWrapper(range(4))
    chain = source.map(str).map(int).batch(2)

    prefetched = vp.Prefetch(2, after="map")(chain)

    names = [type(pipe).__name__ for pipe in vp_walk(prefetched)]
    assert names.count("Prefetcher") == 2
    assert list(prefetched) == list(chain) == [[0, 1], [2, 3]]
    assert vp.Prefetch(2, after="map")(prefetched) is prefetched
    with pytest.raises(ValueError, match=r"no rotate\(\)"):
        vp.Prefetch(after="rotate")(chain)


def vp_walk(sink):
    from voxpipe.graph import walk

    return walk(sink)


@pytest.mark.parametrize("workers", [0, 2])
def test_prefetching_changes_no_batch(stored, workers):
    """With and without workers."""
    assert epoch(grid(stored), [vp.FuseSpatial(), vp.Prefetch(2)], workers) == epoch(
        grid(stored), [vp.FuseSpatial()]
    )


def cases(count=6):
    return [{"image": np.full((6, 6, 6), n, np.uint8)} for n in range(count)]


def pids(loader):
    return {int(pid) for batch in loader for pid in batch["pid"]}


@pytest.mark.parametrize(("given", "asked"), [(0, 2), (2, 0), (2, 1), (1, None)])
def test_the_graph_says_how_many_processes(given, asked):
    """It goes before what the service was given, and no further than its loader."""
    service = vp.MultiProcessingReadingService(given)
    pipe = vp.from_cases(cases()).open_volume().lazy_patch(4).realize().map(where)
    expected = given if asked is None else asked
    hint = [] if asked is None else [vp.Runtime(processes=asked)]
    with vp.DataLoader2(pipe.batch_patches(1), hint, service, seed=1) as loader:
        found = pids(loader)
    if expected == 0:
        assert found == {os.getpid()}
    else:
        assert os.getpid() not in found
        assert 1 <= len(found) <= expected
    assert service.num_workers == given


@pytest.mark.parametrize("at", [None, "batch_patches"])
def test_the_graph_says_how_many_threads(at, monkeypatch):
    """As many patches of a batch are under way at once: each waits for the others here."""
    from voxpipe.spatial import LazyPatch

    together = threading.Barrier(3, timeout=60)
    realize = LazyPatch.realize

    def met(self, out=None):
        together.wait()
        return realize(self, out)

    monkeypatch.setattr(LazyPatch, "realize", met)
    pipe = vp.from_cases(cases()).open_volume().lazy_patch(4).batch_patches(3)
    adapters = [vp.FuseSpatial(), vp.Runtime(threads=3, at=at)]
    with vp.DataLoader2(pipe, adapters, seed=1) as loader:
        of_process = "realized in 3 threads of this process" in str(loader.explain())
        assert of_process == (at is None)  # else the pipe alone has them
        assert len(list(loader)) == 2


def test_the_graph_says_where_batches_end_up():
    """Every tensor is on the device, and what is none stays; hints add up."""
    pipe = vp.from_cases(cases()).open_volume().lazy_patch(4).batch_patches(3)
    adapters = [vp.Runtime(device="meta"), vp.Runtime(threads=2)]
    with vp.DataLoader2(pipe, adapters, seed=1) as loader:
        for batch in loader:
            assert batch["image"].device.type == "meta"
            assert len(batch["meta"]) == 3
    both = vp.Runtime(threads=2)(vp.Runtime(device="cpu")(pipe))
    assert (note_of(both, RuntimeHints).threads, note_of(both, RuntimeHints).device) == (2, "cpu")


def test_hints_that_cannot_hold_are_refused():
    """At the pipe, or where they are written."""
    pipe = vp.from_cases(cases()).open_volume().lazy_patch(4).batch_patches(3)
    with pytest.raises(GraphError, match="threads are for realize and batch_patches"):
        vp.Runtime(threads=2, at="shuffle")(pipe)
    with pytest.raises(ValueError, match="belongs to threads="):
        vp.Runtime(processes=2, at="batch_patches")
    with pytest.raises(ValueError, match="threads"):
        vp.Runtime(threads=0)


def test_adapters_come_and_go_between_epochs_of_a_living_loader():
    """The batches stay the same, workers that stay are those of the new graph."""
    profile = vp.Profile()
    pipe = vp.from_cases(cases()).open_volume().lazy_patch(4).flip().realize().map(where)
    service = vp.MultiProcessingReadingService(1, persistent_workers=True)
    with vp.DataLoader2(pipe.batch_patches(2), None, service, seed=1) as loader:

        def batches(epoch):
            loader.set_epoch(epoch)
            return [batch["image"].numpy().tobytes() for batch in loader]

        plain = [batches(0), batches(1)]
        running = iter(loader)
        next(running)
        loader.adapters = [vp.FuseSpatial(), profile]
        assert len(list(running)) == 2  # it goes on as it is
        assert profile.to_json()[0]["items"] == 0
        assert [batches(0), batches(1)] == plain
        assert profile.to_json()[0]["items"] == 12
        loader.adapters = [a for a in loader.adapters if a is not profile]
        assert batches(0) == plain[0]
        assert profile.to_json()[0]["items"] == 12
        assert [type(a).__name__ for a in loader.adapters] == ["FuseSpatial"]


def test_an_adapter_that_is_refused_leaves_the_loader_as_it_was():
    """What is wrong is told where it is set."""
    pipe = vp.from_cases(cases()).open_volume().lazy_patch(4).batch_patches(3)
    with vp.DataLoader2(pipe, seed=1) as loader:
        with pytest.raises(GraphError):
            loader.adapters = [vp.Timeout(3, at="rotate")]
        with pytest.raises(TypeError):
            loader.adapters = vp.Profile
        assert loader.adapters == ()
        assert len(list(loader)) == 2
