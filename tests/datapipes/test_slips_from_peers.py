"""What people write who come from MONAI or TorchIO: the message says what is written here."""

import pickle

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.spatial import Flip

VOLUME = np.zeros((6, 6, 6), np.float32)


def opened(**case):
    return vp.from_cases([{"image": VOLUME, "case": "c", **case}]).open_volume()


@pytest.mark.parametrize("field", ["mode", "padding"])
def test_a_tuple_in_the_order_of_the_keys_is_a_mapping_here(field):
    with pytest.raises(ValueError, match=rf"{field} is one value, .* {field}=\{{'image': "):
        opened().rotate(5, **{field: ("linear", "nearest")})


@pytest.mark.parametrize(
    ("name", "argument", "told"),
    [
        ("resize", "spatial_size", "; did you mean 'size'?"),
        ("pad", "spatial_size", "; did you mean 'size'?"),
        ("spacing", "pixdim", "; did you mean 'spacing'?"),
        ("flip", "spatial_axis", "; did you mean 'axes'?"),
        ("foreground_crop", "source_key", "; did you mean 'key'?"),
        ("foreground_crop", "k_divisible", "; did you mean 'divisible'?"),
        ("divisible_pad", "k_divisible", "; did you mean 'k'?"),
        ("normalize", "subtrahend", "; did you mean 'mean'?"),
        ("some_of", "num_transforms", "; did you mean 'count'?"),
        ("one_of", "transforms", "; did you mean 'ops'?"),
        ("random_apply", "prob", "; did you mean 'p'?"),
        ("random_order", "padding_mode", "; did you mean 'padding'?"),
        ("rotate", "keys", ": all volumes of a sample move alike, "),
        ("gamma", "log_gamma", ": give gamma=math.exp(log_gamma)"),
        ("noise", "seed", ": the seed is the loader's, "),
        ("elastic", "num_control_points", "; it has amount, "),
    ],
)
def test_an_argument_of_theirs_is_told_with_ours(name, argument, told):
    with pytest.raises(TypeError) as e:
        getattr(opened(), name)(**{argument: 1})

    assert str(e.value).startswith(f"{name}() has no argument {argument!r}{told}")


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("augment", (5, 1.1), "write rotate= and zoom= by keyword"),
        ("flip", (0, 0.5), "write p= by keyword"),
        ("one_of", ([Flip(0)], [1]), "write weights= and p= by keyword"),
        ("random_apply", ([Flip(0)], 0.3), "write p= by keyword"),
        ("some_of", ([Flip(0)],), "missing a required argument: 'count'"),
    ],
)
def test_an_argument_by_its_place_is_told_by_its_name(name, arguments, told):
    with pytest.raises(TypeError, match=rf"^{name}\(\): .*{told}$"):
        getattr(opened(), name)(*arguments)


def test_a_choice_travels_with_its_arguments():
    """Pickling makes a pipe without any."""
    pipe = opened().some_of([Flip(0), Flip(1)], 1, weights=[1, 2], padding="constant")

    assert repr(pickle.loads(pickle.dumps(pipe))) == repr(pipe)
