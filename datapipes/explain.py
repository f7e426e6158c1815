"""What a chain will do, as text."""

from __future__ import annotations

from ..graph import Pipe, explain_graph, verify
from .cost import cost_of


def explain(pipe: Pipe) -> str:
    """Return a chain as text: one line per pipe, and what one patch costs.

    Reads the headers of the first volumes for the cost, and no voxel. A loader's own
    ``explain()`` also shows what adapters changed and what runs in which process.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((64, 64, 64), np.int16)}]).open_volume()
    >>> print(explain(pipe.lazy_patch(32).flip().batch_patches(1)))
    0 from_cases(1 cases)
    1 open_volume()
    2 lazy_patch(32)
    3 flip()
    4 batch_patches(1)
    <BLANKLINE>
    per patch: 1 reads, 0.0655 MB, 0 interpolations, 1 copies   (mean of 1 plans)
      image  intensity  linear, border outside
    resampled by: ...
    """
    cost = cost_of(verify(pipe), seed=0, epoch=0)
    return explain_graph(pipe) + (f"\n\n{cost}" if cost is not None else "")
