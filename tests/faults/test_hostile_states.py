"""States, plans, records and manifests that somebody else wrote: refused by name, or sound."""

import json
from collections import OrderedDict
from itertools import islice
from random import Random

import numpy as np
import pytest
from hostile_values import Raised, as_text, disguised, liars, mutated
from manifests import index_cases, volume_of
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core import Grid
from voxpipe.core.errors import (
    BadManifest,
    BadPlan,
    BadRecord,
    BadState,
    BudgetExceeded,
    SampleError,
    StateMismatch,
)
from voxpipe.reading_services.planner import BatchRun, DeliveredBatches
from voxpipe.spatial import Rotate, Shear, SpatialPlan, Translate
from voxpipe.spatial.plans.pull_back import source_box
from voxpipe.volumes.catalog.manifest import manifest_text, parse_manifest

# What a state may say of something else, and be sound.
OF_SOMETHING_ELSE = {"graph", "data", "shares", "order", "service"}


def loaders():
    """Return loaders whose states differ in kind, each with a state in mid-epoch."""
    found = []
    for chain, count in [
        (IterableWrapper(range(40)).shuffle().batch(2), 3),
        (vp.from_cases([{"image": f"/a/{n}.nii"} for n in range(9)]).shuffle(), 4),
    ]:
        loader = vp.DataLoader2(chain, seed=7)
        list(islice(loader, count))
        found.append((loader, json.loads(json.dumps(loader.state_dict()))))
    loader, state = found[0]
    ahead = {**state, "ahead": [[5, 1, 1], [7, 2, 1]], "failures": 2}
    return [*found, (loader, ahead)]


@pytest.fixture(scope="module")
def loaded():
    """Return the loaders; they end with the module."""
    found = loaders()
    yield found
    for loader, _ in found:
        loader.shutdown()


def test_hostile_states(attacks, loaded):
    """Whatever a state holds, it is a BadState, is of something else, or goes on."""

    def attempt(seed):
        random = Random(seed)
        loader, state = random.choice(loaded)
        loader.load_state_dict(state)
        hostile, path = mutated(state, random)
        try:
            loader.load_state_dict(hostile)
        except BadState:
            assert json.loads(json.dumps(loader.state_dict())) == state
            return
        except StateMismatch:
            assert path[0] in OF_SOMETHING_ELSE
            return
        list(islice(loader, 3))
        json.dumps(loader.state_dict())

    attacks.each(attempt, quick=100, whole=5000)


def test_hostile_objects_in_states(attacks, loaded):
    """None of their methods is called: what is no plain value of JSON is a BadState."""

    def attempt(seed):
        random = Random(seed)
        loader, state = random.choice(loaded)
        loader.load_state_dict(state)
        hostile = disguised(state, random)
        with pytest.raises(BadState):
            loader.load_state_dict(hostile)
        assert json.loads(json.dumps(loader.state_dict())) == state

    attacks.each(attempt, quick=100, whole=5000)


def test_hostile_names_in_states(loaded):
    """As the name of a field they are no field."""
    loader, state = loaded[0]
    tried = 0
    for _, key in liars():
        try:
            hostile = {**state, key: 1}
        except (Raised, TypeError):  # no dict holds it
            continue
        tried += 1
        with pytest.raises(BadState):
            loader.load_state_dict(hostile)
    assert tried > 3


def test_states_that_do_not_come_out_of_json(loaded):
    """As it was returned, with its tuples, and in order; numbers of NumPy are none of JSON."""
    loader, state = loaded[2]
    loader.load_state_dict(state)
    loader.load_state_dict(OrderedDict(loader.state_dict()))
    loader.load_state_dict({**state, "ahead": tuple(map(tuple, state["ahead"]))})
    with pytest.raises(BadState, match=r"epoch of a state .* int64"):
        loader.load_state_dict({**state, "epoch": np.int64(1)})
    endless = []
    endless.append(endless)
    with pytest.raises(BadState):
        loader.load_state_dict({**state, "ahead": endless})


def test_runs_that_take_turns(attacks):
    """Which batches were delivered does not depend on how they are written down."""

    def attempt(seed):
        random = Random(seed)
        step = random.randrange(1, 5)
        place, delivered = DeliveredBatches(), set()
        for index in sorted(range(30), key=lambda n: n + random.randrange(12)):
            place = place.after(index, step)
            delivered.add(index)
            assert {n for n in range(60) if place.holds(n)} == delivered
        assert place == DeliveredBatches(30)

    attacks.each(attempt, quick=20, whole=500)


