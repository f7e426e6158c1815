"""Flip, Rotate90, Transpose, ToAxes, Orientation: axes mirrored and swapped, whole voxels only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ...core.affine3x4 import IDENTITY, Affine3x4
from ...core.errors import BadHeader, PatchSizeError, SampleError
from ...core.grid import AS_READ, PLAIN, XYZ, numbers_of_axes
from ...core.suggest import closest
from ...core.validate import (
    FieldChecks,
    as_flag,
    as_probability,
    entries_of,
    is_integer,
    set_checked,
)
from ..plans.matrices import flat_axes
from ..plans.plan import SpatialPlan
from .op import Params, as_probabilities

_LETTERS = ("LR", "PA", "IS")
"""Against and along x, y, z of the world, which is RAS+."""
Axis = int | str
"""An axis of the array, 0 to 2, or one of ``_LETTERS``: that most nearly along x, y or z."""
_AXES: dict[Any, Axis] = {"i": 0, "j": 1, "k": 2, 0: 0, 1: 1, 2: 2}
_AXES |= dict.fromkeys(("left", "right", "lr", "rl", "l", "r", "x"), "LR")
_AXES |= dict.fromkeys(("posterior", "anterior", "pa", "ap", "p", "a", "y"), "PA")
_AXES |= dict.fromkeys(("inferior", "superior", "is", "si", "s", "z"), "IS")


def _as_different(rule: str, counts: Sequence[int], name: str, value: Any) -> tuple[Axis, ...]:
    """Return different spatial axes, as many as one of ``counts``; ``rule`` is for errors."""
    words = [
        w.lower() if isinstance(w, str) and w != "I" else w for w in entries_of(value) or [value]
    ]
    axes = [_AXES.get(w) if isinstance(w, str) or is_integer(w) else None for w in words]
    if None in axes or len({*axes}) < len(axes) or len(axes) not in counts:
        names = [word for word in _AXES if isinstance(word, str)]
        wrong = [
            w for w, axis in zip(words, axes, strict=True) if axis is None and isinstance(w, str)
        ]
        near = (
            ["i", "inferior"] if "I" in wrong else [n for w in wrong for n in closest(w, names, 0)]
        )
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ValueError(f"{rule}, or names as 'i' and 'left', got {value!r}{hint}")
    if len({type(axis) for axis in axes}) > 1:
        raise ValueError(f"{name} are all numbers, or all anatomical names, got {value!r}")
    return tuple(axes)  # type: ignore[arg-type]


def axes_on(axes: Any, plan: SpatialPlan) -> tuple[int, ...]:
    """Return the numbers of checked axes on the present grid of a plan."""
    if all(isinstance(axis, int) for axis in axes):
        return tuple(axes)
    worlds = [_LETTERS[world] for world, _ in directions(plan.affine)]
    return tuple(map(worlds.index, axes))


_FLIPS = partial(_as_different, "flip takes different axes out of 0, 1, 2 (or p=)", (1, 2, 3))
_PLANE = partial(_as_different, "axes are two different axes out of 0, 1, 2", (2,))
_ORDER = partial(_as_different, "axes are 0, 1 and 2 in their new order", (3,))


@dataclass(frozen=True)
class Flip(FieldChecks):
    """Reverse the order of the voxels along ``axes``, each on its own with its probability.

    Examples
    --------
    >>> Flip((0, 2), p=0.5).describe()
    'flip axis 0 (p=0.5), axis 2 (p=0.5)'
    >>> Flip((0, 2), p=(1, 0.1)).describe()
    'flip axis 0, axis 2 (p=0.1)'
    >>> Flip(p=0.5, exactly_one=True).describe()
    'flip one of the axes 0, 1, 2 (p=0.5)'
    """

    axes: Axis | Sequence[Axis] = (0, 1, 2)
    """Spatial axes 0, 1, 2 of (I, J, K), or their names: ``"i"``, or by the affine ``"left"`` or
    ``"z"``. All three numbers leave the flat axis of 2-D data alone."""
    p: float | Sequence[float] = 1.0
    """Probability that an axis flips: one number for each, or one per axis of ``axes``."""
    exactly_one: bool = False
    """Whether one axis is drawn, each as likely, and flips alone; ``p`` is one number then."""

    name: ClassVar[str] = "flip"
    lattice: ClassVar[bool] = True
    checks: ClassVar[Any] = {"axes": _FLIPS, "exactly_one": as_flag}

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(entries_of(self.axes))
        set_checked(
            self, p=as_probability if self.exactly_one else partial(as_probabilities, count=count)
        )

    def _chances(self, plan: SpatialPlan | None = None) -> list[tuple[Any, float]]:
        axes: Any = self.axes if plan is None else axes_on(self.axes, plan)
        p = self.p if isinstance(self.p, tuple) else (self.p,) * len(axes)
        return list(zip(axes, p, strict=True))

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        random = generator.random(3).tolist()
        flat = flat_axes(plan) if self.axes == (0, 1, 2) else ()
        if self.exactly_one:
            axes: Any = [axis for axis, _ in self._chances(plan) if axis not in flat]
            if not axes:
                return None
            params = {"axes": [axes[int(random[1] * len(axes))]]}
            return params if random[0] < self._chances()[0][1] else None
        # Each axis has its own number, independent of the other axes in the list.
        flips = [a for a, chance in self._chances(plan) if random[a] < chance and a not in flat]
        return {"axes": flips} if flips else None

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        return plan.then(mirror(plan, params["axes"]), plan.shape, lattice=True)

    def describe(self) -> str:
        if self.exactly_one:
            axes: Any = self.axes
            chance = f" (p={self.p:g})" if self.p != 1 else ""
            return f"flip one of the axes {', '.join(map(str, axes))}{chance}"
        each = [f"axis {a}" + (f" (p={p:g})" if p != 1 else "") for a, p in self._chances()]
        return f"flip {', '.join(each)}"


def mirror(plan: SpatialPlan, axes: Sequence[int]) -> Affine3x4:
    """Return the pull-back that reverses ``axes`` of the plan's output."""
    rows = [*IDENTITY]
    for axis in {0, 1, 2}.intersection(axes):
        rows[5 * axis], rows[4 * axis + 3] = -1.0, plan.shape[axis] - 1.0
    return tuple(rows)  # type: ignore[return-value]


