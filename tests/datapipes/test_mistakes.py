"""Slips that everybody makes once: each is refused early, and says what was meant."""

import warnings

import numpy as np
import pytest
from scenes import full_chain, write_cases

import voxpipe as vp
from voxpipe.core.errors import IteratorInvalidated, PatchSizeError, ProvenanceLost, SampleError
from voxpipe.spatial import PatchLargerThanVolume


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
    with pytest.raises(vp.errors.BadHeader, match="has no inverse"):
        vp.Volume(VOLUME, affine=np.diag([0.0, 1, 1, 1]))


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
    service = vp.MultiProcessingReadingService(workers, "fork")
    with vp.DataLoader2(pipe, None, service) as loader, pytest.raises(KeyError) as e:
        list(loader)

    assert e.value.args == ("my bug",)
    assert any("case0" in note for note in getattr(e.value, "__notes__", ["case0"]))


def test_pipes_print_as_they_were_written():
    """A pipe's repr is its call."""
    assert repr(chain(image=VOLUME).lazy_patch(4)) == "lazy_patch(4)"


@pytest.mark.parametrize(
    ("size", "told"),
    [
        ((64.0, 64, 64), r"whole voxels, got 64.0 in \(64.0, 64, 64\)(?s:.*)decimal point"),
        ((1, 64, 64, 64), r"got 4 in \(1, 64, 64, 64\)(?s:.*)Leave out the channels"),
        ((64, 64, 0), r"at least 1 on each axis, got 0 on axis 2(?s:.*)write \(64, 64, 1\)"),
        ((64, -1, 64), r"got -1 on axis 1 of \(64, -1, 64\)"),
        (0, r"at least 1 on each axis, got 0\n"),
        ("64", r"got '64'(?s:.*)size=64, without the quotes"),
        (True, r"whole voxels, got True"),
    ],
)
def test_each_wrong_size_has_its_own_advice(size, told):
    """The message says which entry is wrong, and the advice is about that."""
    with pytest.raises(PatchSizeError, match=told) as e:
        chain(image=VOLUME).lazy_patch(size)

    assert "test_mistakes.py" in str(e.value)
    assert ("2-D" in str(e.value)) == (size == (64, 64, 0))


def test_overlap_is_no_fraction():
    """Who gives a part of the patch is told to give voxels."""
    with pytest.raises(PatchSizeError, match=r"overlap is counted in whole(?s:.*)half of 96"):
        chain(image=VOLUME).lazy_patch(4, sampling="grid", overlap=0.5)


@pytest.mark.parametrize("size", ["4", 4.0, 0, None, True])
def test_a_batch_size_is_a_whole_number(size):
    """Quotes and decimal points are refused where they are written."""
    with pytest.raises(PatchSizeError, match="batch_size is a whole number of at least 1") as e:
        chain(image=VOLUME).batch_patches(size)

    assert "test_mistakes.py" in str(e.value)
    assert ("without the quotes" in str(e.value)) == (size == "4")


@pytest.mark.parametrize("argument", [{"padding": "border"}, {"mode": "linear"}, {"fill": 1}])
@pytest.mark.parametrize("fuse", [False, True])
def test_a_misspelt_key_of_a_spatial_pipe_is_guessed(argument, fuse):
    """The error stands at the line of the pipe that said it, fused or not."""
    ((name, value),) = argument.items()
    pipe = chain(case="c", image=VOLUME, label=VOLUME, age=4)
    pipe = pipe.rotate(10, **{name: {"lable": value}})
    loader = vp.DataLoader2(pipe.flip().batch_patches(1), fuse=fuse)

    with loader, pytest.raises(SampleError, match=rf"{name}= names 'lable'") as e:
        list(loader)

    assert "are 'image', 'label'\n  in case c\n  at .rotate(" in str(e.value)
    assert "Did you mean 'label'?" in str(e.value)


def plain(sample):
    return {"image": sample["image"]}


def kept(sample):
    return sample.with_data(more=1)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_map_that_loses_the_provenance_is_told_once(tmp_path, workers):
    """A dict of one's own is stacked, but one warning says where meta went."""
    pipe = vp.from_cases(write_cases(tmp_path)).open_volume().realize().map(plain)
    service = vp.MultiProcessingReadingService(workers, "fork")
    loader = vp.DataLoader2(pipe.batch_patches(1), None, service)
    told = pytest.warns(ProvenanceLost, match=r"batch_patches(?s:.*)with_data")
    with loader, told as warned:
        batches = list(loader)

    # Python 3.12 and later warn of a fork beside threads too.
    assert len({str(w.message) for w in warned if w.category is ProvenanceLost}) == 1
    assert [list(batch) for batch in batches] == [["image"]] * 3


