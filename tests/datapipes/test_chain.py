"""What the pipes of a chain do to a sample, and how they speak of mistakes."""

import pickle

import numpy as np
import pytest
import torch
from scenes import full_chain, write_cases
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import GridMismatch, PatchSizeError, PolicyConflict, SampleError
from voxpipe.datapipes.spatial import add_steps, add_to_each
from voxpipe.spatial import PatchLargerThanVolume


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


def ramp(shape=(6, 5, 4), dtype=np.int16):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def chain(**volumes):
    return vp.from_cases([volumes]).open_volume()


def only(pipe):
    (item,) = list(pipe)
    return item


def test_open_volume_is_lazy_and_knows_the_kinds(cases):
    """Opening reads nothing; labels are labels by their key."""
    before = IO_COUNTERS.snapshot()
    samples = list(vp.from_cases(cases).open_volume())

    assert (IO_COUNTERS - before).headers == 0
    assert [s["image"].kind for s in samples] == ["intensity"] * 3
    assert [s["label"].kind for s in samples] == ["label"] * 3
    assert samples[0]["image"].shape == (1, 12, 13, 14)


def test_other_things_travel_along():
    """Numbers, words and None are no volumes."""
    sample = only(chain(image=ramp(), age=61, sex="female", weight=None))

    assert (sample["age"], sample["sex"], sample["weight"]) == (61, "female", None)


def test_torch_pipes_chain_before_and_after(cases):
    """Plain torch pipes give and take samples: map, filter, shuffle, zip, sharding_filter."""
    paths = [{"image": c["image"], "label": c["label"]} for c in cases]
    pipe = (
        IterableWrapper(paths)
        .shuffle()
        .open_volume()
        .filter(is_large)
        .sharding_filter()
        .lazy_patch(4)
        .map(with_spacing)
        .realize()
        .zip(IterableWrapper("abc"))
    )

    pairs = list(pipe)

    assert [letter for _, letter in pairs] == ["a", "b", "c"]
    assert all(s["image"].shape == (1, 4, 4, 4) for s, _ in pairs)
    assert all(s["spacing"] == pytest.approx((1.0, 1.1, 2.0)) for s, _ in pairs)


def is_large(sample):
    return sample["image"].shape[1] > 3


def with_spacing(sample):
    return sample.with_data(spacing=sample["image"].spacing)


def test_torch_batch_and_collate_work_on_realized_samples(cases):
    """Torch's own batch() and collate() take what realize() made."""
    pipe = vp.from_cases(cases).open_volume().lazy_patch(4).realize().batch(3).collate()

    batch = only(pipe)

    assert batch["image"].shape == (3, 1, 4, 4, 4)


def test_map_on_one_key(cases):
    """Torch's map(input_col=...) writes into a sample."""
    pipe = vp.from_cases(cases[:1]).open_volume().realize().map(torch.neg, input_col="image")

    assert only(pipe)["image"].shape == (1, 12, 13, 14)


def test_grid_patches_cover_the_volume():
    """Sampling by grid visits every voxel; the last patches move inward."""
    volume = ramp((6, 5, 4))
    seen = np.zeros_like(volume)

    for sample in chain(image=volume).lazy_patch(4, sampling="grid").realize():
        seen.flat[sample["image"].numpy().ravel()] += 1

    assert seen.min() == 1
    assert seen.shape == (6, 5, 4)


def test_uniform_patches_depend_on_seed_epoch_and_ordinal():
    """Every ordinal has a place of its own, the same in each run."""
    source = vp.from_cases([{"image": ramp((30, 30, 30))}])
    pipe = source.open_volume().lazy_patch(4, samples_per_volume=5)

    def starts(seed, epoch):
        source.begin(seed, epoch)
        return [tuple(s["image"].pending.draws["lazy_patch"]["start"]) for s in pipe]

    assert starts(7, 0) == starts(7, 0)
    assert len(set(starts(7, 0))) == 5
    assert set(starts(7, 0)).isdisjoint(starts(7, 1))


def test_what_stands_before_lazy_patch_is_drawn_per_volume():
    """A rotation of the whole volume is one rotation for all of its patches."""
    source = vp.from_cases([{"image": ramp((20, 20, 20))}])
    pipe = source.open_volume().rotate((-30, 30)).lazy_patch(4, samples_per_volume=3).zoom((1, 2))
    source.begin(7, 0)

    draws = [s["image"].pending.draws for s in pipe]

    assert len({repr(d["rotate"]) for d in draws}) == 1
    assert len({repr(d["zoom"]) for d in draws}) == 3


