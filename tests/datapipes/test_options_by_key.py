"""Options of single volumes, inherited credentials, and arguments that do not exist."""

import json

import fsspec
import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import GridMismatch, SampleError
from voxpipe.volumes import close_volumes

AFFINE = np.array([[0.5, 0, 0, 7], [0, 0.5, 0, 8], [0, 0, 2, 9], [0, 0, 0, 1.0]])
VOXELS = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
CASES = [{"image": VOXELS, "label": (VOXELS % 3).astype(np.uint8)}]


@pytest.fixture
def mixed(tmp_path):
    """A NIfTI image with an affine, and its label in NumPy's format, which has none."""
    nibabel.save(nibabel.Nifti1Image(VOXELS, AFFINE), tmp_path / "ct.nii")
    np.save(tmp_path / "seg.npy", (VOXELS % 3).astype(np.uint8))
    yield [{"image": str(tmp_path / "ct.nii"), "label": str(tmp_path / "seg.npy")}]
    close_volumes()


def first(pipe):
    return next(iter(pipe))


def test_a_label_without_affine_is_given_one(mixed):
    """The image keeps its own; without it, the message shows how."""
    with pytest.raises(GridMismatch, match=r"open_volume\(affine=\{'label': matrix\}\)"):
        first(vp.from_cases(mixed).open_volume().lazy_patch(3).batch_patches(1))

    pipe = vp.from_cases(mixed).open_volume(affine={"label": AFFINE}).lazy_patch(3)
    batch = first(pipe.batch_patches(1))

    np.testing.assert_array_equal(batch["label"].numpy(), batch["image"].numpy() % 3)
    loader = vp.DataLoader2(pipe.batch_patches(1), seed=1)
    next(iter(loader))
    json.dumps(loader.state_dict())


def test_one_array_under_two_keys_has_two_affines():
    """Volumes of arrays are held for all epochs, each with its own options."""
    pipe = vp.from_cases([{"a": VOXELS, "b": VOXELS}]).open_volume(affine={"b": AFFINE})

    for _ in range(2):
        sample = first(pipe)
        assert sample["a"].volume.affine[0, 0] == 1
        np.testing.assert_array_equal(sample["b"].volume.affine, AFFINE)


@pytest.mark.parametrize("of_file", [False, True])
@pytest.mark.parametrize("given", [1, {"image": 1}])
def test_an_option_that_nothing_has_is_told_with_its_place(mixed, of_file, given):
    """Of arrays and of files alike: the case, the line, and what to do."""
    pipe = vp.from_cases(mixed if of_file else CASES).open_volume(foo=given)

    with pytest.raises(SampleError) as told:
        first(pipe.lazy_patch(3).batch_patches(1))

    text = str(told.value)
    assert all(part in text for part in ("foo", "in case", "test_options_by_key.py:", "Leave foo="))


def test_two_datasets_of_one_file(tmp_path):
    """Image and label of an HDF5 file are told apart by key."""
    h5py = pytest.importorskip("h5py")
    place = str(tmp_path / "case.h5")
    with h5py.File(place, "w") as file:
        file["ct"], file["seg"] = VOXELS, (VOXELS % 3).astype(np.uint8)

    names = {"image": "ct", "label": "seg"}
    sample = first(vp.from_cases([{"image": place, "label": place}]).open_volume(dataset=names))

    assert sample["image"].volume.numpy().max() == 119
    assert sample["label"].volume.numpy().max() == 2
    close_volumes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"affine": {"lable": AFFINE}}, r"affine= names 'lable'[^$]*Did you mean 'label'"),
        ({"policies": {"imgae": vp.Policy()}}, r"policies= names 'imgae'[^$]*mean 'image'"),
        ({"policies": {"image": 3}}, r"holds 3 for 'image', which is no Policy[^$]*vp\.Policy\("),
        ({"keys": ("img",)}, r"names 'img', but this sample has 'image', 'label'[^$]*mean 'image'"),
    ],
)
def test_what_names_nothing_is_refused(arguments, message):
    """With what there is, and what was meant."""
    with pytest.raises(SampleError, match=message):
        first(vp.from_cases(CASES).open_volume(**arguments))


def test_an_option_of_a_volume_comes_too_late():
    """What is a Volume already has its own, if it was given one."""
    cases = [{"image": vp.Volume(VOXELS, affine=2 * np.eye(4) - np.diag([0, 0, 0, 1]))}]
    for affine in (AFFINE, {"image": AFFINE}):
        with pytest.raises(SampleError, match="which is a Volume already, with an affine of its"):
            first(vp.from_cases(cases).open_volume(affine=affine))


def test_a_volume_takes_a_place():
    """A matrix, that of another key, and the one that it has."""
    cases = [{"image": vp.Volume(VOXELS, affine=AFFINE), "label": vp.Volume(VOXELS, kind="label")}]
    for affine in ({"label": "image"}, {"label": AFFINE}, AFFINE):
        sample = first(vp.from_cases(cases).open_volume(affine=affine))
        np.testing.assert_array_equal(sample["label"].affine, AFFINE)
    listed = vp.from_cases([{"image": [vp.Volume(VOXELS), VOXELS]}]).open_volume(affine=AFFINE)
    np.testing.assert_array_equal(first(listed)["image"].affine, AFFINE)


@pytest.mark.parametrize(
    ("write", "error", "message"),
    [
        (
            lambda p: p.open_volume(labls=("x",)),
            TypeError,
            "'labls'; did you mean 'labels'",
        ),
        (lambda p: p.open_volume(label="seg"), TypeError, "did you mean 'labels'"),
        (
            lambda p: p.open_volume().lazy_patch(3, num_samples=4),
            TypeError,
            "did you mean 'samples_per_volume'",
        ),
        (lambda p: p.open_volume().lazy_patch(3, overlop=1), TypeError, "did you mean 'overlap'"),
        (lambda p: p.open_volume().lazy_patch(3, colour=1), TypeError, "it has size, samples"),
        (lambda p: p.open_volume().flip(0, 0.5), TypeError, "write p= by keyword"),
        (
            lambda p: first(p.open_volume().batch_patches(1).augment(rotate=3)),
            SampleError,
            r"Put augment\(\) before batch_patches\(\)",
        ),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(write, error, message):
    """Where it was written, not in the reader."""
    with pytest.raises(error, match=message):
        write(vp.from_cases(CASES))


@pytest.mark.parametrize(
    ("cases", "message"), [(CASES[0], r"from_cases\(\[\{\.\.\.\}\]\)"), ([], "without any case")]
)
def test_cases_are_a_list_with_something_in_it(cases, message):
    """One mapping, and none."""
    with pytest.raises(SampleError, match=message):
        vp.from_cases(cases)


def test_options_of_a_listing_are_those_of_its_volumes():
    """In its bucket only, and unless others are given."""
    system = fsspec.filesystem("memory")
    system.pipe_file("/inherited/p1/ct.nii", b"")
    listed = vp.list_cases(
        "memory://inherited/*/", storage_options={"skip_instance_cache": True}, image="ct.nii"
    )
    away = "https://elsewhere.example/ct.nii"
    both = listed.shuffle().map(lambda sample: sample.with_data(away=away))

    sample = first(both.open_volume())
    assert _options(sample["image"]) == {"skip_instance_cache": True}
    assert _options(sample["away"]) == {}
    assert _options(first(listed.open_volume(storage_options={}))["image"]) == {}
    other = {"use_listings_cache": False}
    assert _options(first(listed.open_volume(storage_options=other))["image"]) == other


def _options(patch):
    return dict(patch.volume.located_source.options.storage_options)
