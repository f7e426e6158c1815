"""Orders of patches: every patch once, the same everywhere, and what each order costs."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import numbers_of_cases

import voxpipe as vp
from voxpipe.core.errors import GraphError, SampleError
from voxpipe.datapipes.epoch import set_epoch

ALL = vp.ShuffleSpec.all_patches()
SPECS = [vp.ShuffleSpec.none(), ALL, vp.ShuffleSpec.window(7), vp.ShuffleSpec.chunk_local(4000)]


def patches(count=6, samples=4, shape=(12, 12, 12), **kwargs):
    cases = [{"case": f"c{n}", "image": np.full(shape, n, np.uint8)} for n in range(count)]
    return vp.from_cases(cases).open_volume().lazy_patch(8, samples_per_volume=samples, **kwargs)


def order(pipe, seed=1, epoch=0):
    """Return the identities of an epoch."""
    set_epoch(pipe, seed, epoch)
    return [sample.identity for sample in pipe]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_every_patch_comes_once(spec):
    """In an order that the seed and the epoch decide."""
    natural = order(patches())
    shuffled = order(patches().shuffle_plans(spec))

    assert sorted(shuffled) == sorted(natural)
    assert shuffled == order(patches().shuffle_plans(spec))
    assert (shuffled == natural) == (spec.kind == "none")
    if spec.kind != "none":
        assert shuffled != order(patches().shuffle_plans(spec), epoch=1)
        assert shuffled != order(patches().shuffle_plans(spec), seed=2)


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_patches_are_what_they_were(spec):
    """Where a patch lies depends on its identity, not on when it comes."""

    def places(pipe):
        set_epoch(pipe, 1, 0)
        return {sample.identity: str(sample["image"].source_region) for sample in pipe}

    assert places(patches().shuffle_plans(spec)) == places(patches())


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_pipes_in_between_change_no_order(spec):
    """Right after lazy_patch no patch is kept; with a pipe in between the order is the same."""
    near = patches().shuffle_plans(spec).flip()
    far = patches().flip().shuffle_plans(spec)

    assert order(near) == order(far)


def test_no_patch_is_made_before_its_turn(monkeypatch):
    """A global order over patches opens one case for the first patch."""
    made = numbers_of_cases(monkeypatch)
    next(iter(patches().shuffle_plans()))

    assert len(made) == 1


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_workers_and_resuming_change_nothing(spec):
    """The same batches in process and with workers, from the middle too."""

    def epoch(workers, state=None):
        service = vp.MultiProcessingReadingService(workers)
        pipe = patches().shuffle_plans(spec).batch_patches(3)
        with vp.DataLoader2(pipe, None, service, seed=5) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            held = [next(batches)["image"].numpy().tobytes() for _ in range(3)] if not state else []
            middle = json.loads(json.dumps(loader.state_dict()))
            return held + [batch["image"].numpy().tobytes() for batch in batches], middle

    alone, state = epoch(0)
    together, _ = epoch(2)
    rest, _ = epoch(2, state)

    assert together == alone
    assert rest == alone[3:]


@given(
    counts=st.integers(1, 9),
    samples=st.integers(1, 5),
    budget=st.integers(1, 60_000),
    window=st.integers(1, 50),
)
@settings(max_examples=25, deadline=None)
def test_any_numbers_give_every_patch_once(counts, samples, budget, window):
    """Whatever the budget, the window, the cases and the patches."""
    for spec in (vp.ShuffleSpec.chunk_local(budget), vp.ShuffleSpec.window(window), ALL):
        shuffled = order(patches(counts, samples).shuffle_plans(spec))
        assert sorted(shuffled) == [(n, m) for n in range(counts) for m in range(samples)]


def test_chunk_local_keeps_to_its_memory():
    """As many visits are mixed as their chunks fit into memory: two here, and then the next."""
    # 12^3 voxels of one byte lie in one cube.
    mixed = order(patches(6, 4).shuffle_plans(vp.ShuffleSpec.chunk_local(2 * 12**3)))

    groups = [{case for case, _ in mixed[first : first + 8]} for first in range(0, 24, 8)]
    assert [len(group) for group in groups] == [2, 2, 2]
    assert set.union(*groups) == set(range(6))
    assert all(len({case for case, _ in mixed[n : n + 8]}) <= 4 for n in range(16))


def test_the_adapter_turns_it_off():
    """Shuffle(False) leaves the natural order, Shuffle(True) the shuffled one."""
    pipe = patches().shuffle_plans()

    assert order(vp.adapters.Shuffle(False)(pipe)) == order(patches())
    assert order(vp.adapters.Shuffle(True)(pipe)) == order(pipe)


def test_the_report_tells_what_orders_cost(monkeypatch):
    """More volumes in a batch cost more bytes, unless the cache holds what is mixed."""
    from voxpipe.volumes import Volume

    def read(self, *args):
        raise AssertionError("a voxel was read")

    monkeypatch.setattr(Volume, "read", read)
    size = 12**3
    told = {
        spec.kind: vp.datapipes.shuffle_report(
            patches(16, 8).shuffle_plans(spec).batch_patches(8), cache_bytes=4 * size
        )
        for spec in (ALL, vp.ShuffleSpec.chunk_local(4 * size), vp.ShuffleSpec.none())
    }

    assert [told[kind].samples for kind in told] == [128] * 3
    assert told["none"].volumes_per_batch == 1
    assert 1 < told["chunk_local"].volumes_per_batch <= 4
    assert told["global"].volumes_per_batch > told["chunk_local"].volumes_per_batch
    # Every volume is one cube here, and decoded once: 16 cubes for 128 samples.
    assert told["none"].bytes_per_sample == told["chunk_local"].bytes_per_sample == size / 8
    assert told["none"].residency == told["chunk_local"].residency == 7 / 8
    assert told["global"].residency < 0.5
    assert told["global"].bytes_per_sample > 4 * size / 8
    assert json.loads(json.dumps(told["global"].to_json()))["samples"] == 128
    assert "volumes per batch" in str(told["global"])


def test_a_report_is_a_line_for_each_fact():
    """As text it has four lines."""
    pipe = vp.from_cases([{"image": np.zeros((8, 8, 8), np.float32)}]).open_volume()
    pipe = pipe.lazy_patch(4, samples_per_volume=2).shuffle_plans().batch_patches(1)
    assert [line.split()[0] for line in str(vp.datapipes.shuffle_report(pipe)).splitlines()] == [
        "2",
        "volumes",
        "cache",
        "bytes",
    ]


def test_what_is_not_planned_has_no_report():
    """The reason is that for which the graph is not split."""
    with pytest.raises(GraphError, match="the order is not planned"):
        vp.datapipes.shuffle_report(patches().batch_patches(2).filter(bool).shuffle())


def test_wrong_specs_are_refused():
    """Where they are written."""
    with pytest.raises(SampleError, match="takes a ShuffleSpec, got 100"):
        patches().shuffle_plans(100)
    with pytest.raises(ValueError, match="size"):
        vp.ShuffleSpec.window(0)


def test_a_kind_that_is_none_is_refused():
    """So is a window without a size."""
    with pytest.raises(SampleError, match="no order is called 'windwoed'"):
        vp.ShuffleSpec("windwoed", 4)
    with pytest.raises(ValueError, match="size is a whole number of at least 1"):
        vp.ShuffleSpec("window")
