"""MONAI's recipe for the segmentation of organs in CT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...datapipes.iter import from_cases
from ...graph import is_pipe


def monai_segmentation(
    cases: Any,
    size: Sequence[int] = (96, 96, 96),
    *,
    spacing: Sequence[float] = (1.5, 1.5, 2.0),
    window: tuple[float, float] = (-175.0, 250.0),
    samples_per_volume: int = 4,
    batch_size: int = 4,
    augment: bool = True,
) -> Any:
    """Return the chain of MONAI's tutorials for organs in CT (BTCV, UNETR and Swin UNETR).

    Orientation RAS, spacing, a window brought to 0 .. 1, a crop to the foreground, as many patches
    about labels as about the background, mirrors and quarter turns with a probability of 0.1, and
    brightness shifted by up to 0.1 in every second patch.

    Parameters
    ----------
    cases
        A source of cases with ``image`` and ``label``, such as ``from_decathlon(...)``; or a list
        of mappings.
    size, samples_per_volume, batch_size
        Of the patches: how large, how many of each volume, how many in a batch.
    spacing
        Of the volumes, in millimetres.
    window
        The values that become 0 and 1; values outside are clamped.
    augment
        Whether anything is drawn but the places of patches.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"image": np.zeros((12, 12, 12)), "label": np.zeros((12, 12, 12), np.uint8)}
    >>> case["label"][4:6, 4:6, 4:6] = case["image"][4:6, 4:6, 4:6] = 1
    >>> pipe = monai_segmentation(from_cases([case]), (4, 4, 4), spacing=(1, 1, 1))
    >>> next(iter(pipe))["image"].shape
    torch.Size([4, 1, 4, 4, 4])
    """
    source: Any = cases if is_pipe(cases) else from_cases(cases)
    pipe = (
        source.open_volume(labels=("label",))
        .orientation("RAS")
        .spacing(spacing)
        .foreground_crop("image", above=window[0], fallback="whole")
        .rescale((0, 1), in_range=window, clamp=True)
        .lazy_patch(
            size,
            samples_per_volume=samples_per_volume,
            mask="label",
            class_weights={0: 1, "other": 1},
            fallback="anywhere",
        )
        .shuffle_plans()
    )
    if augment:
        pipe = pipe.flip((0, 1, 2), p=0.1).rotate90((1, 3), p=0.1)
        pipe = pipe.brightness(add=(-0.1, 0.1), p=0.5)
    return pipe.batch_patches(batch_size)
