"""Affine: any linear map of the content, given as a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...core.rows import linear_of, rows_of
from ..amounts import MOST_VOXELS, as_probability, as_triple
from ..plans.matrices import Space, as_space, pull_back
from ..plans.plan import SpatialPlan
from .op import Drawn
from .rotate import in_words


@dataclass(frozen=True)
class Affine:
    """Move what lies at ``centre + x`` to ``centre + A x + t``, with ``matrix = [A | t]``.

    Examples
    --------
    >>> Affine(np.diag([2.0, 2.0, 2.0, 1.0])).describe()
    'affine [[2, 0, 0, 0], [0, 2, 0, 0], [0, 0, 2, 0]]'
    """

    matrix: Any
    """4x4 forward matrix about the centre of the present grid; it must have an inverse."""
    space: Space = "world"
    """``"world"``: millimetres, x, y, z; ``"voxel"``: voxels along the array's axes."""
    shape: Sequence[int] | None = None
    """Shape of the output, about the same centre; by default the present one."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "affine"
    lattice: ClassVar[bool] = False

    def __post_init__(self) -> None:
        try:
            matrix = np.array(self.matrix, dtype=np.float64)
        except (TypeError, ValueError):
            matrix = np.empty(0)
        if matrix.shape != (4, 4) or not np.isfinite(matrix).all():
            msg = f"an affine is a finite 4x4 matrix, got {self.matrix!r}"
            raise ValueError(msg)
        if not np.array_equal(matrix[3], (0, 0, 0, 1)) or np.linalg.matrix_rank(matrix[:3, :3]) < 3:
            msg = f"an affine ends in the row 0 0 0 1 and has an inverse, got {matrix.tolist()}"
            raise ValueError(msg)
        scales = np.linalg.svd(matrix[:3, :3], compute_uv=False)
        if scales[-1] < 1 / MOST_VOXELS or scales[0] > MOST_VOXELS:
            msg = (
                f"an affine stretches by factors from {1 / MOST_VOXELS:.2g} to {MOST_VOXELS:.2g}, "
                f"beyond which nothing of a volume is left, and this one by {scales[-1]:.3g} to "
                f"{scales[0]:.3g}: {matrix.tolist()}"
            )
            raise ValueError(msg)
        if self.shape is not None:
            object.__setattr__(self, "shape", as_triple("shape", self.shape, low=1))
            if self.p != 1:
                msg = f"an affine with shape= acts always, or shapes would differ; got p={self.p!r}"
                raise ValueError(msg)
        # Tuples, so that ops compare by value.
        object.__setattr__(self, "matrix", tuple(tuple(row) for row in matrix.tolist()))
        object.__setattr__(self, "space", as_space(self.space))
        object.__setattr__(self, "p", as_probability("p", self.p))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the matrix, or None."""
        drawn = {"matrix": [list(row) for row in self.matrix]}
        return drawn if generator.random() < self.p else None

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the mapped plan."""
        rows = rows_of(drawn["matrix"])
        shape = plan.shape if self.shape is None else self.shape
        step = pull_back(plan, linear_of(rows), rows[3::4], space=self.space, shape=shape)
        return plan.then(step, shape, lattice=False)

    def describe(self) -> str:
        """Return the matrix in words."""
        rows = ", ".join(f"[{', '.join(f'{v:g}' for v in row)}]" for row in self.matrix[:3])
        return f"affine [{rows}]{in_words(self.space, self.p)}"
