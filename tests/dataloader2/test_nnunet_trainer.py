"""Batches for nnU-Net's trainer: its cases and places, its voxels, in the forms that it expects.

Most tests have a stand-in for nnU-Net's loader, whose draws are simple; those that need nnU-Net are
skipped where it is not installed, and one runs its commands in the benchmark's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from checkout import ROOT
from tiny_nnunet import CASES as RAW_CASES
from tiny_nnunet import LABELS, volumes_of, write_raw

from voxpipe.core.errors import NotOffered, VolumeNotFound
from voxpipe.extensions.bridges.nnunet_loaders import (
    Batches,
    augmentation_of,
    preprocessed_patches,
    raw_chains,
    with_targets,
)
from voxpipe.extensions.nnunet_trainers import FOLDER
from voxpipe.extensions.recipes import nnunet_augmentation

pytest.importorskip("blosc2")
from nnunet_stand_ins import (
    BATCH,
    CASES,
    CENTRE,
    FORCED,
    SHAPE,
    SIZE,
    Drawer,
    arrays_of,
    first,
    trainer_of,
    write,
)

# Calls for a patch while the loop plans it: 595 when each had a step of its own.
MOST_CALLS = 170
MANY = 64 * BATCH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What nnU-Net has preprocessed: three cases."""
    for number, case in enumerate(CASES):
        image, label = arrays_of(number)
        write(image, tmp_path / "plans" / f"{case}.b2nd")
        write(label, tmp_path / "plans" / f"{case}_seg.b2nd")
    return tmp_path / "plans"


def cut(array: Any, start: Any, fill: float) -> Any:
    """Return the patch of an array (C, I, J, K) that begins somewhere, filled outside."""
    edge = 20
    padded = np.pad(array, [(0, 0), *[(edge, edge)] * 3], constant_values=fill)
    return padded[
        (slice(None), *(slice(a + edge, a + edge + s) for a, s in zip(start, SIZE, strict=True)))
    ]


