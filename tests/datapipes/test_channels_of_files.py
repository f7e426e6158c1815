"""Several files are channels of one volume: in a case, or by ``stack``; and channels come apart."""

import json
import warnings

import nibabel
import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.batching import collate as gather
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import (
    BadHeader,
    GridMismatch,
    PatchSizeError,
    SampleError,
    UnopenedVolume,
)
from voxpipe.datapipes.cost import measure_access
from voxpipe.datapipes.shuffle_plans import needed_chunks
from voxpipe.spatial.lazy.patch_report import asks_voxels

SHAPE = (12, 13, 14)
AFFINE = np.diag([1.0, 1.0, 2.0, 1.0])
KEYS = ("t1", "t2", "t3")
FILL_OF = {"t1": -50.0, "t2": 30.0}


@pytest.fixture
def cases(tmp_path):
    """Return two cases of three files of three types each, and a label."""
    rng = np.random.default_rng(0)
    found = []
    for number in range(2):
        case = {}
        for key, kind in zip((*KEYS, "label"), ("i2", "u1", "f4", "u1"), strict=True):
            path = tmp_path / f"s_{number}_{key}.nii"
            voxels = rng.integers(0, 3 if key == "label" else 200, SHAPE).astype(kind)
            nibabel.save(nibabel.Nifti1Image(voxels, AFFINE), path)
            case[key] = str(path)
        found.append(case)
    return found


def listed(cases):
    """Return the cases with a list of files under one key."""
    return [{"image": [case[key] for key in KEYS], "label": case["label"]} for case in cases]


def opened(cases):
    """Return the head of a chain."""
    return vp.from_cases(cases).open_volume()


def turned(pipe):
    """Return a chain with random patches, turned."""
    return pipe.lazy_patch(6, samples_per_volume=2).augment(rotate=(-15, 15), flip=0.5)


def batches(pipe, service=None):
    """Return the batches of an epoch; keys that were not stacked are put side by side."""
    with vp.DataLoader2(pipe.batch_patches(2), None, service, seed=4) as loader:
        found = list(loader)
    for batch in found:
        if "image" not in batch:
            batch["image"] = torch.cat([batch[key] for key in KEYS], dim=1)
    return found


def same(some, others):
    """Whether image and label of all batches are the same bits."""
    pairs = zip(some, others, strict=True)
    return all(bool((a[key] == b[key]).all()) for a, b in pairs for key in ("image", "label"))


def test_a_list_of_files_is_what_its_files_are_apart(cases):
    """The same values in one slot, by as many reads, interpolations and bytes."""
    apart = turned(opened(cases))
    before = IO_COUNTERS.snapshot()
    expected = batches(apart)
    mid = IO_COUNTERS.snapshot()
    found = batches(turned(opened(listed(cases))))
    one, other = mid - before, IO_COUNTERS - mid

    assert [batch["image"].shape for batch in found] == [(2, 3, 6, 6, 6)] * 2
    assert found[0]["image"].dtype == torch.float32
    assert same(found, expected)
    assert (other.reads, other.bytes_read) == (one.reads, one.bytes_read)
    assert (other.interpolations, other.copies) == (one.interpolations, one.copies)
    assert [entry["case"] for entry in found[0]["meta"]] == ["s_0", "s_0"]


@pytest.mark.parametrize("form", ["list", "stack", "stack early"])
def test_workers_make_the_same_batches(cases, form):
    """A list in the case, and ``stack`` at either end of the chain."""
    pipes = {
        "list": lambda: turned(opened(listed(cases))),
        "stack": lambda: turned(opened(cases)).stack(KEYS, "image"),
        "stack early": lambda: turned(opened(cases).stack(KEYS, "image")),
    }
    expected = batches(turned(opened(cases)))
    service = vp.MultiProcessingReadingService(num_workers=2)

    assert same(batches(pipes[form](), service), expected)


def test_without_interpolation_the_type_holds_all(cases):
    """int16, uint8 and float32 give float32; int16 and uint8 give int16."""
    two = [{"image": case["image"][:2]} for case in listed(cases)]

    assert next(iter(opened(listed(cases)).batch_patches(1)))["image"].dtype == torch.float32
    assert next(iter(opened(two).batch_patches(1)))["image"].dtype == torch.int16


