"""Eager and fused, and what else a user says about laziness: each of MONAI's controls has one here.

The table is in docs/pipes.md, "Lazy, eager, and between".
"""

from __future__ import annotations

import logging
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from eager_chains import Eager

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import PolicyConflict
from voxpipe.graph import describe, explain_graph, walk
from voxpipe.spatial import Crop, Flip, Rotate, Zoom
from voxpipe.spatial.lazy.patch_report import interpolations


def opened() -> Any:
    """A chain of one case: an image of int16 and a label."""
    image = np.random.default_rng(0).integers(-100, 900, (14, 12, 10)).astype(np.int16)
    label = (image > 400).astype(np.uint8) * 3
    return vp.from_cases([{"image": image, "label": label}]).open_volume()


def first(pipe: Any, key: str = "image") -> Any:
    """The patch of the first sample, by the same random numbers for every chain."""
    torch.manual_seed(5)
    return next(iter(pipe))[key]


def written() -> Any:
    return opened().rotate((-20, 20)).normalize(mean=3.0, std=100.0).zoom((0.8, 1.2)).flip(0)


def test_a_flush_stands_before_each_pipe_that_follows_another() -> None:
    """Not before the first one, and not after the last."""
    pipe = Eager()(written().batch_patches(1))

    assert [describe(p).partition("(")[0] for p in walk(pipe)] == [
        *("from_cases", "open_volume", "rotate", "normalize", "flush", "zoom", "flush", "flip"),
        "batch_patches",
    ]
    assert Eager()(pipe) is pipe
    assert first(written(), "label").volume.name == first(Eager()(written()), "label").volume.name


def test_eager_is_a_flush_by_hand() -> None:
    """Every op on what the one before it gave; the same draws, shape and affine."""
    by_hand = opened().rotate((-20, 20)).normalize(mean=3.0, std=100.0).flush()
    by_hand = by_hand.zoom((0.8, 1.2)).flush().flip(0)

    fused, eager = first(written()), first(Eager()(written()))

    assert (interpolations(fused), interpolations(eager)) == ((1, 0), (2, 1))
    assert eager.draws == fused.draws
    assert eager.shape == fused.shape
    assert np.allclose(eager.affine, fused.affine)
    assert np.array_equal(eager.realize(), first(by_hand).realize())
    assert not np.allclose(eager.realize(), fused.realize(), atol=0.1)


def test_eager_copies_are_the_same_bit_for_bit() -> None:
    """Nothing is blurred where nothing is interpolated."""
    pipe = opened().flip((0, 2)).pad(3).rotate90(1).crop((1, 1, 1), (8, 8, 8)).orientation("LPS")

    eager = first(Eager()(pipe))

    assert eager.dtype == np.int16
    assert np.array_equal(eager.realize(), first(pipe).realize())


SLICES = {
    "pad": lambda p: p.crop((0, 0, 5), (8, 8, 1)).pad(2),
    "turn": lambda p: p.lazy_patch((8, 8, 1)).zoom(1.1).rotate((-15, 15)),
    "sizes": lambda p: p.lazy_patch((8, 1, 8)).flip().spacing(0.5).resize(9).divisible_pad(4),
    "crops": lambda p: p.lazy_patch((8, 8, 1)).flip().pad(3).random_crop(5).crop_or_pad(6),
    "axes": lambda p: p.lazy_patch((1, 8, 8)).flip(0).augment(flip=0.5, shear=0.1, translate=2.0),
    "free": lambda p: p.lazy_patch((8, 8, 1)).elastic(0.3, 4).pad(1).grid_distortion().pad(1),
    "drawn": lambda p: p.lazy_patch((8, 8, 1)).flip().flip(0).anisotropy((2, 3)).pad(1),
    "twice": lambda p: p.crop((0, 0, 5), (8, 8, 1)).blur(1.0).rotate(90).rotate((90, 0, 0)).pad(1),
}


