"""Linear maps about the centre of a grid, each on its own or, as Augment, all as one matrix."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from ...core.affine3x4 import NO_TURN, Matrix3x3, affine3x4, linear_of
from ...core.grid import warn_beyond
from ...core.suggest import factor_hint, radians_hint
from ...core.validate import (
    LATER,
    MILLIMETRES,
    FieldChecks,
    as_axes,
    as_choice,
    as_flag,
    as_probability,
    as_unit,
    entries_of,
    or_none,
    set_checked,
)
from ..plans.mapping import without_noise
from ..plans.matrices import (
    Space,
    as_space,
    flat_axes,
    growing,
    pull_back,
    scaling,
    shearing,
    turning,
)
from ..plans.plan import SpatialPlan
from .axis_op import mirror
from .op import (
    MOST_VOXELS,
    Amount,
    Params,
    amount_at,
    as_amount,
    as_factor,
    as_probabilities,
    as_triple,
    draw_amount,
)

Forward = tuple[Matrix3x3, Sequence[float]]
"""Linear part of a forward map, and the shift of the centre."""
_STAY = (0.0, 0.0, 0.0)


class WithUnit(FieldChecks):
    """Base class of ops with a ``unit`` and a ``space``: voxels are those of the voxel space."""

    unit: str
    space: str
    checks: ClassVar[Any] = {"unit": as_unit, "space": as_space, "p": as_probability}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit == "voxel":
            set_checked(self, space=lambda name, value: "voxel")
        elif self.space == "voxel" and self.unit != "mm":
            msg = f"unit={self.unit!r} is a length in the world, and space='voxel' counts voxels"
            raise ValueError(msg)


class _LinearOp(FieldChecks):
    """Shared behaviour of ops with one amount: four draws, one for ``p`` and three for axes."""

    lattice: ClassVar[bool] = False
    argument: ClassVar[str]
    """The field that holds the amount."""
    isotropic: ClassVar[bool] = False
    """Whether one range is drawn once for all axes."""
    space: Space
    p: float
    checks: ClassVar[Any] = {"space": as_space, "p": as_probability}

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        acts = generator.random() < self.p
        amount = draw_amount(generator, getattr(self, self.argument), isotropic=self.isotropic)
        return {self.argument: amount} if acts else None

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        matrix = pull_back(plan, *self.forward(plan, params[self.argument]), space=self.space)
        return plan.then(matrix, plan.shape, lattice=False)

    def forward(self, plan: SpatialPlan, amount: Sequence[float]) -> Forward:
        """Return the map that the amount stands for."""
        raise NotImplementedError


@dataclass(frozen=True)
class Rotate(_LinearOp):
    """Turn by ``Rz @ Ry @ Rx``: about x first, then y, then z.

    ``15`` turns each time by just 15 degrees about each axis; ``(-15, 15)`` draws the angles.

    Right-handed: +90 degrees about z moves content from +x to +y. 2-D data turn in their plane, by
    the angle about the axis nearest to its normal.

    Examples
    --------
    >>> Rotate((-15, 15)).describe()
    'rotate (-15.0, 15.0) degrees'
    """

    degrees: Amount
    """A scalar or range holds for each of the three axes on its own; or three entries."""
    space: Space = "world"
    """``"world"``: about x, y, z in millimetres; ``"voxel"``: about the array's axes."""
    keep_size: bool = True
    """Whether the grid keeps its shape; else it grows to hold the turned one, in whole voxels."""
    p: float = 1.0
    """Probability that the op acts."""
    method: Literal["forward", "backward"] = field(default="forward", metadata=LATER)
    """Size of a grid that grows: ``"forward"`` fits the turned grid, ``"backward"`` the turn back,
    as in MONAI. Both are equal for a turn about one axis."""

    name: ClassVar[str] = "rotate"
    argument = "degrees"
    checks: ClassVar[Any] = {
        "degrees": as_amount,
        "keep_size": as_flag,
        "method": partial(as_choice, choices=("forward", "backward")),
    }

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        return radians_hint("degrees", self.degrees)

    def forward(self, plan: SpatialPlan, amount: Sequence[float]) -> Forward:
        return turning(plan, amount, self.space), _STAY

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        if self.keep_size:
            return super().then(plan, params)
        turn = turning(plan, params["degrees"], self.space)
        backward = self.method == "backward"
        growth = growing(plan, turn, space=self.space, whole=_nearest, backward=backward)
        return plan.then(*growth, lattice=False)

    def describe(self) -> str:
        back = " as the turn back does" if self.method == "backward" else ""
        grows = "" if self.keep_size else f", growing{back}"
        return f"rotate {self.degrees} degrees{grows}{in_words(self.space, self.p)}"