def test_grids_of_a_list_that_differ_are_told_with_the_case(tmp_path, cases):
    """Which files, how far apart, where in the chain."""
    away = AFFINE.copy()
    away[2, 3] = 4.0
    nibabel.save(nibabel.Nifti1Image(np.zeros(SHAPE, np.int16), away), tmp_path / "away.nii")
    bad = [{"image": [cases[0]["t1"], str(tmp_path / "away.nii")]}]

    with pytest.raises(GridMismatch, match=r"t1.nii and .*away.nii .* lie 2 voxels apart"):
        batches(turned(opened(bad)))


def test_chunks_of_every_file_are_counted_as_they_are_read(tmp_path):
    """What ``explain`` and ``needed_chunks`` tell beforehand is what is decoded."""
    zarr = pytest.importorskip("zarr")
    files = []
    for name, edge in (("a", 8), ("b", 4)):
        files.append(str(tmp_path / f"{name}.zarr"))
        voxels = np.arange(24**3, dtype=np.int16).reshape(24, 24, 24)
        zarr.create_array(files[-1], data=voxels, chunks=(edge,) * 3)
    pipe = vp.from_cases([{"image": files}]).open_volume().crop((6, 6, 6), (4, 4, 4))
    told = sorted(chunk.bytes for chunk in needed_chunks(next(iter(pipe))))

    with vp.DataLoader2(pipe.batch_patches(1)) as loader:
        text = str(loader.explain())
        before = IO_COUNTERS.snapshot()
        (batch,) = list(loader)
        done = IO_COUNTERS - before

    # Voxels 6 to 10: two chunks of 8 along each axis, two of 4 along each axis.
    assert told == [4**3 * 2] * 8 + [8**3 * 2] * 8
    assert done.bytes_read == sum(told)
    assert done.reads == 2
    assert "per patch: 2 reads" in text
    assert "(0.00922 MB in whole chunks)" in text
    assert bool((batch["image"][0, 0] == batch["image"][0, 1]).all())


def test_stack_is_what_its_keys_are_apart(cases):
    """With value pipes and sampling of some keys before it, and spatial pipes after it."""

    def chain(stacks):
        pipe = opened(cases).lazy_patch(6, samples_per_volume=2).normalize(keys="t1")
        pipe = pipe.noise((1, 2), keys="t2").flip(0, p=0.5, mode={"t3": "nearest"})
        return stacks(pipe)

    expected = batches(chain(lambda pipe: pipe.rotate((-15, 15))))
    before = batches(chain(lambda pipe: pipe.stack(KEYS, "image").rotate((-15, 15))))
    after = batches(chain(lambda pipe: pipe.rotate((-15, 15)).stack(KEYS, "image")))

    assert same(before, expected)
    assert same(after, expected)


def test_stack_after_another_grid_is_one_interpolation(tmp_path, cases):
    """``resample_to`` brings a file to the grid; patches are cut and turned after ``stack``."""
    half = np.diag([2.0, 2.0, 2.0, 1.0])
    nibabel.save(nibabel.Nifti1Image(np.ones((6, 7, 14), np.int16), half), tmp_path / "half.nii")
    case = {"t1": cases[0]["t1"], "t2": str(tmp_path / "half.nii")}
    start = vp.from_cases([case]).open_volume()
    keys = ("t1", "t2")

    with pytest.raises(GridMismatch):
        batches(start.stack(keys, "image"))
    pipe = start.resample_to("t1").stack(keys, "image").lazy_patch(6).rotate((-15, 15))
    before = IO_COUNTERS.snapshot()
    (batch,) = batches(pipe)
    done = IO_COUNTERS - before

    assert batch["image"].shape == (1, 2, 6, 6, 6)
    assert (done.reads, done.interpolations) == (2, 2)


@pytest.fixture
def brought(tmp_path, cases):
    """Return the head of a chain that brings a coarser file to the grid of another."""
    half = np.diag([2.0, 2.0, 2.0, 1.0])
    voxels = np.arange(6 * 7 * 14, dtype=np.int16).reshape(6, 7, 14)
    nibabel.save(nibabel.Nifti1Image(voxels, half), tmp_path / "coarse.nii")
    case = {"t1": cases[0]["t1"], "t2": str(tmp_path / "coarse.nii")}
    return vp.from_cases([case]).open_volume().resample_to("t1")


