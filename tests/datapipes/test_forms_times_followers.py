"""Whatever form the channels of a key have, and whatever follows: they are the keys made apart."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.datapipes.cost import measure_access
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.datapipes.shuffle_plans import needed_chunks
from voxpipe.spatial import Policy
from voxpipe.spatial.lazy.lazy_patch import patches_of
from voxpipe.spatial.lazy.patch_steps import in_batch, replay_draws
from voxpipe.spatial.lazy.virtual_volume import TILES

zarr = pytest.importorskip("zarr", minversion="3")

SHAPE, CHUNK = (6, 5, 4), (3, 5, 2)
KEYS = ("t1", "t2")
ALIKE = Policy("linear", "constant", -50.0)
POLICIES = {
    "members": {"t1": ALIKE, "t2": Policy("nearest", "constant", 7.0)},
    "alike": {"t1": ALIKE, "t2": ALIKE, "image": ALIKE},
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return two files of one channel each, and one of both."""
    folder = tmp_path_factory.mktemp("forms")
    voxels = np.random.default_rng(0).integers(1, 200, (2, *SHAPE), dtype=np.int16)
    found = {}
    for name, array in (("t1", voxels[0]), ("t2", voxels[1]), ("both", voxels)):
        found[name] = str(folder / f"{name}.zarr")
        chunks = CHUNK if array.ndim == 3 else (1, *CHUNK)
        zarr.create_array(found[name], data=array, chunks=chunks)
    return found


BASES = ("file", "list", "stack", "members")
FORMS = {
    "lazy": lambda pipe, place: pipe,
    "realized": lambda pipe, place: pipe.realize().open_volume(),
    "made": lambda pipe, place: pipe.flush(),
    "kept in memory": lambda pipe, place: pipe.cache(memory_bytes=10**7),
    "kept in a folder": lambda pipe, place: pipe.cache(place / "form"),
}
FOLLOWERS = {
    "nothing": lambda pipe, place: pipe,
    "flush": lambda pipe, place: pipe.flush(),
    "blur": lambda pipe, place: pipe.blur(0.4, unit="voxel"),
    "cache": lambda pipe, place: pipe.cache(place / "follower"),
    "in_memory_cache": lambda pipe, place: pipe.in_memory_cache(),
    "unstack": lambda pipe, place: pipe,
}
ON_DISK = {"kept in a folder", "cache"}
# What is kept may have the type that holds the values of all channels.
ONE_ARRAY = {"realized", *ON_DISK}
REFUSE_DRAWN = {"kept in memory", "in_memory_cache", *ON_DISK}
ALL = [
    (base, form, follower, drawn)
    for base, form, follower, drawn in itertools.product(BASES, FORMS, FOLLOWERS, (False, True))
    if not (drawn and REFUSE_DRAWN & {form, follower})
]


QUICK = ("stack", "members")
PARAMETERS = [
    pytest.param(one, id="-".join(map(str, one)), marks=() if one[0] in QUICK else pytest.mark.slow)
    for one in ALL
]


def opened(base: str, files: Any, *, apart: bool, override: bool) -> Any:
    """Return the head of a chain: two keys, or what their channels are in one."""
    two = apart or base in ("stack", "members")
    case = {key: files[key] for key in KEYS}
    if not two:
        case = {"image": files["both"] if base == "file" else [files[key] for key in KEYS]}
    named = POLICIES["members" if base == "members" else "alike"]
    policies = {key: named[key] for key in case}
    return vp.from_cases([case]).open_volume(policies=policies, override=override)


def chain(
    product: tuple[str, str, str, bool], files: Any, place: Any, *, apart: bool, override: bool
) -> Any:
    """Return a chain of a product; the same of two keys if ``apart``."""
    base, form, follower, drawn = product
    pipe = opened(base, files, apart=apart, override=override)
    if base == "members":
        # After the fill: it goes through the values, and is another number for each channel.
        pipe = pipe.normalize(mean=10.0, std=2.0, keys="t1")
    if drawn:
        pipe = pipe.lazy_patch((3, 4, 3)).rotate((0, 0, 20), name="early")
    if base in ("stack", "members") and not apart:
        pipe = pipe.stack(KEYS, "image")
    place = place / str(apart)
    pipe = FOLLOWERS[follower](FORMS[form](pipe, place), place)
    if follower == "unstack" and not apart:
        pipe = pipe.unstack("image", KEYS)
    if not drawn:
        pipe = pipe.lazy_patch((2, 3, 2))
    return pipe.augment(rotate=(-15, 15), flip=0.5, name="late").pad(1)


def samples(pipe: Any) -> list[Any]:
    """Return the samples of two epochs."""
    found = []
    for epoch in (0, 1):
        set_epoch(pipe, 3, epoch)
        found += list(pipe)
    return found


def keys_of(sample: Any) -> tuple[str, ...]:
    return ("image",) if "image" in sample else KEYS


def voxels(sample: Any) -> Any:
    return np.concatenate([sample[key].realize() for key in keys_of(sample)]).astype(np.float64)


def leaves(patch: Any) -> list[Any]:
    """Return the patches that are sampled by themselves, as often as each has channels."""
    if patch.members:
        return [leaf for member in patch.members for leaf in leaves(member)]
    return [patch] * patch.shape[0]


def made(sample: Any) -> tuple[Any, Any]:
    """Return the channels of a sample, and what making them reads, with no tile in memory."""
    TILES.clear()
    before = IO_COUNTERS.snapshot()
    found = voxels(sample)
    return found, IO_COUNTERS - before


