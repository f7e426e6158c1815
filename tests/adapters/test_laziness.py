"""Which pipes share an interpolation: ``lazy=`` of pipes, blocks and adapters, and conflicts."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from eager_chains import Eager
from monai.data import MetaTensor
from monai.transforms import (
    Compose,
    Orientationd,
    RandGaussianNoised,
    RandRotate90d,
    RandRotated,
    RandSpatialCropd,
    RandZoomd,
    Spacingd,
)

import voxpipe as vp
from voxpipe.core.errors import ExtraInterpolation, PolicyConflict, StateMismatch
from voxpipe.graph import describe, explain_graph, walk
from voxpipe.spatial.lazy.patch_report import interpolations

KEYS = ["img", "seg"]
LETTERS = (("L", "R"), ("P", "A"), ("I", "S"))
IMAGE = np.random.default_rng(0).integers(-100, 900, (12, 11, 10)).astype(np.int16)
# Functions of MONAI that make voxels: all pending operations at once, or those of one transform.
SAMPLES = {
    "monai.transforms.lazy.functional": ["resample"],
    "monai.transforms.spatial.array": [
        *("spatial_resample", "orientation", "rotate90", "rotate", "zoom"),
    ],
    "monai.transforms.croppad.array": ["crop_func"],
}


def opened() -> Any:
    return vp.from_cases([{"img": IMAGE, "seg": (IMAGE > 400).astype(np.uint8)}]).open_volume(
        labels=("seg",)
    )


def samplings(sample: Any) -> int:
    """Return how often all volumes of a sample are sampled, by interpolation or as a copy."""
    return sum(sum(interpolations(patch)) for patch in sample.values())


def forms(pipe: Any) -> list[str]:
    return [describe(one).partition("(")[0] for one in walk(pipe)][2:]


def count_in_monai(monkeypatch: pytest.MonkeyPatch, lazy: bool | None) -> int:
    """Return how often MONAI samples two volumes in the pipeline of its page on laziness."""
    counts, inside = [0], [False]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)

        def call(*args: Any, **kwargs: Any) -> Any:
            is_pending = signature.bind(*args, **kwargs).arguments.get("lazy", False)
            if is_pending or inside[0]:  # noted for later, or a part of another
                return function(*args, **kwargs)
            counts[0] += 1
            inside[0] = True
            try:
                return function(*args, **kwargs)
            finally:
                inside[0] = False

        return call

    pipeline = Compose(
        [
            Spacingd(KEYS, (1.5, 1.5, 1.5), lazy=True),
            Orientationd(KEYS, "LPS", labels=LETTERS, lazy=True),
            RandSpatialCropd(KEYS, (6, 6, 6), random_size=False, lazy=True),
            RandRotate90d(KEYS, prob=1.0, lazy=False),
            RandRotated(KEYS, range_x=0.3, prob=1.0, lazy=True),
            RandZoomd(KEYS, prob=1.0, min_zoom=1.1, max_zoom=1.2, lazy=True),
            RandGaussianNoised("img", prob=1.0),
        ],
        lazy=lazy,
    )
    array = torch.from_numpy(IMAGE[None].astype(np.float32))
    with monkeypatch.context() as patched:
        for module, names in SAMPLES.items():
            for name in names:
                own = getattr(import_module(module), name)
                patched.setattr(f"{module}.{name}", counted(own))
        pipeline({key: MetaTensor(array, affine=torch.eye(4)) for key in KEYS})
    return counts[0]


def documented(*, turn: bool | None = False, others: bool | None = None) -> Any:
    """Return the same pipeline here, by the laziness of the quarter turn and of the others."""
    pipe = opened().spacing(1.5, lazy=others).orientation("LPS", lazy=others)
    pipe = pipe.random_crop(6, lazy=others).rotate90(1, lazy=turn)
    return pipe.rotate((-15, 15), lazy=others).zoom((1.1, 1.2), lazy=others).noise(0.1)


def test_monais_documented_pipeline_samples_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two volumes: 6 times with one eager transform of six, 12 without laziness, 2 with it."""
    eager = vp.FuseSpatial(lazy=False)(documented(turn=None))
    ours = documented(), documented(others=False), eager, documented(turn=None)

    assert [samplings(next(iter(pipe))) for pipe in ours] == [6, 12, 12, 2]
    theirs = [count_in_monai(monkeypatch, lazy) for lazy in (None, False, True)]
    assert theirs == [6, 12, 2]


