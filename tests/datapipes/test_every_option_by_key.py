"""Every option of ``open_volume`` is one value for all volumes, or a mapping by key."""

import fsspec
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import SampleError
from voxpipe.reading_services import InProcessReadingService


def constant(path, value=7.0):
    """A reader of the user's own, with an option."""
    return np.full((4, 5, 6), value), None


def windowed(path, window=None):
    """A reader whose option is a mapping itself."""
    return np.full((4, 5, 6), window["low"]), None


def cases(folder, keys=("image", "label")):
    sample = {}
    for n, key in enumerate(keys):
        np.save(folder / f"{key}.npy", np.full((4, 5, 6), n, np.int16))
        sample[key] = str(folder / f"{key}.npy")
    return vp.from_cases([sample] * 2)


def maxima(pipe):
    found = [{key: patch.volume.numpy().max() for key, patch in s.items()} for s in pipe]
    assert len(found) == 2
    assert found[0] == found[1]
    return found[0]


def test_a_reader_by_key(tmp_path):
    """One key is read by the function, the other as its format is."""
    pipe = cases(tmp_path).open_volume(reader={"image": constant})

    assert maxima(pipe) == {"image": 7, "label": 1}


def test_options_of_a_reader_by_key(tmp_path):
    """What the function takes is by key as well, where it names one."""
    pipe = cases(tmp_path).open_volume(reader=constant, value={"image": 3.0, "label": 4.0})
    assert maxima(pipe) == {"image": 3, "label": 4}

    pipe = cases(tmp_path).open_volume(reader=constant, value=5.0)
    assert maxima(pipe) == {"image": 5, "label": 5}


def test_an_option_that_is_a_mapping_itself(tmp_path):
    """Its own names are no keys of the sample; by key, each has one of its own."""
    pipe = cases(tmp_path).open_volume(reader=windowed, window={"low": 2, "high": 9})
    assert maxima(pipe) == {"image": 2, "label": 2}

    by_key = {"image": {"low": 3}, "label": {"low": 4}}
    assert maxima(cases(tmp_path).open_volume(reader=windowed, window=by_key)) == {
        "image": 3,
        "label": 4,
    }


def test_file_access_by_key(tmp_path):
    """A file that is read is no view; that of another key is mapped as before."""
    sample = next(iter(cases(tmp_path).open_volume(io={"image": "pread"})))

    assert [sample[key].volume.access for key in ("image", "label")] == ["range", "view"]
    with pytest.raises(ValueError, match="'mapped'"):
        cases(tmp_path).open_volume(io={"image": "mapped"})


def test_storage_options_by_key(tmp_path):
    """Each key has the credentials of its own store; without, those of nobody."""
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", np.full((4, 5, 6), ord(name)))
        fsspec.filesystem("memory").pipe(
            f"/by-key/{name}.npy", (tmp_path / f"{name}.npy").read_bytes()
        )
    pipe = vp.from_cases([{"image": "memory://by-key/a.npy", "label": "memory://by-key/b.npy"}] * 2)
    own = {"image": {"secret": "s3cret"}, "label": None}

    opened = pipe.open_volume(storage_options=own)
    asked = [next(iter(opened))[key].volume.located_source.options.storage_options for key in own]

    assert asked == [{"secret": "s3cret"}, {}]
    assert "s3cret" not in repr(vars(opened))
    shared = pipe.open_volume(storage_options={"secret": "s3cret", "nested": {"image": 1}})
    sample = next(iter(shared))
    assert sample["label"].volume.located_source.options.storage_options["nested"] == {"image": 1}


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"reader": {"imgae": constant}}, "reader"),
        ({"io": {"imgae": "pread"}}, "io"),
        ({"level": {"image": 0, "imgae": 1}}, "level"),
        ({"reader": constant, "value": {"image": 1.0, "imgae": 1.0}}, "value"),
        ({"storage_options": {"image": {}, "imgae": {}}}, "storage_options"),
    ],
)
def test_a_key_that_no_sample_has_is_refused(tmp_path, options, argument):
    """A typo would read the volume otherwise without a word."""
    with pytest.raises(SampleError, match=f"{argument}= names 'imgae'"):
        next(iter(cases(tmp_path).open_volume(**options)))


def test_a_volume_has_its_options_already(tmp_path):
    """What is named by key and is a Volume is refused, whichever option it is."""
    volume = vp.Volume(np.zeros((4, 5, 6)))
    for options in ({"reader": {"image": constant}}, {"io": {"image": "pread"}}):
        with pytest.raises(SampleError, match="which is a Volume already"):
            next(iter(vp.from_cases([{"image": volume}]).open_volume(**options)))


def test_readers_by_key_reach_workers(tmp_path):
    """The mapping travels with the chain, and the state names it."""
    pipe = cases(tmp_path).open_volume(reader={"image": constant}).lazy_patch((4, 4, 4))
    loader = vp.DataLoader2(pipe.batch_patches(2), [], InProcessReadingService())

    batch = next(iter(loader))
    loader.shutdown()

    assert (float(batch["image"].max()), int(batch["label"].max())) == (7.0, 1)
