"""Joined reads and adapters that change between epochs: the batches stay the same."""

import os
import threading

import numpy as np
import pytest

import voxpipe as vp
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


def cases(count=6):
    return [{"image": np.full((6, 6, 6), n, np.uint8)} for n in range(count)]


def pids(loader):
    return {int(pid) for batch in loader for pid in batch["pid"]}


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
