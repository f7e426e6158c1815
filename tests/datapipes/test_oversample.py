"""``lazy_patch(oversample=)``: of every batch a share about foreground, as nnU-Net has it."""

import json
import warnings

import numpy as np
import pytest
import torch
from eager_chains import Eager

import voxpipe as vp
from voxpipe.core.errors import LikelyMistake, PatchSizeError
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.graph import cut
from voxpipe.reading_services.planner import DeliveredBatches, RankPart, jobs
from voxpipe.spatial import forget_masks

# How many samples of a batch of 1 to 16 are about foreground, by nnU-Net 2.8.1's
# ``nnUNetDataLoader._oversample_last_XX_percent``, run with these shares; always the last ones.
NNUNET = {
    0.0: [0] * 16,
    0.25: [0, 0, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4],
    0.33: [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5],
    1 / 3: [0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5],
    0.5: [1, 1, 1, 2, 3, 3, 3, 4, 5, 5, 5, 6, 7, 7, 7, 8],
    0.67: [1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9, 10, 11],
    1.0: list(range(1, 17)),
}
SHAPE = (24, 22, 20)


@pytest.fixture(autouse=True)
def forgotten(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    forget_masks()


def opened(count=4, labels=(1, 2), name="label"):
    cases = []
    for n in range(count):
        label = np.zeros(SHAPE, np.uint8)
        for number in labels:
            label[10, 10 + number, 8 + n] = number
        cases.append({"case": f"c{n}", "image": label * np.float32(100), name: label})
    return vp.from_cases(cases).open_volume(labels=("label",))


def patches(samples=12, **kwargs):
    given = {"mask": "label", "oversample": 1 / 3, **kwargs}
    return opened().lazy_patch(8, samples_per_volume=samples, **given)


def batches(pipe, workers=0, seed=3):
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    with vp.DataLoader2(pipe, None, service, seed=seed) as loader:
        return [seen(batch) for batch in loader]


def seen(batch):
    drawn = [meta["draws"]["lazy_patch"] for meta in batch["meta"]]
    return batch["image"].clone(), batch["label"].clone(), drawn


def forced(drawn):
    """Whether each patch of a batch was drawn about foreground."""
    return ["class" in one for one in drawn]


@pytest.mark.filterwarnings("ignore:oversample=")
@pytest.mark.parametrize("share", NNUNET)
def test_every_batch_has_nnunets_counts(share):
    """Of every size, by the loader and by plain iteration; the last ones of the batch."""
    for size in (1, 2, 3, 5, 12, 16):
        pipe = patches(oversample=share).shuffle_plans().batch_patches(size, drop_last=True)
        count = NNUNET[share][size - 1]

        for batch in pipe:
            drawn = [meta["draws"]["lazy_patch"] for meta in batch["meta"]]
            assert forced(drawn) == [False] * (size - count) + [True] * count


def test_a_last_smaller_batch_has_a_share_of_its_own():
    """48 patches in batches of 9: the last are 3, of which nnU-Net's rule takes one."""
    found = batches(patches().batch_patches(9))

    assert [sum(forced(drawn)) for *_, drawn in found] == [3] * 5 + [1]


def test_the_class_is_in_the_middle_and_each_is_as_likely():
    """Of the patches about foreground; the others lie anywhere, each place as likely."""
    pipe = patches(samples=150).shuffle_plans().batch_patches(3)

    classes, starts = [], []
    for _, label, drawn in batches(pipe):
        for patch, one in zip(label, drawn, strict=True):
            if "class" in one:
                classes.append(one["class"])
                assert patch[0, 4, 4, 4] == one["class"]
            else:
                starts.append(one["start"])

    assert len(classes) == 200
    assert abs(classes.count(1) - 100) < 5 * np.sqrt(50)
    for axis, extent in enumerate(SHAPE):
        places = np.bincount(np.array(starts)[:, axis], minlength=extent - 7)
        wanted = len(starts) / (extent - 7)
        assert np.square(places - wanted).sum() / wanted < len(places) + 5 * np.sqrt(
            2 * len(places)
        )


@pytest.mark.parametrize(
    "order",
    [
        lambda pipe: pipe.shuffle(),
        lambda pipe: pipe.shuffle_plans(vp.ShuffleSpec.window(7)),
        lambda pipe: pipe.interleave(visits=2, patches_per_turn=2),
        lambda pipe: pipe.shuffle_plans().flush().blur(0.5).flip(0).rotate((-20, 20)),
    ],
    ids=["shuffle", "windowed", "interleave", "flushed"],
)
def test_batches_are_the_same_whoever_makes_them(order):
    """In any order of patches: under any number of workers, without a loader, after a resume."""
    pipe = order(patches()).batch_patches(4)
    here = batches(pipe)
    forget_masks()

    there = batches(pipe, workers=2)

    assert len(here) == 12
    assert all(forced(drawn) == [False, False, False, True] for *_, drawn in here)
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one[0], other[0])
        assert torch.equal(one[1], other[1])
        assert one[2] == other[2]
    with vp.DataLoader2(pipe, seed=3) as loader:
        first = seen(next(iter(loader)))
        state = json.loads(json.dumps(loader.state_dict()))
    with vp.DataLoader2(pipe, seed=3) as loader:
        loader.load_state_dict(state)
        rest = [seen(batch) for batch in loader]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(here, [first, *rest], strict=True))