def _nearest(extent: float) -> int:
    # Halves go down.
    return math.ceil(without_noise(extent) - 0.5)


def in_millimetres(op: Any, amount: Sequence[float], plan: SpatialPlan) -> Sequence[float]:
    """Return an op's shift of the content in millimetres, or in voxels in voxel space."""
    if op.space == "voxel":
        return amount
    size = MILLIMETRES[op.unit]
    if (most := max(map(abs, amount)) * size) > plan.source.longest:
        warn_beyond(op.name, op.unit, most, plan.source)
    return amount if size == 1 else [each * size for each in amount]


def in_words(space: str, p: float) -> str:
    """Return the text for an op's space and probability if they are not the defaults."""
    return ("" if space == "world" else f" in {space} space") + (f" (p={p:g})" if p != 1 else "")


def _as_matrix(name: str, value: Any) -> tuple[tuple[float, ...], ...]:
    """Return an affine as tuples, so that ops compare by value."""
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)
    if matrix.shape != (4, 4) or not np.isfinite(matrix).all():
        raise ValueError(f"an affine is a finite 4x4 matrix, got {value!r}")
    if not np.array_equal(matrix[3], (0, 0, 0, 1)) or np.linalg.matrix_rank(matrix[:3, :3]) < 3:
        msg = f"an affine ends in the row 0 0 0 1 and has an inverse, got {matrix.tolist()}"
        raise ValueError(msg)
    scales = np.linalg.svd(matrix[:3, :3], compute_uv=False)
    if scales[-1] < 1 / MOST_VOXELS or scales[0] > MOST_VOXELS:
        raise ValueError(
            f"an affine stretches by factors from {1 / MOST_VOXELS:.2g} to {MOST_VOXELS:.2g}, "
            f"beyond which nothing of a volume is left, and this one by {scales[-1]:.3g} to "
            f"{scales[0]:.3g}: {matrix.tolist()}"
        )
    return tuple(tuple(row) for row in matrix.tolist())


@dataclass(frozen=True)
class Affine(WithUnit):
    """Move content from ``centre + x`` to ``centre + A x + t``, with ``matrix = [A | t]``.

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
    unit: str = field(default="mm", kw_only=True, metadata=LATER)
    """Unit of the last column: ``"mm"``, ``"um"``, ...; ``"voxel"`` as ``space="voxel"``."""

    name: ClassVar[str] = "affine"
    lattice: ClassVar[bool] = False
    checks: ClassVar[Any] = {"matrix": _as_matrix, "shape": or_none(partial(as_triple, low=1))}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape is not None and self.p != 1:
            msg = f"an affine with shape= acts always, or shapes would differ; got p={self.p!r}"
            raise ValueError(msg)

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        params = {"matrix": [list(row) for row in self.matrix]}
        return params if generator.random() < self.p else None

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        rows = affine3x4(params["matrix"])
        shape = plan.shape if self.shape is None else self.shape
        move = in_millimetres(self, rows[3::4], plan)
        step = pull_back(plan, linear_of(rows), move, space=self.space, shape=shape)
        return plan.then(step, shape, lattice=False)

    def describe(self) -> str:
        rows = ", ".join(f"[{', '.join(f'{v:g}' for v in row)}]" for row in self.matrix[:3])
        return f"affine [{rows}]{in_words(self.space, self.p)}"


@dataclass(frozen=True)
class Shear(_LinearOp):
    """Slide by the factors (xy, xz, yz); volumes keep their size, the grid its shape.

    Content moves from (x, y, z), seen from the centre, to ``(x + xy*y + xz*z, y + yz*z, z)``.

    Examples
    --------
    >>> Shear((-0.1, 0.1)).describe()
    'shear (-0.1, 0.1)'
    """

    factor: Amount
    """Tangent of the angle; a scalar or range for each of (xy, xz, yz), or three entries."""
    space: Space = "world"
    """``"world"``: x, y, z in millimetres; ``"voxel"``: along the array's axes."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "shear"
    argument = "factor"
    checks: ClassVar[Any] = {"factor": as_amount}

    def forward(self, plan: SpatialPlan, amount: Sequence[float]) -> Forward:
        return shearing(amount), _STAY

    def describe(self) -> str:
        return f"shear {self.factor}{in_words(self.space, self.p)}"


