import pickle

import pytest

from voxpipe.core import Sample
from voxpipe.core.errors import LikelyMistake


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


def test_get_of_an_attribute_warns():
    """It returns the default, as of every dict; the warning has the words of the ``KeyError``."""
    sample = Sample({"image": 1}, case="a", epoch=2)

    for name, words in (
        ("case", "sample.case"),
        ("epoch", "sample.epoch"),
        ("seed", "sample.seed"),
    ):
        with pytest.warns(LikelyMistake, match=words) as found:
            assert sample.get(name, "other") == "other"
        assert len(found) == 1
        assert found[0].filename == __file__
        with pytest.raises(KeyError, match=words):
            sample[name]
    assert Sample({"case": 5}).get("case") == 5


@pytest.mark.parametrize("key", ["image", "mask", "meta", "affine", ("a", 1), 3, None])
def test_get_of_other_keys_is_that_of_a_dict(key):
    """With a value, with a default and without one."""
    sample = Sample({"image": 1})

    assert sample.get(key) == dict(sample).get(key)
    assert sample.get(key, 7) == dict(sample).get(key, 7)
