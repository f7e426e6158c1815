"""The chain that nnU-Net's plans describe, on a tiny raw dataset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from tiny_nnunet import CASES, save, volumes_of, write_raw

import voxpipe as vp
from voxpipe.adapters import Lint
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import SampleError, VolumeNotFound
from voxpipe.extensions.recipes import nnunet
from voxpipe.graph import fingerprint

STRIDES = [[1, 1, 1], [1, 2, 2], [2, 2, 2]]
CT = {"mean": 40.0, "std": 30.0, "percentile_00_5": -100.0, "percentile_99_5": 200.0}


def plans_of(**changes: Any) -> dict[str, Any]:
    full = {
        "batch_size": 3,
        "patch_size": [8, 12, 12],
        "spacing": [2.0, 1.0, 1.0],
        "normalization_schemes": ["CTNormalization", "ZScoreNormalization"],
        "use_mask_for_norm": [False, False],
        "architecture": {"arch_kwargs": {"strides": STRIDES}},
        **changes,
    }
    cascade = {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"}
    return {
        "transpose_forward": [0, 1, 2],
        "configurations": {"3d_fullres": full, "3d_cascade_fullres": cascade},
        "foreground_intensity_properties_per_channel": {"0": CT, "1": CT},
    }


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A raw dataset of five cases and two channels."""
    return write_raw(tmp_path / "Dataset001_Tiny")


@pytest.fixture
def plans(tmp_path: Path) -> Path:
    """What nnU-Net's planning writes: plans and splits beside each other."""
    folder = tmp_path / "preprocessed"
    folder.mkdir()
    (folder / "nnUNetPlans.json").write_text(json.dumps(plans_of()))
    split = {"train": CASES[:3], "val": CASES[3:]}
    (folder / "splits_final.json").write_text(json.dumps([split, split]))
    return folder / "nnUNetPlans.json"


def normalized(number: int) -> Any:
    """Return the image of a case as nnU-Net normalizes it, in its axes: (C, K, J, I)."""
    volumes = volumes_of(number)
    ct = np.clip(volumes["0000"].astype(float), CT["percentile_00_5"], CT["percentile_99_5"])
    mr = volumes["0001"].astype(float)
    both = [(ct - CT["mean"]) / CT["std"], (mr - mr.mean()) / mr.std()]
    return np.stack([one.transpose(2, 1, 0) for one in both])


def start_of(meta: Any) -> tuple[int, ...]:
    """Return where a patch begins, in nnU-Net's axes."""
    return tuple(meta["draws"]["lazy_patch"]["start"])


def box_at(start: Any, size: Any) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(start, size, strict=True))


def test_patches_are_nnunet_s_voxels(plans: Path, raw: Path) -> None:
    """Without augmentation: normalized by channel, axes swapped, labels at each scale."""
    pipe = nnunet(plans, raw, 0, part="val", iterations=4)
    cases = set()
    for batch in vp.DataLoader2(pipe, None, seed=1):
        assert batch["image"].shape == (3, 2, 8, 12, 12)
        assert [tuple(one.shape) for one in batch["label"]] == [
            (3, 1, 8, 12, 12),
            (3, 1, 8, 6, 6),
        ]
        for number, meta in enumerate(batch["meta"]):
            cases.add(meta["case"])
            box = box_at(start_of(meta), (8, 12, 12))
            of = CASES.index(meta["case"])
            reference = normalized(of)[(slice(None), *box)]
            assert np.allclose(batch["image"][number], reference, atol=1e-4)
            label = volumes_of(of)["label"].transpose(2, 1, 0)[box]
            assert np.array_equal(batch["label"][0][number, 0], label)
            assert np.array_equal(batch["label"][1][number, 0], label[:, 1::2, 1::2])
    assert cases == set(CASES[3:])


def test_patches_are_those_that_nnunet_has_preprocessed(raw: Path) -> None:
    """By plans that nnU-Net made of this dataset, in the arrays that it made of a case."""
    with np.load(ROOT / "tests" / "data" / "draws-nnunet.npz") as file:
        plans = json.loads(bytes(file["preprocessed/plans"]))
        image, label = file["preprocessed/image"], file["preprocessed/label"]
    size = (8, 12, 12)  # nnU-Net's own patch is larger than these cases
    plans["configurations"]["3d_fullres"]["patch_size"] = list(size)
    pipe = nnunet(plans, raw, "all", part="val", iterations=8)
    found = 0
    for batch in vp.DataLoader2(pipe, None, seed=1):
        for number, meta in enumerate(batch["meta"]):
            if meta["case"] == CASES[0]:
                box = (slice(None), *box_at(start_of(meta), size))
                assert np.abs(batch["image"][number].numpy() - image[box]).max() < 1e-5
                assert np.array_equal(batch["label"][0][number], label[box])
                found += 1
    assert found