def test_two_pipes_of_one_kind_draw_their_own_numbers():
    """The second rotate of a chain has a stream of its own."""
    source = vp.from_cases([{"image": ramp()}])
    pipe = source.open_volume().rotate((-30, 30)).rotate((-30, 30))
    source.begin(7, 0)

    draws = only(pipe)["image"].pending.draws

    assert set(draws) == {"rotate", "rotate#2"}
    assert draws["rotate"] != draws["rotate#2"]


def test_a_patch_larger_than_the_volume_says_so_once():
    """It is centred, padded by the rule of its kind, and one warning tells."""
    pipe = chain(image=ramp((4, 4, 4)) + 1, label=np.ones((4, 4, 4), np.uint8))
    pipe = pipe.lazy_patch((6, 4, 4), samples_per_volume=3).batch_patches(3)

    with pytest.warns(PatchLargerThanVolume) as told:
        batch = only(pipe)

    assert len({str(w.message) for w in told}) == 1
    assert batch["label"][0, 0, :, 0, 0].tolist() == [0, 1, 1, 1, 1, 0]
    assert batch["image"][0, 0, :2, 0, 0].tolist() == [1, 1]  # border


def test_the_warning_comes_once_from_workers():
    """Workers' warnings are repeated here, each text once."""
    volumes = [{"image": ramp((4, 4, 4))} for _ in range(6)]
    pipe = vp.from_cases(volumes).open_volume().lazy_patch(6).batch_patches(1)

    service = vp.MultiProcessingReadingService(2)
    with vp.DataLoader2(pipe, None, service) as it, pytest.warns(PatchLargerThanVolume) as told:
        list(it)

    assert len(told) == 1


def test_spatial_pipes_do_what_their_names_say():
    """Lattice pipes against NumPy, bit by bit and in the stored type."""
    volume = ramp((6, 5, 4), np.uint16) + 65000
    cases = {
        "crop": (lambda p: p.crop((1, 2, 0), (3, 2, 4)), volume[1:4, 2:4]),
        "center_crop": (lambda p: p.center_crop((2, 3, 2)), volume[2:4, 1:4, 1:3]),
        "pad": (lambda p: p.pad(1), np.pad(volume, 1, mode="edge")),
        "crop_or_pad": (
            lambda p: p.crop_or_pad((4, 5, 6)),
            np.pad(volume[1:5], [(0, 0)] * 2 + [(1, 1)], mode="edge"),
        ),
        "flip": (lambda p: p.flip((0, 2)), volume[::-1, :, ::-1]),
        "rotate90": (lambda p: p.rotate90(1, (0, 1)), np.rot90(volume, 1, (0, 1))),
    }
    for name, (make, expected) in cases.items():
        got = only(make(chain(image=volume)).realize())["image"]

        assert got.dtype == torch.uint16, name
        assert got.numpy()[0].tolist() == expected.tolist(), name


def test_affine_pipes_move_a_bright_voxel_where_geometry_says():
    """Each moves the content, forward, in world millimetres about the centre."""
    volume = np.zeros((9, 9, 9), np.float32)
    volume[6, 4, 4] = 1.0  # two voxels from the centre along x

    def peak(pipe):
        return np.unravel_index(int(only(pipe.realize())["image"][0].argmax()), (9, 9, 9))

    assert peak(chain(image=volume).rotate((0, 0, 90))) == (4, 6, 4)
    assert peak(chain(image=volume).zoom(2)) == (8, 4, 4)
    assert peak(chain(image=volume).translate((0, 1, -1))) == (6, 5, 3)
    assert peak(chain(image=volume).shear((0, 0, 0))) == (6, 4, 4)
    assert peak(chain(image=volume).affine(np.diag([-1.0, 1, 1, 1]))) == (2, 4, 4)
    assert peak(chain(image=volume).augment(rotate=(0, 0, 90))) == (4, 6, 4)


def test_labels_keep_their_type_and_their_set():
    """Rotated labels are uint8 and hold no label that was not there."""
    label = np.random.default_rng(0).choice([0, 3, 200], (12, 12, 12)).astype(np.uint8)
    pipe = chain(image=ramp((12, 12, 12)), label=label).rotate((10, 20, 30)).zoom(1.3)

    batch = only(pipe.batch_patches(1))

    assert batch["label"].dtype == torch.uint8
    assert set(batch["label"].unique().tolist()) <= {0, 3, 200}
    assert batch["image"].dtype == torch.float32


