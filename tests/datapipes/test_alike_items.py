"""Items that are copies of the first are those that the pipes of a chain make."""

import pickle
from itertools import islice

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.datapipes.alike_items import AlikeItems, alike_items
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.datapipes.item_numbers import number_items
from voxpipe.reading_services.planner import DeliveredBatches, RankPart, jobs
from voxpipe.reading_services.work import work_of

SEED, EPOCH, CASES = 3, 1, 40
OF_RUN = ("token", "_pass")  # other in each pass, or made when it is asked for


def cases(count=CASES, **others):
    paths = [
        {key: f"/data/case{n:03d}/{key}.nii" for key in ("image", "label")} for n in range(count)
    ]
    return [{**case, **{key: of(n) for key, of in others.items()}} for n, case in enumerate(paths)]


def opened(rows, **options):
    return vp.from_cases(rows).shuffle().open_volume(**options)


def mixed(pipe):
    return pipe.lazy_patch(8, samples_per_volume=3).shuffle_plans()


def of_a_few_lengths(rows):
    return mixed(opened(rows)).augment(rotate=15).normalize().gamma((0.8, 1.2))


CHAINS = {
    "mixed": lambda: mixed(opened(cases())).augment(rotate=15),
    "in visits": lambda: opened(cases()).lazy_patch(8, samples_per_volume=3).flip(p=0.5),
    "interleaved": lambda: (
        vp.from_cases(cases())
        .open_volume()
        .lazy_patch(8, samples_per_volume=4)
        .interleave(3, 2)
        .augment(rotate=9)
    ),
    "in windows": lambda: (
        opened(cases()).lazy_patch(8, samples_per_volume=3).shuffle_plans(vp.ShuffleSpec.window(7))
    ),
    "whole volumes": lambda: opened(cases()).center_crop(4).normalize(),
    "regions": lambda: opened(cases()).lazy_patch(8, samples_per_volume=3, region=16),
    "values": lambda: of_a_few_lengths(cases()),
    "sampling": lambda: mixed(opened(cases())).rotate(
        10, mode="nearest", padding="constant", fill=2
    ),
    "policies": lambda: mixed(
        opened(cases(), policies={"image": {"mode": "nearest"}}, override=True)
    ),
    "numbers": lambda: mixed(opened(cases(age=float, site=lambda n: "ab"[n % 2]))),
    "names": lambda: mixed(opened(cases(case=lambda n: f"c{n}"))),
    "paths in other words": lambda: mixed(
        opened([{"image": ["a/b.nii", "/a//b.nii", "s3://a/b.nii"][n % 3]} for n in range(12)])
    ),
    "options": lambda: mixed(opened(cases(), io="pread", storage_options={"key": "k"})),
    "few keys": lambda: mixed(opened(cases(other=lambda n: f"/{n}.txt"), keys=["image"])),
    "a list of volumes": lambda: mixed(
        opened([{"image": vp.Volume(f"/{n}.nii")} for n in range(9)])
    ),
}
OTHERS = {
    "another key": lambda: mixed(opened(cases(9) + cases(9, seg=lambda n: f"/{n}.nii"))),
    "another kind": lambda: mixed(
        opened([*cases(9), {"image": "/a.zarr/labels/x", "label": "/b.nii"}])
    ),
    "arrays": lambda: mixed(opened([{"image": np.zeros((9, 9, 9))}, *cases(3)])),
    "channels": lambda: mixed(opened(cases(5), channels=[0])),
    "a mask": lambda: opened(cases(5)).lazy_patch(8, samples_per_volume=2, mask="label"),
}


def facts(thing, seen=()):
    """Return the values of an object and of those that it holds, as plain data."""
    if isinstance(thing, dict):
        own = {key: facts(value, seen) for key, value in thing.items()}
        attributes = [facts(getattr(thing, name), seen) for name in getattr(thing, "__slots__", ())]
        return type(thing).__name__, [*own.items()], attributes
    if isinstance(thing, (list, tuple)):
        return [facts(one, seen) for one in thing]
    own = {**getattr(thing, "__dict__", {})}
    if not own or isinstance(thing, type) or id(thing) in seen:
        return thing if isinstance(thing, (int, float, str, type(None))) else type(thing).__name__
    if isinstance(thing, vp.Volume):
        own |= {"token": thing.token, "_pass": bool(own.get("_pass"))}
        source = vars(thing._source)
        own["_source"] = facts(
            {name: source[name] for name in sorted(source) if name not in OF_RUN}
        )
    return type(thing).__name__, {k: facts(v, (*seen, id(thing))) for k, v in sorted(own.items())}


