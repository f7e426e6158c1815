"""Pipes of one graph draw from streams of their own, also where their branches are alike."""

import hashlib
import json

import numpy as np
import pytest
import torch
from eager_chains import Eager
from torch.utils.data import DataLoader

import voxpipe as vp
from voxpipe.core.errors import StateMismatch
from voxpipe.datapipes.iter import SampleMultiplexer
from voxpipe.graph import fingerprint
from voxpipe.graph.walk import branch_mark, stream_names
from voxpipe.spatial import Flip, Rotate

TURN = (-30, 30)


def patches(count=2, patches=1):
    cases = [{"image": np.zeros((8, 8, 8), np.float32), "case": str(n)} for n in range(count)]
    return vp.from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=patches)


def loaded(pipe, *adapters, workers=0, seed=3, fuse=True):
    service = vp.MultiProcessingReadingService(workers)
    with vp.DataLoader2(pipe, [*adapters], service, seed=seed, fuse=fuse) as loader:
        return list(loader)


def turns(sample):
    """Return what the only turning pipe of a sample drew, whatever it is called."""
    draws = sample["image"].draws
    (name,) = [name for name in draws if name.startswith(("rotate", "augment", "view"))]
    return tuple(draws[name].get("degrees") or draws[name]["rotate"])


def turned(pipe, **more):
    return pipe.rotate(TURN, **more)


def augmented(pipe, **more):
    return pipe.augment(rotate=TURN, **more)


PASSES = {"plain": list, "loader": loaded, "torch": lambda pipe: list(torchs(pipe))}


def torchs(pipe):
    return DataLoader(pipe, batch_size=None, collate_fn=lambda item: item)


@pytest.mark.parametrize("how", PASSES)
@pytest.mark.parametrize("one", [turned, augmented])
def test_two_views_of_a_patch_are_two(how, one):
    """In every kind of loop; both are of the same patch."""
    left, right = patches(4).fork(2)

    pairs = PASSES[how](one(left).zip(one(right)))

    assert len(pairs) == 4
    for a, b in pairs:
        assert a["image"].draws["lazy_patch"] == b["image"].draws["lazy_patch"]
        assert turns(a) != turns(b)


@pytest.mark.parametrize("how", PASSES)
def test_a_name_asks_for_the_same(how):
    """Where both are called alike, they draw alike."""
    left, right = patches(4).fork(2)

    pairs = PASSES[how](turned(left, name="view").zip(turned(right.flip(0), name="view")))

    assert len({turns(a) for a, _ in pairs}) == 4
    assert [turns(a) for a, _ in pairs] == [turns(b) for _, b in pairs]


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("how", ["zip", "mux"])
def test_a_name_asks_for_the_same_of_two_sources(how, named):
    """Images and labels that are listed apart draw alike if their pipes are called alike."""
    more = [{"name": name} if named else {} for name in ("place", "turn", "noise")]

    def chain(key):
        cases = [{key: np.zeros((8, 8, 8), np.uint8), "case": str(n)} for n in range(2)]
        opened = vp.from_cases(cases).open_volume(labels=("label",))
        patched = opened.lazy_patch(4, samples_per_volume=2, **more[0])
        return patched.rotate(TURN, **more[1]).brightness((1.0, 2.0), keys=[key], **more[2])

    found = loaded(getattr(chain("image"), how)(chain("label")))

    flat = [one for item in found for one in (item if isinstance(item, tuple) else (item,))]
    drawn = [sample[next(iter(sample))].draws for sample in flat]
    assert len(drawn) == 8
    assert len({str(one) for one in drawn}) == (4 if named else 8)
    assert all((a == b) == named for a, b in zip(drawn[::2], drawn[1::2], strict=True))


def all_turns(pipe):
    items = loaded(pipe)
    flat = [each for item in items for each in (item if isinstance(item, tuple) else (item,))]
    return [turns(sample) for sample in flat]


def merged(how):
    """Return a graph with a chain that is used twice."""
    if how == "the same pipe":
        chain = turned(patches())
        return chain.concat(chain)
    if how == "siblings":
        source = patches()
        return turned(source).concat(turned(source))
    if how == "two sources":
        return turned(patches()).zip(turned(patches()))
    if how == "columns":
        left, right = patches().fork(2)
        columns = left.zip(right).unzip(2)
        return turned(columns[0]).zip(turned(columns[1]))
    if how == "in turn":
        left, right = patches().fork(2)
        branches = left.mux(right).round_robin_demux(2)
        return turned(branches[0]).mux_longest(turned(branches[1]))
    left, right = (turned(branch) for branch in patches().fork(2))
    if how == "SampleMultiplexer":
        return SampleMultiplexer({left: 1, right: 1}, seed=1)
    return getattr(left, how)(right)


HOW = ["zip", "mux", "concat", "zip_longest", "mux_longest", "SampleMultiplexer"]
HOW += ["the same pipe", "siblings", "two sources", "columns", "in turn"]


@pytest.mark.parametrize("how", HOW)
def test_a_chain_used_twice_draws_twice(how):
    """However its items come together; and a loader's seed makes all of it again."""
    drawn = all_turns(merged(how))

    assert len(drawn) == 4
    assert len(set(drawn)) == 4
    torch.rand(1)  # where the global generators are does not matter
    assert all_turns(merged(how)) == drawn