def test_a_pipe_that_is_not_lazy_is_a_flush_on_either_side() -> None:
    """The same voxels as by hand, and ``explain()`` names the pipe."""
    torch.manual_seed(1)
    by_flag = opened().zoom(1.1).rotate((-20, 20), lazy=False).flip(0).translate(0.5)
    by_hand = opened().zoom(1.1).flush().rotate((-20, 20)).flush().flip(0).translate(0.5)

    assert forms(by_flag) == ["zoom", "flush", "rotate", "flush", "flip", "translate"]
    torch.manual_seed(2)
    first = next(iter(by_flag))["img"]
    torch.manual_seed(2)
    assert np.array_equal(first.realize(), next(iter(by_hand))["img"].realize())
    text = by_flag.batch_patches(1).explain()
    assert "lazy=False" in text
    assert "sampled anew after lazy=False at .flush()   test_laziness.py:" in text


def test_the_first_pipe_and_the_end_have_no_flush() -> None:
    """Nothing is pending before the first, and the batch realizes the last."""
    assert forms(opened().rotate(5, lazy=False)) == ["rotate"]
    assert forms(opened().rotate(5, lazy=False).normalize()) == ["rotate", "normalize"]
    assert forms(opened().rotate(5, lazy=False).flush().zoom(1.1)) == ["rotate", "flush", "zoom"]
    one = opened().lazy_patch(4).one_of([vp.spatial.Rotate(5)], lazy=False)
    assert forms(one.flip(0)) == ["lazy_patch", "one_of", "flush", "flip"]


def test_a_block_decides_for_pipes_without_a_flag() -> None:
    """Flags of pipes precede, inner blocks precede outer ones, and the block ends."""
    with vp.lazy(False):
        pipe = opened().rotate(5).zoom(1.1)
        own = opened().rotate(5, lazy=True).zoom(1.1, lazy=True)
        with vp.lazy(True):
            inner = opened().rotate(5).zoom(1.1)
    after = opened().rotate(5).zoom(1.1)

    assert forms(pipe) == ["rotate", "flush", "zoom"]
    assert forms(own) == forms(inner) == forms(after) == ["rotate", "zoom"]


def test_the_adapter_decides_where_nobody_else_has() -> None:
    """``FuseSpatial(lazy=False)`` in a loader: same draws, other voxels, and it says so."""
    with vp.lazy(True):
        pipe = opened().lazy_patch(6).rotate((-20, 20)).zoom((0.8, 1.2))
    pipe = pipe.flip(0).translate(0.5).batch_patches(1)

    eager = vp.FuseSpatial(lazy=False)

    assert [part.partition("(")[0] for part in forms(eager(pipe))] == [
        *("lazy_patch", "rotate", "flush", "flip", "flush", "translate", "batch_patches")
    ]
    assert explain_graph(eager(pipe)).count("rotate((-20, 20)) + zoom((0.8, 1.2))") == 1
    once = eager(pipe)
    assert eager(once) is once
    with vp.DataLoader2(pipe, [eager], seed=3) as loader:
        text = loader.explain()
        (batch,) = list(loader)
    with vp.DataLoader2(pipe, seed=3) as loader:
        (fused,) = list(loader)
    assert "sampled anew after FuseSpatial(lazy=False) at .flush()" in text
    assert batch["meta"][0]["draws"] == fused["meta"][0]["draws"]
    assert not np.allclose(batch["img"], fused["img"], atol=0.1)