def test_whole_cases_are_predicted_where_they_lie(plans: Path, raw: Path, tmp_path: Path) -> None:
    """Windows of the cases of a split, or of those to be submitted; back on the stored grid."""
    for number, channel in enumerate(("0000", "0001")):
        save(volumes_of(7)[channel], raw / "imagesTs" / f"new_{number:04d}.nii.gz")
    for part, cases in (("val", CASES[3:]), ("test", ["new"])):
        pipe = nnunet(plans, raw, 0, part=part, windows=True)
        place = str(tmp_path / part / "{case}.nii.gz")
        # The normalized CT, as a network that gives what it gets.
        found = vp.predict(lambda batch: batch[:, :1], pipe, place, output="logits")

        assert sorted(found) == cases
        for name in cases:
            reference = normalized(7 if name == "new" else CASES.index(name))[0].transpose(2, 1, 0)
            assert np.abs(found[name].numpy()[0] - reference).max() < 1e-4
            assert np.allclose(found[name].affine, np.diag([1.0, 1.0, 2.0, 1.0]))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([], "the plans have no 'configurations'"),
        ({"configurations": {"3d_fullres": {}}}, "no 'normalization_schemes'"),
        (plans_of(use_mask_for_norm=[False] * 3), "not as many use_mask_for_norm"),
        ({**plans_of(), "transpose_forward": ...}, "the plans have no 'transpose_forward'"),
    ],
)
def test_plans_that_are_none_are_refused(raw: Path, tmp_path: Path, wrong: Any, says: str) -> None:
    """They are files of others: what is missing is said, not a KeyError."""
    if isinstance(wrong, dict):
        wrong = {key: value for key, value in wrong.items() if value is not ...}
    place = tmp_path / "plans.json"
    place.write_text(json.dumps(wrong))
    with pytest.raises(SampleError, match=says):
        nnunet(place, raw, "all")


