"""Value pipes give in workers what they give at home."""

from __future__ import annotations

from typing import Any

import numpy as np

import voxpipe as vp


def chain() -> Any:
    """Every kind of value op: folded, drawn per voxel, filtering, on labels, of the user's own."""
    random = np.random.default_rng(0)
    cases = []
    for _ in range(2):
        image = random.normal(100, 30, (20, 18, 16)).astype(np.float32)
        cases.append({"image": image, "label": (image > 110).astype(np.uint8)})
    return (
        vp.from_cases(cases)
        .open_volume()
        .clamp(0, 200)
        .normalize(inside="label")
        .noise((0.1, 0.3))
        .blur((0.5, 1.0), "voxel", p=0.5)
        .lazy_patch((8, 8, 8), sampling="grid", overlap=4)
        .rotate((0, 0, (-20, 20)))
        .gamma((0.8, 1.2))
        .bias_field(0.2)
        .drop_boxes((2, 4), 0.1)
        .map_values(np.tanh)
        .one_hot(2)
        .batch_patches(3)
    )


def batches(workers: int) -> list[Any]:
    """All of one epoch."""
    service = vp.MultiProcessingReadingService(num_workers=workers) if workers else None
    with vp.DataLoader2(chain(), None, service, seed=7) as loader:
        return [(b["image"].clone().numpy(), b["label"].clone().numpy()) for b in loader]


def test_workers_give_the_same_batches() -> None:
    """Bit for bit, in the same order."""
    home, away = batches(0), batches(2)

    assert len(home) == len(away) > 3
    for (image, label), (other, other_label) in zip(home, away, strict=True):
        assert np.isfinite(image).all()
        assert np.array_equal(image, other)
        assert np.array_equal(label, other_label)
