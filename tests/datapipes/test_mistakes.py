"""Slips that everybody makes once: each is refused early, and says what was meant."""

import numpy as np
import pytest
from scenes import full_chain, write_cases

import voxpipe as vp


def chain(**case):
    return vp.from_cases([case]).open_volume()


VOLUME = np.zeros((6, 6, 6), np.int16)


@pytest.mark.parametrize(
    "case",
    [{"image": "m"}, {"image": np.zeros(5)}, {"age": 4}, {"weights": [1, 2]}],
    ids=["a word", "one axis", "a number", "a list"],
)
def test_a_case_without_a_volume_is_named(case):
    """The error shows what the case holds, and the line."""
    with pytest.raises(vp.errors.SampleError, match="there is no volume to open among") as e:
        list(chain(**case))

    assert "in case" in str(e.value)
    assert "test_mistakes.py" in str(e.value)


def test_lists_travel_along():
    """A list beside a volume is data, not a volume."""
    (sample,) = list(chain(image=VOLUME, weights=[1, 2]))

    assert sample["weights"] == [1, 2]


def test_a_volume_that_cannot_be_made_names_its_case():
    """What Volume refuses is told with the case and the line."""
    with pytest.raises(vp.errors.UnknownFormat, match="made from a object") as e:
        list(vp.from_cases([{"case": "c", "image": object()}]).open_volume(keys=["image"]))

    assert "in case c" in str(e.value)
    assert "test_mistakes.py" in str(e.value)


def test_a_misspelt_argument_is_guessed():
    """An unknown argument of a spatial pipe names the pipe and the likeliest argument."""
    with pytest.raises(TypeError, match=r"augment\(\) has no argument 'rotation'.*'rotate'"):
        chain(image=VOLUME).augment(rotation=4)


def test_a_size_of_none_is_a_size_error():
    """None is no size."""
    with pytest.raises(vp.errors.PatchSizeError, match="got None"):
        chain(image=VOLUME).lazy_patch(None)


def test_an_affine_without_volume_is_refused():
    """A zero affine puts all voxels in one place."""
    volume = vp.Volume(VOLUME, affine=np.diag([0.0, 1, 1, 1]))

    with pytest.raises(vp.errors.BadHeader, match="cannot be inverted"):
        list(vp.from_cases([{"image": volume}]).open_volume().lazy_patch(2).realize())


def test_labels_under_a_plural_are_labels():
    """Usual names of labels are known."""
    (sample,) = list(chain(image=VOLUME, labels=VOLUME.astype(np.uint8)))

    assert sample["labels"].kind == "label"


def test_a_service_in_the_place_of_adapters_is_told():
    """The second argument is adapters; classes instead of objects are told too."""
    pipe = chain(image=VOLUME).batch_patches(1)

    with pytest.raises(TypeError, match=r"adapters come second.*reading_service="):
        vp.DataLoader2(pipe, vp.MultiProcessingReadingService(2))
    with pytest.raises(TypeError, match=r"write FuseSpatial\(\) instead"):
        vp.DataLoader2(pipe, [vp.FuseSpatial])


@pytest.mark.parametrize("wrong", [1.5, "7"])
def test_numbers_are_whole(wrong):
    """Seeds and numbers of workers are integers."""
    with pytest.raises(TypeError):
        vp.MultiProcessingReadingService(wrong)
    with pytest.raises(TypeError):
        vp.DataLoader2(chain(image=VOLUME).batch_patches(1), seed=wrong)


def boom(batch):
    raise KeyError("my bug")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_users_error_is_as_it_was_raised(tmp_path, workers):
    """The message is the user's alone; the case is a note."""
    pipe = full_chain(write_cases(tmp_path, count=1)).map(boom)
    service = vp.MultiProcessingReadingService(workers)
    with vp.DataLoader2(pipe, None, service) as loader, pytest.raises(KeyError) as e:
        list(loader)

    assert e.value.args == ("my bug",)
    assert any("case0" in note for note in getattr(e.value, "__notes__", ["case0"]))


def test_pipes_print_as_they_were_written():
    """A pipe's repr is its call."""
    assert repr(chain(image=VOLUME).lazy_patch(4)) == "lazy_patch(4)"
