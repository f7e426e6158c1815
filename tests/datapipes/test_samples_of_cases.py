"""``lazy_patch(samples_per_volume=)`` by the case: a key, or a function of the sample."""

import csv

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import PatchSizeError, SampleError

COUNTS = {"a": 2, "b": 0, "c": 3}


def by_name(sample):
    """Return the number of a case."""
    return COUNTS[sample.case]


def opened():
    array = np.zeros((8, 8, 8), np.float32)
    cases = [{"image": array, "case": name, "n_patches": n} for name, n in COUNTS.items()]
    return vp.from_cases(cases).open_volume(keys=["image"])


@pytest.mark.parametrize("how", ["n_patches", by_name])
def test_each_case_has_its_number(how):
    """The length, the order of a shuffle and the batches of workers agree."""
    pipe = opened().lazy_patch(4, samples_per_volume=how)

    assert [patch.case for patch in pipe] == ["a"] * 2 + ["c"] * 3
    assert len(pipe) == 5
    assert sorted(patch.identity for patch in pipe.shuffle_plans()) == sorted(
        patch.identity for patch in pipe
    )
    batched = pipe.shuffle().batch_patches(2)
    found = []
    for workers in (0, 2):
        service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
        loader = vp.DataLoader2(batched, None, service, seed=3)
        assert len(loader) == 3
        found.append([[one["case"] for one in batch["meta"]] for batch in loader])
        loader.shutdown()
    assert found[0] == found[1]
    assert sorted(case for batch in found[0] for case in batch) == ["a"] * 2 + ["c"] * 3


def test_as_many_as_torchio():
    """A subject's ``num_samples`` is the number of its patches in a queue."""
    tio = pytest.importorskip("torchio")
    image = tio.ScalarImage(tensor=np.zeros((1, 8, 8, 8), np.float32))
    subjects = [tio.Subject(image=image, num_samples=n) for n in (2, 3)]
    queue = tio.Queue(tio.SubjectsDataset(subjects), 8, 1, tio.UniformSampler(4), num_workers=0)

    assert queue.iterations_per_epoch == len(opened().lazy_patch(4, samples_per_volume=by_name))


def test_a_number_of_a_table(tmp_path):
    """Entries of a CSV are texts."""
    np.save(tmp_path / "a.npy", np.zeros((8, 8, 8), np.float32))
    with open(tmp_path / "cases.csv", "w", newline="") as file:
        csv.writer(file).writerows([["image", "count"], [str(tmp_path / "a.npy"), "3"]])
    pipe = vp.from_table(tmp_path / "cases.csv").open_volume(keys=["image"])

    assert len(list(pipe.lazy_patch(4, samples_per_volume="count"))) == 3


@pytest.mark.parametrize("count", [-1, 1.5, None, "many"])
def test_what_is_no_number_is_refused(count):
    """With the key and the case."""
    cases = [{"image": np.zeros((8, 8, 8)), "case": "a", "n": count}]
    pipe = vp.from_cases(cases).open_volume(keys=["image"])

    with pytest.raises(PatchSizeError, match="samples_per_volume='n'") as raised:
        list(pipe.lazy_patch(4, samples_per_volume="n").batch_patches(1))
    assert "a" in str(raised.value)


def test_a_key_that_is_missing_is_refused():
    """The error names the keys of the sample."""
    with pytest.raises((SampleError, KeyError), match="image"):
        list(opened().lazy_patch(4, samples_per_volume="n_pathces"))
    with pytest.raises(PatchSizeError, match="without the quotes"):
        opened().lazy_patch(4, samples_per_volume="8")
    with pytest.raises(PatchSizeError, match="grid"):
        opened().lazy_patch(4, samples_per_volume="n_patches", sampling="grid")


def test_a_misspelt_key_is_named():
    """With the keys of the sample, and the line of the pipe."""
    pipe = vp.from_cases([{"image": np.ones((8, 8, 8)), "n": 2}]).open_volume()
    with pytest.raises(SampleError, match=r"samples_per_volume='m' names a key.*image, n"):
        next(iter(pipe.lazy_patch((4, 4, 4), samples_per_volume="m")))
