"""``lazy_patch(weights=...)``: where patches come from in a chain, and what it reads."""

import nibabel
import numpy as np
import pytest
import torch
from eager_chains import Eager

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import PatchSizeError, SampleError
from voxpipe.graph.fingerprint import fingerprint
from voxpipe.spatial import forget_masks
from voxpipe.volumes import close_volumes

SHAPE = (40, 36, 32)
AFFINE = np.diag([1, 1, 2, 1.0])
BRIGHT = (30, 9, 20)


@pytest.fixture
def cases(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    forget_masks()
    found = []
    for n in range(3):
        likely = np.zeros(SHAPE, np.float32)
        likely[BRIGHT[0] - n, BRIGHT[1], BRIGHT[2]] = 0.5
        paths = {"image": tmp_path / f"{n}.nii", "likely": tmp_path / f"{n}_likely.nii"}
        image = (likely * 200).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(image, AFFINE), paths["image"])
        nibabel.save(nibabel.Nifti1Image(likely, AFFINE), paths["likely"])
        found.append({key: str(path) for key, path in paths.items()})
    yield found
    close_volumes()


def opened(cases, **options):
    return vp.from_cases(cases).open_volume(**options)


def batches(pipe, workers=0):
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    loader = vp.DataLoader2(pipe.batch_patches(4), None, service)
    loader.seed(3)
    found = [batch["image"].clone() for batch in loader]
    loader.shutdown()
    return found


def test_the_bright_voxel_is_in_every_patch(cases):
    """Behind flips, quarter turns and crops; the other volumes of the sample are cut alike."""
    chains = (
        lambda pipe: pipe,
        lambda pipe: pipe.flip((0, 2)).rotate90(1, axes=(0, 2)),
        lambda pipe: pipe.crop((20, 0, 8), (20, 30, 20)).flip(p=0.5),
    )
    for chain in chains:
        pipe = chain(opened(cases)).lazy_patch(8, samples_per_volume=4, weights="likely")
        for sample in pipe.shuffle():
            assert sample["image"].realize().max() == 100
            assert sample["likely"].realize().max() == 0.5


def test_the_bright_voxel_is_in_every_patch_on_another_grid(cases):
    """Turned and resampled before, a map in millimetres follows too."""
    pipe = opened(cases).spacing((0.7, 0.7, 0.7)).rotate((0, 0, 30))

    for sample in pipe.lazy_patch(10, samples_per_volume=4, weights="likely"):
        assert sample["image"].realize().max() > 20


def test_patches_follow_flushes_and_are_one_place_for_all_volumes(cases):
    """A blur starts the image anew, not the map: both are cut at one place."""
    pipe = opened(cases)
    chains = (
        pipe.rotate((0, 0, 20)).flush().flip(0),
        pipe.rotate((0, 0, 20)).blur(0.5, unit="voxel", keys="image").flip(0),
        pipe.grid_distortion(0.3),
        Eager()(pipe.rotate((0, 0, 20)).flip(0)),
    )
    for chain in chains:
        for sample in chain.lazy_patch(9, samples_per_volume=4, weights="likely"):
            drawn = sample["image"].draws["lazy_patch"]
            assert sample["likely"].draws["lazy_patch"] == drawn
            assert sample["image"].realize().max() > 10


def test_a_map_whose_values_were_changed_before_is_refused(cases):
    """It is looked at as it is stored; after the patch it may be changed like others."""
    pipe = opened(cases).normalize().lazy_patch(8, weights="likely")
    with pytest.raises(SampleError, match=r"'likely' as it is stored(.|\n)*keys="):
        next(iter(pipe))
    pipe = opened(cases).normalize(keys="image").lazy_patch(8, weights="likely").normalize()
    assert next(iter(pipe))["likely"].realize().shape == (1, 8, 8, 8)


def test_workers_regions_and_a_resumed_epoch_give_the_same(cases):
    """Places are a function of seed, epoch and identity, whoever reads the maps."""
    for region in (None, 16):
        pipe = opened(cases).lazy_patch(8, samples_per_volume=4, weights="likely", region=region)
        pipe = pipe.shuffle().augment(rotate=20)
        here = batches(pipe)
        forget_masks()
        there = batches(pipe, workers=2)

        assert len(here) == 3
        assert all(map(torch.equal, here, there))

        loader = vp.DataLoader2(pipe.batch_patches(4), seed=3)
        first = next(iter(loader))["image"].clone()
        state = loader.state_dict()
        loader.shutdown()
        again = vp.DataLoader2(pipe.batch_patches(4), seed=3)
        again.load_state_dict(state)
        rest = [batch["image"].clone() for batch in again]
        again.shutdown()
        assert all(map(torch.equal, here, [first, *rest]))


def test_shuffled_plans_are_those_of_the_chain(cases):
    """Patches of all cases in one shuffle, each the one that its identity says."""
    pipe = opened(cases).lazy_patch(8, samples_per_volume=4, weights="likely")

    in_order = {s.identity: s["image"].draws["lazy_patch"] for s in pipe}
    for shuffled in (pipe.shuffle(), pipe.shuffle_plans()):
        assert {s.identity: s["image"].draws["lazy_patch"] for s in shuffled} == in_order
    assert len(in_order) == 12


