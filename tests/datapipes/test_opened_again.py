"""What ``realize()`` made and ``open_volume()`` takes up again lies where it lay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import SampleError
from voxpipe.spatial import Policy

TWO_MM = np.array([[0.0, -2, 0, 7], [2, 0, 0, -3], [0, 0, 2, 1], [0, 0, 0, 1]])


def opened(**options: Any) -> Any:
    """A chain of one case: an image, and a label under a name that nobody guesses."""
    image = np.random.default_rng(0).integers(-100, 900, (16, 14, 12)).astype(np.int16)
    gt = (image > 400).astype(np.uint8) * 3
    cases = [
        {
            "image": vp.Volume(image, affine=TWO_MM),
            "gt": vp.Volume(gt, affine=TWO_MM, kind="label"),
        }
    ]
    return vp.from_cases(cases).open_volume(**options)


def first(pipe: Any) -> Any:
    torch.manual_seed(3)
    return next(iter(pipe))


def half(sample: Any) -> Any:
    """A function of a user's own, which keeps the size."""
    return sample.with_data(image=sample["image"] * 0.5, sum=sample["image"] + sample["gt"])


def smaller(sample: Any) -> Any:
    return sample.with_data(image=sample["image"][:, ::2])


def test_the_affine_stays() -> None:
    """2 mm stay 2 mm, whole and cut, changed by a function or not."""
    for pipe in (opened(), opened().crop((2, 3, 4), (6, 6, 6)), opened().flip(0).rotate(9.0)):
        before, after = first(pipe), first(pipe.realize().map(half).open_volume())
        for key in before:
            np.testing.assert_array_equal(after[key].affine, before[key].affine)
            assert after[key].spacing == (2, 2, 2)


def test_so_does_what_a_label_is() -> None:
    """Its kind is none that ``labels=`` has to say again; it is nearest, in its stored type."""
    again = first(opened().realize().open_volume().zoom(1.3))

    assert again["gt"].kind == "label"
    assert again["gt"].dtype == np.uint8
    assert set(np.unique(again["gt"].realize())) <= {0, 3}
    assert first(opened().realize().open_volume(labels=()).zoom(1.3))["gt"].kind == "intensity"


def test_what_comes_later_is_what_a_flush_gives() -> None:
    """The same voxels, policy and fill, in the values that there are by then."""
    sampled = {"image": Policy("nearest", "constant", -100.0)}

    def chain(between: Any) -> Any:
        pipe = opened(policies=sampled).lazy_patch((8, 8, 8)).rotate((-20, 20))
        pipe = between(pipe.normalize(mean=0.0, std=10.0))
        return first(pipe.pad(2).rotate((5, 9)).resize(10))

    flushed = chain(lambda pipe: pipe.flush())
    again = chain(lambda pipe: pipe.realize().open_volume())
    other = chain(lambda pipe: pipe.realize().open_volume(policies={"image": Policy("linear")}))

    for key in flushed:
        np.testing.assert_array_equal(again[key].realize(), flushed[key].realize())
        np.testing.assert_allclose(again[key].affine, flushed[key].affine, atol=1e-12)
        assert again[key].draws == flushed[key].draws
    assert again["image"].realize().min() == -10
    assert other["image"].policy == Policy("linear")


def test_a_slice_stays_a_slice() -> None:
    """One slice of a volume is no 2-D image because it was read."""
    pipe = opened().lazy_patch((8, 8, 1)).realize().open_volume()

    assert first(pipe.pad(2))["image"].shape == (1, 12, 12, 5)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_tells_the_whole_way(workers: int, tmp_path: Any) -> None:
    """File, region, matrix and all draws, as if nothing had been realized between."""
    nib.Nifti1Image(np.zeros((12, 12, 12), np.int16), TWO_MM).to_filename(tmp_path / "a.nii")
    cases = [{"image": str(tmp_path / "a.nii")}]

    def chain(between: Any) -> Any:
        pipe = between(vp.from_cases(cases).open_volume().lazy_patch((6, 6, 6)).rotate((-9, 9)))
        service = vp.MultiProcessingReadingService(num_workers=workers)
        loader = vp.DataLoader2(pipe.zoom((1.1, 1.2)).batch_patches(1), reading_service=service)
        loader.seed(5)
        with loader:
            return next(iter(loader))["meta"][0]

    plain, again = chain(lambda p: p), chain(lambda p: p.realize().open_volume())

    assert again["draws"] == plain["draws"]
    assert {"lazy_patch", "rotate", "zoom"} <= set(again["draws"])
    told, expected = again["sources"]["image"], plain["sources"]["image"]
    assert told["file"] == expected["file"] == str(tmp_path / "a.nii")
    np.testing.assert_allclose(told["matrix"], expected["matrix"], atol=1e-9)


def test_a_new_key_lies_with_the_others() -> None:
    """What a function made beside them, of their size, is on their grid."""
    again = first(opened().realize().map(half).open_volume().rotate(9.0))

    np.testing.assert_array_equal(again["sum"].affine, again["image"].affine)