@dataclass(frozen=True)
class Translate(_LinearOp, WithUnit):
    """Move the content by ``amount``: millimetres in world space, voxels in voxel space.

    Examples
    --------
    >>> Translate((0, 0, (-5, 5))).describe()
    'translate (0.0, 0.0, (-5.0, 5.0)) mm'
    """

    amount: Amount
    """A scalar or range holds for each of the three axes on its own; or three entries."""
    space: Space = "world"
    """``"world"``: ``unit`` along x, y, z; ``"voxel"``: voxels along the array's axes."""
    p: float = 1.0
    """Probability that the op acts."""
    unit: str = field(default="mm", kw_only=True, metadata=LATER)
    """Unit of the amount: ``"mm"``, ``"um"``, ...; ``"voxel"`` as ``space="voxel"``."""

    name: ClassVar[str] = "translate"
    argument = "amount"
    checks: ClassVar[Any] = {"amount": as_amount}

    def forward(self, plan: SpatialPlan, amount: Sequence[float]) -> Forward:
        return NO_TURN, in_millimetres(self, amount, plan)

    def describe(self) -> str:
        unit = self.unit if self.space == "world" else "voxels"
        return f"translate {self.amount} {unit}{in_words('world', self.p)}"


@dataclass(frozen=True)
class Zoom(_LinearOp):
    """Enlarge the content by ``factor``, above 1, or shrink it, below.

    Examples
    --------
    >>> Zoom((0.9, 1.1)).describe()
    'zoom (0.9, 1.1)'
    """

    factor: Amount
    """A scalar or range is one factor for all axes; three entries are per axis."""
    space: Space = "world"
    """``"world"``: along x, y, z; ``"voxel"``: along the array's axes."""
    keep_size: bool = True
    """Whether the grid keeps its shape; else it has the whole voxels of the enlarged grid."""
    p: float = 1.0
    """Probability that the op acts."""
    axes: int | tuple[int, ...] = field(default=(0, 1, 2), kw_only=True, metadata=LATER)
    """Axes that are scaled."""
    by_inverse: bool = field(default=False, kw_only=True, metadata=LATER)
    """Whether 1 / factor is drawn evenly, the scale of nnU-Net's grid, and not the factor."""

    name: ClassVar[str] = "zoom"
    argument = "factor"
    isotropic = True
    checks: ClassVar[Any] = {
        "factor": as_factor,
        "keep_size": as_flag,
        "axes": as_axes,
        "by_inverse": as_flag,
    }

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        if not self.by_inverse:
            params = super().draw(generator, plan)
        else:
            acts = generator.random() < self.p
            inverse = draw_amount(generator, _inverse_of(self.factor), isotropic=True)
            params = {"factor": [1 / one for one in inverse]} if acts else None
        if params is None or self.axes == (0, 1, 2):
            return params
        axes = entries_of(self.axes)
        return {"factor": [f if axis in axes else 1.0 for axis, f in enumerate(params["factor"])]}

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        return factor_hint("factor", self.factor) if self.keep_size else ()

    def forward(self, plan: SpatialPlan, amount: Sequence[float]) -> Forward:
        return scaling(amount), _STAY

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        if self.keep_size:
            return super().then(plan, params)
        growth = growing(plan, scaling(params["factor"]), space=self.space, whole=_whole)
        return plan.then(*growth, lattice=False)

    def describe(self) -> str:
        grows = "" if self.keep_size else ", grid too"
        inverse = " drawn as 1/factor" if self.by_inverse else ""
        axes = " and ".join(map(str, entries_of(self.axes)))
        along = "" if self.axes == (0, 1, 2) else f" along axis {axes}"
        return f"zoom {self.factor}{inverse}{along}{grows}{in_words(self.space, self.p)}"