def test_a_map_that_keeps_the_sample_is_not_told(tmp_path):
    """Nor is a chain that never had samples."""
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = vp.from_cases(write_cases(tmp_path)).open_volume().realize().map(kept)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_meta = list(pipe.batch_patches(1))
        without = list(IterableWrapper([{"a": 1}]).batch_patches(1))

    assert with_meta[0]["more"].tolist() == [1]
    assert "meta" in with_meta[0]
    assert list(without[0]) == ["a"]


@pytest.mark.parametrize("sampling", ["uniform", "grid"])
def test_a_patch_larger_than_the_volume_names_its_line(sampling):
    """The warning says which lazy_patch is meant."""
    pipe = chain(image=VOLUME).lazy_patch(8, sampling=sampling)

    with pytest.warns(PatchLargerThanVolume, match=r"at \.lazy_patch\(8.*test_mistakes\.py"):
        list(pipe.realize())


def paired(how):
    """Return two pipes on one, joined: by voxpipe's pipes or torch's."""
    base = vp.from_cases([{"image": VOLUME + n} for n in range(3)]).open_volume()
    if how == "on torch's":
        base = base.map(unchanged)
    if how == "by torch's":
        return base.map(unchanged).zip(base.filter(bool))
    one = base.lazy_patch(2)
    other = base.lazy_patch(3)
    return one.zip(other)


def unchanged(sample):
    return sample


@pytest.mark.parametrize("how", ["on ours", "on torch's", "by torch's"])
@pytest.mark.parametrize("loaded", ["plainly", "in a loader", "in workers"])
def test_two_pipes_on_one_are_told(how, loaded):
    """Both are named with their lines, and what branches a pipe."""
    pipe = paired(how)
    workers = int(loaded == "in workers")
    service = vp.MultiProcessingReadingService(workers, "fork")
    loader = pipe if loaded == "plainly" else vp.DataLoader2(pipe, None, service)

    with pytest.raises(IteratorInvalidated) as caught:
        list(loader)

    told = str(caught.value)
    assert "gives each item to one, and is gone through at once by" in told
    assert "pipe.fork(2)" in told
    if how != "by torch's":
        assert ".lazy_patch(2)   test_mistakes.py:" in told
        assert ".lazy_patch(3)   test_mistakes.py:" in told
    if loaded != "plainly":
        loader.shutdown()


def test_one_pipe_after_another_may_read_the_same():
    """Concatenated, or branched, nothing is wrong."""
    base = vp.from_cases([{"image": VOLUME}] * 3).open_volume()
    one, other = base.fork(2)

    assert len(list(base.lazy_patch(2).concat(base.lazy_patch(3)))) == 6
    assert len(list(one.lazy_patch(2).zip(other.lazy_patch(3)))) == 3


def test_a_second_pass_that_begins_in_the_first_is_told():
    """There are no two pipes then."""
    pipe = chain(image=VOLUME).lazy_patch(2, samples_per_volume=3)
    first = iter(pipe)
    next(first)
    next(iter(pipe))

    with pytest.raises(IteratorInvalidated, match=r"lazy_patch.*was iterated anew(.|\n)*fork\(2\)"):
        next(first)


def test_names_where_a_list_of_them_is_meant():
    """A word is no list of keys; a list of one is, and no list at all names nothing."""
    scan = np.zeros((4, 5, 6))
    opened = vp.from_cases([{"image": scan}]).open_volume()

    with pytest.raises(ValueError, match=r"did you mean \['image'\]\?"):
        opened.stack("image", "x")
    with pytest.raises(ValueError, match=r"did you mean \['x'\]\?"):
        opened.unstack("image", "x")
    assert list(next(iter(opened.stack(["image"], "x")))) == ["x"]
    with pytest.raises(ValueError, match=r"open_volume\(keys=\) takes one key or more, got \[\]"):
        vp.from_cases([{"image": scan}]).open_volume(keys=[])


@pytest.mark.parametrize("keys", [None, ["image"]])
def test_a_list_in_a_list_of_files_is_told(keys):
    """Where the chain opens it, with the key and the case."""
    pipe = vp.from_cases([{"image": [["a.nii", "b.nii"]], "case": "p1"}]).open_volume(keys=keys)

    with pytest.raises(SampleError, match="'image' is a list in a list") as caught:
        next(iter(pipe))
    assert "in case p1" in str(caught.value)
    assert "test_mistakes.py" in str(caught.value)