def made(pipe, keys=("image",)):
    """Return the channels of some keys of the first sample."""
    sample = next(iter(pipe))
    return np.concatenate([sample[key].realize() for key in keys]).astype(np.float64)


def test_files_of_two_grids_are_normalized_together(brought, tmp_path, cases):
    """By the voxels as they are stored, of one file as of the other."""
    pair = ("t1", "t2")
    files = (cases[0]["t1"], tmp_path / "coarse.nii")
    stored = np.concatenate([vp.Volume(file).numpy().ravel() for file in files])
    plain, pipe = made(brought, pair), brought.stack(pair, "image")

    found = made(pipe.normalize())
    again = made(pipe.flush().normalize())

    assert np.allclose(found, (plain - stored.mean()) / stored.std(), atol=1e-5)
    assert np.allclose(again, found, atol=1e-5)


VALUES = {
    "gamma": lambda pipe: pipe.gamma(1.2),
    "bias field": lambda pipe: pipe.bias_field(0.0),
    "percentiles": lambda pipe: pipe.rescale_percentiles(1, 99),
}


@pytest.mark.parametrize("name", VALUES)
def test_files_of_two_grids_take_every_value_pipe(brought, name):
    """Also where the stack is flushed before."""
    pipe = brought.stack(("t1", "t2"), "image")

    found = made(VALUES[name](pipe))

    assert np.ptp(found) > 0
    assert np.allclose(made(VALUES[name](pipe.flush())), found, atol=1e-3)


def test_files_of_two_grids_are_sampled_anew_and_kept(brought, tmp_path):
    """After ``flush``, in memory and on disk: what the keys give apart."""
    pair = ("t1", "t2")
    pipe = brought.stack(pair, "image")
    expected = made(brought.flush().rotate((0, 0, 10)), pair)

    for kept in (pipe.flush(), pipe.cache(memory_bytes=10**8), pipe.cache(tmp_path / "kept")):
        assert np.allclose(made(kept.rotate((0, 0, 10))), expected, atol=1e-3)


def test_the_foreground_of_files_of_two_grids_is_around_that_of_each(tmp_path):
    """A voxel of the coarse file is two of the fine one."""
    voxels = [np.zeros((8, 8, 8), np.int16), np.zeros((4, 4, 4), np.int16)]
    voxels[0][1, 4, 4] = voxels[1][3, 2, 2] = 9
    affines = [np.diag([edge, edge, edge, 1.0]) for edge in (1.0, 2.0)]
    pairs = zip(voxels, affines, strict=True)
    case = {key: vp.Volume(v, affine=a) for key, (v, a) in zip("ab", pairs, strict=True)}
    pipe = vp.from_cases([case]).open_volume().resample_to("a").stack(("a", "b"), "image")

    found = next(iter(pipe.foreground_crop("image", above=1)))["image"]
    middle = next(iter(pipe.foreground_crop("image", above="p99")))["image"]

    assert found.shape[1:] == middle.shape[1:]
    assert found.shape[1] == 8 - 1  # to 7 mm, which is the middle of the last voxel
    assert found.affine[0, 3] == 1.0


def test_the_store_of_files_of_two_grids_is_negotiated(brought):
    """Their layout is asked, too; a read of both in one array is refused."""
    pipe = brought.stack(("t1", "t2"), "image").lazy_patch(4)

    found = measure_access(pipe.batch_patches(1), 0, 0)

    assert not found.unknown
    assert found.layouts["image"].itemsize == 2 + 2
    with pytest.raises(GridMismatch, match="have different shapes"):
        next(iter(pipe))["image"].volume.numpy()


def test_statistics_know_what_came_before_all_flushes(cases):
    """What is normalized has mean 0 and spread 1, however often it is sampled anew since."""
    head = opened(cases).brightness(300.0, keys="t1").flush(keys=["t1"])
    apart = made(head.flush().normalize(), KEYS[:1])
    stacked = made(head.stack(KEYS, "image").flush().flush().normalize())

    assert abs(apart.mean()) < 1e-4
    assert abs(stacked.mean()) < 1e-4
    assert abs(stacked.std() - 1) < 1e-4


def test_value_pipes_after_stack_take_its_channels_together(cases):
    """One mean and one spread, of values as they were made before."""
    before = opened(cases).brightness(300.0, keys="t1")
    plain = batches(before)[0]["image"].double()
    found = batches(before.stack(KEYS, "image").normalize())[0]["image"].double()

    for one, its in zip(plain, found, strict=True):
        expected = (one - one.mean()) / one.std(unbiased=False)
        assert float((its - expected).abs().max()) < 1e-5


