"""TorchIO's transforms on samples, and samples as subjects."""

import numpy as np
import pytest
import torch
from scenes import same

import voxpipe as vp
from voxpipe.core.errors import SampleError

tio = pytest.importorskip("torchio")

SHAPE = (12, 11, 9)
AFFINE = np.array([[0, -1.1, 0, 5], [1.0, 0, 0, -3], [0, 0, 2.0, 1], [0, 0, 0, 1]])


def volumes(count=1, **more):
    rng = np.random.default_rng(0)
    cases = []
    for _ in range(count):
        image = rng.normal(100, 40, SHAPE).astype(np.float32)
        both = {"image": image, "label": (image > 100).astype(np.uint8)}
        cases.append(
            {
                "image": vp.Volume(both["image"], affine=AFFINE),
                "label": vp.Volume(both["label"], affine=AFFINE, kind="label"),
                **more,
            }
        )
    return vp.from_cases(cases).open_volume()


def subject_of_case():
    """Return the same case as TorchIO has it."""
    (sample,) = list(volumes().realize())
    return tio.Subject(
        image=tio.ScalarImage(tensor=sample["image"], affine=AFFINE),
        label=tio.LabelMap(tensor=sample["label"], affine=AFFINE),
    )


FIXED = {
    "Flip": tio.Flip((0, 2)),
    "Affine": tio.Affine((1.1, 0.9, 1.2), (10, 5, -8), (1, 2, 0)),
    "Resample": tio.Resample((1.3, 1.2, 1.7)),
    "CropOrPad": tio.CropOrPad((6, 14, 5)),
    "Compose": tio.Compose([tio.ToCanonical(), tio.ZNormalization()]),
    "OneHot": tio.OneHot(),
}


@pytest.mark.parametrize("name", FIXED)
def test_it_gives_what_torchio_gives(name):
    """Voxels bit for bit, types, and the affine in the provenance."""
    expected = FIXED[name](subject_of_case())

    (sample,) = list(volumes().map_torchio(FIXED[name]))

    for key in ("image", "label"):
        assert torch.equal(sample[key], expected[key].data)
        affine = sample.provenance()["sources"][key]["affine"]
        assert np.allclose(affine, expected[key].affine, atol=1e-4)


RANDOM = tio.Compose(
    [
        tio.RandomAffine(),
        tio.RandomElasticDeformation(5, 2.0, locked_borders=0),
        tio.OneOf([tio.RandomMotion(), tio.RandomSpike(), tio.RandomGamma()]),
        tio.RandomFlip((0, 1, 2)),
    ]
)


def batches(service=None, transform=RANDOM):
    chain = volumes(3).lazy_patch(8, samples_per_volume=2).shuffle().map_torchio(transform)
    with vp.DataLoader2(chain.batch_patches(2), None, service, seed=3) as loader:
        return [*loader, *loader]


@pytest.mark.slow
def test_workers_change_nothing():
    """What TorchIO draws comes from seed, epoch and sample, wherever it runs."""
    here = batches()

    assert same(here, batches(vp.MultiProcessingReadingService(2, "fork")))
    assert same(here, batches(vp.ThreadReadingService(2)))
    assert not same(here[:3], here[3:])


def test_torch_s_generator_is_left_alone():
    """Whoever trains goes on with the numbers that come without this pipe."""
    torch.manual_seed(1)
    pipe = iter(volumes(3).map_torchio(RANDOM))  # the seed of the pass is drawn here or there
    next(pipe)
    state = torch.get_rng_state()

    next(pipe)

    assert torch.equal(torch.get_rng_state(), state)


def test_other_entries_go_through():
    """They are attributes of the subject."""
    (sample,) = list(volumes(age=50).map_torchio(tio.Flip(0)))

    assert sample["age"] == 50


def test_what_is_none_of_theirs_is_refused():
    """At the line where it is written."""
    with pytest.raises(SampleError, match=r"takes a transform of TorchIO, got int") as told:
        volumes().map_torchio(3)
    assert "test_torchio_transforms.py" in str(told.value)

    with pytest.raises(SampleError, match=r"before batch_patches\(\)"):
        list(volumes().batch_patches(1).map_torchio(tio.Flip(0)))


class TestSubjects:
    def test_of_a_sample(self):
        """Kinds are those of the volumes."""
        (subject,) = list(volumes().realize().to_subject())
        expected = subject_of_case()

        for key in ("image", "label"):
            assert type(subject[key]) is type(expected[key])
            assert torch.equal(subject[key].data, expected[key].data)
            assert np.allclose(subject[key].affine, AFFINE)

    def test_of_a_batch(self):
        """One each, with its provenance; labels are those that open_volume() names."""
        chain = volumes(3).center_crop(6).batch_patches(2)
        plain = list(chain)

        made = list(chain.to_subject())

        assert [len(subjects) for subjects in made] == [2, 1]
        for batch, subjects in zip(plain, made, strict=True):
            for number, subject in enumerate(subjects):
                assert isinstance(subject["label"], tio.LabelMap)
                assert isinstance(subject["image"], tio.ScalarImage)
                assert torch.equal(subject["image"].data, batch["image"][number])
                source = subject["meta"]["sources"]["image"]
                assert np.allclose(subject["image"].affine, source["affine"])
                assert subject["meta"]["case"] == batch["meta"][number]["case"]

    def test_labels_by_name(self):
        """Where they are others than those that were opened as labels."""
        chain = volumes().batch_patches(1)

        ((subject,),) = list(chain.to_subject(labels="image"))

        kinds = [type(subject[key]).__name__ for key in ("image", "label")]
        assert kinds == ["LabelMap", "ScalarImage"]

    def test_behind_workers(self):
        """A loader makes them in its own process."""
        chain = volumes(3).lazy_patch(6).batch_patches(1)
        service = vp.MultiProcessingReadingService(1, "fork")
        with vp.DataLoader2(chain.to_subject(), None, service, seed=1) as loader:
            theirs = [subject["image"].data.clone() for (subject,) in loader]
        with vp.DataLoader2(chain, seed=1) as loader:
            assert all(map(torch.equal, theirs, [batch["image"][0] for batch in loader]))

    def test_what_has_no_volume_is_refused(self):
        """A batch of something else, and a sample that is not read."""
        with pytest.raises(SampleError, match="or a batch with its 'meta'"):
            list(vp.from_cases([{"a": 1}]).map(dict).to_subject())
        with pytest.raises(SampleError, match="a Subject takes volumes"):
            list(vp.from_cases([{"a": 1}]).to_subject())
