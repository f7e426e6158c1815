"""Chains as JSON that somebody else wrote: refused, or a chain; no code of theirs runs."""

import json
from random import Random

import pytest
from hostile_values import disguised, mutated
from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import BadChain

CALLS = []


def told(x):
    """Note that it was called: no data may do that."""
    CALLS.append(x)
    return x


def chains():
    """Return the data of chains that differ in kind."""
    one, two = IterableWrapper(range(4)).shuffle().fork(2)
    cases = vp.from_cases([{"image": "a.nii", "label": "b.nii"}]).open_volume(labels=("label",))
    spatial = cases.lazy_patch((4, 4, 4), mask="label", class_weights={0: 1, 1: 2})
    spatial = spatial.augment(rotate=(-5, 5), mode={"image": "cubic"}).one_of([vp.spatial.Flip(0)])
    files = vp.list_cases("s3://b/*/", image="a.nii", storage_options={"key": "k"}).open_volume()
    pipes = [one.zip(two.batch(2)), spatial.normalize().batch_patches(2), files]
    return [json.loads(json.dumps(vp.chain_to_json(pipe))) for pipe in pipes]


@pytest.fixture(scope="module")
def documents():
    """Return the data, made once."""
    return chains()


def test_hostile_chains(attacks, documents):
    """Each is a chain, or a BadChain."""

    def attempt(seed):
        random = Random(seed)
        hostile, _ = mutated(random.choice(documents), random)
        try:
            pipe = vp.chain_from_json(hostile, storage_options={})
        except BadChain:
            return
        assert isinstance(pipe, (IterDataPipe, MapDataPipe))

    attacks.each(attempt, quick=100, whole=5000)


def test_hostile_objects_in_chains(attacks, documents):
    """None of their methods is called: all are refused."""

    def attempt(seed):
        random = Random(seed)
        with pytest.raises(BadChain):
            vp.chain_from_json(disguised(random.choice(documents), random), storage_options={})

    attacks.each(attempt, quick=100, whole=5000)


CODE = [
    "builtins:eval",
    "os:system",
    "subprocess:Popen",
    f"{__name__}:told",
    "voxpipe.core.errors:VoxpipeError",
    "voxpipe:predict",
    "__main__:x",
    "..:x",
    "eval",
    "at_first_use",
    "__builtins__",
    "DataLoader2",
]


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("parts", [[], ["1"], [{"args": "ls"}], [[]]])
def test_no_name_leads_to_code(name, parts):
    """As a form, a value, a class of values or a member."""
    value = {"$": [name, *parts]}
    source = {"form": "IterableWrapper", "values": [[1]]}
    for node in (
        {"form": "map", "parents": [0], "values": [value]},
        {"form": name, "parents": [0], "values": parts},
        {"form": name, "values": parts},
        {"form": "open_volume", "parents": [0], "options": {"reader": value}},
    ):
        with pytest.raises(BadChain):
            vp.chain_from_json({"version": 1, "pipes": [source, node]})
    assert CALLS == []
