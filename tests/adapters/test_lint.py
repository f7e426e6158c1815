"""Each mistake that Lint names, in a chain that has it beside one that has not."""

import functools
import os
import re
import warnings

import numpy as np
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.adapters import Lint
from voxpipe.core.errors import LintWarning
from voxpipe.datapipes.iter import (
    SHARDING_PRIORITIES,
    Cycler,
    Header,
    LengthSetter,
    Prefetcher,
    Repeater,
)


def same(x):
    return x


def cases(count=3):
    return vp.from_cases([{"image": np.zeros((8, 8, 8), np.float32)}] * count)


def patches(each=4):
    return cases().shuffle().open_volume().lazy_patch(4, samples_per_volume=each)


PAIRS = {
    "unshuffled-shards": (
        lambda: IterableWrapper(range(4)).sharding_filter().map(same),
        lambda: IterableWrapper(range(4)).shuffle().sharding_filter().map(same),
    ),
    "shards-of-batches": (
        lambda: IterableWrapper(range(4)).shuffle().batch(2).sharding_filter(),
        lambda: IterableWrapper(range(4)).shuffle().sharding_filter().batch(2),
    ),
    "needless-sharding": (
        lambda: cases().shuffle().sharding_filter().open_volume().lazy_patch(4).batch_patches(2),
        lambda: cases().shuffle().open_volume().lazy_patch(4).batch_patches(2),
    ),
    "shuffled-batches": (
        lambda: patches(1).batch_patches(2).shuffle(),
        lambda: patches(1).shuffle().batch_patches(2),
    ),
    "shuffled-voxels": (
        lambda: patches().realize().shuffle().batch_patches(2),
        lambda: patches().shuffle().realize().batch_patches(2),
    ),
    "one-volume-batches": (
        lambda: patches().batch_patches(2),
        lambda: patches().shuffle().batch_patches(2),
    ),
    "small-shuffle": (
        lambda: patches(8).shuffle(buffer_size=8).batch_patches(2),
        lambda: patches(8).shuffle(buffer_size=9).batch_patches(2),
    ),
    "twice-interpolated": (
        lambda: patches(1).rotate((-5, 5)).flush().rotate((-5, 5)).batch_patches(2),
        lambda: patches(1).rotate((-5, 5)).rotate((-5, 5)).flush().batch_patches(2),
    ),
    "copied-batches": (
        lambda: patches(1).realize().batch(2).collate(same),
        lambda: patches(1).batch_patches(2),
    ),
    "repeated-draws": (
        lambda: Repeater(patches(1), 2).batch_patches(2),
        lambda: patches(2).shuffle().batch_patches(2),
    ),
    "early-device": (
        lambda: patches(1).realize().to_device("cpu").batch_patches(2),
        lambda: patches(1).realize().batch_patches(2).to_device("cpu"),
    ),
    "large-prefetch": (
        lambda: Prefetcher(patches(1).batch_patches(2), 2, buffer_bytes=2**60),
        lambda: Prefetcher(patches(1).batch_patches(2), 2),
    ),
    "no-sharding": (
        lambda: patches(1).realize().filter(same).batch_patches(2),
        lambda: (
            cases()
            .shuffle()
            .sharding_filter()
            .open_volume()
            .lazy_patch(4)
            .realize()
            .filter(same)
            .batch_patches(2)
        ),
    ),
    "divided-twice": (
        lambda: IterableWrapper(range(4)).shuffle().sharding_filter().sharding_filter().map(same),
        lambda: (
            IterableWrapper(range(4))
            .shuffle()
            .sharding_filter(SHARDING_PRIORITIES.DISTRIBUTED)
            .sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)
            .map(same)
        ),
    ),
    "shuffled-twice": (
        lambda: IterableWrapper(range(4)).shuffle().filter(same).shuffle(buffer_size=9).map(same),
        lambda: IterableWrapper(range(4)).shuffle(buffer_size=9).filter(same).map(same),
    ),
    "cycled-shuffle": (
        lambda: Cycler(IterableWrapper(range(4)), 2).shuffle(),
        lambda: Cycler(IterableWrapper(range(4)).shuffle(), 2),
    ),
    "endless": (
        lambda: Cycler(cases()).open_volume(),
        lambda: Cycler(cases(), 2).open_volume(),
    ),
    "wrong-length": (
        lambda: LengthSetter(IterableWrapper(range(4)).batch(2), 4),
        lambda: Header(IterableWrapper(range(4)).batch(2), 1),
    ),
    "boundless-failures": (
        lambda: vp.OnError("skip", budget=None)(patches(1).batch_patches(2)),
        lambda: vp.OnError("skip")(patches(1).batch_patches(2)),
    ),
    "early-prefetch": (
        lambda: Prefetcher(patches(1).realize(), 2).batch_patches(2),
        lambda: Prefetcher(patches(1).realize().batch_patches(2), 2),
    ),
    "device-midway": (
        lambda: patches(1).batch_patches(2).to_device("cpu").unbatch(),
        lambda: patches(1).batch_patches(2).unbatch().to_device("cpu"),
    ),
    "stranded-functions": (
        lambda: patches(1).batch_patches(2).map(functools.partial(lambda _, batch: batch, 1)),
        lambda: patches(1).batch_patches(2).map(functools.partial(same)),
    ),
    "planned-functions": (
        lambda: IterableWrapper(range(4)).shuffle().map(same).shuffle().batch(2),
        lambda: IterableWrapper(range(4)).shuffle().sharding_filter().map(same).shuffle().batch(2),
    ),
    "not-split": (
        lambda: patches(1).realize().filter(same).batch_patches(2),
        lambda: patches(1).realize().map(same).batch_patches(2),
    ),
}