def test_the_type_does_not_depend_on_the_draw():
    """An augmentation that acts on half of the samples gives float32 for all of them."""
    volumes = [{"image": ramp((6, 6, 6))} for _ in range(8)]
    pipe = vp.from_cases(volumes).open_volume().rotate((5, 10), p=0.5).batch_patches(1)

    assert {batch["image"].dtype for batch in pipe} == {torch.float32}


def test_normalize_by_given_numbers_and_by_the_volume():
    """Given numbers, or the mean and deviation over the whole volume; labels stay."""
    volume = np.array([1, 3, 5, 7], np.int16).reshape(4, 1, 1)
    pipe = chain(image=volume, label=volume.astype(np.uint8))

    given = only(pipe.normalize(mean=1, std=2).realize())
    own = only(pipe.crop((0, 0, 0), (2, 1, 1)).normalize().realize())

    assert given["image"].flatten().tolist() == [0.0, 1.0, 2.0, 3.0]
    assert own["image"].flatten().tolist() == pytest.approx([-3 / 5**0.5, -1 / 5**0.5])
    assert given["label"].flatten().tolist() == [1, 3, 5, 7]


def test_normalize_after_realize_is_the_same():
    """Eager and lazy give the same numbers, with the volume's own statistics too."""
    source = vp.from_cases([{"image": ramp((4, 4, 4))}])
    patches = source.open_volume().lazy_patch(2)
    source.begin(7, 0)
    lazy = only(patches.normalize().realize())
    source.begin(7, 0)
    eager = only(patches.realize().normalize())

    assert eager["image"].dtype == torch.float32
    assert bool((lazy["image"] == eager["image"]).all())


def test_a_batch_carries_where_it_comes_from(cases):
    """Case, file, source region, matrix, epoch and draws of every sample, as plain data."""
    import json

    with vp.DataLoader2(full_chain(cases), seed=7) as it:
        meta = next(iter(it))["meta"]

    first = json.loads(json.dumps(meta))[0]
    assert set(first) == {"case", "identity", "seed", "epoch", "sources", "draws"}
    assert (first["seed"], first["epoch"]) == (7, 0)
    assert set(first["sources"]) == {"image", "label"}
    entries = {"file", "stored_shape", "region", "matrix", "affine", "plan"}
    assert set(first["sources"]["image"]) == entries
    assert set(first["draws"]) == {"lazy_patch", "augment"}


def test_a_sample_is_small_to_send(cases):
    """A sample with two volumes and an augmentation travels in two kilobytes."""
    source = vp.from_cases(cases).open_volume().lazy_patch(6).augment(rotate=(-9, 9), flip=0.5)
    sample = next(iter(source))

    assert len(pickle.dumps(sample)) < 4000


# ------------------------------------------------------------------------- mistakes


def test_grids_that_do_not_agree_are_named(tmp_path):
    """An image and a label on different grids: both files, the distance, the line."""
    import nibabel

    paths = {}
    for key, shift in (("image", 0.0), ("label", 3.0)):
        affine = np.eye(4)
        affine[0, 3] = shift
        paths[key] = str(tmp_path / f"{key}.nii")
        nibabel.save(nibabel.Nifti1Image(ramp(), affine), paths[key])
    pipe = vp.from_cases([{"case": "c", **paths}]).open_volume().lazy_patch(2).batch_patches(1)

    with pytest.raises(GridMismatch) as e:
        list(pipe)

    text = str(e.value)
    assert "3 voxels apart" in text
    assert "image.nii" in text
    assert "label.nii" in text
    assert "case c" in text
    assert "test_chain.py" in text


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda p: p.lazy_patch((4,) * 4), r"size is one whole number.* got 4 in \(4, 4, 4, 4\)"),
        (lambda p: p.lazy_patch(0), "at least 1 on each axis, got 0"),
        (lambda p: p.lazy_patch((4.5, 4, 4)), r"got 4.5 in \(4.5, 4, 4\)"),
        (lambda p: p.lazy_patch(4, sampling="grid", overlap=4), "overlap must be smaller"),
        (lambda p: p.lazy_patch(4, samples_per_volume=0), "at least 1, got 0"),
        (lambda p: p.lazy_patch(4, sampling="random"), "'random'"),
        (lambda p: p.batch_patches(0), "batch_size is a whole number of at least 1, got 0"),
    ],
    ids=["four axes", "zero", "half", "overlap", "no samples", "sampling", "batch"],
)
def test_wrong_sizes_are_refused_where_they_are_written(make, told):
    """A size that cannot be is refused at construction, with the value and the line."""
    pipe = chain(image=ramp())

    with pytest.raises(PatchSizeError, match=told) as e:
        make(pipe)

    assert "test_chain.py" in str(e.value)


