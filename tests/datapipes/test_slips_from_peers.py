"""What people write who come from MONAI or TorchIO: the message says what is written here."""

import pickle
import subprocess
import sys

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
        ("augment", "mirror", "; did you mean 'flip'?"),
        ("lazy_patch", "roi_size", "; did you mean 'size'?"),
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


def test_a_channel_that_is_not_there_names_the_line_that_asks_for_it():
    with pytest.raises(vp.errors.VolumeError, match=r"at \.select_channels\(5\)"):
        next(iter(opened().select_channels(5).batch_patches(1)))


def test_the_whole_meta_is_no_record():
    (batch,) = list(opened().rotate((-5, 5)).batch_patches(1))

    with pytest.raises(vp.errors.SampleError, match=r'all that meta says.*\n.*\n.*\["draws"\]'):
        opened().rotate((-5, 5)).replay(batch["meta"][0])


def test_a_number_of_boxes_is_no_fraction():
    with pytest.raises(ValueError, match=r"fraction is a part of all voxels, and no number of"):
        opened().drop_boxes(4, 10)


def test_ops_are_reached_from_the_front_door():
    """Docs write vp.intensity.ValueOp, with nothing else imported."""
    code = "import voxpipe as vp; vp.spatial.Rotate(5), vp.intensity.Noise(1)"

    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_choice_travels_with_its_arguments():
    """Pickling makes a pipe without any."""
    pipe = opened().some_of([Flip(0), Flip(1)], 1, weights=[1, 2], padding="constant")

    assert repr(pickle.loads(pickle.dumps(pipe))) == repr(pipe)