def test_branches_of_branches():
    """Each has a name of its own, and outside of branches all is as it was."""
    one, two = patches().fork(2)
    inner = turned(two).fork(3)
    every = [turned(one), *(turned(each) for each in inner)]
    met = turned(every[0].zip(*every[1:]))

    names = [pipe.stream_names[0] for pipe in every]
    assert names == ["rotate", "rotate@1#2", "rotate@1.1", "rotate@1.2"]
    assert met.stream_names == ("rotate#2",)


def test_crosswise_branches_of_branches_differ_too():
    """Where only some have met, the mark says which."""
    one, two = patches().fork(2)
    (a, b), (c, d) = one.fork(2), two.fork(2)

    assert branch_mark(a.zip(d)) != branch_mark(b.zip(c))
    assert branch_mark(b.zip(c)) not in {branch_mark(each) for each in (a, b, c, d)}


def test_every_stream_of_a_branch_is_its_own():
    """Patches, choices, values: each kind of pipe that draws."""
    pipes = []
    for branch in patches().fork(2):
        pipe = branch.one_of([Rotate(TURN), Flip(0)]).noise((0.1, 0.2)).brightness((0.5, 2.0))
        pipes.append(pipe.rotate(5).realize())
    cut = [branch.lazy_patch(2, region=3) for branch in patches().fork(2)]

    upstream = set(stream_names(patches()))
    names = [set(map_names(pipe)) - upstream for pipe in [*pipes, *cut]]
    assert names[0] == {"one_of", "noise", "brightness", "rotate"}
    assert names[0].isdisjoint(names[1])
    assert names[2] == {"lazy_patch#2", "lazy_patch#2 region"}
    assert names[3] == {"lazy_patch@1", "lazy_patch@1 region"}


def map_names(pipe):
    from voxpipe.graph import walk

    return [name for each in walk(pipe) for name in stream_names(each)]


def views():
    left, right = patches(3, patches=2).fork(2)
    one = augmented(left).flip(0).rotate((-5, 5)).realize().batch_patches(2)
    return one.zip(augmented(right).flip(0).rotate((-5, 5)).realize().batch_patches(2))


def draws_of(batches):
    return [[sample["draws"] for batch in pair for sample in batch["meta"]] for pair in batches]


@pytest.mark.parametrize(
    "adapters",
    [
        [vp.FuseSpatial()],
        [Eager()],
        [vp.Profile()],
        [vp.Timeout(item=60)],
    ],
    ids=["fused", "eager", "timed", "guarded"],
)
def test_adapters_change_no_draw_of_a_branch(adapters):
    """Whatever they put in between."""
    assert draws_of(loaded(views(), *adapters)) == draws_of(loaded(views(), fuse=False))


def test_workers_change_no_draw_of_a_branch():
    """Nor does the cut, where one branch is left of a fork."""
    _, right = patches(3, patches=2).fork(2)
    chain = augmented(right).batch_patches(2)

    here, there = loaded(chain), loaded(chain, workers=1)
    plain = loaded(augmented(right))

    names = [[sample["draws"] for sample in batch["meta"]] for batch in here]
    assert names == [[sample["draws"] for sample in batch["meta"]] for batch in there]
    assert [turns(sample) for sample in plain] == [
        tuple(draws["augment@1"]["rotate"]) for batch in names for draws in batch
    ]


def test_a_chain_without_branches_draws_what_it_always_drew():
    """Recorded before branches had marks: each kind of draw, at two places of a chain."""
    cases = [{"image": np.zeros((12, 12, 12), np.float32), "case": str(k)} for k in range(2)]
    chain = (
        vp.from_cases(cases)
        .shuffle()
        .open_volume()
        .lazy_patch(8, samples_per_volume=2, region=10)
        .rotate(TURN)
        .rotate((-5, 5))
        .augment(zoom=(0.9, 1.1), flip=0.5)
        .one_of([Rotate((-9, 9)), Flip(0)])
        .noise((0.1, 0.2))
        .brightness((0.5, 2.0))
        .realize()
        .batch_patches(2)
    )
    batches = loaded(chain, seed=7)
    draws = [sample["draws"] for batch in batches for sample in batch["meta"]]

    assert draws[0]["rotate"]["degrees"][0] == RECORDED_DEGREES
    assert hashlib.sha256(json.dumps(draws).encode()).hexdigest() == RECORDED
    assert fingerprint(chain) == FINGERPRINT


RECORDED_DEGREES = -9.288518193351198
RECORDED = "6e34e4208c4d4b35fc89ba5a7128a7eba588c1d3e36dd4f87522af12e425df63"
FINGERPRINT = "83707aa8213c78b1"


def test_a_state_of_branches_that_drew_alike_is_refused(monkeypatch):
    """The rest of its epoch would be drawn otherwise."""
    with vp.DataLoader2(views(), seed=3) as loader:
        next(iter(loader))
        monkeypatch.setattr("voxpipe.datapipes.datapipe.branch_mark", lambda parent: "")
        with vp.DataLoader2(views(), seed=3) as former:
            next(iter(former))
            state = former.state_dict()
        with pytest.raises(StateMismatch):
            loader.load_state_dict(state)