STACKS = {
    "no stack": lambda pipe: pipe,
    "alike": lambda pipe: pipe.stack(("t1", "t2"), "image"),
    "one by one": lambda pipe: pipe.normalize(keys="t2").stack(("t1", "t2"), "image"),
}


@pytest.mark.parametrize("stacks", STACKS.values(), ids=STACKS)
def test_a_flush_keeps_how_a_stack_is_sampled(cases, stacks):
    """What was asked for before it holds after it, and so does what nobody may change."""
    given = {"t1": vp.Policy("cubic"), "t2": vp.Policy("cubic")}
    asked = stacks(opened(cases)).rotate(5, mode="nearest", padding="constant", fill=-50.0)
    fixed = stacks(vp.from_cases(cases).open_volume(policies=given, override=True))

    for pipe in (asked.flush().rotate(5), asked.blur(1.0).rotate(5)):
        sample = next(iter(pipe))
        patch = sample["image" if "image" in sample else "t1"]
        for one in patch.members or (patch,):
            assert one.policy == vp.Policy("nearest", "constant", -50.0)
            assert one.filled_after == -1
    for pipe in (fixed.flush(), fixed.blur(1.0), fixed.realize().open_volume()):
        sample = next(iter(pipe.rotate(5, mode="nearest")))
        patch = sample["image" if "image" in sample else "t1"]
        assert patch.fixed_fields
        assert patch.policy == vp.Policy("cubic")


def test_stacks_that_are_flushed_are_filled_as_their_keys_are(cases):
    """The same voxels as without ``stack``, of steps that treat each channel alike."""

    def chain(stacks):
        pipe = stacks(opened(cases).normalize(mean=10.0, std=2.0, keys="t1"))
        pipe = pipe.rotate((0, 0, 30), padding="constant", fill=-50.0)
        return next(iter(pipe.flush().rotate((0, 0, 30))))

    apart = chain(lambda pipe: pipe)
    together = chain(lambda pipe: pipe.stack(("t1", "t2"), "image"))

    expected = np.concatenate([apart["t1"].realize(), apart["t2"].realize()])
    assert expected.min() == -50
    np.testing.assert_array_equal(together["image"].realize(), expected)


@pytest.mark.parametrize("keys", [("t1", "t2"), ("t2", "t1")])
def test_the_order_of_keys_does_not_say_which_policy_holds(cases, keys):
    """One key has a policy that stays; a pipe changes the other."""
    given = {"t1": vp.Policy("cubic")}
    pipe = vp.from_cases(cases).open_volume(policies=given, override=True).stack(keys, "image")

    patch = next(iter(pipe.rotate(5, mode="nearest")))["image"]

    found = {one.volume.name: one.policy.mode for one in patch.members}
    assert found == {cases[0]["t1"]: "cubic", cases[0]["t2"]: "nearest"}
    assert patch.policy.mode == "cubic"


BEGUN_ANEW = {
    "flush": lambda pipe: pipe.flush(),
    "blur": lambda pipe: pipe.blur(1.0),
    "twice": lambda pipe: pipe.flush().crop((0, 0, 0), (8, 8, 8)).flush(),
    "realize": lambda pipe: pipe.realize().open_volume(),
    "kept": lambda pipe: pipe.cache(memory_bytes=10**6),
}


@pytest.mark.parametrize("anew", BEGUN_ANEW.values(), ids=BEGUN_ANEW)
@pytest.mark.parametrize("stacks", ["before", "between", "after"])
def test_an_entry_says_where_its_channels_lie_in_their_files(cases, anew, stacks):
    """Wherever ``stack`` stands: the same place as without, of each file."""

    def chain(where):
        pipe = opened(cases).normalize(keys="t1")
        for place in ("before", "between", "after"):
            pipe = pipe.stack(("t1", "t2"), "image") if place == where else pipe
            if place == "before":
                pipe = anew(pipe.crop((1, 2, 3), (8, 8, 8)))
            if place == "between":
                pipe = pipe.crop((1, 1, 1), (4, 5, 6)).rotate(3)
        return next(iter(pipe))

    def told(sample, key):
        return json.loads(json.dumps(sample[key].provenance()))

    apart = chain("never")
    expected = [told(apart, key) for key in ("t1", "t2")]
    found = told(chain(stacks), "image")

    assert found["stored_shape"] == [2, *SHAPE]
    assert [one["file"] for one in found["channels"]] == [cases[0]["t1"], cases[0]["t2"]]
    for one, its in zip([found, *found["channels"]], [expected[0], *expected], strict=True):
        assert one["plan"]["source"] == its["plan"]["source"]
        np.testing.assert_allclose(one["matrix"], its["matrix"], atol=1e-12)
        np.testing.assert_allclose(one["affine"], its["affine"], atol=1e-12)
        assert one["region"] == its["region"]
    for one, its in zip(found["channels"], expected, strict=True):
        assert one == its