@pytest.mark.parametrize("product", PARAMETERS)
def test_a_form_is_its_keys_apart(product: Any, files: Any, tmp_path: Any) -> None:
    """Voxels, draws, plans and policies, in two epochs; and what is read is what was told."""
    base, form, follower, _ = product
    fixed = base == "members" and follower in ("nothing", "flush", "unstack")
    pair = [chain(product, files, tmp_path, apart=apart, override=fixed) for apart in (False, True)]
    first, second = map(samples, pair)
    if ON_DISK & {form, follower}:
        voxels(first[0]), voxels(second[0])  # writes the copies

    assert len(first) == len(second) == 2
    for found, expected in zip(first, second, strict=True):
        patches = [found[key] for key in keys_of(found)]
        told = sum(chunk.bytes for chunk in needed_chunks(found))
        (array, done), (apart, read) = made(found), made(expected)
        np.testing.assert_array_equal(array, apart)
        # Bare voxels are told in cubes, of which a patch may read a part.
        assert told >= done.bytes_read
        assert told == done.bytes_read or form == "realized"
        assert done.reads <= read.reads
        if not {form, follower} & ONE_ARRAY:
            assert done.bytes_read == read.bytes_read
        for patch in patches:
            assert patch.draws == expected["t1"].draws == expected["t2"].draws
            whole = expected["t1"].whole_plan
            np.testing.assert_allclose(patch.whole_plan.matrix, whole.matrix, atol=1e-9)
            np.testing.assert_allclose(patch.whole_plan.affine, whole.affine, atol=1e-9)
        of_channels = [leaf for patch in patches for leaf in leaves(patch)]
        for leaf, key in zip(of_channels, KEYS, strict=True):
            assert leaf.policy == expected[key].policy
            assert bool(leaf.fixed_fields) == bool(expected[key].fixed_fields) == fixed
    assert first[0][keys_of(first[0])[0]].draws != first[1][keys_of(first[1])[0]].draws


def of_members(files: Any) -> Any:
    """Return a chain that stacks keys which are sampled unlike each other."""
    return opened("members", files, apart=False, override=False).stack(KEYS, "image")


def plans_of(patch: Any) -> set[int]:
    """Return the plans that are worked out for a patch, before flushes too, by their names."""
    found = {id(patch.pending)}
    for below in (*patch.members, getattr(patch.volume, "patch", None)):
        found |= set() if below is None else plans_of(below)
    return found


def test_keys_that_share_a_plan_share_it_in_a_batch_and_in_a_replay(files: Any) -> None:
    """It is worked out once for all of them, wherever in the batch they are."""
    mask = vp.Volume(np.ones(SHAPE, np.uint8), kind="label")
    pipe = vp.from_cases([{"image": [files[key] for key in KEYS], "label": mask}]).open_volume()
    pipe = pipe.lazy_patch((3, 3, 3), mask="label", oversample=0.5).flush(keys=["image"])
    sample = next(iter(pipe.unstack("image", KEYS).rotate((-9, 9))))

    (placed,) = in_batch([sample])
    again = replay_draws(patches_of(sample), {"rotate": sample["t1"].draws["rotate"]})

    for found in (placed, again):
        assert found["t1"].pending is not sample["t1"].pending
        assert found["t1"].pending is found["t2"].pending
        assert plans_of(found["t1"]) == plans_of(found["t2"])
        np.testing.assert_array_equal(found["t1"].affine, found["t2"].affine)


def test_a_stack_is_kept_member_by_member(files: Any, tmp_path: Any) -> None:
    """``prepare`` writes them all; how they will lie is known before, and nothing is written."""
    pipe = of_members(files).cache(tmp_path, chunk=4)

    asked = measure_access(pipe.lazy_patch(2).batch_patches(1), 0, 0)

    assert not asked.unknown
    assert asked.layouts["image"].chunk == (4, 4, 4)
    assert not list(tmp_path.glob("*.zarr"))
    assert pipe.prepare(lambda done, total: None) == 2
    assert len(list(tmp_path.glob("*.zarr"))) == 2


def test_a_channel_of_a_copy_is_told_as_it_is_read(files: Any, tmp_path: Any) -> None:
    """Of a copy whose chunks hold both, which is told and negotiated before it is there."""
    pipe = opened("list", files, apart=False, override=False).cache(tmp_path)
    sample = next(iter(pipe.unstack("image", KEYS)))
    assert list(needed_chunks(sample))
    assert not measure_access(pipe.unstack("image", KEYS).batch_patches(1), 0, 0).unknown
    assert not list(tmp_path.glob("*.zarr"))
    whole = next(iter(pipe))["image"]
    expected = whole.realize()

    again = next(iter(pipe.unstack("image", KEYS)))
    told = sum(chunk.bytes for chunk in needed_chunks(again))

    found, done = made(again)
    np.testing.assert_array_equal(found, expected)
    assert (done.reads, done.bytes_read) == (2, told)


def test_a_stack_is_brought_to_a_grid_member_by_member(files: Any) -> None:
    """``resample_to`` keeps how each is sampled, too."""
    grid = vp.Volume(np.zeros((3, 5, 2), np.uint8), affine=np.diag([2.0, 1, 2, 1]), kind="label")

    def brought(*, apart: bool) -> Any:
        case = {**{key: files[key] for key in KEYS}, "label": grid}
        pipe = vp.from_cases([case]).open_volume(
            policies=POLICIES["members"], affine={k: np.eye(4) for k in KEYS}
        )
        pipe = pipe if apart else pipe.stack(KEYS, "image")
        return next(iter(pipe.resample_to("label").pad(1)))

    np.testing.assert_array_equal(voxels(brought(apart=False)), voxels(brought(apart=True)))