CHAINS: dict[str, Callable[[Any], Any]] = {
    "values": lambda p: p.rotate((-20, 20)).normalize(mean=3.0, std=100.0).zoom((0.8, 1.2)).flip(0),
    "patches": lambda p: p.spacing(1.2).lazy_patch(5).rotate((-20, 20)).translate((-1, 1)),
    "some keys": lambda p: p.rotate(5).flush("seg").rotate(5).zoom(1.1),
    "cache": lambda p: p.spacing(1.2).cache(memory_bytes=10**8).rotate(5).flip(0),
    "choices": lambda p: p.rotate(5).one_of([vp.spatial.Zoom((0.9, 1.1)), vp.spatial.Flip(1)]),
    "grids": lambda p: p.resample_to("img").rotate(5).foreground_crop("seg").pad(1),
    "values only": lambda p: p.one_of([vp.intensity.Noise(1.0)]).rotate(5).noise(1.0),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_user_s_adapter_of_flushes_gives_the_same(name: str) -> None:
    """Bit for bit, and so does a block around the forms."""
    chain = CHAINS[name]
    with vp.lazy(False):
        by_block = chain(opened())
    samples = []
    for pipe in (Eager()(chain(opened())), vp.FuseSpatial(lazy=False)(chain(opened())), by_block):
        torch.manual_seed(3)
        samples.append(next(iter(pipe)))

    for key in KEYS:
        first, *others = (sample[key].realize() for sample in samples)
        assert all(np.array_equal(first, other) for other in others)
    assert len({samplings(sample) for sample in samples}) == 1


def test_fused_pipes_cannot_be_separated() -> None:
    """The refusal says what to do."""
    pipe = vp.FuseSpatial()(opened().rotate(1).zoom(2).normalize().flip(0).rotate(3))

    (change,) = vp.FuseSpatial(lazy=False).rewrite(pipe).changes

    assert change.reason is not None
    assert "give lazy=False to the first FuseSpatial" in change.reason


def test_batches_of_workers_are_the_same() -> None:
    """Flags travel with the chain."""
    pipe = opened().lazy_patch(6, samples_per_volume=4).rotate((-20, 20)).flip(0, lazy=False)
    pipe = pipe.zoom((0.8, 1.2)).batch_patches(2)
    service = vp.MultiProcessingReadingService(num_workers=1)
    with vp.DataLoader2(pipe, None, service, seed=3) as loader:
        made = list(loader)
    with vp.DataLoader2(pipe, seed=3) as loader:
        expected = list(loader)

    assert len(made) == 2
    for one, other in zip(made, expected, strict=True):
        assert all(bool((one[key] == other[key]).all()) for key in KEYS)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: opened().rotate(5, lazy="no"), "lazy is True or False, got 'no'"),
        (lambda: vp.lazy(3), "lazy is True or False, got 3"),
        (lambda: vp.FuseSpatial(lazy=None), "lazy is True or False, got None"),
        (lambda: opened().rotate(5, on_conflict="resample"), "'error', 'flush', got 'resample'"),
        (lambda: vp.lazy(on_conflict=True), "'error', 'flush', got True"),
        (lambda: opened().one_of([vp.intensity.Noise(1)], lazy=False), "lazy= says how voxels"),
    ],
)
def test_mistakes_are_refused(wrong: Callable[[], Any], words: str) -> None:
    """At construction."""
    with pytest.raises(ValueError, match=words):
        wrong()


# Incompatible parameters: MONAI's pending operations with other modes.


def test_a_conflict_is_an_error_that_offers_a_flush() -> None:
    """The text names the argument."""
    with pytest.raises(PolicyConflict, match='or write on_conflict="flush" here'):
        opened().rotate(5, mode="nearest").zoom(1.1, mode="cubic")


