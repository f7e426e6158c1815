"""FuseSpatial: one read and one interpolation per volume per sample, and no other voxel."""

import numpy as np
import pytest
from scenes import same, write_cases

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.datapipes.iter import FusedSpatial, Realize, SpatialPipe
from voxpipe.graph import describe, find, walk


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


def written(cases):
    """Four spatial pipes, realized by hand, normalized, batched."""
    return (
        vp.from_cases(cases)
        .open_volume()
        .lazy_patch(6, samples_per_volume=2)
        .rotate((-20, 20))
        .zoom((0.8, 1.2))
        .flip(p=0.5)
        .translate((-1, 1))
        .realize()
        .normalize(mean=3.0, std=100.0)
        .batch_patches(2)
    )


def test_the_graph_before_and_after(cases):
    """Four pipes become one, realize and normalize move into the batch."""
    pipe = written(cases)

    rewritten = vp.FuseSpatial().rewrite(pipe)

    assert [describe(p) for p in walk(rewritten.after)] == [
        "from_cases(3 cases)",
        "open_volume()",
        "lazy_patch(6, samples_per_volume=2)",
        "rotate((-20, 20)) + zoom((0.8, 1.2)) + flip(p=0.5) + translate((-1, 1))",
        "normalize(mean=3.0, std=100.0)",
        "batch_patches(2)",
    ]
    assert len(list(walk(pipe))) == 10


def test_fused_twice_is_fused_once(cases):
    """A fused graph comes back as the same object."""
    once = vp.FuseSpatial()(written(cases))

    assert vp.FuseSpatial()(once) is once


def test_one_read_and_one_interpolation_per_volume_per_sample(cases):
    """Six samples of two volumes: twelve reads, twelve interpolations, exactly the regions."""
    pipe = vp.FuseSpatial()(written(cases))
    pipe_source = next(walk(pipe))
    pipe_source.set_seed(7)
    before = IO_COUNTERS.snapshot()

    batches = list(pipe)

    done = IO_COUNTERS - before
    regions = [s["region"] for b in batches for m in b["meta"] for s in m["sources"].values()]
    voxels = [int(np.prod([b - a for a, b in region])) for region in regions]
    sizes = [2, 1] * 6  # int16 image, uint8 label
    assert len(batches) == 3
    assert (done.reads, done.interpolations, done.copies) == (12, 12, 0)
    assert done.bytes_read == sum(v * s for v, s in zip(voxels, sizes, strict=True))


def test_items_and_draws_stay_the_same(cases):
    """With and without fusing, batches are bit-identical."""
    with vp.DataLoader2(written(cases), seed=5, fuse=False) as plain:
        expected = list(plain)

    with vp.DataLoader2(written(cases), seed=5) as fused:
        assert same(list(fused), expected)


def test_nothing_is_made_but_the_batch(cases, monkeypatch):
    """Fused, every patch is realized into the batch's own memory."""
    from voxpipe.spatial import LazyPatch

    given = []
    realize = LazyPatch.realize

    def watch(self, out=None):
        given.append(out)
        return realize(self, out)

    monkeypatch.setattr(LazyPatch, "realize", watch)
    with vp.DataLoader2(written(cases), seed=5) as loader:
        (batch, *_) = list(loader)

    assert all(out is not None for out in given)
    images = batch["image"].numpy()
    assert np.shares_memory(images, given[0])


def test_a_shared_pipe_is_refused(cases):
    """A spatial pipe with two readers stays, and explain says why."""
    left, right = vp.from_cases(cases).open_volume().lazy_patch(6).rotate(10).fork(2)
    pipe = left.zoom(1.1).zip(right.flip())

    rewritten = vp.FuseSpatial().rewrite(pipe)

    assert not rewritten.has_changes


def test_the_reader_of_a_shared_rotation_is_refused(cases):
    """Two pipes that read one rotation directly: fusing would lose it for the other."""
    rotated = vp.from_cases(cases).open_volume().lazy_patch(6).rotate(10)
    pipe = rotated.zoom(1.1).zip(rotated.flip())

    rewritten = vp.FuseSpatial().rewrite(pipe)

    assert rewritten.after is pipe
    assert {c.reason for c in rewritten.changes} == {"rotate(10) has another reader"}


class Spatial(vp.Adapter):
    """Keeps the calls of the spatial pipes that it gets, in the order of the graph."""

    def rewrite(self, pipe):
        fused = find(pipe, FusedSpatial)
        self.calls = [p.calls for p in fused] or [describe(p) for p in find(pipe, SpatialPipe)]
        return super().rewrite(pipe)


@pytest.mark.parametrize(
    "adapters",
    [
        [],
        [vp.FuseSpatial()],
        [vp.Profile(), vp.FuseSpatial()],
        [vp.Lint(ignore=["one-volume-batches"]), vp.Profile()],
    ],
)
def test_every_order_of_adapters_runs_the_fused_graph(cases, adapters):
    """The loader fuses before adapters that need the result; those of users come earlier."""
    own = Spatial()
    pipes = "rotate((-20, 20))", "zoom((0.8, 1.2))", "flip(p=0.5)", "translate((-1, 1))"
    with vp.DataLoader2(written(cases), [own, *adapters], seed=5) as loader:
        (fused,) = find(loader.datapipe, FusedSpatial)
        text = loader.explain()

    assert tuple(own.calls) == fused.calls == pipes
    assert text.count("translate((-1, 1))   (fuse spatial)") == 1


def test_fusion_can_be_turned_off(cases):
    """The graph runs as written, after another set of adapters and from a state too."""
    with vp.DataLoader2(written(cases), seed=5, fuse=False) as loader:
        loader.adapters = [vp.Timeout(item=60)]
        list(loader)
        assert not find(loader.datapipe, FusedSpatial)
        state = loader.state_dict()
    with vp.DataLoader2.from_state(state, written(cases), fuse=False) as loader:
        assert not find(loader.datapipe, FusedSpatial)
    with pytest.raises(ValueError, match="fuse is True or False, got 1"):
        vp.DataLoader2(written(cases), fuse=1)


def test_realize_with_another_reader_stays(cases):
    """Tensors that someone else reads too are still made."""
    realized = vp.from_cases(cases).open_volume().lazy_patch(6).realize()
    pipe = realized.batch_patches(3).zip(realized.batch_patches(3))

    rewritten = vp.FuseSpatial().rewrite(pipe)

    assert find(rewritten.after, Realize)
    assert any("another reader" in (c.reason or "") for c in rewritten.changes)