def places_in(drawer: Drawer, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of places to which the drawer adds each that it draws."""
    places: list[Any] = []
    draw = drawer.get_bbox

    def noted(*args: Any) -> Any:
        places.append(draw(*args)[0])
        return places[-1], None

    monkeypatch.setattr(drawer, "get_bbox", noted)
    return places


def test_patches_are_nnunets_voxels_at_its_places(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and labels as stored; 0 beyond the faces, and where labels are -1."""
    drawer = Drawer(folder)
    places = places_in(drawer, monkeypatch)
    batches = first(4, drawer, trainer_of())
    cases = [case for batch in batches for case in batch["keys"]]

    hanging = 0
    for number, batch in enumerate(batches):
        assert [tuple(one.shape) for one in batch["target"]] == [
            (BATCH, 1, *SIZE),
            (BATCH, 1, SIZE[0], SIZE[1] // 2, SIZE[2] // 2),
        ]
        assert batch["data"].dtype == torch.float32
        for position in range(BATCH):
            image, label = arrays_of(CASES.index(cases[BATCH * number + position]))
            # A look at the first items, to choose how to read, draws them once more.
            start = next(
                place
                for place in places
                if np.array_equal(cut(image, place, 0), batch["data"][position])
            )
            reference = np.maximum(cut(label, start, -1), 0)
            assert np.array_equal(batch["target"][0][position], reference)
            assert np.array_equal(batch["target"][1][position], reference[..., 1::2, 1::2])
            hanging += any(a < 0 or a + s > n for a, s, n in zip(start, SIZE, SHAPE, strict=True))
    assert hanging
    assert set(cases) == set(CASES)


def test_the_place_in_the_batch_says_which_are_about_foreground(folder: Path) -> None:
    """The last one lies about the voxel that nnU-Net's table names."""
    start = [m - s // 2 for m, s in zip(CENTRE, SIZE, strict=True)]
    for batch in first(3, Drawer(folder), trainer_of()):
        image, _ = arrays_of(CASES.index(batch["keys"][FORCED]))
        assert np.array_equal(batch["data"][FORCED], cut(image, start, 0))


def test_a_run_depends_on_its_seed_alone(folder: Path) -> None:
    """Workers, and what else draws from NumPy's generator, change nothing; nor is it changed."""

    def sums(**options: Any) -> list[float]:
        return [
            float(batch["data"].double().sum()) + float(batch["target"][1].sum())
            for batch in first(4, Drawer(folder), trainer_of(), augment=True, **options)
        ]

    alone = sums()
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    assert sums() == alone
    assert np.array_equal(np.random.get_state()[1], before)
    assert sums(workers=1) == alone
    assert sums(seed=2) != alone


def test_patches_share_their_steps(folder: Path) -> None:
    """Each has a place and an identity of its own, and nothing else is made for it anew."""
    patches = nnunet_augmentation(preprocessed_patches(Drawer(folder), trainer_of()))
    samples = [*islice(patches, 4 * BATCH)]
    for key in ("image", "label"):
        every = [sample[key] for sample in samples]
        assert len({id(patch.pending.steps) for patch in every}) == 1
        assert len({id(patch.values) for patch in every}) == 1
        assert len({id(patch.volume) for patch in every}) == len({s.case for s in samples})
    places = [sample["image"].pending.place for sample in samples]
    assert places == [tuple(s["label"].draws["lazy_patch"]["start"]) for s in samples]
    assert len(set(places)) > BATCH
    assert len({sample.identity for sample in samples}) == len(samples)


def test_the_loop_makes_few_calls_for_a_patch(folder: Path) -> None:
    """Of all Python code, from the draw to what a worker is sent."""
    patches = nnunet_augmentation(preprocessed_patches(Drawer(folder), trainer_of()))
    samples = iter(patches.batch_patches(BATCH).parent)
    assert len([*islice(samples, MANY)]) == MANY  # every case was seen
    calls = 0

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        some = [*islice(samples, MANY)]
    finally:
        sys.setprofile(before)
    assert len(some) == MANY
    assert 0 < calls / MANY <= MOST_CALLS


def test_a_case_is_asked_for_once(folder: Path) -> None:
    """nnU-Net's tables stay: it does not unpickle them for every patch."""
    drawer = Drawer(folder)
    first(12, drawer, trainer_of())
    assert sorted(drawer.loaded) == CASES


def test_masked_channels_are_0_where_labels_are_minus_1(folder: Path) -> None:
    """Whatever noise and turns have made of what was 0."""
    seen = 0
    plain = trainer_of(scales=None)
    masked = trainer_of(scales=None, use_mask_for_norm=[True])
    pairs = (first(20, Drawer(folder), one, augment=True) for one in (plain, masked))
    for before, after in zip(*pairs, strict=True):
        outside = after["data"] == 0
        assert torch.equal(after["target"], before["target"])
        assert torch.equal(after["data"][~outside], before["data"][~outside])
        seen += int((outside & (before["data"] != 0)).sum())
    assert seen


def test_regions_are_channels_of_yes_and_no(folder: Path) -> None:
    """The ignored label is the last of them, as nnU-Net's loss expects it."""
    regions = {"has_regions": True, "foreground_regions": [(1, 2), 2]}
    trainer = trainer_of(**regions, has_ignore_label=True, ignore_label=3)
    (plain,), (batch,) = (first(1, Drawer(folder), one) for one in (trainer_of(), trainer))
    label = plain["target"][0]
    assert [one.dtype for one in batch["target"]] == [torch.bool] * 2
    assert torch.equal(batch["target"][0], torch.cat([label > 0, label == 2, label == 3], 1))


def test_planes_lose_the_axis_that_the_network_does_not_know(tmp_path: Path) -> None:
    """A plane of the volume, of (C, J, K); its targets as well."""
    for number, case in enumerate(CASES):
        image, label = arrays_of(number)
        write(image, tmp_path / f"{case}.b2nd")
        write(label, tmp_path / f"{case}_seg.b2nd")
    drawer = Drawer(tmp_path)
    scales = [[1.0, 1.0], [0.5, 0.5]]
    (batch,) = first(1, drawer, trainer_of(patch_size=SIZE[1:], scales=scales))
    assert batch["data"].shape == (BATCH, 1, *SIZE[1:])
    assert [one.shape[1:] for one in batch["target"]] == [(1, 6, 8), (1, 3, 4)]


def test_earlier_labels_become_channels(folder: Path, tmp_path: Path) -> None:
    """Of a cascade; nnU-Net keeps them without an axis of channels."""
    for number, case in enumerate(CASES):
        write(arrays_of(number)[1][0], tmp_path / "earlier" / f"{case}.b2nd")
    drawer = Drawer(folder, tmp_path / "earlier")
    (batch,) = first(1, drawer, trainer_of(is_cascaded=True))
    assert batch["data"].shape[1] == 3
    for channel, label in ((1, 1), (2, 2)):
        assert torch.equal(batch["data"][:, [channel]] == 1, batch["target"][0] == label)


@pytest.mark.parametrize(
    ("patch", "answer", "options"),
    [
        (SIZE, (np.pi / 6, False, None, (0, 1)), (30, False, (0, 1))),
        (SIZE, (np.pi, True, None, None), (180, True, ())),
        (SIZE[1:], (np.pi / 12, False, None, (0, 1)), (15, True, (1, 2))),
    ],
)
def test_nnunet_chooses_the_augmentation(patch: Any, answer: Any, options: Any) -> None:
    """Angles, flat patches, planes, axes that are mirrored."""
    trainer = trainer_of(patch_size=patch)
    turn, *rest = answer
    name = "configure_rotation_dummyDA_mirroring_and_inital_patch_size"
    setattr(trainer, name, lambda: ((-turn, turn), *rest))
    found = augmentation_of(trainer)
    assert (round(found["degrees"], 6), found["plane"], found["mirror"]) == options


def test_raw_files_become_batches_of_the_split(tmp_path: Path) -> None:
    """Values normalized by the plans, in nnU-Net's axes; each part has its own cases."""
    write_raw(tmp_path / "Dataset001_Tiny")
    ct = {"mean": 40.0, "std": 30.0, "percentile_00_5": -100.0, "percentile_99_5": 200.0}
    schemes = {"normalization_schemes": ["CTNormalization", "NoNormalization"]}
    plans = {
        "transpose_forward": [0, 1, 2],
        "configurations": {
            "3d_fullres": {
                "patch_size": [8, 12, 12],
                "spacing": [2.0, 1.0, 1.0],
                "use_mask_for_norm": [False, False],
                **schemes,
            }
        },
        "foreground_intensity_properties_per_channel": {"0": ct, "1": ct},
    }
    trainer = trainer_of(patch_size=[8, 12, 12], use_mask_for_norm=[False, False], batch_size=2)
    trainer.plans_manager = SimpleNamespace(dataset_name="Dataset001_Tiny", plans=plans)
    trainer.configuration_name = "3d_fullres"
    trainer.dataset_json = {"labels": LABELS, "file_ending": ".nii.gz"}
    split = (RAW_CASES[:3], RAW_CASES[3:])
    trainer.do_split = lambda: split

    for chain, names in zip(raw_chains(trainer, str(tmp_path)), split, strict=True):
        forms = {"is_plane": False, "has_regions": False}
        loader = Batches(with_targets(chain, trainer, augment=False), 0, 1, **forms)
        seen = set()
        for _ in range(8):
            batch = next(loader)
            assert [tuple(one.shape[1:]) for one in batch["target"]] == [
                (1, 8, 12, 12),
                (1, 8, 6, 6),
            ]
            assert (batch["target"][0][1] > 0).any()  # one of two is about foreground
            for position, case in enumerate(batch["keys"]):
                volume = volumes_of(RAW_CASES.index(case))["0001"].transpose(2, 1, 0)
                windows = np.lib.stride_tricks.sliding_window_view(volume, (8, 12, 12))
                same = (windows == batch["data"][position, 1].numpy()).all(axis=(3, 4, 5))
                assert same.sum() == 1
                seen.add(case)
        loader.close()
        assert seen == set(names)


def test_what_is_missing_is_named(folder: Path) -> None:
    """A file of a case; what raw files cannot do."""
    (folder / "case_1_seg.b2nd").unlink()
    with pytest.raises(VolumeNotFound, match=r"case_1_seg.b2nd\n.*Preprocess anew"):
        preprocessed_patches(Drawer(folder), trainer_of())
    with pytest.raises(NotOffered, match="nnUNetTrainerVoxpipe"):
        raw_chains(trainer_of(is_cascaded=True), str(folder))
    with pytest.raises(NotOffered, match="probabilistic"):
        raw_chains(trainer_of(probabilistic_oversampling=True), str(folder))


# What nnU-Net itself is asked, in a process of its own: its trainers import half of PyTorch.
_WITH_NNUNET = """
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from nnunetv2.training.dataloading.data_loader import nnUNetDataLoader
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.find_objects import recursive_find_trainer_class_by_name

from voxpipe.core import Stream
from voxpipe.core.errors import NotOffered
from voxpipe.extensions.bridges.nnunet_loaders import _DRAWN_AT_ONCE
from voxpipe.reading_services.pipe_runner import seeded_globals

sys.path.append({tests!r})
from nnunet_stand_ins import BATCH, CASES, SIZE, Drawer, first, trainer_of

names = ("nnUNetTrainerVoxpipe", "nnUNetTrainerVoxpipe_raw")
found = [recursive_find_trainer_class_by_name(name) for name in names]
assert all(issubclass(one, nnUNetTrainer) for one in found)


class Changed(found[0]):
    @staticmethod
    def get_training_transforms(*args, **kwargs):
        pass


try:
    Changed.get_dataloaders(object.__new__(Changed))
except NotOffered as error:
    assert "voxpipe_augmentation" in str(error)
else:
    raise AssertionError("it runs without the user's transforms")

labels = SimpleNamespace(all_labels=[0, 1, 2], has_ignore_label=False)
data = Drawer(Path({folder!r}))._data
data.identifiers = CASES
drawer = nnUNetDataLoader(data, BATCH, SIZE, SIZE, labels, oversample_foreground_percent=0.33)
every = []
for block in range(2):
    with seeded_globals(Stream(1, 0, (block,), "placed_patches").integer()):
        every += [drawer.generate_train_batch() for _ in range(_DRAWN_AT_ONCE)]
for theirs, batch in zip(every, first(len(every), drawer, trainer_of(scales=None)), strict=True):
    assert list(theirs["keys"]) == batch["keys"]
    assert torch.equal(theirs["data"], batch["data"])
    assert torch.equal(theirs["target"].clamp(min=0), batch["target"])
print("the same")
"""


def python_with_nnunet() -> str:
    """Return this Python, or that of the benchmark's environment, or skip the test."""
    try:
        import nnunetv2  # noqa: F401
    except ImportError:
        other = ROOT / "build" / "peers" / "nnunet" / "bin" / "python"
        if not other.exists():
            pytest.skip("nnunetv2 is not installed, and benchmarks/nnunet_trainer.py did not run")
        return str(other)
    return sys.executable


def run(command: list[str], **settings: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / ".typing"), **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_batches_are_those_that_nnunet_makes_of_the_same_draws(folder: Path) -> None:
    """nnU-Net finds the trainers; its own loader gives the same cases, voxels and labels."""
    python = python_with_nnunet()
    subprocess.run([sys.executable, str(ROOT / "tools" / "link_package.py")], check=True)
    program = _WITH_NNUNET.format(tests=str(Path(__file__).parent), folder=str(folder))
    assert run([python, "-c", program], nnUNet_extTrainer=FOLDER).endswith("the same\n")


@pytest.mark.slow
def test_nnunets_commands_run_with_every_trainer(tmp_path: Path) -> None:
    """Planning, preprocessing and a short training each, in the benchmark's environment."""
    if not (ROOT / "build" / "peers" / "nnunet" / "installed.txt").exists():
        pytest.skip("nnU-Net's environment is made by benchmarks/nnunet_trainer.py")
    script = str(ROOT / "benchmarks" / "nnunet_trainer.py")
    printed = run([sys.executable, script, "--quick", "--work", str(tmp_path)])
    assert "| nnUNetTrainerVoxpipe_raw |" in printed
    for trainer in ("Short", "ShortVoxpipe", "ShortVoxpipe_raw"):
        noted = json.loads((tmp_path / f"{trainer}-0.json").read_text())
        assert len(noted["train_losses"]) == 1
        assert np.isfinite(noted["train_losses"] + noted["val_losses"]).all()
        log = (tmp_path / f"{trainer}-0.log").read_text()
        assert ("voxpipe: seed 0" in log) == ("Voxpipe" in trainer)