def test_raw_datasets_behind_urls(raw: Path) -> None:
    """Plans as a mapping, the dataset in a bucket."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in raw.rglob("*.*"):
        if path.is_file():
            memory.pipe(f"/tiny/{path.relative_to(raw)}", path.read_bytes())

    batch = next(iter(nnunet(plans_of(), "memory://tiny", "all", part="val", iterations=5)))

    assert batch["image"].shape == (3, 2, 8, 12, 12)


def test_the_last_third_of_a_batch_has_foreground(plans: Path, raw: Path) -> None:
    """Of three the last one, in every batch; its class is drawn among those of the case."""
    classes = set()
    for batch in vp.DataLoader2(nnunet(plans, raw, iterations=30), None, seed=2):
        drawn = [meta["draws"]["lazy_patch"].get("class") for meta in batch["meta"]]
        assert drawn[:2] == [None, None]
        classes.add(drawn[2])
    assert classes == {1, 2}


def test_batches_are_a_function_of_seed_epoch_and_number(plans: Path, raw: Path) -> None:
    """A worker, and a resumed run, make the same."""

    def sums(loader: Any) -> list[float]:
        return [float(b["image"].double().sum()) + float(b["label"][1].sum()) for b in loader]

    pipe = nnunet(plans, raw, iterations=3)
    alone = sums(vp.DataLoader2(pipe, None, seed=3))
    service = vp.MultiProcessingReadingService(1, "fork")
    loader = vp.DataLoader2(pipe, None, service, seed=3)
    it = iter(loader)
    first = next(it)
    state = loader.state_dict()
    rest = sums(it)
    loader.shutdown()
    again = vp.DataLoader2(nnunet(plans, raw, iterations=3), None, seed=3)
    again.load_state_dict(state)

    assert len(alone) == 3
    assert sums([first]) + rest == alone
    assert sums(again) == alone[1:]


def test_the_chain_shows_itself(plans: Path, raw: Path) -> None:
    """As code, with the numbers of the plans, and without what Lint would call a mistake."""
    pipe = nnunet(plans, raw)
    names: dict[str, Any] = {}
    exec(str(pipe), names)
    with vp.DataLoader2(names["pipe"], seed=1) as copy, vp.DataLoader2(pipe, seed=1) as loader:
        again, batch = next(iter(copy)), next(iter(loader))
    assert fingerprint(names["pipe"]) == fingerprint(pipe)
    assert torch.equal(again["image"], batch["image"])
    text = str(pipe)
    assert [mistake.name for mistake in Lint().mistakes(pipe)] == []

    for words in (
        "from_nnunet('",
        "transpose((2, 1, 0))",
        "clamp(-100.0, 200.0, keys='image_0000')",
        "normalize(40.0, 30.0, keys='image_0000')",
        "spacing((2.0, 1.0, 1.0)",
        "lazy_patch((8, 12, 12), oversample=0.33, samples_per_volume=250, mask='label')",
        "rotate((-30.0, 30.0), space='voxel', p=0.2)",
        "batch_patches(3, drop_last=True)",
        "deep_supervision(((1.0, 1.0, 1.0), (1.0, 0.5, 0.5)))",
    ):
        assert words in text, words


def test_augmented_patches_are_read_once(plans: Path, raw: Path) -> None:
    """Each volume once for a patch, and one interpolation at most, whatever is drawn."""
    pipe = nnunet(plans, raw, iterations=10)
    list(vp.DataLoader2(pipe, None, seed=1))  # the mask's places and statistics are kept
    before = IO_COUNTERS.snapshot()
    batches = list(vp.DataLoader2(pipe, None, seed=1))
    done = IO_COUNTERS.snapshot() - before

    patches = 3 * len(batches)
    assert "not fused" not in pipe.explain()
    assert done.reads == 3 * patches
    assert 0 < done.interpolations < 3 * patches


def test_flat_patches_are_augmented_in_their_plane(raw: Path) -> None:
    """Where the longest edge is more than three times the first one, and for planes."""
    flat = nnunet(plans_of(patch_size=[3, 10, 12]), raw).explain()
    plane = nnunet(
        plans_of(
            patch_size=[8, 14],
            spacing=[1.0, 1.0],
            architecture={"arch_kwargs": {"strides": [[1, 1], [2, 2], [2, 2]]}},
        ),
        raw,
    )
    (batch, *_) = nnunet_batches(plane)

    assert "rotate(((-180.0, 180.0), 0, 0)" in flat
    assert "flip((0, 1, 2), p=0.5)" in flat
    assert "rotate(((-15.0, 15.0), 0, 0)" in plane.explain()
    assert "flip((1, 2), p=0.5)" in plane.explain()
    assert [tuple(one.shape[2:]) for one in batch["label"]] == [(1, 8, 14), (1, 4, 7)]


def nnunet_batches(pipe: Any, count: int = 3) -> list[Any]:
    batches = []
    loader = vp.DataLoader2(pipe, None, seed=5)
    for batch in loader:
        batches.append(batch)
        if len(batches) == count:
            break
    loader.shutdown()
    return batches


def test_masked_channels_are_0_outside(raw: Path) -> None:
    """`use_mask_for_norm`: statistics of what is not 0, and 0 where nothing is."""
    masked = plans_of(
        normalization_schemes=["NoNormalization", "ZScoreNormalization"],
        use_mask_for_norm=[False, True],
        patch_size=[12, 18, 20],
    )
    for part in ("train", "val"):
        for batch in nnunet_batches(nnunet(masked, raw, part=part, iterations=3)):
            assert "inside" not in batch
            assert batch["image"].shape[1] == 2
    (batch, *_) = nnunet_batches(nnunet(masked, raw, part="val", iterations=3))
    for number, meta in enumerate(batch["meta"]):
        volumes = volumes_of(CASES.index(meta["case"]))
        mr, ct = (volumes[n].astype(float).transpose(2, 1, 0) for n in ("0001", "0000"))
        inside = (mr != 0) | (ct != 0)
        values = mr[mr > 0]
        reference = np.where(inside, (mr - values.mean()) / values.std(), 0)
        found = batch["image"][number, 1].numpy()
        whole = inside.any(axis=(1, 2)).all() and inside.any(axis=(0, 1)).all()
        assert whole
        assert np.allclose(found, reference, atol=1e-4)


def test_the_cascade_gets_the_earlier_labels_as_channels(raw: Path, tmp_path: Path) -> None:
    """One channel for each class after those of the image; without augmentation they are exact."""
    folder = tmp_path / "lowres"
    for number, name in enumerate(CASES):
        earlier = np.roll(volumes_of(number)["label"], 1, axis=0)
        save(earlier, folder / f"{name}.nii.gz")
    how = {"configuration": "3d_cascade_fullres", "iterations": 2}
    val = nnunet(plans_of(), raw, "all", part="val", previous=folder, **how)
    for batch in nnunet_batches(val, 2):
        assert batch["image"].shape == (3, 4, 8, 12, 12)
        for number, meta in enumerate(batch["meta"]):
            box = box_at(start_of(meta), (8, 12, 12))
            label = np.roll(volumes_of(CASES.index(meta["case"]))["label"], 1, axis=0)
            label = label.transpose(2, 1, 0)[box]
            for channel in (1, 2):
                assert np.array_equal(batch["image"][number, 1 + channel], label == channel)
    train = nnunet(plans_of(), raw, "all", previous=folder, **how)
    assert "random_morphology((1, 8), p=0.4, p_channel=0.5, keys='previous')" in train.explain()
    for batch in nnunet_batches(train, 2):
        assert set(torch.unique(batch["image"][:, 2:]).tolist()) <= {0.0, 1.0}
    with pytest.raises(SampleError, match="Give previous="):
        nnunet(plans_of(), raw, configuration="3d_cascade_fullres")


def test_regions_and_the_label_that_is_ignored(raw: Path) -> None:
    """A channel for each region, the ignored one last; patches are drawn about no ignored label."""
    document = json.loads((raw / "dataset.json").read_text())
    document["labels"] = {"background": 0, "whole": [1, 2], "core": [2], "ignore": 3}
    document["regions_class_order"] = [1, 2]
    (raw / "dataset.json").write_text(json.dumps(document))
    pipe = nnunet(plans_of(), raw, "all", part="val", iterations=2)
    (batch, *_) = nnunet_batches(pipe, 1)

    assert batch["label"][0].shape == (3, 3, 8, 12, 12)
    assert "class_weights={1: 1.0, 2: 1.0}" in pipe.explain()
    for number, meta in enumerate(batch["meta"]):
        box = box_at(start_of(meta), (8, 12, 12))
        label = volumes_of(CASES.index(meta["case"]))["label"].transpose(2, 1, 0)[box]
        assert np.array_equal(batch["label"][0][number], [label > 0, label == 2, label == 3])


def test_axes_of_the_plans(raw: Path) -> None:
    """`transpose_forward` of nnU-Net speaks of SimpleITK's axes, K, J, I."""
    plans = plans_of(spacing=[1.0, 2.0, 1.0], patch_size=[12, 8, 12])
    plans["transpose_forward"] = [1, 0, 2]
    pipe = nnunet(plans, raw, "all", part="val", iterations=1)
    (batch, *_) = nnunet_batches(pipe, 1)

    assert "transpose((1, 2, 0))" in pipe.explain()
    meta = batch["meta"][0]
    box = box_at(start_of(meta), (12, 8, 12))
    label = volumes_of(CASES.index(meta["case"]))["label"].transpose(1, 2, 0)[box]
    assert np.array_equal(batch["label"][0][0, 0], label)