def _as_turns(name: str, value: Any) -> int | tuple[int, int]:
    ends = (value, value) if is_integer(value) else entries_of(value)
    if len(ends) != 2 or not all(map(is_integer, ends)) or ends[0] > ends[1]:
        raise ValueError(
            f"{name} is a whole number of quarter turns, or a range (low, high) with low <= high, "
            f"got {value!r}"
        )
    low, high = (int(end) for end in ends)
    return low if is_integer(value) else (low, high)


@dataclass(frozen=True)
class Rotate90(FieldChecks):
    """Turn by ``k`` quarter turns from the first axis towards the second, as ``numpy.rot90``.

    The array turns at any spacing: odd ``k`` swap the axes' lengths, and the affine follows.

    Examples
    --------
    >>> Rotate90(1, (0, 2)).describe()
    'rotate 90 degrees from axis 0 to axis 2'
    """

    k: int | Sequence[int] = 1
    """Number of quarter turns, negative for the other way; or (low, high), ends included."""
    axes: Sequence[Axis] = (0, 1)
    """Two different spatial axes out of 0, 1, 2, or their names, as in ``Flip``."""
    p: float = 1.0
    """Probability that the op acts."""

    name: ClassVar[str] = "rotate90"
    lattice: ClassVar[bool] = True
    checks: ClassVar[Any] = {"axes": _PLANE, "k": _as_turns, "p": as_probability}

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        acts = generator.random() < self.p
        k: Any = self.k
        if isinstance(k, tuple):
            low, high = k
            k = low + int(generator.random() * (high - low + 1))
        return {"k": k, "axes": list(axes_on(self.axes, plan))} if acts else None

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        first, second = params["axes"]
        for _ in range(params["k"] % 4):
            matrix, shape = np.eye(4), list(plan.shape)
            matrix[[first, second]] = matrix[[second, first]]
            # The end of the second axis becomes the beginning of the first.
            matrix[second, first], matrix[second, 3] = -1, plan.shape[second] - 1
            shape[first], shape[second] = shape[second], shape[first]
            plan = plan.then(matrix, shape, lattice=True)
        return plan

    def describe(self) -> str:
        k: Any = self.k
        much = f"{90 * k[0]} to {90 * k[1]}" if isinstance(k, tuple) else f"{90 * k}"
        turn = f"rotate {much} degrees from axis {self.axes[0]} to axis {self.axes[1]}"
        return turn + (f" (p={self.p:g})" if self.p != 1 else "")


@dataclass(frozen=True)
class Transpose(FieldChecks):
    """Put the axes of the array in another order, as ``numpy.transpose``; the affine follows.

    ``(2, 1, 0)`` is the order of SimpleITK's arrays, and so of nnU-Net: K, J, I.

    Examples
    --------
    >>> Transpose().describe()
    'transpose to axes 2, 1, 0'
    """

    axes: Sequence[Axis] = (2, 1, 0)
    """The present axes 0, 1, 2 in their new order, or their names, as in ``Flip``."""

    name: ClassVar[str] = "transpose"
    lattice: ClassVar[bool] = True
    checks: ClassVar[Any] = {"axes": _ORDER}

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        return {"axes": list(axes_on(self.axes, plan))}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        order = params["axes"]
        return reorder(plan, order).with_axes(_names_after(plan, order))

    def describe(self) -> str:
        return f"transpose to axes {', '.join(map(str, self.axes))}"


