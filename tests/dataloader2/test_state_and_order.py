"""State under every order, after failures, and for graphs that cannot be split."""

import json
import random

import numpy as np
import pytest
import torch
from scenes import full_chain, same
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import BadState, SampleError, StateMismatch
from voxpipe.graph import fingerprint


def names(batches):
    return [str([m["identity"] for m in batch["meta"]]) for batch in batches]


def test_as_ready_resumes_with_exactly_the_rest(cases):
    """Whatever order batches came in, the rest is what was not delivered, each once."""
    chain = full_chain(cases, samples=8, batch=2)
    with vp.DataLoader2(chain, seed=7) as reference:
        every = sorted(names(reference))
    service = vp.MultiProcessingReadingService(2, "fork", order="as_ready")
    with vp.DataLoader2(chain, None, service, seed=7) as loader:
        batches = iter(loader)
        seen = [next(batches) for _ in range(5)]
        state = json.loads(json.dumps(loader.state_dict()))

    with vp.DataLoader2(chain, None, vp.MultiProcessingReadingService(1, "fork")) as resumed:
        resumed.load_state_dict(state)
        rest = list(resumed)

    assert sorted(names(seen) + names(rest)) == every


def test_a_state_with_batches_ahead_skips_them(cases):
    """Batches delivered before their turn are part of the state."""
    chain = full_chain(cases, samples=8, batch=2)
    with vp.DataLoader2(chain, seed=7) as loader:
        every = list(loader)
        state = {**loader.state_dict(), "epoch": 0, "next_batch": 1, "ahead": [2, 5]}
        loader.load_state_dict(state)

        assert same(list(loader), [b for n, b in enumerate(every) if n not in (0, 2, 5)])


def fail_once(batch):
    if batch["meta"][0]["case"] == "case1":
        raise ValueError("bad luck")
    return batch


@pytest.mark.parametrize("workers", [0, 2])
def test_asking_again_after_a_failure_fails_again(cases, workers):
    """An epoch that failed has not ended: its state stays in it."""
    service = vp.MultiProcessingReadingService(workers, "fork")
    with vp.DataLoader2(full_chain(cases).map(fail_once), None, service, seed=7) as loader:
        batches = iter(loader)
        for _ in range(3):
            with pytest.raises(ValueError, match="bad luck"):
                for _batch in batches:
                    pass

        assert loader.state_dict()["epoch"] == 0


class Echo(torch.utils.data.IterDataPipe):
    """A pipe of the user's, of which voxpipe knows nothing."""

    def __init__(self, parent):
        self.parent = parent
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        yield from self.parent


def unsplit(cases):
    pipe = vp.from_cases(cases).open_volume().lazy_patch(6, samples_per_volume=4)
    return Echo(pipe).map(with_noise).batch_patches(2)


def with_noise(sample):
    return sample.with_data(
        noise=torch.rand(3), more=float(np.random.rand()), word=random.choice("abcdefgh")
    )


def test_an_unknown_pipe_after_opening_prevents_the_split(cases):
    """Nobody can say whether it reads voxels, so explain() names it."""
    text = vp.DataLoader2(unsplit(cases)).explain()

    assert "not split: Echo() comes after the volumes are opened" in text


def test_a_users_set_epoch_takes_one_argument(cases):
    """Torch's custom of set_epoch(epoch) is respected."""
    with vp.DataLoader2(unsplit(cases), seed=7) as loader:
        list(loader), list(loader)
        # the loader works on a copy whose list is shared
    assert loader is not None


@pytest.mark.filterwarnings("ignore:2 workers were asked for and 1 works:UserWarning")
def test_unsplit_graphs_draw_the_same_in_every_run(cases):
    """Functions in a graph that cannot be split are seeded too, in process and in workers."""
    for workers in (0, 2):
        runs = []
        for _ in range(2):
            service = vp.MultiProcessingReadingService(workers, "fork")
            with vp.DataLoader2(unsplit(cases), None, service, seed=7) as loader:
                runs.append(list(loader))

        assert same([only_tensors(b) for b in runs[0]], [only_tensors(b) for b in runs[1]])
        assert len({float(b["noise"][0, 0]) for b in runs[0]}) == len(runs[0])