def test_what_plans_and_folders_lack_is_named(plans: Path, raw: Path) -> None:
    """A configuration, a scheme, a file, a fold."""
    with pytest.raises(SampleError, match="no configuration '3d_lowres'"):
        nnunet(plans, raw, configuration="3d_lowres")
    odd = plans_of(normalization_schemes=["OddNormalization", "NoNormalization"])
    with pytest.raises(SampleError, match="channel 0 by 'OddNormalization'"):
        nnunet(odd, raw)
    with pytest.raises(VolumeNotFound, match=r"no .*elsewhere"):
        nnunet(plans.with_name("elsewhere.json"), raw)
    with pytest.raises(SampleError, match="no split 2"):
        nnunet(plans, raw, 2)


@pytest.mark.parametrize("is_beside_plans", [True, False])
def test_a_fold_without_cases(plans: Path, raw: Path, is_beside_plans: bool) -> None:
    """Nothing can be drawn, and the file that says so is named; whole cases are none."""
    beside = plans.with_name("splits_final.json")
    place = beside if is_beside_plans else raw / "splits_final.json"
    beside.unlink()
    place.write_text(json.dumps([{"train": CASES, "val": []}]))
    with pytest.raises(SampleError, match=r"fold 0 has no case for part='val'") as error:
        nnunet(plans, raw, part="val")
    assert str(place) in str(error.value)
    assert list(nnunet(plans, raw, part="val", windows=True)) == []
    nnunet(plans, raw)


@pytest.mark.parametrize("degrees", [(-15, 15), -15])
def test_a_turn_is_one_number(degrees):
    """Up to so many degrees, either way."""
    pipe = vp.from_cases([{"image": np.zeros((9, 9, 9))}]).open_volume().lazy_patch(8)
    with pytest.raises(ValueError, match="degrees is a number >= 0, got"):
        vp.recipes.nnunet_augmentation(pipe, degrees=degrees)