def test_plain_iteration_gives_the_loaders_batches():
    """A graph that is iterated as it stands, and one that is not split."""
    pipe = patches().shuffle_plans().batch_patches(4)
    set_epoch(pipe, 3, 0)

    assert [seen(batch)[2] for batch in pipe] == [drawn for *_, drawn in batches(pipe)]


def test_all_volumes_of_a_sample_are_cut_at_one_place():
    """Through flushes of one of them too, which have plans of their own."""
    chains = [
        patches().flush(keys="label").flip(0),
        patches().blur(0.5, keys="image").rotate((-20, 20)),
        Eager()(patches().flip(0).rotate((-20, 20))),
    ]
    for chain in chains:
        for batch in chain.batch_patches(3):
            image, label, drawn = seen(batch)
            assert forced(drawn) == [False, False, True]
            assert label[2].any()
            assert (image[2][label[2] > 0] > 0).all()


@pytest.mark.parametrize("apart", ["t1", "t2"])
def test_stacked_volumes_are_cut_at_the_place_of_the_others(apart):
    """Each channel is made by a plan of its own, from before a flush of one of them."""
    label = np.zeros(SHAPE, np.uint8)
    label[10, 11, 8] = 1
    cases = [{"t1": label * np.float32(50), "t2": label * np.float32(70), "label": label}] * 2
    pipe = vp.from_cases(cases).open_volume(labels=("label",))
    pipe = pipe.lazy_patch(8, samples_per_volume=6, mask="label", oversample=0.5)
    pipe = pipe.flush(keys=apart).flip(0).stack(("t1", "t2"), "image")

    for batch in pipe.batch_patches(2):
        assert batch["label"][1].any()
        for channel, factor in enumerate((50, 70)):
            assert torch.equal(batch["image"][:, channel], batch["label"][:, 0] * float(factor))


def test_ranks_share_the_batch_as_in_nnunet():
    """The share is one of the batch of all ranks; the last ranks have its foreground."""
    pipe = patches().batch_patches(4)
    found = []
    for rank in range(2):
        every = jobs(cut(pipe), 3, 0, DeliveredBatches(), RankPart(rank, 2))
        told = [[item["image"].draws["lazy_patch"] for item in job.items] for job in every]
        found.append([forced(drawn) for drawn in told])

    assert found[0] == [[False, False]] * 12
    assert found[1] == [[False, True]] * 12


def test_a_case_without_foreground_gives_patches_anywhere():
    """As in nnU-Net; the others have their share."""
    label = np.zeros(SHAPE, np.uint8)
    label[10, 10, 10] = 3
    cases = [{"label": label}, {"label": np.zeros(SHAPE, np.uint8)}]
    pipe = vp.from_cases(cases).open_volume(labels=("label",))
    pipe = pipe.lazy_patch(8, samples_per_volume=4, mask="label", oversample=0.5).batch_patches(2)

    found = [[m["draws"]["lazy_patch"].get("class") for m in batch["meta"]] for batch in pipe]

    assert found == [[None, 3], [None, 3], [None, None], [None, None]]


def test_class_weights_say_how_often_each_class_is_foreground():
    """Several labels as one class, one of weight 0; the names are the user's."""
    pipe = patches(samples=100, class_weights={1: 0, 2: 1}, oversample=0.5).batch_patches(2)

    classes = [one["class"] for *_, drawn in batches(pipe) for one in drawn if "class" in one]

    assert classes == [2] * 200