class Recorded:
    """Items that note which of them are made."""

    def __init__(self, items):
        self.items, self.made = items, []

    def __getattr__(self, name):
        return getattr(self.items, name)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        self.made.append(number)
        return self.items[number]


@pytest.mark.parametrize("name", [*CHAINS, *OTHERS])
def test_they_are_those_of_the_pipes(name):
    """Values, names, identities, plans, policies and volumes, in any order."""
    pipe = {**CHAINS, **OTHERS}[name]()
    set_epoch(pipe, SEED, EPOCH)
    expected = number_items(pipe)
    every = [facts(expected[n]) for n in range(len(expected))]

    set_epoch(pipe, SEED, EPOCH)
    items = alike_items(number_items(pipe))
    assert len(items) == len(every)
    for n in (1, 0, *range(2, len(every)), 1):
        assert facts(items[n]) == every[n]
    copies = [pickle.loads(pickle.dumps(one[1])) for one in (items, expected)]
    assert facts(copies[0]) == facts(copies[1])
    assert not items.holds(len(every))


@pytest.mark.parametrize("name", CHAINS)
def test_pipes_make_the_first_alone(name):
    """All others are copies of it."""
    pipe = CHAINS[name]()
    set_epoch(pipe, SEED, EPOCH)
    items = alike_items(number_items(pipe))
    assert isinstance(items, AlikeItems)
    items._items = Recorded(items._items)
    for n in range(len(items)):
        items[n]
    assert items._items.made == [0]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_plan_their_own_parts(ranks):
    """Over several blocks of numbers, and the rest of an epoch."""
    chain = mixed(opened(cases(1500))).augment(rotate=15).batch_patches(8)
    cut = work_of(vp.FuseSpatial()(chain)).cut
    parts = [
        list(jobs(cut, SEED, EPOCH, DeliveredBatches(), RankPart(rank, ranks)))
        for rank in range(ranks)
    ]
    together = [[item for job in batch for item in job.items] for batch in zip(*parts, strict=True)]
    set_epoch(cut.planner, SEED, EPOCH)
    items = iter(number_items(cut.planner))
    for batch in together:
        assert [one.identity for one in batch] == [one.identity for one in islice(items, 8)]


def test_patches_of_one_case_share_its_volume():
    """So a header is read once, and travels to workers once."""
    items = alike_items(number_items(opened(cases()).lazy_patch(8, samples_per_volume=3)))
    items[0]
    second, third, other = (items[n]["image"].volume for n in (4, 5, 6))
    assert second is third
    assert second is not other


def test_a_header_of_the_first_item_is_no_other_item_s(tmp_path):
    """Even if it is read before the others are made."""
    rows = [{"image": str(tmp_path / f"{n}.npy")} for n in range(3)]
    for n, row in enumerate(rows):
        np.save(row["image"], np.zeros((4 + n, 4, 4), np.int16))
    items = alike_items(number_items(vp.from_cases(rows).open_volume().lazy_patch(2)))
    assert [items[n]["image"].volume.shape[1] for n in range(3)] == [4, 5, 6]


def test_the_first_item_has_the_pickle_of_a_copy():
    """Loaders that share batches know them by the pickles of their jobs."""
    pipe = mixed(opened(cases(case=lambda n: f"c{n}"))).augment(rotate=15)
    set_epoch(pipe, SEED, EPOCH)
    made = number_items(pipe)[5]["image"].volume.located_source
    set_epoch(pipe, SEED, EPOCH)
    items = alike_items(number_items(pipe))
    items[0]
    copy = items[5]["image"].volume.located_source
    copy.token  # noqa: B018  found, which is no part of the pickle

    assert pickle.dumps(copy) == pickle.dumps(made)
    assert copy.token == pickle.loads(pickle.dumps(made)).token
