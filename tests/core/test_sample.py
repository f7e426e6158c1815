import pickle

import pytest

from voxpipe.core import Sample


def test_a_new_sample_for_every_change():
    """with_data and child leave the sample as it was."""
    one = Sample({"image": 1}, case="a", identity=(4,), seed=7, epoch=2)

    two = one.with_data(image=2).child(5)

    assert (one["image"], one.identity) == (1, (4,))
    assert (two["image"], two.identity, two.case, two.seed, two.epoch) == (2, (4, 5), "a", 7, 2)


def test_provenance_cannot_be_assigned():
    """Assigning an attribute says what to do instead."""
    with pytest.raises(AttributeError, match="with_data"):
        Sample({}).case = "b"


def test_missing_key_lists_what_there_is():
    """A KeyError names the keys of the sample."""
    with pytest.raises(KeyError, match="'image', 'label'"):
        Sample({"image": 1, "label": 2})["mask"]


def test_meta_is_taken():
    """The key of the provenance cannot be a volume's."""
    with pytest.raises(ValueError, match="meta"):
        Sample({"meta": 1})


def test_pickles():
    """A sample arrives with all it had."""
    sample = Sample({"image": 1}, case="a", identity=(4, 1), seed=7, epoch=2)

    there = pickle.loads(pickle.dumps(sample))

    assert there.provenance() == sample.provenance()
    assert dict(there) == {"image": 1}