def test_patches_of_no_batch_draw_whether_they_are_about_foreground():
    """nnU-Net's probabilistic variant: a share on average."""
    pipe, found = patches(samples=150, oversample=0.25), []
    for _ in range(2):
        set_epoch(pipe, 3, 0)
        found.append(forced([sample["image"].draws["lazy_patch"] for sample in pipe]))

    assert abs(sum(found[0]) - 150) < 5 * np.sqrt(600 * 0.25 * 0.75)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "look",
    [
        lambda pipe: pipe.realize(),
        lambda pipe: pipe.map(same),
        lambda pipe: pipe.realize().map(same),
    ],
    ids=["realize", "map", "both"],
)
def test_what_looks_before_the_batch_is_told_and_sees_what_the_batch_has(look):
    """Then each patch draws, in the loader as without: no volume of a sample lies elsewhere."""
    with pytest.warns(LikelyMistake, match=r"share of all patches(.|\n)*looks at a patch before"):
        pipe = look(patches().shuffle_plans()).batch_patches(4)

    here = batches(pipe)
    set_epoch(pipe, 3, 0)

    assert [seen(batch)[2] for batch in pipe] == [drawn for *_, drawn in here]
    assert len({sum(forced(drawn)) for *_, drawn in here}) > 1
    for image, label, drawn in here:
        for a, b, one in zip(image, label, drawn, strict=True):
            assert torch.equal(a > 0, b > 0)
            assert b.any() or "class" not in one


def same(sample):
    return sample


def test_points_are_moved_with_the_patches():
    """They have to know the place before the batch does; so it is drawn, and told."""
    cases = []
    for n in range(3):
        label = np.zeros(SHAPE, np.uint8)
        label[10, 11, 8 + n] = 1
        cases.append({"label": label, "points": [[10, 11, 8 + n]]})
    pipe = vp.from_cases(cases).open_volume(labels=("label",))
    pipe = pipe.lazy_patch(8, samples_per_volume=10, mask="label", oversample=0.5)

    with pytest.warns(LikelyMistake, match="move_points"):
        pipe = pipe.move_points().batch_patches(2)

    for batch in pipe:
        for label, points in zip(batch["label"], batch["points"], strict=True):
            assert label.any() == bool(points)
            for i, j, k in points:
                assert label[0, round(i), round(j), round(k)] == 1


def test_a_share_that_is_none_is_told_once():
    """Of batches of one nnU-Net's rule takes none; two are enough."""
    words = r"oversample=0\.333 of 1 patches(.|\n)*is none(.|\n)*test_oversample\.py"
    with pytest.warns(LikelyMistake, match=words):
        patches().batch_patches(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patches().batch_patches(2)


def test_weights_of_the_background_that_look_like_nnunets_are_told():
    """Two thirds of the background's voxels in the middle are no patches anywhere."""
    for weights in ({0: 2, 1: 1}, {0: 0.67, "other": 0.33}):
        with pytest.warns(LikelyMistake, match=r"label 0 into the middle of 67%(.|\n)*=0\.33"):
            opened().lazy_patch(8, mask="label", class_weights=weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for weights in ({0: 1, "other": 1}, {0: 1, 1: 1}, {0: 1}, {1: 5, 2: 1}):
            opened().lazy_patch(8, mask="label", class_weights=weights)


def test_the_others_are_refused_where_they_are_written():
    """Beside a region, which keeps patches together, and the background as a class."""
    for wrong, words in (
        ({"region": 16}, "oversample says that the other patches lie anywhere"),
        ({"class_weights": {0: 1, 1: 1}}, "class_weights lists 0"),
        ({"oversample": "a third"}, "part from 0 to 1, got 'a third'"),
    ):
        with pytest.raises(PatchSizeError, match=rf"{words}(.|\n)*lazy_patch\(8"):
            opened().lazy_patch(8, **{"mask": "label", "oversample": 0.3, **wrong})
    with pytest.raises(TypeError, match="oversample"):
        opened().lazy_patch(8, mask="label", oversample_foreground_percent=0.33)


def test_estimates_read_no_mask():
    """What the loader tells before it starts is of patches anywhere."""
    pipe = patches().batch_patches(3)

    with vp.DataLoader2(pipe) as loader:
        text = loader.explain()

    assert "oversample=0.333" in text