@pytest.mark.parametrize("by_block", [False, True])
def test_a_conflict_is_resolved_by_a_flush(by_block: bool) -> None:
    """With one warning; each op is sampled as it says."""
    first = opened().rotate(5, mode="nearest")
    own: Any = {} if by_block else {"on_conflict": "flush"}
    block = vp.lazy(on_conflict="flush") if by_block else nullcontext()
    text = r"mode='cubic' here, but mode='nearest' at"
    with block, pytest.warns(ExtraInterpolation, match=text) as got:
        pipe = first.zoom(1.1, mode="cubic", **own).flip(0)
    by_hand = opened().rotate(5, mode="nearest").flush().zoom(1.1, mode="cubic").flip(0)

    assert len(got) == 1
    assert got[0].filename == __file__
    assert forms(pipe) == ["rotate", "flush", "zoom", "flip"]
    patch, expected = next(iter(pipe))["img"], next(iter(by_hand))["img"]
    assert (patch.policy.mode, patch.volume.patch.policy.mode) == ("cubic", "nearest")
    assert np.array_equal(patch.realize(), expected.realize())
    assert "on_conflict='flush' at .flush()" in pipe.batch_patches(1).explain()


def test_only_the_volumes_in_conflict_are_flushed() -> None:
    """Others are interpolated once."""
    with pytest.warns(ExtraInterpolation):
        pipe = (
            opened()
            .rotate(5, mode={"seg": "linear", "img": "cubic"})
            .zoom(1.1, mode={"seg": "nearest"}, on_conflict="flush")
        )

    sample = next(iter(pipe))

    assert forms(pipe) == ["rotate", "flush", "zoom"]
    assert interpolations(sample["img"]) == (1, 0)
    assert interpolations(sample["seg"]) == (2, 0)


def test_a_block_may_be_strict_inside() -> None:
    """And without a conflict there is no flush and no warning."""
    with vp.lazy(on_conflict="flush"):
        sound = opened().rotate(5, mode="cubic").zoom(1.1, mode="cubic")
        with vp.lazy(on_conflict="error"), pytest.raises(PolicyConflict):
            opened().rotate(5, mode="nearest").zoom(1.1, mode="cubic")

    assert forms(sound) == ["rotate", "zoom"]


# Logging while it runs: MONAI's log_stats.


def test_each_resample_of_each_sample_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Which pipes were pending, and what ended their plan; by a loader and without one."""
    caplog.set_level(logging.DEBUG, "voxpipe.fusion")
    pipe = vp.from_cases([{"image": IMAGE, "case": name} for name in "ab"]).open_volume()
    pipe = pipe.rotate(5).zoom(1.1).flush().flip(0).batch_patches(1)

    list(pipe)
    plain = caplog.messages
    caplog.clear()
    with vp.DataLoader2(pipe, seed=1) as loader:
        list(loader)

    first, second, *others = plain
    assert first.startswith("a, image: 2 pending, rotate")
    assert " + zoom" in first
    assert "; applied at once for flush at .flush()   test_laziness.py:" in first
    assert second.startswith("a, image: 1 pending, flip")
    assert second.endswith("; applied at once for the batch")
    assert [text.partition(":")[0] for text in others] == ["b, image"] * 2
    assert [text for text in caplog.messages if "pending" in text] == plain


def test_nothing_is_logged_above_debug(caplog: pytest.LogCaptureFixture) -> None:
    """The level is asked once per epoch."""
    caplog.set_level(logging.INFO, "voxpipe.fusion")

    list(opened().rotate(5).batch_patches(1))

    assert caplog.messages == []


def test_a_state_belongs_to_its_laziness():
    """Voxels differ, so a state of one loader is refused by the other."""
    case = {"image": np.random.default_rng(0).random((12, 12, 12), dtype=np.float32)}
    pipe = vp.from_cases([case]).open_volume().lazy_patch((6, 6, 6), samples_per_volume=4)
    pipe = pipe.rotate((-20, 20)).zoom((0.8, 1.2)).batch_patches(1)
    with vp.DataLoader2(pipe, [vp.FuseSpatial(lazy=False)], seed=1) as eager:
        next(iter(eager))
        state = eager.state_dict()
    with vp.DataLoader2(pipe, seed=1) as lazy, pytest.raises(StateMismatch, match=r"flush\(\)"):
        lazy.load_state_dict(state)
    with vp.DataLoader2(pipe, [vp.FuseSpatial(lazy=False)], seed=1) as other:
        other.load_state_dict(state)
        assert len(list(other)) == 3