def reorder(plan: SpatialPlan, order: Sequence[int]) -> SpatialPlan:
    """Return the plan with its present axes in a new order."""
    matrix, shape = np.zeros((4, 4)), []
    matrix[3, 3] = 1
    for new, old in enumerate(order):
        matrix[old, new] = 1
        shape.append(plan.shape[old])
    return plan.then(matrix, shape, lattice=True)


def all_names(axes: str) -> str:
    """Return names of axes with that of a last one."""
    names = PLAIN if axes[0] in PLAIN else XYZ
    return "".join(names[number] for number in numbers_of_axes(axes))


def _names_after(plan: SpatialPlan, order: Sequence[int]) -> str:
    """Return the names of axes in a new order; those of a file are lost by another order."""
    if plan.axes in AS_READ:
        return plan.axes if list(order) == [0, 1, 2] else PLAIN
    names = "".join(all_names(plan.axes)[old] for old in order)
    return names[:2] if plan.is_flat and order[2] == 2 else names


def _as_order(name: str, value: Any) -> str | None:
    if value is None:
        return None
    letters = "".join(map(str, entries_of(value))) or value
    letters = letters.lower() if isinstance(letters, str) else ""
    is_known = set(letters) <= set(XYZ) and len(set(letters)) == len(letters)
    if is_known and len(letters) in (2, 3):
        return letters
    is_channel = letters[:1] in ("c", "t") and set(letters) <= {*"tc", *XYZ}
    hint = "; channels and time come first, and have no name here" if is_channel else ""
    msg = f'{name} are the letters x, y and z in their new order, as "zyx", or two of them for '
    raise ValueError(f"{msg}2-D data, got {value!r}{hint}")


@dataclass(frozen=True)
class ToAxes(FieldChecks):
    """Put the axes in the order of their names, for all that follows.

    Later sizes, spacings, angles and other amounts per axis are given in this order. Shapes,
    spacings and tensors have it, too. Nothing is interpolated, and every voxel stays in its place
    in the world: an affine maps an index in the new order to x, y, z.

    Two letters are for 2-D data: tensors are then (B, C, Y, X), and sizes have two numbers.

    Examples
    --------
    >>> ToAxes("zyx").describe(), ToAxes().describe()
    ('axes z, y, x', 'axes of the plane')
    >>> from voxpipe.core import Grid
    >>> plan = SpatialPlan.identity(Grid((64, 48, 20), np.diag([0.5, 0.5, 2, 1])))
    >>> plan = ToAxes("zyx").then(plan, {})
    >>> plan.shape, plan.grid.spacing
    ((20, 48, 64), (2.0, 0.5, 0.5))
    """

    axes: str | None = None
    """The letters x, y and z in their new order, ``"zyx"``, or two of them for 2-D data. None: the
    two axes of 2-D data, y before x; the stored order of axes without names."""

    name: ClassVar[str] = "to_axes"
    lattice: ClassVar[bool] = True
    checks: ClassVar[Any] = {"axes": _as_order}

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        return {}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        present, axes = all_names(plan.axes), self.axes
        if axes is None and plan.is_flat:
            return plan
        if axes is None:
            axes = self._plane(plan, present)
        elif present[0] in PLAIN:
            msg = f"to_axes({axes!r}) needs the names of the stored axes, which are not known"
            do = 'Name them in stored order, ⟦open_volume(axes="zyx")⟧ for instance. After '
            do += "transpose() or orientation() axes have no names: put to_axes() before."
            raise BadHeader(msg, do=do)
        order = [present.index(letter) for letter in all_names(axes)]
        if len(axes) < len(order) and (count := plan.shape[order[2]]) != 1:
            last = present[order[2]]
            msg = f"to_axes({axes!r}) leaves out {last}, along which there are {count} voxels"
            do = f"Name all three, or cut one plane before, by a patch with 1 voxel along {last}."
            raise PatchSizeError(msg, do=do)
        return reorder(plan, order).with_axes(axes)

    def _plane(self, plan: SpatialPlan, present: str) -> str:
        """Return the names of the two axes of 2-D data."""
        flat = [axis for axis in (2, 1, 0) if plan.shape[axis] == 1]
        # The third axis of a file first.
        flat.sort(key=lambda axis: present[axis] not in "zk")
        if not flat:
            sizes = "x".join(map(str, plan.shape))
            msg = f"two numbers are a size of 2-D data, and the volume has {sizes} voxels"
            raise PatchSizeError(msg, do="Give three numbers, one for each axis.")
        rest = present.replace(present[flat[0]], "")
        return "".join(sorted(rest, reverse=True)) if plan.axes == XYZ else rest

    def describe(self) -> str:
        return f"axes {', '.join(self.axes)}" if self.axes else "axes of the plane"


