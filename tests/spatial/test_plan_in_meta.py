"""What a batch says of its patches brings them back to where they come from, in another process."""

import copy
import json
import pickle

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import Grid
from voxpipe.spatial import SpatialPlan

SHAPE = (14, 15, 16)
AFFINE = np.array([[0, -1.1, 0, 5], [1.0, 0, 0, -3], [0, 0, 2.0, 1], [0, 0, 0, 1]])
# All that another process has: a batch's patch as an array, its entry as text.
LATER = """
import json, sys
import numpy as np
from voxpipe.spatial import SpatialPlan, apply_plan

plan = SpatialPlan.from_json(json.load(open(sys.argv[1]))["plan"])
np.save(sys.argv[3], apply_plan(plan.inverse(), np.load(sys.argv[2])))
"""


@pytest.fixture
def case(tmp_path):
    """Return a case of one file, of a smooth image."""
    i, j, k = np.indices(SHAPE)
    values = (10 * i + 7 * j + 3 * k).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(values, AFFINE), tmp_path / "smooth.nii")
    return {"image": str(tmp_path / "smooth.nii")}


def chain(case):
    """Return patches that are turned, zoomed and bent."""
    pipe = vp.from_cases([case]).open_volume().lazy_patch(8, samples_per_volume=2)
    return pipe.augment(rotate=(-20, 20), zoom=(0.9, 1.1)).elastic(1.0, spacing=8.0)


def entries(pipe, service=None):
    """Return the first batch's images and what it says of each."""
    with vp.DataLoader2(pipe.batch_patches(2), None, service, seed=3) as loader:
        batch = next(iter(loader))
    return batch["image"], [sample["sources"]["image"] for sample in batch["meta"]]


def test_another_process_inverts_a_batch_by_its_json(case, tmp_path, warm_python):
    """A patch that workers made comes back onto the stored grid, where the file has its values."""
    images, told = entries(chain(case), vp.MultiProcessingReadingService(num_workers=1))
    (tmp_path / "meta.json").write_text(json.dumps(told[1]))
    np.save(tmp_path / "patch.npy", images[1].numpy())
    files = [str(tmp_path / name) for name in ("meta.json", "patch.npy", "back.npy")]

    assert warm_python.run(LATER, *files).returncode == 0

    back = np.load(tmp_path / "back.npy")
    stored = nibabel.load(case["image"]).get_fdata()
    plan = SpatialPlan.from_json(json.loads((tmp_path / "meta.json").read_text())["plan"])
    places = np.stack(np.indices(SHAPE), -1).reshape(-1, 3).astype(float)
    seen = plan.points_to_output(places)
    kept = ((seen >= 0.5) & (seen <= np.array(plan.shape) - 1.5)).all(axis=1).reshape(SHAPE)
    assert back.shape == (1, *SHAPE)
    assert kept.sum() > 50
    # Neighbours differ by up to 10, and both ways interpolate; at a face of the file values end.
    missed = np.abs(back[0] - stored)[kept]
    assert np.median(missed) < 0.1
    assert missed.max() < 3.0


def test_affine_and_stored_shape_and_the_direction_of_the_matrix(case):
    """``stored = matrix @ patch``; the affine is that of the patch."""
    _, told = entries(vp.from_cases([case]).open_volume().crop((2, 3, 4), (5, 6, 7)))

    assert told[0]["stored_shape"] == [1, *SHAPE]
    assert (np.array(told[0]["matrix"]) @ [0, 0, 0, 1]).tolist() == [2, 3, 4, 1]
    assert np.allclose(told[0]["affine"], AFFINE @ told[0]["matrix"])
    assert told[0]["plan"]["source"] == Grid(SHAPE, vp.Volume(case["image"]).affine).to_json()


def test_nothing_is_written_out_before_somebody_asks(case, monkeypatch):
    """Making a batch, sending it and looking at a region writes no plan; a plan is written once."""
    asked = []
    write = SpatialPlan.to_json
    monkeypatch.setattr(SpatialPlan, "to_json", lambda self: asked.append(1) or write(self))

    _, told = entries(chain(case))
    travelled = pickle.loads(pickle.dumps(told))
    assert travelled[0]["region"] == told[0]["region"]
    assert asked == []

    plan = travelled[0]["plan"]
    assert travelled[0]["plan"] is plan
    assert asked == [1]
    assert plan == told[0]["plan"]


def test_it_is_a_dictionary_like_any_other(case):
    """Text, copies, comparisons and loops have the entries that are made on demand."""
    _, told = entries(chain(case))
    names = {"file", "stored_shape", "region", "matrix", "affine", "plan"}

    def fresh():
        return pickle.loads(pickle.dumps(told[0]))

    assert set(json.loads(json.dumps(fresh()))) == names
    assert set(dict(fresh())) == set({**fresh()}) == set(fresh()) == names
    assert set(copy.deepcopy(fresh())) == set(fresh().copy()) == names
    assert fresh() == fresh()
    assert fresh() == json.loads(json.dumps(fresh()))
    assert "plan" in fresh()
    assert fresh().get("affine") == fresh()["affine"]
    assert len(fresh()) == len(names)
    assert "plan" in repr(fresh())
    with pytest.raises(KeyError, match="plam"):
        fresh()["plam"]


def test_a_chain_that_was_flushed_has_the_whole_way(case):
    """One plan from the stored file, through the flush."""
    pipe = vp.from_cases([case]).open_volume().crop((2, 0, 0), (8, 8, 8)).flush()
    _, told = entries(pipe.crop((1, 0, 0), (4, 4, 4)))

    plan = SpatialPlan.from_json(told[0]["plan"])
    assert plan.points_to_source(np.zeros((1, 3))).tolist() == [[3.0, 0.0, 0.0]]


def test_channels_of_several_files_have_an_entry_each(case, tmp_path):
    """The file of each channel, and its own way."""
    half = np.diag([2.0, 2.0, 2.0, 1.0])
    nibabel.save(nibabel.Nifti1Image(np.zeros((9, 9, 9), np.float32), half), tmp_path / "b.nii")
    both = {"a": case["image"], "b": str(tmp_path / "b.nii")}
    pipe = vp.from_cases([both]).open_volume().resample_to("a").stack(("a", "b"), "image")

    _, told = entries(pipe)

    assert told[0]["stored_shape"] == [2, *SHAPE]
    assert [one["file"] for one in told[0]["channels"]] == [both["a"], both["b"]]
    assert told[0]["channels"][1]["plan"]["source"]["shape"] == [9, 9, 9]


def test_what_is_set_stays(case):
    """By key, ``update`` or ``|=``; the plan is written by the matrix that it came with."""
    _, told = entries(chain(case))
    plan = pickle.loads(pickle.dumps(told[0]))["plan"]
    changes = [
        lambda one: one.__setitem__("plan", "mine"),
        lambda one: one.update(plan="mine"),
        lambda one: one.update({"plan": "mine"}),
        lambda one: one.__ior__({"plan": "mine"}),
    ]
    for change in changes:
        one = pickle.loads(pickle.dumps(told[0]))
        change(one)
        assert one["plan"] == dict(one)["plan"] == copy.deepcopy(one)["plan"] == "mine"
        assert one["affine"] == told[0]["affine"]

    one = pickle.loads(pickle.dumps(told[0]))
    one["matrix"] = "mine"
    assert (one["matrix"], one["plan"]) == ("mine", plan)
    one = pickle.loads(pickle.dumps(told[0]))
    assert one.setdefault("plan", "mine") == plan
    del one["plan"]
    assert "plan" not in one