@pytest.mark.parametrize("chain", SLICES.values(), ids=SLICES)
def test_a_slice_of_a_volume_stays_one_behind_a_flush(chain: Any) -> None:
    """It is no 2-D image, whatever the flush left around it: same draws, shape and affine."""
    for key in ("image", "label"):
        fused, eager = first(chain(opened()), key), first(Eager()(chain(opened())), key)

        assert interpolations(eager) != interpolations(fused)
        assert eager.draws == fused.draws
        assert eager.shape == fused.shape == (1, *eager.realize().shape[1:])
        np.testing.assert_allclose(eager.affine, fused.affine, atol=1e-9)


def test_the_slice_has_the_numbers_of_the_report() -> None:
    """Two voxels more on each side of one slice are five; a turn leaves the plane."""
    padded = first(Eager()(SLICES["pad"](opened())))
    turned = first(Eager()(SLICES["turn"](opened())))

    assert padded.shape == (1, 12, 12, 5)
    assert np.abs(turned.affine[2, :2]).max() > 0.01
    again = type(turned.plan).from_json(turned.plan.to_json())
    assert again == turned.plan
    assert again.slices == (2,)


def test_an_image_stays_one_behind_a_flush() -> None:
    """What is stored in one plane is 2-D before and after."""
    image = np.arange(64.0, dtype=np.float32).reshape(8, 8)
    chain = vp.from_cases([{"image": image}]).open_volume().flip(0).pad(2).rotate((-15, 15))

    eager = first(Eager()(chain))

    assert eager.shape == (1, 12, 12, 1)
    assert eager.affine[2].tolist() == [0, 0, 1, 0]
    assert eager.plan.slices == ()


def test_eager_padding_begins_at_the_edges_of_what_there_is() -> None:
    """A soft crop that is stored is a hard one."""
    pipe = opened().crop((4, 4, 4), (4, 4, 4)).pad(2)

    fused, eager = (first(p).realize()[0] for p in (pipe, Eager()(pipe)))

    assert np.array_equal(eager[2:6, 2:6, 2:6], fused[2:6, 2:6, 2:6])
    assert np.array_equal(eager, np.pad(fused[2:6, 2:6, 2:6], 2, mode="edge"))


def test_choices_and_replay_are_eager_too() -> None:
    """A choice is one op; what was drawn before a flush is found again after it."""
    members = [Rotate((-9, 9)), [Zoom((0.9, 1.1)), Flip(1)]]
    pipe = Eager()(opened().rotate((-20, 20)).one_of(members).translate((-2, 2)))

    drawn = first(pipe)
    again = first(Eager()(opened().rotate(0).one_of(members).translate(0)).replay(drawn.draws))

    assert explain_graph(pipe).count("flush()") == 2
    assert set(drawn.draws) == {"rotate", "one_of", "translate"}
    assert np.array_equal(again.realize(), drawn.realize())
    assert np.array_equal(pickle.loads(pickle.dumps(again)).realize(), drawn.realize())


def test_a_loader_runs_it_and_says_so() -> None:
    """The cost is that of what runs; a fused pipe is not taken apart again."""
    with vp.DataLoader2(written().batch_patches(1), Eager(), seed=3) as loader:
        told = loader.explain()
        (batch,) = list(loader)
    with vp.DataLoader2(written().batch_patches(1), seed=3) as loader:
        (fused,) = list(loader)

    assert batch["meta"][0]["draws"] == fused["meta"][0]["draws"]
    assert not np.allclose(batch["image"], fused["image"], atol=0.1)
    assert "4 interpolations, 2 copies" in told
    anew = [line for line in told.splitlines() if line.startswith("not fused: ")]
    assert anew
    for line in anew:
        assert "sampled anew after flush at .flush()" in line
        assert line.partition("   ")[2].startswith("test_eager.py:")
    late = Eager().rewrite(vp.FuseSpatial()(opened().flip(0).rotate(9).flush(["image"]).flip(1)))
    assert not any("rotate" in (change.became or "") for change in late.changes)


def test_fused_pipes_are_refused() -> None:
    """Their members cannot be told apart any more."""
    pipe = vp.FuseSpatial()(opened().rotate(1).zoom(2).normalize().flip(0).rotate(3))

    changes = Eager().rewrite(pipe).changes

    assert [change.reason for change in changes] == [
        "its members are one pipe already; give Eager before FuseSpatial"
    ]