def test_runs_of_any_length_are_followed_at_once():
    """A state may say that so many batches were delivered that nobody can count them."""
    rounds = 2**58
    place = DeliveredBatches(
        0, (BatchRun(1, rounds, 2), BatchRun(2, rounds, 2), BatchRun(2 * rounds + 1, 5))
    ).after(0)

    assert place == DeliveredBatches(2 * rounds + 6)


GRID = Grid((8, 7, 6), np.diag([1.0, 2.0, 3.0, 1.0]))


def plans():
    """Return plans as JSON has them: a crop, one with stages of both kinds, one of a section."""
    turned = np.array([[0.8, 0.6, 0, 1], [-0.6, 0.8, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])
    begun = SpatialPlan.identity(GRID).then(turned, GRID.shape, lattice=False)
    bent = begun.displace(np.random.default_rng(0).random((3, 2, 2, 2)), np.eye(4) / 4)
    found = [
        SpatialPlan.identity(GRID).crop((1, 1, 1), (4, 4, 4)),
        bent.crop((1, 1, 1), (4, 4, 4), hard=True),
        SpatialPlan.identity(Grid((8, 7, 1), np.eye(4)), slices=(2,)),
    ]
    return [json.loads(json.dumps(plan.to_json())) for plan in found]


def test_hostile_plans(attacks):
    """Whatever a plan says, it is a BadPlan, or one with which everything can be asked."""
    sound = plans()

    def attempt(seed):
        random = Random(seed)
        hostile, _ = mutated(random.choice(sound), random)
        try:
            plan = SpatialPlan.from_json(hostile)
        except BadPlan:
            return
        assert SpatialPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
        plan.source_region(), plan.grid.spacing, plan.explain(), repr(plan)
        source_box(plan.rows, plan.shape, plan.bounds, "linear", "border", False, plan.moves)
        plan.points_to_source([[0.0, 1.0, 2.0]])

    attacks.each(attempt, quick=100, whole=5000)


VOLUME = np.random.default_rng(0).normal(100, 10, (12, 10, 8)).astype(np.float32)


def chain():
    """Return ops of every kind of record; a choice among them."""
    return (
        vp.from_cases([{"image": VOLUME}])
        .open_volume()
        .lazy_patch(6)
        .rotate((-20, 20), p=0.5)
        .zoom((0.9, 1.1))
        .flip((0, 1), p=0.5)
        .rotate90((0, 3))
        .elastic((0, 1), spacing=4)
        .grid_distortion()
        .one_of([Rotate((-5, 5)), [Translate((-1, 1)), Shear((-2, 2))]])
        .noise((0, 1))
        .bias_field(0.2)
        .gamma((0.8, 1.2))
        .crop_or_pad(6)
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_hostile_records(attacks):
    """Whatever a record says, it is refused by name, or the sample is made."""
    sound = [json.loads(json.dumps(sample["image"].draws)) for sample in chain()]

    def attempt(seed):
        random = Random(seed)
        hostile, _ = mutated(random.choice(sound), random)
        try:
            for sample in chain().replay(hostile):
                assert sample["image"].realize().shape == (1, 6, 6, 6)
                json.dumps(sample["image"].draws)
        except (BadRecord, SampleError, BudgetExceeded):
            return

    attacks.each(attempt, quick=30, whole=1500)


def test_hostile_manifests(attacks, tmp_path):
    """Whatever a manifest says, it is a BadManifest, or describes volumes."""
    np.save(tmp_path / "image.npy", VOLUME)
    found, _ = index_cases([("a", "image", vp.Volume(tmp_path / "image.npy"))])
    sound = json.loads(manifest_text(found, f"{tmp_path}/"))

    def attempt(seed):
        random = Random(seed)
        hostile, _ = mutated(sound, random)
        try:
            manifest = parse_manifest(as_text(hostile), "a.json", f"{tmp_path}/")
        except BadManifest:
            return
        for entry in manifest.entries:
            volume = volume_of(entry, "a.json")
            assert len(volume.shape) == 4
            assert volume.grid.shape == volume.shape[1:]
            repr(volume.dtype), volume.recorded_statistics

    attacks.each(attempt, quick=100, whole=5000)
