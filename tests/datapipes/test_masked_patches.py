"""``lazy_patch(mask=...)``: where patches come from in a chain, and what it reads."""

import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import PatchSizeError, SampleError
from voxpipe.graph.fingerprint import fingerprint
from voxpipe.spatial import forget_masks
from voxpipe.volumes import close_volumes

SHAPE = (40, 36, 32)
AFFINE = np.diag([1, 1, 2, 1.0])


@pytest.fixture
def cases(tmp_path, monkeypatch):
    import nibabel

    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    forget_masks()
    found = []
    for n in range(3):
        label = np.zeros(SHAPE, np.uint8)
        label[4 * n : 4 * n + 3, 20:23, 9:12] = 1
        label[30:32, 2:4, 25:27] = 2
        paths = {"image": tmp_path / f"{n}.nii", "label": tmp_path / f"{n}_seg.nii"}
        nibabel.save(nibabel.Nifti1Image(label * np.int16(100), AFFINE), paths["image"])
        nibabel.save(nibabel.Nifti1Image(label, AFFINE), paths["label"])
        found.append({key: str(path) for key, path in paths.items()})
    yield found
    close_volumes()


def batches(pipe, workers=0):
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    loader = vp.DataLoader2(pipe.batch_patches(4), None, service)
    loader.seed(3)
    found = [(batch["image"].clone(), batch["label"].clone(), batch["meta"]) for batch in loader]
    loader.shutdown()
    return found


def test_every_patch_holds_foreground(cases):
    """Without classes, any voxel that is not 0; with a share, that much of it."""
    opened = vp.from_cases(cases).open_volume()

    for image, label, _ in batches(opened.lazy_patch(8, samples_per_volume=8, mask="label")):
        assert (label.flatten(1) > 0).any(dim=1).all()
        assert torch.equal(image, label.to(image.dtype) * 100)
    share = 20 / 8**3
    pipe = opened.lazy_patch(8, samples_per_volume=8, mask="label", min_fraction=share)
    for _, label, _ in batches(pipe):
        # Of the 27 or 8 voxels; cells are 2 voxels wide, and a face may cut some.
        assert ((label.flatten(1) > 0).sum(dim=1) >= 10).all()


def test_classes_by_weight(cases):
    """The drawn one stands in the provenance, and is in the patch."""
    pipe = vp.from_cases(cases).open_volume()
    pipe = pipe.lazy_patch(8, samples_per_volume=12, mask="label", class_weights={1: 1, 2: 1})

    drawn = []
    for _, label, meta in batches(pipe):
        for patch, told in zip(label, meta, strict=True):
            drawn.append(told["draws"]["lazy_patch"]["class"])
            assert (patch == drawn[-1]).any()

    assert 9 < drawn.count(1) < 27


def test_workers_give_the_same_and_so_does_a_region(cases):
    """Places are a function of seed, epoch and identity, whoever builds the masks."""
    opened = vp.from_cases(cases).open_volume(labels=("label",))
    for region in (None, 16):
        pipe = opened.lazy_patch(8, samples_per_volume=4, mask="label", region=region).shuffle()
        pipe = pipe.augment(rotate=20)
        here = batches(pipe)
        forget_masks()
        there = batches(pipe, workers=2)

        assert len(here) == 3
        for one, other in zip(here, there, strict=True):
            assert torch.equal(one[0], other[0])
            assert torch.equal(one[1], other[1])


def test_regions_lie_where_the_mask_is(cases):
    """All patches of a visit are in one region, and each holds foreground."""
    pipe = vp.from_cases(cases[:1]).open_volume()
    pipe = pipe.lazy_patch(8, samples_per_volume=6, mask="label", region=16, align=8)
    regions = set()

    for sample in pipe:
        draws = sample["label"].draws
        regions.add(tuple(draws["lazy_patch region"]["start"]))
        assert max(draws["lazy_patch"]["start"]) <= 8
        assert (sample["label"].realize() > 0).any()

    assert len(regions) == 1


def test_planning_reads_each_mask_once(cases):
    """Making samples reads nothing; working out a plan reads a mask the first time only."""
    pipe = vp.from_cases(cases).open_volume().lazy_patch(8, samples_per_volume=10, mask="label")
    voxels = int(np.prod(SHAPE))
    before = IO_COUNTERS.snapshot()

    def count():
        counted = IO_COUNTERS.snapshot() - before
        return counted.reads, counted.bytes_read

    samples = list(pipe)
    assert count() == (0, 0)
    pipe.batch_patches(2).explain()
    assert count() == (0, 0)
    for sample in samples:
        sample["image"].plan  # noqa: B018
    assert count() == (3, 3 * voxels)
    for sample in list(pipe):
        sample["image"].plan  # noqa: B018
    forget_masks()
    assert pipe.prepare(lambda done, total: None) == 3
    assert count() == (3, 3 * voxels)


def test_a_loader_starts_without_reading_masks(cases):
    """What it asks of the stores is estimated from patches anywhere."""
    pipe = vp.from_cases(cases).open_volume().lazy_patch(8, samples_per_volume=10, mask="label")
    loader = vp.DataLoader2(pipe.batch_patches(2))
    before = IO_COUNTERS.snapshot()

    text = loader.explain()

    assert (IO_COUNTERS.snapshot() - before).reads == 0
    assert "mask='label'" in text
    loader.shutdown()