def test_a_channel_of_another_grid_has_a_place_of_its_own(tmp_path, cases):
    """After a flush each channel's matrix leads to the voxels of its own file."""
    half = np.diag([2.0, 2.0, 2.0, 1.0])
    nibabel.save(nibabel.Nifti1Image(np.ones((6, 7, 14), np.int16), half), tmp_path / "half.nii")
    case = {"t1": cases[0]["t1"], "t2": str(tmp_path / "half.nii")}
    start = vp.from_cases([case]).open_volume().resample_to("t1").crop((2, 4, 6), (6, 6, 6))

    apart = next(iter(start.crop((2, 2, 2), (4, 4, 4))))
    pipe = start.stack(("t1", "t2"), "image").blur(1.0).crop((2, 2, 2), (4, 4, 4))
    found = next(iter(pipe))["image"].provenance()

    for one, key in zip(found["channels"], ("t1", "t2"), strict=True):
        np.testing.assert_allclose(one["matrix"], apart[key].provenance()["matrix"], atol=1e-12)
    assert np.array(found["matrix"])[:3, 3].tolist() == [4, 6, 8]


def test_a_label_among_intensities_is_sampled_as_a_label(cases):
    """No value between two labels appears in its channel."""
    pipe = turned(opened(cases)).stack(("t1", "label"), "image").batch_patches(2)

    channel = next(iter(pipe))["image"][:, 1]

    assert set(channel.unique().tolist()) <= {0.0, 1.0, 2.0}
    assert len(channel.unique()) == 3


def test_channels_apart_are_the_files_and_read_alone(cases):
    """``unstack`` undoes ``stack``; a channel that nobody wants is not read."""
    expected = batches(turned(opened(cases)))
    early = batches(turned(opened(listed(cases)).unstack("image", KEYS)))
    late = batches(turned(opened(listed(cases))).blur(1.0).unstack("image", KEYS))

    assert same(early, expected)
    assert same(late, batches(turned(opened(cases)).blur(1.0)))
    stored = vp.Volume(np.arange(24, dtype=np.int16).reshape(2, 2, 2, 3))
    apart = vp.from_cases([{"image": stored}]).open_volume().unstack("image", ["a", "b"])
    sample = next(iter(apart))
    before = IO_COUNTERS.snapshot()
    assert sample["b"].realize().ravel()[0] == 12
    done = IO_COUNTERS - before
    assert (done.reads, done.bytes_read) == (1, 12 * 2)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_file_of_two_channels_changes_nothing_of_the_others(order):
    """Each keeps its own type and bits; scaled values are interpolated as they are by itself."""
    rng = np.random.default_rng(0)
    one = vp.Volume(rng.integers(0, 250, SHAPE).astype(np.uint8))
    two = vp.Volume(rng.integers(-900, 900, (2, *SHAPE)).astype(np.int16))
    files = {"one": one, "two": two}
    names = {"one": ["a"], "two": ["b", "c"]}
    keys = [("one", "two")[n] for n in order]

    def apart(pipe):
        return pipe.unstack("all", [name for key in keys for name in names[key]])

    def found(change):
        listed = opened([{"all": [files[key] for key in keys]}])
        alone = opened([{"a": one, "two": two}]).unstack("two", ("b", "c"))
        return [next(iter(change(p))) for p in (apart(listed), alone)]

    for change in (lambda pipe: pipe, lambda pipe: pipe.augment(rotate=(9, 0, 0))):
        sample, expected = found(change)
        for key in "abc":
            voxels, wanted = sample[key].realize(), expected[key].realize()
            assert voxels.dtype == wanted.dtype
            assert np.array_equal(voxels, wanted)
    sample, _ = found(lambda pipe: pipe)
    assert [sample[key].realize().dtype for key in "abc"] == [np.uint8, np.int16, np.int16]
    assert sample["a"].volume.token == one.token
    before = IO_COUNTERS.snapshot()
    sample["c"].realize()
    done = IO_COUNTERS - before
    assert (done.reads, done.bytes_read) == (1, 2 * np.prod(SHAPE))