def names(pipe):
    return [mistake.name for mistake in Lint().mistakes(pipe)]


@pytest.mark.parametrize("name", PAIRS)
def test_a_mistake_is_named_and_its_mending_is_clean(name):
    """The second chain is the first as the message says that it should be."""
    wrong, right = PAIRS[name]

    assert name in names(wrong())
    assert name not in names(right())


def test_every_mistake_is_in_the_table():
    """With its name, and no other."""
    told = re.findall(r"^    ([a-z]+-?[a-z]+(?:-[a-z]+)?)  +\S", Lint.__doc__, re.MULTILINE)

    elsewhere = {"frozen-draws", "scattered-chunks", "whole-volumes", "idle-workers"}
    assert {*told} - {"name"} == {*PAIRS, *elsewhere}


QUIET = {
    "interleaved": lambda: patches().interleave(visits=2).batch_patches(2),
    "shuffled shares": lambda: (
        IterableWrapper(range(4)).shuffle().sharding_filter().map(same).shuffle().batch(2)
    ),
    "a length of a share": lambda: LengthSetter(
        IterableWrapper(range(4)).shuffle().sharding_filter().filter(same), 2
    ).batch(2),
    "a length of what has none": lambda: LengthSetter(
        IterableWrapper(range(4)).shuffle().sharding_filter().filter(same), 3
    ),
    "a lambda that stays here": lambda: cases().shuffle().filter(lambda case: True).open_volume(),
    "ahead and on a device": lambda: Prefetcher(patches(1).batch_patches(2).to_device("cpu"), 2),
    "strict": lambda: vp.OnError("raise", budget=None)(patches(1).batch_patches(2)),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_looks_like_a_mistake_and_is_none(name):
    """No false alarm; some of them cannot be split, and that is told."""
    assert set(names(QUIET[name]())) <= {"not-split"}


ADAPTERS = [
    vp.FuseSpatial(),
    vp.FuseReads(),
    vp.OnError("skip"),
    vp.Prefetch(2),
    vp.Runtime(device="cpu"),
    vp.Timeout(item=60),
    vp.Profile(),
]


def test_what_adapters_leave_is_no_mistake():
    """Given last, it looks at the graph as it runs."""
    chain = patches().shuffle().rotate((-5, 5)).batch_patches(2)
    for adapter in ADAPTERS:
        chain = adapter(chain)

    assert names(chain) == []


def test_patches_of_a_grid_follow_each_other_too():
    """Their number depends on the volume: 'all'."""
    chain = cases().open_volume().lazy_patch(4, sampling="grid").batch_patches(2)

    (mistake,) = Lint().mistakes(chain)
    assert mistake.what.startswith("all patches of a volume")


def test_an_infinite_chain_and_a_frozen_cache_are_told_by_the_name_of_the_pipe(monkeypatch):
    """Whoever wrote the pipe."""
    from torch.utils.data import IterDataPipe

    class Endless(IterDataPipe):
        def __init__(self, parent, count=None):
            self.parent, self.count = parent, count

    class Cache(IterDataPipe):
        def __init__(self, parent):
            self.parent = parent

    functions = dict(IterDataPipe.functions)
    monkeypatch.setattr(IterDataPipe, "functions", functions)
    for name, kind in (("cycle", Endless), ("in_memory_cache", Cache)):
        functions.pop(name, None)
        IterDataPipe.register_datapipe_as_function(name, kind)

    assert "endless" in names(Endless(cases()))
    assert "endless" not in names(Endless(cases(), 2))
    assert "frozen-draws" in names(Cache(patches()))
    assert "frozen-draws" not in names(Cache(cases().open_volume()))


def test_a_warning_says_what_where_and_what_to_do():
    """Three lines: the name and what follows from it, the user's line, the fix."""
    chain = patches().batch_patches(2)

    with pytest.warns(LintWarning) as told, vp.DataLoader2(chain, Lint()):
        pass

    lines = str(told[0].message).splitlines()
    assert lines[0].startswith("one-volume-batches: 4 patches of a volume")
    assert re.fullmatch(rf"  at .batch_patches\(2\)\s+{os.path.basename(__file__)}:\d+", lines[1])
    assert ".shuffle() after .lazy_patch()" in lines[2]


def test_what_stays_in_the_process_of_the_loader_is_no_mistake():
    """A chain that ends on a device is split before that."""
    assert names(patches(1).shuffle().batch_patches(2).to_device("cpu")) == []


def test_what_is_ignored_is_not_told():
    """By name; the graph comes back as it is."""
    chain = patches().batch_patches(2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Lint(ignore=["one-volume-batches"])(chain) is chain


@pytest.mark.parametrize("ignore", [["one-volume"], "endless"])
def test_unknown_names_are_refused(ignore):
    """With those that there are."""
    with pytest.raises(ValueError, match="shards-of-batches"):
        Lint(ignore=ignore)