def _as_letters(name: str, value: Any) -> str:
    is_letters = isinstance(value, (str, tuple, list)) and all(isinstance(g, str) for g in value)
    letters = "".join(value).upper() if is_letters else ""
    axes = [axis for letter in letters for axis in range(3) if letter in _LETTERS[axis]]
    if len(letters) != 3 or sorted(axes) != [0, 1, 2]:
        msg = f"{name} are three letters, one of L and R, one of P and A, one of I and S, "
        raise ValueError(f"{msg}such as 'RAS', got {value!r}")
    return letters


@dataclass(frozen=True)
class Orientation(FieldChecks):
    """Swap and mirror the axes so that each points most nearly to its letter.

    ``"RAS"``: i towards the right, j to the front, k up, which nibabel calls closest canonical.
    Nothing is interpolated, and every voxel stays in its place in the world. After ``to_axes()``
    letters that would undo its order are refused.

    Examples
    --------
    >>> Orientation("LPS").describe()
    'orientation LPS'
    """

    axcodes: str = "RAS"
    """Three letters, one of L and R, one of P and A, one of I and S, in the order of the axes."""

    name: ClassVar[str] = "orientation"
    lattice: ClassVar[bool] = True
    checks: ClassVar[Any] = {"axcodes": _as_letters}

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params:
        return {"axcodes": self.axcodes}

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        present = directions(plan.affine)
        matrix, shape, order = np.zeros((4, 4)), [], list[int]()
        matrix[3, 3] = 1
        for new, letter in enumerate(params["axcodes"]):
            world, sign = next((w, s) for w in range(3) for s in (0, 1) if _LETTERS[w][s] == letter)
            old = next(axis for axis in range(3) if present[axis][0] == world)
            turns = present[old][1] != (1 if sign else -1)
            matrix[old, new] = -1 if turns else 1
            matrix[old, 3] = plan.shape[old] - 1 if turns else 0
            shape.append(plan.shape[old])
            order.append(old)
        if plan.axes not in AS_READ and order != [0, 1, 2]:
            own = "".join(params["axcodes"][order.index(axis)] for axis in range(3))
            msg = f"orientation({self.axcodes!r}) would undo the order {plan.axes!r} of to_axes()"
            do = f"Put orientation() before to_axes(), or name its order: orientation({own!r})."
            raise SampleError(msg, do=do)
        is_usual = all(letter in _LETTERS[n] for n, letter in enumerate(params["axcodes"]))
        is_new = is_usual and plan.axes in AS_READ
        names = XYZ if is_new else _names_after(plan, order)
        return plan.then(matrix, shape, lattice=True).with_axes(names)

    def describe(self) -> str:
        return f"orientation {self.axcodes}"


def directions(affine: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return for each axis of the array the world axis next to it, and +1 along or -1 against."""
    # As nibabel's ``io_orientation``: by the nearest rotation, without shears and voxel sizes.
    linear = np.asarray(affine, dtype=np.float64)[:3, :3]
    lengths = np.sqrt((linear**2).sum(axis=0))
    if not np.isfinite(linear).all() or np.linalg.matrix_rank(linear) < 3:
        msg = f"the affine has no inverse, so its axes point nowhere: {linear.tolist()}"
        raise BadHeader(msg, do="Pass ⟦affine=⟧ when opening the volume.")
    basis, _, right = np.linalg.svd(linear / lengths)
    turn = basis @ right
    pairs = [(0, 0)] * 3
    free = [0, 1, 2]
    # The axis with the clearest direction chooses first, the earlier one where two are as clear.
    for axis in np.argsort(-np.abs(turn).max(axis=0), kind="stable").tolist():
        world = max(free, key=lambda w, a=axis: abs(turn[w, a]))  # type: ignore[misc]
        free.remove(world)
        pairs[axis] = (world, 1 if turn[world, axis] >= 0 else -1)
    return pairs


def orientation_of(affine: NDArray[np.float64]) -> str:
    """Return the letters of the directions in which I, J and K grow.

    Examples
    --------
    >>> orientation_of(np.diag([-1.0, -1, 2, 1]))
    'LPS'
    """
    return "".join(_LETTERS[world][sign > 0] for world, sign in directions(affine))


OPS = (Flip, Orientation, Rotate90, ToAxes, Transpose)