def test_another_size_has_no_place() -> None:
    """Which of its voxels lies where nobody knows: the user says, or is asked."""
    pipe = opened().realize().map(smaller)

    with pytest.raises(SampleError, match=r"realized as \(1, 16, 14, 12\) and is \(1, 8, 14, 12\)"):
        first(pipe.open_volume(keys=["image"]))
    given = first(pipe.open_volume(keys=["image"], affine={"image": np.eye(4)}))
    assert given["image"].spacing == (1, 1, 1)


def test_no_tensor_is_kept_after_its_sample() -> None:
    """A pipe that opens the same arrays in every epoch holds them, and these are new each time."""
    pipe = opened().realize().open_volume()
    for _ in pipe:
        pass

    assert pipe._of_objects == {}
    assert "realized, opened again: flip" in repr(first(pipe.flip(0))["image"])


class MadeWhenAsked(Sequence[Any]):
    """Cases whose arrays are new ones each time, as a dataset of torch makes them."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[n] for n in range(*index.indices(3))]
        if index >= 3:
            raise IndexError
        return {"image": np.full((2, 2, 2), index), "case": str(index)}


class MadeByKey(Mapping[str, Any]):
    """A case whose array is a new one each time."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        return iter(["image"])

    def __getitem__(self, key: str) -> Any:
        return {"image": np.zeros((2, 2, 2))}[key]


@pytest.mark.parametrize("cases", [MadeWhenAsked(), [MadeByKey(), MadeByKey()]])
def test_no_array_is_kept_that_was_made_when_asked(cases: Any) -> None:
    """Three epochs hold nothing; those of given arrays one volume for each, also in lists."""
    array = np.zeros((2, 2, 2))
    given = vp.from_cases([{"image": array, "both": [array, array + 1]}]).open_volume()
    made = vp.from_cases(cases).open_volume()

    for _ in range(3):
        assert len(list(made)) == len(cases)
        (sample,) = given

    assert len(made._of_objects) == 0
    assert len(given._of_objects) == 2
    assert sample["both"].volume.parts[0].token == sample["image"].volume.token


def saved(path: Any, mean: float) -> str:
    """Write a file of this mean in the place of what is there; return its path."""
    voxels = mean + np.arange(64.0, dtype=np.float32).reshape(4, 4, 4) - 31.5
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), path.with_name("new.nii"))
    path.with_name("new.nii").replace(path)
    return str(path)


@pytest.mark.filterwarnings("ignore:axes-not-named")
@pytest.mark.parametrize("beside", ["path", "array"])
def test_files_of_a_list_are_looked_at_in_every_epoch(tmp_path: Any, beside: str) -> None:
    """As a file by itself is, once it was replaced; also beside an array that stays."""
    file = saved(tmp_path / "a.nii", 10)
    other = saved(tmp_path / "b.nii", 10) if beside == "path" else np.full((4, 4, 4), 10.0)
    pipe = vp.from_cases([{"image": [file, other], "alone": file}]).open_volume()

    def means(pipe: Any) -> list[float]:
        sample = first(pipe)
        return [float(np.mean(c)) for k in sample for c in sample[k].realize()]

    assert means(pipe) == [10, 10, 10]
    normalized = pipe.normalize(keys=["image", "alone"])
    before = means(normalized)
    saved(tmp_path / "a.nii", 50)

    assert means(pipe) == [50, 10, 50]
    after = means(normalized)
    np.testing.assert_allclose(before, 0, atol=1e-5)
    # Statistics are of all channels, those that were replaced as well.
    assert after[0] == pytest.approx(-after[1], abs=1e-4)
    assert after[0] > 0.5
    assert after[2] == pytest.approx(0, abs=1e-5)


def test_channels_apart_and_sections_elsewhere_lie_there_too() -> None:
    """``unstack()`` and an axis map take other voxels of the same patch."""
    both = np.zeros((2, 16, 14, 12), np.float32)
    start = vp.from_cases([{"image": vp.Volume(both, affine=TWO_MM)}]).open_volume()
    start = start.crop((2, 3, 4), (6, 6, 6)).realize()
    axis_map = vp.AxisMap.from_table("K", range(6))
    expected = first(start.open_volume())["image"].provenance()
    found = [
        first(start.open_volume().unstack("image", ("a", "b")))["b"],
        first(start.open_volume(axis_map=axis_map))["image"],
    ]

    assert np.array(expected["matrix"])[:3, 3].tolist() == [2, 3, 4]
    for patch in found:
        told = patch.provenance()
        assert {name: told[name] for name in told} == dict(expected)


def test_what_nobody_may_change_stays_so() -> None:
    """A policy of ``override=True`` holds after ``realize()``, as after ``flush()``."""
    pipe = opened(policies={"image": Policy("cubic")}, override=True)

    for again in (pipe.flush(), pipe.realize().open_volume()):
        patch = first(again.rotate(9.0, mode="nearest"))["image"]
        assert patch.fixed_fields
        assert patch.policy == Policy("cubic")