def test_channels_of_patches_made_apart_come_apart_again(cases):
    """Each is read and interpolated for itself, its steps and its channels are its own."""
    two = [{"t1": case["t1"], "t2": [case["t2"], case["t3"]]} for case in cases]
    head = vp.from_cases(two).open_volume().gamma(1.5, in_range=(0, 200), keys=["t1", "t2"])
    stacked = head.stack(("t1", "t2"), "image").rotate(10)
    expected = made(stacked)
    sample = next(iter(stacked.unstack("image", KEYS).lazy_patch(6)))
    whole = next(iter(stacked.unstack("image", KEYS)))
    before = IO_COUNTERS.snapshot()
    sample["t1"].realize()
    done = IO_COUNTERS - before

    assert (done.reads, done.interpolations) == (1, 1)
    assert np.array_equal(np.concatenate([whole[key].realize() for key in KEYS]), expected)


def test_a_threshold_in_stored_values_is_refused_of_a_changed_member(cases):
    """As it is of a key by itself, also before a flush."""
    pipe = opened(cases).normalize(keys="t1").stack(KEYS, "image")

    for changed in (pipe, pipe.flush()):
        with pytest.raises(SampleError, match=r"normalize.* comes before it"):
            batches(changed.foreground_crop("image", above=0.5))


def test_a_stack_that_follows_voxels_says_so(cases):
    """In the explanation: of a member that was flushed, as of the label that was asked."""
    pipe = opened(cases).foreground_crop("label").flush(keys=["t1"]).stack(KEYS, "image")
    sample = next(iter(pipe))

    assert asks_voxels(sample["image"])
    assert not asks_voxels(next(iter(opened(cases).flush(keys=["t1"]).stack(KEYS)))["image"])


def test_mistakes_name_the_key_and_the_place(cases):
    """A key that is not there, a name that is taken, a wrong number of names."""
    with pytest.raises(SampleError, match=r"stack\(\) names 'flair'"):
        batches(opened(cases).stack(("t1", "flair"), "image"))
    with pytest.raises(SampleError, match=r"makes 'label', which the sample has"):
        batches(opened(cases).stack(("t1", "t2"), "label"))
    with pytest.raises(PatchSizeError, match=r"has 3 channels, and unstack\(\) names 2"):
        batches(opened(listed(cases)).unstack("image", ("a", "b")))
    with pytest.raises(SampleError, match="before realize"):
        batches(opened(cases).realize().stack(KEYS, "image"))


def test_what_is_asked_of_a_key_holds_under_its_new_name(cases):
    """One plan has one policy, whatever the volume is called by then."""
    pipe = opened(cases).rotate(5, mode={"t1": "cubic"}).stack(KEYS, "image")

    with pytest.raises(vp.errors.PolicyConflict, match="mode='nearest' here, but mode='cubic'"):
        pipe.zoom(1.1, mode={"image": "nearest"})


def test_a_replayed_stack_draws_what_was_recorded(cases):
    """``draws`` of a batch hold those of every channel."""
    pipe = opened(cases[:1]).noise((1, 2), keys="t2").rotate((-15, 15)).stack(KEYS, "image")
    (batch,) = batches(pipe)
    draws = batch["meta"][0]["draws"]

    with vp.DataLoader2(pipe.replay(draws).batch_patches(1), seed=9) as loader:
        (again,) = list(loader)

    assert set(draws) == {"noise", "rotate"}
    assert bool((again["image"] == batch["image"]).all())


def test_a_batch_that_holds_the_path_of_a_volume_says_so_once(cases):
    """Of a volume that ``keys=`` left out; of a name, or where all is opened, nothing is said."""
    left_out = vp.from_cases(cases).open_volume(keys=KEYS).batch_patches(1)

    with pytest.warns(UnopenedVolume, match=r"path of a volume under 'label'") as told:
        assert [len(list(left_out)) for _ in range(2)] == [2, 2]
    assert len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        named = [{**case, "site": "St. Mary"} for case in cases]
        list(vp.from_cases(named).open_volume(keys=(*KEYS, "label")).batch_patches(1))