def _inverse_of(amount: Amount) -> Amount:
    entries = entries_of(amount)
    if len(entries) == 2:
        low, high = entries
        return (1 / high, 1 / low)
    return tuple(map(_inverse_of, entries)) if entries else 1 / amount  # type: ignore[return-value, operator]


def _whole(extent: float) -> int:
    # 10 voxels enlarged by 1.1 are 11, and not 10.999999999999998.
    return math.floor(without_noise(extent))


@dataclass(frozen=True)
class Augment(WithUnit):
    """Rotate, zoom, translate, shear and flip, as the ops of these names do in this order.

    All of them compose to one matrix. A range is drawn from, ``rotate=(-15, 15)``. One number is a
    fixed amount: ``rotate=15`` always turns by 15 degrees about each axis.

    Examples
    --------
    >>> Augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5).describe()
    'augment rotate (-15.0, 15.0), zoom (0.9, 1.1), flip 0.5'
    """

    rotate: Amount = 0.0
    """Degrees, as in ``Rotate``."""
    zoom: Amount = 1.0
    """Factor, as in ``Zoom``."""
    translate: Amount = 0.0
    """Millimetres, or voxels in voxel space, as in ``Translate``."""
    shear: Amount = 0.0
    """Factors, as in ``Shear``."""
    flip: float | Sequence[float] = 0.0
    """Probability that each axis flips (of 2-D data in their plane); or three, per axis."""
    p: float = 1.0
    """Probability that the bundle acts at all."""
    space: Space = "world"
    """Where rotate, zoom, translate and shear act."""
    unit: str = field(default="mm", kw_only=True, metadata=LATER)
    """Unit of ``translate``: ``"mm"``, ``"um"``, ...; ``"voxel"`` as ``space="voxel"``."""

    name: ClassVar[str] = "augment"
    lattice: ClassVar[bool] = False
    checks: ClassVar[Any] = {
        "rotate": as_amount,
        "zoom": as_factor,
        "translate": as_amount,
        "shear": as_amount,
        "flip": partial(as_probabilities, count=3, several="three, per axis"),
    }

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        return (*radians_hint("rotate", self.rotate), *factor_hint("zoom", self.zoom))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        # One call gives the same numbers as the single ops draw one after another.
        u = generator.random(16).tolist()
        chances: Any = self.flip
        if not isinstance(chances, tuple):
            chances = [chances] * 3
            for axis in flat_axes(plan):
                chances[axis] = 0.0
        params = {
            "rotate": amount_at(u[1:4], self.rotate),
            "zoom": amount_at(u[4:7], self.zoom, isotropic=True),
            "translate": amount_at(u[7:10], self.translate),
            "shear": amount_at(u[10:13], self.shear),
            "flip": [axis for axis in range(3) if u[13 + axis] < chances[axis]],
        }
        return params if u[0] < self.p else None

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        maps: list[Forward] = [(turning(plan, params["rotate"], self.space), _STAY)]
        zoom = params["zoom"]
        maps += [(scaling(zoom), _STAY)] if any(factor != 1.0 for factor in zoom) else []
        move = params["translate"]
        maps.append((NO_TURN, in_millimetres(self, move, plan) if any(move) else move))
        maps += [(shearing(params["shear"]), _STAY)] if any(params["shear"]) else []
        for forward, move in maps:
            # A part without effect must leave the plan's matrix exact, so skip it.
            if forward != NO_TURN or any(move):
                matrix = pull_back(plan, forward, move, space=self.space)
                plan = plan.then(matrix, plan.shape, lattice=False)
        if params["flip"]:
            plan = plan.then(mirror(plan, params["flip"]), plan.shape, lattice=True)
        return plan.interpolate() if plan.keeps_dtype else plan

    def describe(self) -> str:
        nothing = {"rotate": 0.0, "zoom": 1.0, "translate": 0.0, "shear": 0.0, "flip": 0.0}
        parts = [
            f"{name} {value}"
            for name, default in nothing.items()
            if (value := getattr(self, name)) != default
        ]
        return f"augment {', '.join(parts) or 'nothing'}{in_words(self.space, self.p)}"


OPS = (Affine, Augment, Rotate, Shear, Translate, Zoom)