def only_tensors(batch):
    return {k: v for k, v in batch.items() if isinstance(v, torch.Tensor) or k == "meta"}


def test_shares_draw_their_own_numbers(cases):
    """Two workers that each run a share do not draw the same."""
    pipe = vp.from_cases(cases * 2).sharding_filter().open_volume().lazy_patch(6)
    pipe = Echo(pipe).map(with_noise).batch_patches(1)
    service = vp.MultiProcessingReadingService(2, "fork")
    with vp.DataLoader2(pipe, None, service, seed=7) as loader:
        drawn = [float(b["noise"][0, 0]) for b in loader]

    assert len(drawn) == 6
    assert len(set(drawn)) == 6


def test_a_state_of_other_shares_is_refused(cases):
    """A graph that cannot be split resumes only among as many workers."""
    pipe = vp.from_cases(cases).sharding_filter().open_volume().lazy_patch(6)
    pipe = Echo(pipe).batch_patches(1)
    two = vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2, "fork"), seed=7)
    one = vp.DataLoader2(pipe, seed=7)

    with pytest.raises(
        StateMismatch,
        match="2 shares of the graph, this loader has 1 share\n  Run with num_workers=2 ",
    ):
        one.load_state_dict(two.state_dict())


def jitter(case):
    return {**case, "weight": random.random()}


def test_functions_in_the_planner_draw_the_same_in_every_run(cases):
    """A map before open_volume runs while planning, and is seeded like the others."""
    weights = []
    for _ in range(2):
        pipe = vp.from_cases(cases).map(jitter).shuffle().open_volume().lazy_patch(6)
        with vp.DataLoader2(pipe.batch_patches(1), seed=7) as loader:
            weights.append([float(b["weight"][0]) for b in loader])

    assert weights[0] == weights[1]
    assert len(set(weights[0])) == 3


def test_two_sources_of_one_graph_draw_apart(cases):
    """Case 0 of one list and case 0 of another have identities of their own."""
    both = vp.from_cases(cases).concat(vp.from_cases(cases))
    pipe = both.open_volume().lazy_patch(4, samples_per_volume=3).rotate((-30, 30))
    with vp.DataLoader2(pipe.batch_patches(1), seed=7) as loader:
        metas = [batch["meta"][0] for batch in loader]

    assert len({tuple(m["identity"]) for m in metas}) == 18
    assert len({repr(m["draws"]["rotate"]) for m in metas}) == 18


def test_a_generator_of_cases_is_refused():
    """It would be empty in the second epoch."""
    with pytest.raises(SampleError, match="got generator"):
        vp.from_cases({"image": "a.nii"} for _ in range(3))


def test_explain_uses_up_nothing():
    """A chain over a generator explains itself without taking an item."""
    from torch.utils.data.datapipes.iter import IterableWrapper

    made = ({"image": np.zeros((4, 4, 4))} for _ in range(5))
    pipe = IterableWrapper(made, deepcopy=False).open_volume().batch_patches(1)

    text = pipe.explain()

    assert "batch_patches(1)" in text
    assert len(list(pipe)) == 5


def power(x, exponent):
    return x**exponent


def test_fingerprints_tell_settings_apart_and_are_stable():
    """Keyword values, partials, sets and matrices count; the order of a set does not."""
    import functools

    base = vp.from_cases([{"image": np.zeros((4, 4, 4))}])
    different = [
        base.open_volume(level=0),
        base.open_volume(level=1),
        base.open_volume().map(functools.partial(power, exponent=2)),
        base.open_volume().map(functools.partial(power, exponent=3)),
        base.open_volume().affine(np.diag([1.0, 1, 1, 1])),
        base.open_volume().affine(np.diag([2.0, 1, 1, 1])),
        base.open_volume().normalize(keys={"a"}),
        base.open_volume().normalize(keys={"b"}),
    ]

    assert len({fingerprint(pipe) for pipe in different}) == len(different)
    one, other = ["seg", "mask", "label"], ["label", "seg", "mask"]
    assert fingerprint(base.open_volume(labels=set(one))) == fingerprint(
        base.open_volume(labels=set(other))
    )


