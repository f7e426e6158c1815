"""What torch's ``collate()`` does with patches that are not read: it says what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

# A private module, and the place that the documentation of default_collate() has types added to.
from torch.utils.data._utils.collate import default_collate_fn_map

from ..core.errors import SampleError
from ..spatial import LazyPatch


def refuse(patches: Sequence[Any], *, collate_fn_map: Any = None) -> NoReturn:
    """Refuse to stack patches without voxels.

    Raises
    ------
    SampleError
        Always.
    """
    raise SampleError(
        f"collate() needs voxels, and those of {patches[0]!r} are not read yet",
        do="Put .batch_patches(n) in the place of .batch(n).collate(): it reads them, straight "
        "into the batch.",
    )


default_collate_fn_map[LazyPatch] = refuse
