"""A region in which the patches of one visit to a volume are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core.errors import PatchSizeError
from ..amounts import as_triple
from ..ops.op import Drawn
from ..plans.plan import SpatialPlan
from .patch import patch_size


@dataclass(frozen=True)
class UniformRegion:
    """A drawn region, in which a patch is then drawn like in a volume of its own.

    The places where a patch may begin are divided into blocks, and a region is what the patches
    of one block touch: so every place belongs to exactly one region. A region is drawn with the
    probability of its block, so each place is as likely as if there were no regions. An axis that
    is shorter than the patch is left whole.

    Examples
    --------
    >>> UniformRegion((256, 256, 256), (96, 96, 96), (64, 64, 64)).describe()
    'regions of 256x256x256 from multiples of 64x64x64'
    """

    region: Sequence[int]
    """Most voxels on each axis."""
    size: Sequence[int]
    """Size of the patches."""
    align: Sequence[int]
    """Regions begin at multiples of this: the chunks in which the volume is stored."""

    name: ClassVar[str] = "lazy_patch"
    lattice: ClassVar[bool] = True

    def __post_init__(self) -> None:
        region, size = as_triple("a region", self.region, low=1), patch_size(self.size)
        align = as_triple("align", self.align, low=1)
        least = tuple(s + a - 1 for s, a in zip(size, align, strict=True))
        if any(r < n for r, n in zip(region, least, strict=True)):
            raise PatchSizeError(
                f"a region of {region} does not hold every patch of {size} that begins in its "
                f"first {align} voxels",
                do=f"Make the region at least {least}, or align smaller.",
            )
        object.__setattr__(self, "region", region)
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "align", align)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn:
        """Return the box."""
        places = [n - s + 1 for n, s in zip(plan.shape, self.size, strict=True)]
        drawn = zip(generator.random(3).tolist(), places, strict=True)
        return self.around([min(int(u * n), n - 1) if n > 0 else 0 for u, n in drawn], plan)

    def around(self, place: Sequence[int], plan: SpatialPlan) -> Drawn:
        """Return the box of the region to which the patch belongs that starts at ``place``."""
        start, extent = [], []
        every = zip(place, plan.shape, self.region, self.size, self.align, strict=True)
        for at, n, r, s, a in every:
            block = (r - s + 1) // a * a
            is_longer = n >= s
            first = at // block * block if is_longer else 0
            start.append(first)
            extent.append(min(block + s - 1, n - first) if is_longer else n)
        return {"start": start, "size": extent}

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan of the region: soft, so that patches may be turned across its faces."""
        return plan.crop(drawn["start"], drawn["size"])

    def describe(self) -> str:
        """Return the regions in words."""
        region, align = ("x".join(map(str, v)) for v in (self.region, self.align))
        return f"regions of {region} from multiples of {align}"


def usual_align(region: Sequence[int], size: Sequence[int]) -> tuple[int, ...]:
    """Return the largest divisors of a region that leave room for a patch behind them.

    A region of whole chunks is then often aligned to them without knowing them.

    Examples
    --------
    >>> usual_align((256, 192, 100), (96, 128, 100))
    (128, 64, 1)
    """
    return tuple(
        max((d for d in range(1, r - s + 2) if r % d == 0), default=1)
        for r, s in zip(region, size, strict=True)
    )