def test_what_is_fused_and_refused_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """MONAI's log_stats: each rule, with the reason where it did not apply."""
    caplog.set_level(logging.DEBUG, "voxpipe.fusion")
    pipe = opened().rotate(5).zoom(2).realize().blur(1).batch_patches(1)

    rewritten = vp.FuseSpatial().rewrite(pipe)

    assert [record.name for record in caplog.records] == ["voxpipe.fusion"] * len(caplog.records)
    assert caplog.messages == [str(change) for change in rewritten.changes]
    assert caplog.messages == [
        "changed  zoom(2) → rotate(5) + zoom(2)   (fuse spatial)",
        "refused  blur(1): blur looks at voxels around a patch, of which realize() leaves none; "
        "put it before realize()   (change values lazily)",
    ]


def test_peeking_is_always_current_and_reads_nothing() -> None:
    """MONAI's peek_pending_shape and peek_pending_affine are ``shape`` and ``affine``."""
    before = IO_COUNTERS.snapshot()

    patch = first(opened().rotate(15).zoom(2, keep_size=False).flush().crop((1, 2, 3), (7, 6, 5)))
    found = patch.shape, patch.affine, patch.dtype, patch.explain()

    assert (IO_COUNTERS.snapshot() - before).reads == 0
    assert found[0] == patch.realize().shape
    assert np.array_equal(found[1], patch.plan.affine)


def test_some_keys_are_flushed() -> None:
    """MONAI's ApplyPendingd(keys): the label is interpolated twice, the image once."""
    sample = next(iter(opened().rotate(5).flush("label").rotate(5)))

    assert (interpolations(sample["image"]), interpolations(sample["label"])) == ((1, 0), (2, 0))
    assert sample["image"].shape == sample["label"].shape


def test_overrides_are_by_key() -> None:
    """MONAI's overrides: mode, padding, fill and type, of every volume on its own."""
    pipe = opened().rotate(
        30,
        mode={"image": "cubic", "label": "linear"},
        padding={"image": "constant"},
        fill={"image": -1000},
        dtype={"image": np.int16, "label": np.float32},
    )

    sample = next(iter(pipe))

    image, label = (sample[key].realize() for key in ("image", "label"))
    assert (image.dtype, label.dtype) == (np.int16, np.float32)
    assert image.min() == -1000
    assert len(np.unique(label)) > 4


def test_pipes_of_one_plan_agree_and_a_flush_ends_it() -> None:
    """MONAI's eager ops each have a mode; here two are an error, or stand on sides of a flush."""
    with pytest.raises(PolicyConflict, match=r"or put flush\(\) between them"):
        opened().rotate(5, mode="nearest").zoom(2, mode="cubic")
    with pytest.raises(PolicyConflict, match="mode='cubic' here"):
        opened().rotate(5, mode="nearest").flush("label").zoom(2, mode="cubic")

    patch = first(opened().rotate(5, mode="nearest").flush().zoom(2, mode="cubic"))
    by_key = opened().rotate(5, mode={"label": "linear"}).flush("label")

    assert patch.policy.mode == "cubic"
    assert patch.volume.patch.policy.mode == "nearest"
    assert first(by_key.zoom(2, mode={"label": "nearest"}), "label").policy.mode == "nearest"


def test_eager_per_op_is_a_flush_after_it() -> None:
    """MONAI's ``Rotate(lazy=False)`` in a lazy chain: one flush, two interpolations."""
    patch = first(opened().zoom(1.1).rotate(5).flush().flip(0).translate(2))

    assert interpolations(patch) == (2, 0)


def test_a_hard_crop_is_eager_where_it_matters() -> None:
    """MONAI's crop then pad: real data from outside, unless the crop is hard."""
    soft, hard = (
        first(opened().crop((4, 4, 4), (4, 4, 4), hard=hard).pad(2, padding="constant"))
        for hard in (False, True)
    )

    assert soft.realize()[0, 0, 3, 3] != 0
    assert hard.realize()[0, 0, 3, 3] == 0
    assert Crop((4, 4, 4), (4, 4, 4), hard=True).hard