def test_patches_that_do_not_stack_are_named():
    """Volumes of different size cannot be one batch: both cases, both shapes, the fix."""
    volumes = [{"image": ramp((6, 5, 4))}, {"image": ramp((5, 5, 4))}]
    pipe = vp.from_cases(volumes).open_volume().batch_patches(2)

    with pytest.raises(PatchSizeError, match=r"\(1, 6, 5, 4\).*\(1, 5, 5, 4\)") as e:
        list(pipe)

    assert "crop_or_pad" in str(e.value)


def test_samples_with_different_keys_are_named():
    """A case without a label cannot be in a batch with one that has it."""
    volumes = [{"image": ramp(), "label": ramp()}, {"image": ramp()}]
    pipe = vp.from_cases(volumes).open_volume().batch_patches(2)

    with pytest.raises(PatchSizeError, match=r"\['image', 'label'\].*\['image'\]"):
        list(pipe)


def test_spatial_pipes_need_lazy_volumes():
    """A spatial pipe before open_volume or after realize says where to put it."""
    with pytest.raises(SampleError, match="Put open_volume"):
        list(IterableWrapper([1]).rotate(3))
    with pytest.raises(SampleError, match=r"Move realize\(\) after"):
        list(chain(image=ramp()).realize().rotate(3))


def test_conflicting_sampling_names_both_places():
    """Two pipes that ask for different padding of one plan are refused at construction."""
    pipe = chain(image=ramp()).rotate(5, padding="border")

    with pytest.raises(PolicyConflict) as e:
        pipe.zoom(2, padding="reflection")

    text = str(e.value)
    assert "padding='reflection'" in text
    assert "padding='border'" in text
    assert ".rotate(5, padding='border')   test_chain.py:" in text
    assert ".zoom(2, padding='reflection')   test_chain.py:" in text


def test_sampling_by_key_and_for_all():
    """Padding and fill may be set for all intensities, or for one volume by its key."""
    volume = np.ones((2, 2, 2), np.float32)
    pipe = chain(image=volume, ct=volume, label=volume.astype(np.uint8))
    pipe = pipe.pad(1, padding="constant", fill={"ct": -1000.0, "image": 5.0})

    sample = only(pipe.realize())

    corner = {key: float(sample[key][0, 0, 0, 0]) for key in sample}
    assert corner == {"image": 5.0, "ct": -1000.0, "label": 0.0}


def test_errors_speak_of_the_users_line_after_pickling_the_graph(cases, tmp_path):
    """A missing file in a worker: its name, the case, and the line of the pipe."""
    bad = [{"case": "gone", "image": str(tmp_path / "no.nii")}]
    pipe = vp.from_cases(bad).open_volume().lazy_patch(4).batch_patches(1)

    service = vp.MultiProcessingReadingService(1)
    with vp.DataLoader2(pipe, None, service) as it, pytest.raises(FileNotFoundError) as e:
        list(it)

    text = str(e.value)
    assert "no.nii" in text
    assert "gone" in text
    assert "batch_patches(1)   test_chain.py:" in text


def test_the_usual_way_to_add_steps_is_the_general_one():
    """Where all patches share a plan, both give the same steps of the same identity, shared."""
    sample = only(chain(image=ramp(), label=ramp(dtype=np.uint8)).lazy_patch(3))
    pipe = chain(image=ramp()).lazy_patch(3).augment(rotate=(-15, 15), flip=0.5)
    patches = {key: sample[key] for key in ("image", "label")}

    usual = add_steps(pipe, pipe.steps, sample)
    general = add_to_each(pipe.steps, patches, sample.identity)

    for key in patches:
        assert usual[key].pending.steps == general[key].pending.steps
        assert usual[key].pending.identity == general[key].pending.identity == sample.identity
        assert usual[key].plan == general[key].plan
    assert usual["image"].pending is usual["label"].pending
    assert general["image"].pending is general["label"].pending
