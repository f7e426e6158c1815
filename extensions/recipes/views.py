"""Two views of one place, for networks that learn without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...core import Sample
from ...datapipes.iter import from_cases
from ...datapipes.open_volume import OpenVolume
from ...graph import is_pipe, walk


def two_views(
    cases: Any,
    size: Sequence[int] = (96, 96, 96),
    *,
    view: Callable[[Any], Any] | None = None,
    samples_per_volume: int = 8,
    batch_size: int = 4,
    normalize: bool = True,
) -> Any:
    """Return a chain whose batches hold the same places twice, augmented apart.

    For contrastive and self-distilling networks (SimCLR, BYOL, DINO). Both views are cut at one
    place of one volume and changed by draws of their own. The draws ``augment`` in ``meta`` are
    those of the first view, and ``augment@1`` of the second. Volumes are normalized first: mean 0
    and deviation 1 of all channels together.

    Parameters
    ----------
    cases
        A source of cases with ``image``, a chain that has opened it, or a list of mappings.
    size, samples_per_volume, batch_size
        Of the patches: how large, how many of each volume, how many in a batch.
    view
        Returns a chain of patches with pipes that make a view of each; by default turns, zooms,
        mirrors, blur, brightness, contrast and noise.
    normalize
        Whether ``normalize()`` is applied. Without it, values are those of the file.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"image": np.random.default_rng(0).normal(size=(9, 9, 9)).astype(np.float32)}
    >>> batch = next(iter(two_views(from_cases([case]), (8, 8, 8), batch_size=2)))
    >>> sorted(batch), batch["view_1"].shape, bool((batch["view_1"] == batch["view_2"]).all())
    (['meta', 'view_1', 'view_2'], torch.Size([2, 1, 8, 8, 8]), False)

    A chain that has opened the image keeps its options:

    >>> opened = from_cases([case]).open_volume(axes="xyz").to_axes("zyx")
    >>> next(iter(two_views(opened, (4, 8, 8))))["view_1"].shape
    torch.Size([4, 1, 4, 8, 8])
    """
    source: Any = cases if is_pipe(cases) else from_cases(cases)
    if not any(isinstance(pipe, OpenVolume) for pipe in walk(source)):
        source = source.open_volume(keys=["image"], labels=())
    volumes = source.normalize(keys=["image"]) if normalize else source
    patches = volumes.lazy_patch(size, samples_per_volume=samples_per_volume)
    first, second = patches.shuffle_plans().fork(2)
    make = default_view if view is None else view
    return make(first).zip(make(second)).map(both_views).batch_patches(batch_size)


def default_view(pipe: Any) -> Any:
    """Return patches turned, zoomed, mirrored, and with other values."""
    return (
        pipe.augment(rotate=(-30, 30), zoom=(0.8, 1.25), flip=0.5)
        .blur((0.5, 1.5), unit="voxel", p=0.3)
        .brightness((0.7, 1.3), p=0.8)
        .contrast((0.7, 1.3), statistics_over="patch", p=0.8)
        .noise((0, 0.1), p=0.5)
    )


def both_views(pair: tuple[Sample, Sample]) -> Sample:
    """Return one sample of both views."""
    first, second = pair
    return first.replace(data={"view_1": first["image"], "view_2": second["image"]})