def test_true_mirrors_all_axes() -> None:
    """As in ``predict()``; an argument that is none is told."""
    pipe = vp.from_cases([{"image": np.zeros((4, 4, 4))}]).open_volume().lazy_patch(4)
    whole, default = vp.recipes.nnunet_augmentation(pipe, mirror=True), (0, 1, 2)

    assert str(whole) == str(vp.recipes.nnunet_augmentation(pipe, mirror=default))
    with pytest.raises(TypeError, match=r"no argument 'mirror_axes'; did you mean 'mirror'\?"):
        vp.recipes.nnunet_augmentation(pipe, mirror_axes=default)


def change(document: Any, path: str, value: Any) -> None:
    """Set, or without a value remove, an entry at a path of keys."""
    *above, last = path.split("/")
    for key in above:
        document = document[key]
    if value is None:
        del document[last]
    else:
        document[last] = value


FULL = "configurations/3d_fullres"
STATISTICS = "foreground_intensity_properties_per_channel"


STRANGE_PLANS = [
    (f"{STATISTICS}/0/mean", None, "mean"),
    (f"{STATISTICS}/0/std", 0.0, "std"),
    (f"{STATISTICS}/0/std", float("nan"), "std"),
    (f"{STATISTICS}/0", None, "0"),
    (f"{STATISTICS}/0", [1, 2], "0"),
    (STATISTICS, 5, STATISTICS),
    (f"{FULL}/spacing", [0, 1, 1], "spacing"),
    (f"{FULL}/spacing", [1, 1], "spacing"),
    (f"{FULL}/spacing", "111", "spacing"),
    (f"{FULL}/patch_size", ["x"], "patch_size"),
    (f"{FULL}/patch_size", [8.5, 8, 8], "patch_size"),
    (f"{FULL}/patch_size", [8, 8, 8, 8], "patch_size"),
    (f"{FULL}/batch_size", "two", "batch_size"),
    (f"{FULL}/batch_size", 0, "batch_size"),
    (f"{FULL}/normalization_schemes", "CT", "normalization_schemes"),
    (f"{FULL}/use_mask_for_norm", ["no", "no"], "use_mask_for_norm"),
    (f"{FULL}/architecture/arch_kwargs/strides", [[1, 1], [2, 2, 2]], "strides"),
    (f"{FULL}/architecture/arch_kwargs/strides", [[1, 1, 1], [0, 2, 2]], "strides"),
    (f"{FULL}/architecture", "UNet", "architecture"),
    (f"{FULL}/inherits_from", ["3d"], "inherits_from"),
    (FULL, [0], "3d_fullres"),
    ("configurations", [FULL], "configurations"),
    ("transpose_forward", ["x"], "transpose_forward"),
    ("transpose_forward", [0, 0, 1], "transpose_forward"),
]


def test_strange_values_of_plans(raw: Path) -> None:
    """The error names the key of the plans, before any file is opened."""
    for path, value, name in STRANGE_PLANS:
        plans = json.loads(json.dumps(plans_of()))
        change(plans, path, value)
        with pytest.raises(SampleError, match=f"{name!r}"):
            nnunet(plans, raw, "all")


STRANGE_DATASETS = [
    ("labels", 3, "labels"),
    ("labels/liver", "one", "labels"),
    ("labels/liver", [], "labels"),
    ("labels/ignore", [-1], "labels"),
    ("channel_names", 2, "channel_names"),
    ("dataset", {"case_1": {"images": 5, "label": "a"}}, "images"),
    ("dataset", {"case_1": [1]}, "images"),
]


def test_strange_values_of_a_dataset(raw: Path) -> None:
    """The error names the key of dataset.json."""
    text = (raw / "dataset.json").read_text()
    for path, value, name in STRANGE_DATASETS:
        document = json.loads(text)
        change(document, path, value)
        (raw / "dataset.json").write_text(json.dumps(document))
        with pytest.raises(SampleError, match=name):
            nnunet(plans_of(), raw, "all")


def test_strange_values_of_splits(raw: Path, tmp_path: Path) -> None:
    """The error names the file and the split."""
    for splits in (3, {"train": []}, [3], [{"train": 3}], [{"train": [["a"]]}]):
        (tmp_path / "splits_final.json").write_text(json.dumps(splits))
        with pytest.raises(SampleError, match="split"):
            nnunet(plans_of(), raw, 0, splits=tmp_path / "splits_final.json")
