"""Natural mistakes of names in functions of users are told with the right spelling."""

import pickle

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import Sample

SAMPLES = ("cases", "volumes", "patches")
ON_SAMPLES = {
    "case": "sample.case",
    "id": "sample.case",
    "seed": "sample.seed",
    "path": r"sample\['image'\].volume.name",
    "affine": r"sample\['image'\].affine",
    "shape": r"sample\['image'\].shape",
    "meta": "sample.provenance()",
}

MISTAKES = {
    "cases s[image].shape": (lambda s: s["image"].shape, ".open_volume()"),
    "cases s[image].mean()": (lambda s: s["image"].mean(), ".open_volume()"),
    "volumes s[image].path": (lambda s: s["image"].path, "sample[KEY].volume.name"),
    "patches s[image].case": (lambda s: s["image"].case, "sample.case"),
    "patches s[image].unique()": (lambda s: s["image"].unique(), ".realize()"),
    "batches b[case]": (lambda b: b["case"], 'batch["meta"][0]["case"]'),
    "batches b.case": (lambda b: b.case, 'batch["meta"][0]["case"]'),
    "batches b[path]": (lambda b: b["path"], 'batch["meta"][0]["sources"][KEY]["file"]'),
    "batches b[affine]": (lambda b: b["affine"], 'batch["meta"][0]["sources"][KEY]["affine"]'),
    "batches b[image].affine": (
        lambda b: b["image"].affine,
        'batch["meta"][0]["sources"][KEY]["affine"]',
    ),
    "batches b.image": (lambda b: b.image, "batch['image']"),
}


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    """Return a chain for each kind of item."""
    folder = tmp_path_factory.mktemp("cases")
    for case in ("anna", "bert"):
        (folder / case).mkdir()
        scan = np.zeros((6, 5, 4), np.float32)
        nibabel.save(nibabel.Nifti1Image(scan, np.eye(4)), folder / case / "ct.nii")
    cases = vp.list_cases(f"{folder}/*/", image="ct.nii")
    volumes = cases.open_volume()
    patches = volumes.lazy_patch(4)
    batches = patches.batch_patches(2)
    return {"cases": cases, "volumes": volumes, "patches": patches, "batches": batches}


def error_of(pipe):
    """Return the text of the error and its notes, as a traceback shows them."""
    with pytest.raises((KeyError, AttributeError)) as caught:
        list(vp.DataLoader2(pipe))
    return "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.parametrize("name", ON_SAMPLES)
def test_samples_name_the_right_spelling(chains, kind, name):
    """By key and by attribute, in map and in filter."""
    right = ON_SAMPLES[name].replace("\\", "").replace("()", "")
    for form in ("map", "filter"):
        assert right in error_of(getattr(chains[kind], form)(lambda s: s[name])).replace("\\", "")
    if name not in ("case", "seed"):
        assert right in error_of(chains[kind].map(lambda s: getattr(s, name)))


@pytest.mark.parametrize("kind", SAMPLES)
def test_right_spellings_work(chains, kind):
    """Those that the errors name."""
    kept = chains[kind].filter(lambda s: s.case == "anna")
    names = kept.map(lambda s: s["image"] if kind == "cases" else s["image"].volume.name)

    assert [name.replace("\\", "/").split("/")[-2:] for name in vp.DataLoader2(names)] == [
        ["anna", "ct.nii"]
    ]


def test_keys_are_no_attributes():
    """`sample.image` names the key."""
    with pytest.raises(AttributeError, match=r"write sample\['image'\]"):
        _ = Sample({"image": 1}).image


def test_other_names_get_no_hint():
    """Neither a name of the user, nor one of Python."""
    for name in ("tumour", "__array__"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
            getattr(Sample({"image": 1}), name)
    with pytest.raises(AttributeError) as caught:
        _ = Sample({"image": 1}).path
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_values_and_batches_name_the_right_spelling(chains, mistake):
    """The error of Python stays, and a note has the cure."""
    function, right = MISTAKES[mistake]
    text = error_of(chains[mistake.split()[0]].map(function))

    assert right in text
    assert "\nat .map(" in text


def test_spellings_of_batches_work(chains):
    """Those that the notes name."""
    [batch] = vp.DataLoader2(chains["batches"])

    assert [one["case"] for one in batch["meta"]] == ["anna", "bert"]
    assert batch["meta"][0]["sources"]["image"]["file"].endswith("ct.nii")
    assert np.shape(batch["meta"][0]["sources"]["image"]["affine"]) == (4, 4)
