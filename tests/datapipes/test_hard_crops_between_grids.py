"""A hard crop of a volume from another grid: what is padded lies on the grid of the reference."""

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.datapipes.cost import explain
from voxpipe.spatial import CenterCrop

CT = np.array([[1, 0.1, 0, -9], [-0.1, 1, 0, 4], [0, 0, 1.5, 2], [0, 0, 0, 1.0]])
PET = np.array([[0, 2, 0, -20], [2.2, 0, 0.1, -15], [0, 0.2, 3, -10], [0, 0, 0, 1.0]])


def opened(**options: Any) -> Any:
    """A CT, and a PET and labels around it, on a coarser and turned grid."""
    rng = np.random.default_rng(0)
    case = {
        "ct": vp.Volume(rng.integers(0, 99, (24, 20, 16)).astype(np.int16), affine=CT),
        "pet": vp.Volume(rng.integers(1, 999, (30, 26, 24)).astype(np.int16), affine=PET),
        "seg": vp.Volume(
            rng.integers(1, 5, (30, 26, 24)).astype(np.uint8), affine=PET, kind="label"
        ),
    }
    return vp.from_cases([case]).open_volume(**options).resample_to("ct")


def cut(pipe: Any, turned: bool = False) -> Any:
    pipe = pipe.rotate((0, 0, 12)) if turned else pipe
    return pipe.center_crop(8, hard=True)


LATER = {
    "pad": lambda p: p.pad(3),
    "turn": lambda p: p.rotate((5, 0, 30)),
    "flip and pad": lambda p: p.flip(0).pad((1, 2, 3)),
}


def realized(pipe: Any) -> Any:
    return next(iter(pipe.realize()))


@pytest.mark.parametrize("padding", ["border", "reflection", "constant"])
@pytest.mark.parametrize("later", LATER)
def test_it_is_padded_as_if_it_lay_on_the_grid(padding: str, later: str) -> None:
    """The same as of the volume that is brought there, and cut, first."""
    policy = {"pet": vp.Policy("linear", padding)}
    pipe = cut(opened(policies=policy))

    found = realized(LATER[later](pipe))["pet"]
    expected = realized(LATER[later](pipe.flush()))["pet"]

    if padding == "constant" and later == "turn":
        inside = (np.asarray(found) != 0) & (np.asarray(expected) != 0)
        assert inside.mean() > 0.5  # one interpolation there, and two here: no two values alike
        return
    assert (np.asarray(found) != 0).mean() > (0.1 if padding == "constant" else 0.999)
    assert np.abs(np.asarray(found) - np.asarray(expected)).max() < 1e-3


def test_a_pad_repeats_the_last_voxels() -> None:
    """Those of the reference's grid, as of the reference itself."""
    pipe = cut(opened())
    plain, padded = realized(pipe), realized(pipe.pad(3))

    for key in ("ct", "pet"):
        expected = np.pad(np.asarray(plain[key])[0], 3, mode="edge")
        assert np.array_equal(np.asarray(padded[key])[0], expected)
    assert np.array_equal(np.asarray(padded["seg"])[0], np.pad(np.asarray(plain["seg"])[0], 3))


def test_after_a_turn_a_hard_crop_leaves_fill_on_any_grid() -> None:
    """Of the reference, too, whatever its padding."""
    pipe = cut(opened(), turned=True)
    plain, padded = realized(pipe), realized(pipe.pad(3))

    for key in ("ct", "pet", "seg"):
        expected = np.pad(np.asarray(plain[key])[0], 3)
        assert np.abs(np.asarray(padded[key])[0] - expected).max() < 1e-3


@pytest.mark.parametrize("labels", ["constant", "border"])
def test_fusing_changes_nothing(labels: str) -> None:
    """Also where a later pipe says how labels are padded."""
    pipe = cut(opened()).rotate((0, 0, 20), name="a").pad(2, padding={"seg": labels}).flip(1)

    one, other = (realized(p) for p in (pipe, vp.FuseSpatial()(pipe)))

    for key in ("ct", "pet", "seg"):
        assert np.array_equal(np.asarray(one[key]), np.asarray(other[key]))


@pytest.mark.parametrize(
    ("pipe", "counts"),
    [
        (lambda: cut(opened()), (2, 1)),
        (lambda: cut(opened()).pad(2), (2, 2)),
        (lambda: opened().center_crop(8).pad(2).rotate(5), (3, 0)),
        (lambda: cut(opened()).rotate(5), (4, 0)),
    ],
    ids=["cut", "pad", "soft", "turn"],
)
def test_what_it_costs(pipe: Any, counts: Any) -> None:
    """Interpolations and copies of ct, pet and seg; nothing more for soft crops and constants."""
    chain = pipe().realize()
    before = IO_COUNTERS.snapshot()
    next(iter(chain))
    done = IO_COUNTERS.snapshot() - before

    assert (done.interpolations, done.copies) == counts


def test_explain_names_the_crop() -> None:
    """And only for the volume that is sampled anew."""
    text = explain(cut(opened()).pad(2))

    assert "not fused: pet is sampled anew after center_crop at .center_crop(8, hard=True)" in text
    assert "(a hard crop of a volume that was brought to another grid)" in text
    assert text.count("not fused") == 1


def test_a_hard_crop_in_a_choice_counts() -> None:
    """Whether it acts is drawn; the volume is sampled anew either way."""
    pipe = opened().one_of([CenterCrop(8, hard=True)]).pad(3)
    plain = realized(opened().one_of([CenterCrop(8, hard=True)]))

    padded = realized(pipe)

    expected = np.pad(np.asarray(plain["pet"])[0], 3, mode="edge")
    assert np.array_equal(np.asarray(padded["pet"])[0], expected)
