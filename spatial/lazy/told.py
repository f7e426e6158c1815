"""What a patch says of itself, with what was done before its voxels were sampled anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..volume_like import made_like, patch_before

if TYPE_CHECKING:
    from .lazy_patch import LazyPatch


def described(patch: LazyPatch) -> str:
    """Return the volume and all steps, those before a flush too."""
    steps = "".join(f" · {step.describe()}" for step in patch.values)
    earlier = patch_before(patch.volume)
    before = f"{patch.volume.name}:"
    if earlier is not None:
        how = "realized, opened again" if made_like(patch.volume) is None else "sampled anew"
        before = f"{described(earlier)}; {how}:"
    return f"{before} {patch.pending.describe()}{steps}"


def explained_before(patch: LazyPatch) -> str:
    """Return what makes the voxels that the patch reads, as an appendix; none where a file does."""
    made = made_like(patch.volume)
    return "" if made is None else f"; of voxels that were made by: {made.patch.explain()}"