def test_arrays_travel_to_workers_once():
    """A volume in memory is one object for all epochs, so it is handed over once."""
    array = np.arange(40**3, dtype=np.int16).reshape(40, 40, 40)
    pipe = vp.from_cases([{"image": array}]).open_volume()

    first = next(iter(pipe))["image"].volume
    second = next(iter(pipe))["image"].volume

    assert first is second


def small_or_odd(n):
    return n < 10 or n % 2 == 1


@pytest.mark.parametrize("stop", [700, 800])
def test_a_state_stays_small_however_far_others_are_ahead(stop):
    """One worker's share ends early, so its numbers are open for the rest of the epoch."""
    pipe = IterableWrapper(range(2000)).shuffle().set_shuffle(False).sharding_filter()
    pipe = pipe.filter(small_or_odd)
    service = vp.MultiProcessingReadingService(2, "fork", order="as_ready")
    with vp.DataLoader2(pipe, None, service, seed=7) as loader:
        batches = iter(loader)
        seen = [next(batches) for _ in range(stop)]
        state = json.loads(json.dumps(loader.state_dict()))
        again = vp.DataLoader2(pipe, None, service)
        again.load_state_dict(state)

        assert again.state_dict() == loader.state_dict()
        assert len(json.dumps(state)) < 1000
        with again:
            rest = list(again)
    assert sorted(seen + rest) == list(filter(small_or_odd, range(2000)))


@pytest.mark.parametrize(
    "ahead", [7, [[1, 2, 3, 4]], [None], [[0, "two", 1]], [[3, -1, 1]], [[3, 2, 0]]]
)
def test_what_is_no_list_of_runs_is_refused(ahead):
    """By name, and before anything is changed."""
    with vp.DataLoader2(IterableWrapper(range(4)), seed=7) as loader:
        state = {**loader.state_dict(), "ahead": ahead}

        with pytest.raises(StateMismatch, match="ahead"):
            loader.load_state_dict(state)


@pytest.mark.parametrize(
    "bad",
    [
        {"service": "AAAA"},
        {"service": "no base 64"},
        {"service": 5},
        {"seed": 2**64},
        {"epoch": True},
        {"shares": None},
        {"order": 3},
        {"graph": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("sequence", [False, True])
def test_a_state_that_is_refused_changes_nothing(bad, sequence):
    """The epoch that runs goes on where it was."""
    service = (
        vp.reading_services.SequentialReadingService(vp.reading_services.InProcessReadingService())
        if sequence
        else None
    )
    refused = (StateMismatch, TypeError) if bad == {"service": "AAAA"} else StateMismatch
    with vp.DataLoader2(IterableWrapper(range(9)).shuffle(), None, service, seed=7) as loader:
        batches = iter(loader)
        seen = [next(batches) for _ in range(4)]
        state = loader.state_dict()

        with pytest.raises(refused):
            loader.load_state_dict({**state, **bad})

        assert loader.state_dict() == state
        assert sorted([*seen, *batches]) == list(range(9))


def test_a_batch_after_the_last_one_is_refused():
    """A state may say the end of an epoch, and none beyond it."""
    chain = vp.from_cases([{"image": np.zeros((4, 4, 4))}] * 3).open_volume().batch_patches(1)
    with vp.DataLoader2(chain) as loader:
        state = loader.state_dict()
        loader.load_state_dict({**state, "next_batch": 3})
        with pytest.raises(BadState, match="the next batch of the state is 4, of an epoch of 3"):
            loader.load_state_dict({**state, "next_batch": 4})