def test_planning_reads_each_map_once(cases):
    """Making samples reads nothing; working out a plan reads a map the first time only."""
    pipe = opened(cases).lazy_patch(8, samples_per_volume=10, weights="likely")
    size = int(np.prod(SHAPE)) * 4
    before = IO_COUNTERS.snapshot()

    def count():
        counted = IO_COUNTERS.snapshot() - before
        return counted.reads, counted.bytes_read

    samples = list(pipe)
    text = str(pipe.batch_patches(2).explain())
    loader = vp.DataLoader2(pipe.batch_patches(2))
    loader.explain()
    loader.shutdown()
    assert count() == (0, 0)
    assert "weights='likely'" in text
    for sample in samples:
        sample["image"].plan  # noqa: B018
    assert count() == (3, 3 * size)
    for sample in list(pipe):
        sample["image"].plan  # noqa: B018
    forget_masks()
    assert pipe.prepare(lambda done, total: None) == 3
    assert count() == (3, 3 * size)


def test_what_is_kept_is_small(cases, tmp_path):
    """A few kilobytes for maps that weigh little but in some places."""
    pipe = opened(cases).lazy_patch(8, weights="likely")
    pipe.prepare(lambda done, total: None)

    sizes = [file.stat().st_size for file in (tmp_path / "cache" / "sampling").iterdir()]

    assert len(sizes) == 3
    assert max(sizes) < 4096


def test_maps_beside_the_volumes(cases, tmp_path):
    """A path that is not opened, a volume for all cases; on a grid of their own."""
    coarse = np.zeros((5, 5, 4), np.float32)
    coarse[1, 2, 1] = 0.3
    affine = np.diag([8.0, 8, 16, 1])
    affine[:3, 3] = [3.5, 3.5, 7]
    nibabel.save(nibabel.Nifti1Image(coarse, affine), tmp_path / "where.nii")
    for weights in ("where", vp.Volume(coarse, affine=affine)):
        own = [{**case, "where": str(tmp_path / "where.nii")} for case in cases]
        pipe = opened(own, keys=("image",))
        for sample in pipe.lazy_patch(8, samples_per_volume=4, weights=weights):
            start = sample["image"].draws["lazy_patch"]["start"]
            # Its middle lies in the cells of 8:16, 16:24, 8:16.
            assert all(a <= at + 4 < a + 8 for at, a in zip(start, (8, 16, 8), strict=True))


@pytest.mark.parametrize("value", [0, -1, np.nan])
def test_what_is_no_map_is_an_error_with_case_and_line(cases, value):
    """Nothing but 0, a number below, or none."""
    bad = np.full(SHAPE, value, np.float32)
    nibabel.save(nibabel.Nifti1Image(bad, AFFINE), cases[1]["likely"])

    with pytest.raises(PatchSizeError, match=r"weights(.|\n)*in case 1(.|\n)*lazy_patch"):
        batches(opened(cases).lazy_patch(8, weights="likely"))


def test_wrong_arguments_name_the_line(cases):
    """At construction; a key that is not there when the sample is."""
    pipe = opened(cases)
    for wrong, message in (
        ({"mask": "likely"}, "mask selects the voxels inside.*Give one of them"),
        ({"min_fraction": 0.1}, "min_fraction selects the voxels inside"),
        ({"class_weights": {1: 1}}, "class_weights selects the voxels inside"),
        ({"sampling": "grid"}, "weights belongs to sampling='uniform'"),
        ({"fallback": "skip"}, "fallback is one of"),
        ({"weights": np.ones((3, 3, 3))}, "key of the sample or a Volume, got ndarray"),
    ):
        with pytest.raises(ValueError, match=rf"{message}(.|\n)*lazy_patch\(8"):
            pipe.lazy_patch(8, **{"weights": "likely", **wrong})
    with pytest.raises(SampleError, match=r"weights='likley'(.|\n)*'image', 'likely'"):
        next(iter(pipe.lazy_patch(8, weights="likley")))
    with pytest.raises(TypeError, match="weights"):
        pipe.lazy_patch(8, probability_map="likely")


def test_a_map_is_no_mask(cases):
    """Every voxel that is not 0 would count alike; a label that was stored with a slope is one."""
    for value in (1.0, 255 * np.float32(1 / 255)):
        label = vp.Volume(np.full(SHAPE, value, np.float32), affine=AFFINE)
        batches(opened(cases).lazy_patch(8, mask=label))
    with pytest.raises(PatchSizeError, match=r"0\.5(.|\n)*case 0(.|\n)*lazy_patch(.|\n)*weights="):
        batches(opened(cases).lazy_patch(8, mask="likely"))


def test_the_settings_are_part_of_the_graph(cases):
    """Other weights are another chain; the same ones are the same in any process."""
    volume = vp.Volume(cases[0]["likely"])
    given = [{}, {"weights": "likely"}, {"weights": "image"}, {"weights": volume}]

    prints = [fingerprint(opened(cases).lazy_patch(8, **one)) for one in given]

    assert len(set(prints)) == len(given)
    volume.shape  # noqa: B018  what is known of a volume changes nothing
    assert fingerprint(opened(cases).lazy_patch(8, weights=volume)) == prints[-1]
