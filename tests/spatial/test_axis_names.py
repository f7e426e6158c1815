"""Axes by name: those of the array, and anatomical ones by the affine of the volume."""

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.intensity import Anisotropy
from voxpipe.spatial import Flip

ARRAY = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
# i to the front, j to the left, k down.
AFFINE = np.array([[0, -2, 0, 7], [3, 0, 0, 5], [0, 0, -4, -9], [0, 0, 0, 1.0]])
WORDS = ["Left", "right", "lr", "Anterior", "PA", "Inferior", "superior", "S"]


def of(chain):
    return next(iter(chain))["image"].realize()[0]


def opened(affine=AFFINE):
    return vp.from_cases([{"image": vp.Volume(ARRAY, affine=affine)}]).open_volume()


@pytest.mark.parametrize("word", WORDS)
def test_flips_are_torchios(word):
    """The axis of a word follows from the affine."""
    tio = pytest.importorskip("torchio")
    image = tio.ScalarImage(tensor=ARRAY[None], affine=AFFINE)

    expected = tio.Flip((word,))(image).data.numpy()[0]

    assert (of(opened().flip(word)) == expected).all()
    assert not (expected == ARRAY).all()


@pytest.mark.parametrize(("name", "axis"), [("i", 0), ("j", 1), ("K", 2)])
def test_axes_of_the_array(name, axis):
    """They do not depend on the affine."""
    assert (of(opened().flip(name)) == np.flip(ARRAY, axis)).all()


def test_permutations_and_quarter_turns():
    """All ops that take axes take names."""
    assert (of(opened().transpose(("k", "j", "i"))) == ARRAY.transpose(2, 1, 0)).all()
    found = of(opened().transpose(("Left", "Superior", "Anterior")))
    assert (found == ARRAY.transpose(1, 2, 0)).all()
    assert (of(opened().rotate90(1, ("lr", "ap"))) == np.rot90(ARRAY, 1, (1, 0))).all()


def test_names_follow_the_present_grid():
    """After a turn, a word names another axis of the array."""
    turned = opened().orientation("RAS")

    assert (of(turned.flip("Left")) == np.flip(of(turned), 0)).all()
    assert next(iter(turned.flip("Left")))["image"].draws["flip"] == {"axes": [0]}


def test_of_each_volume_its_own():
    """Two scans in other orientations flip along other axes of their arrays."""
    cases = [{"image": vp.Volume(ARRAY, affine=a)} for a in (AFFINE, np.eye(4))]
    pipe = vp.from_cases(cases).open_volume().flip("Left", p=1)

    axes = [sample["image"].draws["flip"]["axes"] for sample in pipe]

    assert axes == [[1], [0]]


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ("Lefft", "did you mean 'left'"),
        ("superor", "did you mean 'superior'"),
        ("I", "'i' or 'inferior'"),
        (("i", "left"), "all numbers, or all anatomical names"),
        (("left", "right"), "different"),
        ((0, "i"), "different"),
        (3, "different"),
        ((), "different"),
    ],
)
def test_others_are_refused(axes, words):
    """At construction, with the nearest name."""
    with pytest.raises(ValueError, match=words):
        opened().flip(axes)
    with pytest.raises(ValueError, match=words):
        Flip(axes)


def test_names_stand_in_the_text():
    """As the axis that they mean, before a volume is known."""
    assert Flip(("Left", "s"), p=0.5).describe() == "flip axis LR (p=0.5), axis IS (p=0.5)"


def test_letters_of_axes_in_value_ops():
    """Ops that know no affine take "i", "j" and "k"; anatomical names are refused."""
    assert Anisotropy(2.0, axes=("i", "k")).axes == Anisotropy(2.0, axes=(0, 2)).axes
    assert Anisotropy(2.0, axes="j").axes in (1, (1,))
    with pytest.raises(ValueError, match="'i', 'j', 'k'"):
        Anisotropy(2.0, axes="left")
