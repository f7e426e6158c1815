import json

import numpy as np
import pytest
from sampled import sampled
from scenes import full_chain, same

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import StateMismatch
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.datapipes.item_numbers import items_from
from voxpipe.datapipes.iter import AugmentPipe

SAMPLES = 14  # 3 cases x 14 patches in batches of 2: 21 batches, so 20 places in between


def loader_of(cases, workers=0, **changes):
    chain = full_chain(cases, samples=changes.pop("samples", SAMPLES), batch=2)
    service = vp.MultiProcessingReadingService(workers, **changes)
    return vp.DataLoader2(chain, None, service, seed=7)


@pytest.fixture(scope="module")
def whole(cases):
    with loader_of(cases) as loader:
        return list(loader), list(loader)


@pytest.mark.parametrize("place", sampled(range(1, 21), 3))
def test_resumed_anywhere_exactly_the_rest_comes(cases, whole, place):
    """Stopped after n batches and resumed in a new loader, batches n, n + 1, ... come."""
    with loader_of(cases) as loader:
        batches = iter(loader)
        seen = [next(batches) for _ in range(place)]
        state = json.loads(json.dumps(loader.state_dict()))

    with loader_of(cases) as resumed:
        resumed.load_state_dict(state)
        rest, following = list(resumed), list(resumed)

    assert same(seen + rest, whole[0])
    assert same(following, whole[1])


# Twenty positions, each stopped and continued under different numbers of workers.
PAIRS = [(0, 2), (2, 0), (1, 3), (3, 1), (2, 1)]


@pytest.mark.parametrize(("before", "after"), PAIRS)
def test_resumed_under_another_number_of_workers(cases, whole, before, after):
    """What workers made ahead does not count, and the number of workers does not matter."""
    places = [(7 * n) % 20 + 1 for n in range(20) if PAIRS[n % 5] == (before, after)]
    assert len(places) == 4
    # Both stay for all places: a state is of a place, not of a loader.
    with (
        loader_of(cases, before, persistent_workers=before > 0) as loader,
        loader_of(cases, after, persistent_workers=after > 0) as resumed,
    ):
        for place in places:
            loader.set_epoch(0)
            batches = iter(loader)
            for _ in range(place):
                next(batches)
            resumed.load_state_dict(loader.state_dict())

            assert same(list(resumed), whole[0][place:]), place


def test_resumed_in_a_new_loader_with_other_workers(cases, whole):
    """As after a restart: nothing of the first loader is there any more."""
    with loader_of(cases, 1) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        state = json.loads(json.dumps(loader.state_dict()))

    with loader_of(cases, 2) as resumed:
        resumed.load_state_dict(state)

        assert same(list(resumed), whole[0][5:])


def test_resuming_reads_nothing_for_what_is_skipped(cases, whole):
    """The skipped batches cost no read, no interpolation, and no header of a volume left out."""
    with loader_of(cases) as loader:
        state = {**loader.state_dict(), "next_batch": 20}
        loader.load_state_dict(state)
        before = IO_COUNTERS.snapshot()

        rest = list(loader)

    done = IO_COUNTERS - before
    assert same(rest, whole[0][20:])
    assert done.reads == 2 * 2  # one batch of two samples with two volumes each
    assert done.headers <= 2 * 2


CASES, PER_CASE = 12_600, 8  # more than 100 000 patches


@pytest.fixture(scope="module")
def catalog(tmp_path_factory):
    """One volume under as many names as a large data set has."""
    folder = tmp_path_factory.mktemp("catalog")
    np.save(folder / "volume.npy", np.arange(512, dtype=np.int16).reshape(8, 8, 8))
    path = str(folder / "volume.npy")
    return [{"case": f"case{n}", "image": path} for n in range(CASES)]


def test_resuming_at_patch_100_000_reads_no_voxel(catalog):
    """And no plan is made of the patches before: what turns them was not asked."""
    chain = vp.from_cases(catalog).shuffle().open_volume()
    chain = chain.lazy_patch(4, samples_per_volume=PER_CASE).augment(rotate=(-15, 15))
    with vp.DataLoader2(chain.batch_patches(4), seed=7) as loader:
        state = {**loader.state_dict(), "next_batch": 25_000}
        assert len(json.dumps(state)) < 4096
        loader.load_state_dict(state)
        loader.schemes()
        before = IO_COUNTERS.snapshot()
        batches = iter(loader)
        with pytest.MonkeyPatch.context() as patch:
            turned = []
            own = AugmentPipe.apply
            patch.setattr(
                AugmentPipe, "apply", lambda pipe, item: turned.append(1) or own(pipe, item)
            )
            batch = next(batches)
        done = IO_COUNTERS - before

    assert [m["epoch"] for m in batch["meta"]] == [0] * 4
    assert done.reads == 4
    assert done.headers <= 4
    assert len(turned) == 2 * 4  # of the next batch, too: its bytes are asked for meanwhile


def test_what_is_passed_by_is_what_would_have_come(cases):
    """Random pipes and shuffles at the end, in the middle, or none; from every place."""
    start = vp.from_cases(cases).shuffle().open_volume().lazy_patch(6, samples_per_volume=4)
    chains = [
        start,
        start.augment(rotate=(-15, 15)).flip(p=0.5),
        start.augment(rotate=(-15, 15)).shuffle(buffer_size=5).flip(p=0.5),
        start.flip(p=0.5).shuffle(buffer_size=5),
    ]
    for chain in chains:
        set_epoch(chain, 7, 1)
        every = [sample.provenance() for sample in items_from(chain, 0)]
        for place in (0, 1, 5, 11, 12):
            set_epoch(chain, 7, 1)
            assert [s.provenance() for s in items_from(chain, place)] == every[place:]


def test_a_state_is_small_json(cases):
    """A few numbers and hashes; the position is that of the next batch."""
    with loader_of(cases) as loader:
        start = loader.state_dict()
        next(iter(loader))
        state = loader.state_dict()

    assert len(json.dumps(state)) < 500
    assert {k: start[k] for k in ("seed", "epoch", "next_batch")} == {
        "seed": 7,
        "epoch": 0,
        "next_batch": 0,
    }
    # the iterator was dropped at once, yet the batch was delivered
    assert state["next_batch"] == 1


def test_after_the_last_batch_comes_the_next_epoch(cases):
    """The state at the end of an epoch is the beginning of the next."""
    with loader_of(cases) as loader:
        list(loader)

        assert loader.state_dict()["epoch"] == 1
        assert loader.state_dict()["next_batch"] == 0


def test_a_state_of_something_else_is_refused(cases):
    """Another chain, other cases, another version and nonsense are each named."""
    with loader_of(cases) as loader:
        state = loader.state_dict()
        refused = [
            (loader_of(cases, samples=3), state, "graph"),
            (loader_of(cases[:2]), state, "data"),
            (loader, {**state, "version": 99}, "version 99"),
            (loader, {**state, "next_batch": -1}, "whole numbers"),
            (loader, {"a": 1}, r"\['a'\]"),
        ]

        for other, wrong, told in refused:
            with pytest.raises(StateMismatch, match=told):
                other.load_state_dict(wrong)
