"""A state knows what adapters made of the order, and of nothing else."""

import json

import numpy as np
import pytest
from eager_chains import Eager
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import StateMismatch
from voxpipe.graph import chained_name, replace_pipe, walk


def chain():
    cases = [{"image": np.zeros((4, 4, 4), np.int16), "case": str(n)} for n in range(6)]
    pipe = vp.from_cases(cases).shuffle().open_volume().lazy_patch(2, samples_per_volume=2)
    return pipe.rotate((-5, 5)).flip().normalize().batch_patches(2)


def seen(loader, count):
    batches = iter(loader)
    return [[m["identity"] for m in next(batches)["meta"]] for _ in range(count)]


def saved(adapters, pipe=None):
    """Return the state of a loader that stopped in its second epoch, as JSON reads it."""
    with vp.DataLoader2(chain() if pipe is None else pipe, adapters, seed=7) as loader:
        list(loader)
        next(iter(loader))
        return json.loads(json.dumps(loader.state_dict()))


def batched(pipe):
    return pipe.batch(2)


def odd(n):
    return n % 2 == 1


def filtered(pipe):
    return pipe.filter(odd)


def test_an_adapter_that_was_set_between_epochs_is_named():
    """Shuffled once, then not: the place belongs to the second order."""
    with vp.DataLoader2(chain(), seed=7) as loader:
        list(loader)
        loader.adapters = [vp.adapters.Shuffle(False)]
        unsaid = loader.state_dict()
        first = seen(loader, 2)
        state = json.loads(json.dumps(loader.state_dict()))
    with vp.DataLoader2(chain()) as other:
        for one in (unsaid, state):
            with pytest.raises(StateMismatch, match=r"shuffle\(\) turned off") as told:
                other.load_state_dict(one)
        assert "adapters" in str(told.value.do)

        other.adapters = [vp.adapters.Shuffle(False)]
        other.load_state_dict(state)
        rest = seen(other, 4)

    with vp.DataLoader2(chain(), vp.adapters.Shuffle(False), seed=7) as whole:
        list(whole)
        assert seen(whole, 6) == first + rest


def test_a_running_epoch_has_the_order_that_it_began_with():
    """Adapters that were set meanwhile are for the next one."""
    with vp.DataLoader2(chain(), seed=7) as loader:
        batches = iter(loader)
        next(batches)
        loader.adapters = [vp.adapters.Shuffle(False)]
        state = loader.state_dict()
    with (
        vp.DataLoader2(chain()) as same,
        vp.DataLoader2(chain(), vp.adapters.Shuffle(False)) as other,
    ):
        same.load_state_dict(state)
        with pytest.raises(StateMismatch, match=r"saved as written.*shuffle\(\) turned off"):
            other.load_state_dict(state)


QUIET = {
    "fused": [vp.FuseSpatial()],
    "eager": [Eager()],
    "profiled": [vp.Profile()],
    "watched": [vp.Profile(), vp.Timeout(item=60), vp.adapters.CacheTimeout(5)],
    "prefetched": [lambda pipe: pipe.prefetch(2)],
    "lenient": [vp.OnError("skip")],
    "shuffled already": [vp.adapters.Shuffle(True), vp.adapters.Shuffle(None)],
    "a function on batches": [lambda pipe: pipe.map(len)],
}


@pytest.mark.parametrize("name", QUIET)
def test_adapters_that_change_no_order_do_not_matter(name):
    """A run goes on with or without them."""
    state, plain = saved(QUIET[name]), saved(None)

    assert state == plain
    with vp.DataLoader2(chain(), QUIET[name]) as loader:
        loader.load_state_dict(plain)


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        (batched, r"with batch\(\)"),
        (filtered, r"with filter\(\)"),
        (lambda pipe: pipe.datapipe, r"without shuffle\(\)"),
        (lambda pipe: IterableWrapper([1, 2, 3]).shuffle(), r"IterableWrapper\(\) changed"),
    ],
    ids=["gathered", "filtered", "not shuffled", "other items"],
)
def test_any_function_that_changes_the_order_is_named(adapter, told):
    """The graphs tell, not the adapters."""
    pipe = IterableWrapper(range(9)).shuffle()
    state, plain = saved(adapter, pipe), saved(None, pipe)

    with vp.DataLoader2(pipe) as loader, pytest.raises(StateMismatch, match=told):
        loader.load_state_dict(state)
    with vp.DataLoader2(pipe, adapter) as loader, pytest.raises(StateMismatch, match=told):
        loader.load_state_dict(plain)


def shuffled_behind(name):
    def adapter(sink):
        behind = next(pipe for pipe in walk(sink) if chained_name(pipe) == name)
        return replace_pipe(sink, behind, behind.shuffle())

    return adapter


def turned(sink):
    """Return the chain with its shuffle and its filter the other way round."""
    return sink.datapipe.datapipe.filter(odd).shuffle()


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (shuffled_behind("filter"), shuffled_behind("batch"), r"with shuffle\(\).*other places"),
        (None, turned, "as written.*with pipes in another order"),
        (
            lambda sink: turned(sink).batch(2),
            lambda sink: sink.batch(2),
            r"with batch\(\).*other places",
        ),
    ],
    ids=["put elsewhere", "turned", "turned, and one more"],
)
def test_the_same_pipes_in_other_places_are_another_order(first, second, told):
    """Shuffling items and shuffling batches takes the same pipe."""
    pipe = IterableWrapper(range(12)).filter(odd)
    pipe = pipe.batch(2) if "shuffle" in told else IterableWrapper(range(12)).shuffle().filter(odd)
    state = saved(first, pipe)

    with vp.DataLoader2(pipe, first) as same:
        same.load_state_dict(state)
    with vp.DataLoader2(pipe, second) as loader, pytest.raises(StateMismatch, match=told):
        loader.load_state_dict(state)


def test_a_chain_that_turns_a_shuffle_off_itself_is_another_one():
    """Whichever pipe shuffles."""
    for shuffled in (IterableWrapper(range(9)).shuffle, chain().shuffle_plans):
        state = saved(None, shuffled())
        loader = vp.DataLoader2(shuffled().set_shuffle(False))

        with pytest.raises(StateMismatch, match="had other settings"):
            loader.load_state_dict(state)


def test_a_state_from_before_orders_were_told_is_taken():
    """It says nothing of adapters."""
    state = saved(None)
    del state["order"]

    with vp.DataLoader2(chain(), vp.adapters.Shuffle(False)) as loader:
        loader.load_state_dict(state)


def test_a_state_of_many_changes_is_small():
    """A hundred shuffles that were turned off."""
    pipe = IterableWrapper(range(9))
    for n in range(100):
        pipe = pipe.shuffle(buffer_size=n + 1)
    off, on = saved(vp.adapters.Shuffle(False), pipe), saved(None, pipe)

    assert len(json.dumps(off)) < 4096
    assert off["order"] != on["order"] == ""
