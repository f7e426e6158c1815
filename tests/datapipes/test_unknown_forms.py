"""A chained form that is not there: the message says which may be meant."""

import pickle

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.suggest import RECIPES


def opened():
    return vp.from_cases([{"image": np.zeros((4, 4, 4), np.float32)}]).open_volume()


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("rotat", "rotate"),
        ("gaussian_noise", "noise"),
        ("rand_affine", "affine"),
        ("RandFlipd", "flip"),
        ("normalise", "normalize"),
        ("crop_foreground", "crop"),
        ("mirror", "flip"),
    ],
)
def test_a_name_of_another_library_brings_ours(asked, meant):
    with pytest.raises(AttributeError, match=rf"^open_volume\(\) has no chained form '{asked}'; "):
        getattr(opened(), asked)
    with pytest.raises(AttributeError, match=rf"did you mean .*'{meant}'.*\?$"):
        getattr(opened(), asked)


def test_a_recipe_is_a_function():
    """Each that there is, chained, is told where it is found."""
    assert sorted(RECIPES) == sorted(vp.recipes.__all__)
    for name in RECIPES:
        with pytest.raises(AttributeError, match=rf"it is a function, vp\.recipes\.{name}\("):
            getattr(opened(), name)


def test_nothing_is_proposed_for_what_is_like_nothing():
    with pytest.raises(AttributeError, match=r"has no chained form 'qqqqqq'$"):
        _ = opened().qqqqqq


def test_pipes_are_asked_for_private_names_as_ever():
    """Copying and pickling do so, before a pipe has anything."""
    pipe = opened().rotate(5)

    assert not hasattr(pipe, "_nothing")
    assert repr(pickle.loads(pickle.dumps(pipe))) == "rotate(5)"


def test_who_only_probes_looks_for_no_likely_name(monkeypatch):
    """``getattr(pipe, name, default)`` is asked of every pipe in each epoch."""
    monkeypatch.setattr("difflib.get_close_matches", lambda *_, **__: pytest.fail("looked"))
    pipe = vp.from_cases([{"case": 1}])

    assert getattr(pipe, "rotat", "none") == "none"