def test_a_coarse_mask_beside_the_volumes(cases, tmp_path):
    """A path, a volume in the case, or one for all; none of them has to lie on their grid."""
    coarse = np.zeros((5, 5, 4), np.uint8)
    coarse[1, 2, 1] = 1
    affine = np.diag([8.0, 8, 16, 1])
    affine[:3, 3] = [3.5, 3.5, 7]
    import nibabel

    nibabel.save(nibabel.Nifti1Image(coarse, affine), tmp_path / "where.nii")
    volume = vp.Volume(coarse, affine=affine)
    for where in (str(tmp_path / "where.nii"), volume, None):
        own = [{**case, "where": where} if where is not None else case for case in cases]
        pipe = vp.from_cases(own).open_volume(keys=("image", "label"))
        mask = volume if where is None else "where"
        pipe = pipe.lazy_patch(8, samples_per_volume=4, mask=mask)
        for sample in pipe:
            start = sample["image"].draws["lazy_patch"]["start"]
            # Its middle lies in the cells of 8:16, 16:24, 8:16.
            assert all(a <= at + 4 < a + 8 for at, a in zip(start, (8, 16, 8), strict=True))


def test_no_foreground_is_an_error_with_case_and_line(cases):
    """Unless patches may then lie anywhere."""
    import nibabel

    nibabel.save(nibabel.Nifti1Image(np.zeros(SHAPE, np.uint8), AFFINE), cases[1]["label"])
    opened = vp.from_cases(cases).open_volume()

    with pytest.raises(PatchSizeError, match=r"no place(.|\n)*in case 1(.|\n)*lazy_patch"):
        batches(opened.lazy_patch(8, mask="label"))
    assert len(batches(opened.lazy_patch(8, mask="label", fallback="anywhere"))) == 1


def test_wrong_arguments_name_the_line(cases):
    """At construction; a key that is not there when the sample is."""
    opened = vp.from_cases(cases).open_volume()
    for wrong in (
        {"min_fraction": 0.5},
        {"class_weights": {1: 1}},
        {"fallback": "anywhere"},
        {"mask": "label", "sampling": "grid", "class_weights": {1: 1}},
        {"mask": "label", "sampling": "grid", "oversample": 0.0},
        {"mask": "label", "sampling": "grid", "fallback": "anywhere"},
        {"oversample": 0.0},
        {"mask": "label", "oversample": 1.5},
        {"mask": "label", "oversample": True},
        {"mask": "label", "oversample": 0.3, "region": 16},
        {"mask": "label", "oversample": 0.3, "class_weights": {0: 1, 1: 1}},
        {"weights": "image", "oversample": 0.3},
        {"mask": "label", "min_fraction": 2},
        {"mask": np.ones((3, 3, 3))},
    ):
        with pytest.raises(PatchSizeError, match=r"lazy_patch\(8"):
            opened.lazy_patch(8, **wrong)
    with pytest.raises(SampleError, match=r"'lable'(.|\n)*'image', 'label'"):
        next(iter(opened.lazy_patch(8, mask="lable")))


def test_the_settings_are_part_of_the_graph(cases):
    """Another mask or weight is another chain; the same one is the same in any process."""
    opened = vp.from_cases(cases).open_volume()
    given = [
        {},
        {"mask": "label"},
        {"mask": "label", "min_fraction": 0.1},
        {"mask": "label", "class_weights": {1: 1}},
        {"mask": vp.Volume(cases[0]["label"])},
    ]
    read = vp.Volume(cases[0]["label"])
    read.shape  # noqa: B018  what is known of a volume changes nothing

    prints = [fingerprint(opened.lazy_patch(8, **one)) for one in given]

    assert len(set(prints)) == len(given)
    assert fingerprint(opened.lazy_patch(8, mask=read)) == prints[-1]


def test_an_image_as_mask_is_refused_where_it_is_written():
    """A CT of whole numbers, by its key; under another key, and called a label, it is meant."""
    scan = np.arange(16**3, dtype=np.int16).reshape(16, 16, 16)
    opened = vp.from_cases([{"image": scan, "label": (scan > 9).astype(np.uint8)}]).open_volume()

    with pytest.raises(
        PatchSizeError,
        match=r"looks like an image: more than 64(.|\n)*case 0(.|\n)*"
        r"lazy_patch\(8, mask='image'\)(.|\n)*above a threshold",
    ):
        list(opened.lazy_patch(8, mask="image").realize())

    both = vp.from_cases([{"image": scan, "known": scan}]).open_volume(labels=("known",))
    assert len(list(both.lazy_patch(8, mask="known").realize())) == 1


def test_labels_of_64_bits_are_classes_of_their_own_number():
    """int64 has no such number."""
    label = np.zeros((8, 8, 8), np.uint64)
    label[:4], label[6] = 2**63 + 5, 3
    opened = vp.from_cases([{"label": label}]).open_volume()
    pipe = opened.lazy_patch(4, mask="label", oversample=1.0, samples_per_volume=8)
    classes = {sample["label"].draws["lazy_patch"]["class"] for sample in pipe}
    assert classes == {3, 2**63 + 5}
