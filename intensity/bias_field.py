"""Bias field: the slow brightening and darkening that a receive coil leaves in an image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core import Grid
from ..core.errors import BadRecord
from ..core.validate import ParameterRange, is_integer, parse_range, value_at
from .value_op import Facts, Params, RandomValueOp

# A polynomial of a higher order has thousands of terms, and is not smooth.
MOST_ORDERS = 8


def orders_of(order: int) -> list[tuple[int, int, int]]:
    """Return the exponents of each term, in TorchIO's order: x^a y^b z^c, a + b + c <= order."""
    return [
        (a, b, c)
        for a in range(order + 1)
        for b in range(order + 1 - a)
        for c in range(order + 1 - a - b)
    ]


def polynomial(
    coefficients: Sequence[float], order: int, grid: Grid, source: Grid
) -> NDArray[np.float32]:
    """Return a polynomial on the voxels of a patch, (I, J, K).

    Its coordinates run from -1 at the first voxel centre of the whole volume to 1 at the last one,
    along each of its axes. A polynomial of them is one of the patch's indices too, of
    the same order; so a few values give it, axis by axis.
    """
    to_source = np.linalg.solve(source.affine, grid.affine)
    # As many nodes as a polynomial of one variable has coefficients (Chebyshev's).
    angles = np.pi * (np.arange(order + 1) + 0.5) / (order + 1)
    nodes = [(n - 1) / 2 + n / 2 * np.cos(angles) for n in grid.shape]
    places = np.stack(np.meshgrid(*nodes, indexing="ij"))
    index = np.einsum("ab,bijk->aijk", to_source[:3, :3], places)
    index += to_source[:3, 3].reshape(3, 1, 1, 1)
    size = np.array(source.shape, float).reshape(3, 1, 1, 1) - 1
    x, y, z = np.where(size > 0, 2 * index / np.maximum(size, 1) - 1, 0.0)
    terms = zip(coefficients, orders_of(order), strict=True)
    values = sum((t * x**a * y**b * z**c for t, (a, b, c) in terms), np.zeros_like(x))
    i, j, k = (_from_nodes(n, at) for n, at in zip(grid.shape, nodes, strict=True))
    rows = np.einsum("ia,jb,abc->ijc", i, j, values, optimize=True)
    flat: NDArray[np.float32] = rows.reshape(-1, order + 1).astype(np.float32)
    field: NDArray[np.float32] = (flat @ k.T.astype(np.float32)).reshape(grid.shape)
    return field


def _from_nodes(length: int, nodes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the matrix from values at the nodes to values at all indices."""
    scale = max(length / 2, 1)
    at = ((nodes - (length - 1) / 2) / scale, (np.arange(length) - (length - 1) / 2) / scale)
    few, every = (np.polynomial.chebyshev.chebvander(x, len(nodes) - 1) for x in at)
    matrix: NDArray[np.float64] = np.linalg.solve(few.T, every.T).T
    return matrix


@dataclass(frozen=True)
class BiasField(RandomValueOp):
    """Multiply by ``exp`` of a polynomial of the place in the volume.

    The field belongs to the volume: overlapping patches agree, and only turns move it later.

    ``value * exp(sum of c_abc x ** a y ** b z ** c)`` over ``a + b + c <= order``, with x, y and z
    from -1 at the volume's first voxel to 1 at the last one, along its axes.

    References
    ----------
    Van Leemput et al., "Automated model-based bias field correction of MR images of the brain",
    IEEE Transactions on Medical Imaging 18 (1999): a polynomial, added to logarithms.

    Examples
    --------
    >>> BiasField(0.3).describe()
    'bias_field strength 0.3 of order 3'
    """

    strength: ParameterRange = 0.5
    """Coefficients are drawn from (-strength, strength), or from (low, high)."""
    order: int = 3
    """Order of the polynomial, 0 to 8."""

    name: ClassVar[str] = "bias_field"
    checks: ClassVar[Any] = {"strength": parse_range}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_integer(self.order) or not 0 <= self.order <= MOST_ORDERS:
            raise ValueError(f"order is an integer from 0 to {MOST_ORDERS}, got {self.order!r}")

    def draw(self, generator: np.random.Generator) -> Params | None:
        acts = generator.random() < self.p
        strength = self.strength
        ends = strength if isinstance(strength, tuple) else (-strength, strength)
        numbers = generator.random(len(orders_of(self.order))).tolist()
        coefficients = [value_at(ends, u) for u in numbers]
        return {"coefficients": coefficients} if acts else None

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        try:
            with np.errstate(over="raise"):
                field = polynomial(params["coefficients"], self.order, facts.grid, facts.source)
                np.exp(field, out=field)
                array *= field
        except FloatingPointError:
            most = max(map(abs, params["coefficients"]))
            msg = f"bias_field has coefficients of up to {most:g}, and exp of such is no number."
            do = "Replay what a chain with the same ops drew, or give a strength of about 1."
            raise BadRecord(msg, do=do) from None
        return array

    def describe(self) -> str:
        return f"{self.in_words(strength=self.strength)} of order {self.order}"


OPS = (BiasField,)
