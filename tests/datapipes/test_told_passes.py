"""A pass over whole volumes is told, with its bytes, before it happens; and not once it is kept."""

import warnings

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.adapters import lint
from voxpipe.datapipes.cost import passes_of
from voxpipe.intensity import Gamma
from voxpipe.volumes import volume_statistics

SHAPE = (10, 10, 10)


@pytest.fixture(autouse=True)
def cases(tmp_path, monkeypatch):
    """Three cases in files, 2 kB an image and 1 kB a label, and an empty cache."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    for number in range(3):
        np.save(tmp_path / f"ct{number}.npy", np.full(SHAPE, number + 1, np.int16))
        np.save(tmp_path / f"seg{number}.npy", np.ones(SHAPE, np.uint8))
    return [
        {"image": str(tmp_path / f"ct{n}.npy"), "label": str(tmp_path / f"seg{n}.npy")}
        for n in range(3)
    ]


def told(pipe):
    return [(each.key, each.bytes_each, each.volumes) for each in passes_of(pipe, 0, 0)]


def test_each_pipe_that_reads_whole_volumes_is_told(cases):
    """Statistics, statistics of some voxels, boxes, tables of masks; and what is given is not."""
    opened = vp.from_cases(cases).open_volume()
    image, label = ("image", 2000, 3), ("label", 1000, 3)

    assert told(opened.normalize().batch_patches(1)) == [image]
    assert told(opened.one_of([Gamma(2.0)]).batch_patches(1)) == [image]
    assert told(opened.rescale_percentiles(above=0.5).batch_patches(1)) == [image]
    assert told(opened.foreground_crop("label").batch_patches(1)) == [label]
    assert told(opened.lazy_patch(4, mask="label").normalize().batch_patches(1)) == [label, image]
    assert told(opened.normalize(mean=1, std=1).lazy_patch(4).batch_patches(1)) == []


def test_a_key_that_is_stacked_later_is_told_by_its_name(cases):
    """Volumes are looked up as the pipe is given them, not as they are called in the end."""
    twice = [{"t1": case["image"], "t2": case["image"]} for case in cases]
    head = vp.from_cases(twice).open_volume()
    apart = head.normalize(keys=["t1"]).stack(("t1", "t2")).lazy_patch(4).batch_patches(1)
    together = head.stack(("t1", "t2")).normalize().lazy_patch(4).batch_patches(1)

    assert [one.key for one in passes_of(apart, 0, 0)] == ["t1"]
    assert [one.key for one in passes_of(together, 0, 0)] == ["image"]


def test_what_is_kept_or_in_memory_is_not_told(cases):
    """Nothing is read then."""
    pipe = vp.from_cases(cases).open_volume().normalize().batch_patches(1)
    for case in cases:
        volume_statistics(vp.Volume(case["image"]))
    arrays = vp.from_cases([{"image": np.ones(SHAPE)}]).open_volume()

    assert told(pipe) == []
    assert told(arrays.normalize().batch_patches(1)) == []


def test_explain_and_diagnose_say_how_much(cases):
    """In bytes of one volume and of all."""
    pipe = vp.from_cases(cases).open_volume().normalize().lazy_patch(4).batch_patches(1)
    line = "read as a whole: image, by normalize(): 3 volumes of 0.002 MB, 0.006 MB together, once"

    assert line in vp.explain(pipe)
    with vp.DataLoader2(pipe, seed=0) as loader:
        assert line in loader.explain()
        assert any(note.startswith(line) for note in loader.diagnose(seconds=0.01).notes)


def test_lint_names_a_pass_that_takes_long(cases, monkeypatch):
    """Of local files from some size on; `ignore` leaves it out."""
    pipe = vp.from_cases(cases).open_volume().normalize().lazy_patch(4).batch_patches(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vp.Lint()(pipe)
    monkeypatch.setattr(lint, "MUCH_BYTES", 6000)

    found = vp.Lint().mistakes(pipe)

    assert [mistake.name for mistake in found] == ["whole-volumes"]
    assert "3 x 0.002 MB, 0.006 MB" in found[0].message
    assert vp.Lint(ignore=["whole-volumes"]).mistakes(pipe) == []
