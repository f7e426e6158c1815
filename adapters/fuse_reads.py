"""One read for neighbouring patches of a batch."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from ..datapipes.iter import BatchPatches
from ..graph import Pipe, Refused, Rule, Site
from .adapter import Adapter


class FuseReads(Adapter):
    """Read what patches of the same volume in one batch need together.

    Patches that lie beside or over each other become one read of the block around them, as long as
    that takes no more chunks than they take one by one, and no more than 64 MiB. It helps where
    batches hold patches of one region: ``lazy_patch(region=...)``, a grid, ``interleave()``,
    ``ShuffleSpec.chunk_local``. The batches stay the same. Give it after ``FuseSpatial``: patches
    that ``realize()`` has read are read already, and the refusal says so.

    Notes
    -----
    What stores fetch ahead for jobs that wait is asked for patch by patch all the same; a chunk
    that several of them touch is fetched once in any case.
    """

    def rules(self) -> Sequence[Rule]:
        """Return the rule."""
        return (Rule("fuse reads", _batch_of_lazy_patches, _joining),)


def _batch_of_lazy_patches(site: Site) -> BatchPatches | Refused | None:
    pipe = site.pipe
    if not isinstance(pipe, BatchPatches) or pipe.joins:
        return None
    if not pipe.straight:
        return Refused("patches are realized before the batch; give FuseSpatial before FuseReads")
    return pipe


def _joining(pipe: BatchPatches) -> Pipe:
    twin = copy.copy(pipe)
    twin.joins = True
    return twin