def test_what_another_loader_did_leaves_no_path_untold(cases, monkeypatch):
    """Two chains of one line each say it; whether a path is a volume is asked once for a key."""
    asked = []
    true = gather.is_volume
    monkeypatch.setattr(gather, "is_volume", lambda place: asked.append(place) or true(place))

    def left_out():
        named = [{**case, "site": "St. Mary"} for case in cases]
        return vp.from_cases(named).open_volume(keys=KEYS).batch_patches(1)

    for _ in range(2):
        loader = vp.DataLoader2(left_out())
        asked.clear()
        with pytest.warns(UnopenedVolume, match=r"path of a volume under 'label'") as told:
            assert [len(list(loader)) for _ in range(2)] == [2, 2]
        assert len(told) == 1
        assert len(asked) == 2
        loader.shutdown()


@pytest.mark.parametrize(
    "chain",
    [
        lambda pipe: pipe.lazy_patch(2).batch_patches(1),
        lambda pipe: pipe.lazy_patch(2, sampling="grid").batch_patches(1),
        lambda pipe: pipe.realize(),
    ],
    ids=["batches", "grid", "realized"],
)
def test_a_damaged_file_of_a_list_is_told_with_its_case_and_key(tmp_path, chain):
    """Which file, of which case, under which key: that many files are under one."""
    image = nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), AFFINE)
    nibabel.save(image, tmp_path / "sound.nii")
    (tmp_path / "damaged.nii").write_bytes(b"x" * 400)
    files = [str(tmp_path / "sound.nii"), str(tmp_path / "damaged.nii")]
    pipe = vp.from_cases([{"label": files[0], "t1": files, "case": "anna"}]).open_volume()

    with pytest.raises(BadHeader, match="in case anna, under 't1'") as error:
        list(chain(pipe))

    assert "damaged.nii" in str(error.value)


FILLS = {
    "by policies": lambda pipe: pipe.stack(("t1", "t2"), "image").normalize(),
    "by values": lambda pipe: pipe.normalize().stack(("t1", "t2"), "image"),
}


@pytest.mark.parametrize("kept", ["flush", "memory", "folder"])
@pytest.mark.parametrize("stacks", FILLS.values(), ids=FILLS)
def test_each_channel_of_a_stack_that_is_kept_has_its_own_fill(tmp_path, cases, stacks, kept):
    """What its member has outside, as value ops change that, before the stack and after it."""
    policies = {key: vp.Policy("linear", "constant", fill) for key, fill in FILL_OF.items()}
    pipe = stacks(vp.from_cases(cases).open_volume(policies=policies))
    keeps = {"flush": pipe.flush, "memory": pipe.cache}
    begun = keeps.get(kept, lambda: pipe.cache(str(tmp_path / "kept")))()
    found, expected = (
        next(iter(one.rotate((0, 0, 30)).normalize(mean=1.0, std=2.0)))["image"].realize()
        for one in (begun, pipe)
    )

    corner, other = expected[:, 0, 0, 0]
    assert corner != other
    np.testing.assert_allclose(found[:, 0, 0, 0], [corner, other], rtol=1e-6)
    np.testing.assert_allclose(found[:, -1, -1, -1], [corner, other], rtol=1e-6)
    np.testing.assert_allclose(found[:, 6, 6], expected[:, 6, 6], rtol=1e-4, atol=1e-4)


def test_channels_of_a_list_under_an_axis_map_keep_their_types(cases):
    """As those of a list without a map do: each is read from its own file."""
    axis_map = vp.AxisMap.missing("K", [2], "fill", fill=7)
    pipe = vp.from_cases(listed(cases)).open_volume(axis_map={"image": axis_map})
    one = next(iter(pipe.unstack("image", KEYS)))
    alone = next(iter(vp.from_cases(cases).open_volume(axis_map=axis_map)))

    assert [one[key].dtype for key in KEYS] == [np.dtype(kind) for kind in ("i2", "u1", "f4")]
    for key in KEYS:
        np.testing.assert_array_equal(one[key].realize(), alone[key].realize())
        assert (one[key].realize()[..., 2] == 7).all()
