"""The base class of value ops: they change the values of a patch, never its place.

To add one, write a frozen dataclass that derives from :class:`ValueOp` in a file of its own, and
subclass ``voxpipe.testing.ValueOpContract`` in its test. A value op acts after the one
interpolation, in the memory of the batch, so a chain stays lazy however many it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core import Grid
from ..core.errors import SampleError
from ..core.validate import (
    LATER,
    FieldChecks,
    as_choice,
    as_flag,
    as_number,
    as_probability,
    bounds_of,
    parse_range,
    value_at,
)
from . import native_values as native
from .native_values import Change, change_values


@dataclass(frozen=True)
class Epilogue(FieldChecks):
    """``clamp(value * scale + shift, low, high)``, after slope, intercept, padding and fill.

    Examples
    --------
    >>> Epilogue(scale=0.5, high=3.0).of(np.array([2.0, 8.0])).tolist()
    [1.0, 3.0]
    """

    scale: float = 1.0
    """Factor."""
    shift: float = 0.0
    """Summand, after the factor."""
    low: float = -np.inf
    """Smallest result."""
    high: float = np.inf
    """Largest result; not below ``low``."""

    checks: ClassVar[Any] = dict.fromkeys(("scale", "shift", "low", "high"), lambda _, v: float(v))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (np.isfinite(self.scale) and np.isfinite(self.shift) and self.low <= self.high):
            msg = f"an epilogue has finite scale and shift and low <= high, got {self!r}"
            raise ValueError(msg)

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the results for float values; NaN stays NaN."""
        result: NDArray[Any] = np.clip(values * self.scale + self.shift, self.low, self.high)
        return result

    @property
    def is_affine(self) -> bool:
        """Whether it clamps nothing."""
        return self.low == -np.inf and self.high == np.inf

    def then(self, later: Epilogue) -> Epilogue:
        """Return both in one, this first."""
        ends = (self.low * later.scale, self.high * later.scale) if later.scale else (0.0, 0.0)
        low, high = (min(max(e + later.shift, later.low), later.high) for e in sorted(ends))
        shift = self.shift * later.scale + later.shift
        return Epilogue(self.scale * later.scale, shift, low, high)

    name: ClassVar[str] = "epilogue"

    def native_step(self) -> bytes:
        return native.pack_step(native.SCALE, (self.scale, self.shift, self.low, self.high))

    def in_numpy(self, channel: NDArray[np.float32], number: int) -> None:
        np.multiply(channel, np.float32(self.scale), out=channel)
        np.add(channel, np.float32(self.shift), out=channel)
        if not self.is_affine:
            np.clip(channel, np.float32(self.low), np.float32(self.high), out=channel)


Params = Mapping[str, Any]
"""The parameters of one application, as plain data (JSON): enough to repeat it."""
Halo = tuple[int, int, int]

NO_HALO: Halo = (0, 0, 0)


class RecordedStatistics(Protocol):
    """Numbers over all voxels of a volume, as they are kept."""

    @property
    def mean(self) -> float:
        """Mean of the values."""

    @property
    def std(self) -> float:
        """Population standard deviation of the values."""

    @property
    def minimum(self) -> float:
        """Smallest value."""

    @property
    def maximum(self) -> float:
        """Largest value."""


class VolumeStatistics(RecordedStatistics, Protocol):
    """Numbers over all voxels of a volume, and any percentile."""

    def percentile(self, q: float) -> float:
        """Return the value that ``q`` percent of the voxels do not exceed, 0 to 100."""


def recorded_percentile(
    statistics: RecordedStatistics, q: float, count: Callable[[], VolumeStatistics]
) -> float:
    """Return a percentile as recorded, where that ``keeps`` it; else the counted one."""
    keeps = getattr(statistics, "keeps", None)
    source: Any = statistics if keeps is not None and keeps(q) else count()
    return float(source.percentile(q))


class Facts(Protocol):
    """Facts about the patch and its volume for a value op.

    Facts are passed in: a value op opens no file.
    """

    @property
    def grid(self) -> Grid:
        """Shape and affine of the array, halo included."""

    @property
    def source(self) -> Grid:
        """Grid of the whole volume, in the same world as ``grid``."""

    @property
    def corner(self) -> tuple[int, int, int]:
        """Index of the array's first voxel on a lattice that all patches of one chain share.

        Overlapping patches agree on it.
        """

    @property
    def key(self) -> tuple[int, int]:
        """Two integers below 2^64: a key for random numbers that belong to voxels of the lattice.

        A function of seed, epoch, item and step, equal for all patches cut after the step. The key
        is not recorded: for repeatable numbers draw one and call ``key_from`` with it.
        """

    def key_from(self, params: int) -> tuple[int, int]:
        """Return the same of a number that the op drew, so that a record repeats the voxels.

        Volumes of one sample, for which parameters are drawn together, get different keys.
        """

    def on_voxels(self, statistics: str) -> Facts:
        """Return the facts whose statistics are of a ``"level 2"``, or of a ``"sample"``."""

    def on_channel(self, channel: int) -> Facts:
        """Return the facts whose statistics are of one channel of the array."""

    def statistics(self, above: float | None = None) -> VolumeStatistics:
        """Return the statistics of the whole volume; may read it, once.

        They are those of the stored values after the earlier ops, as far as these are ``pointwise``
        or keep some channels. Other ops, such as noise, are skipped. With ``above`` only larger
        values count, and with a mask (``ValueOp.mask_key``) only voxels inside it.
        """


class ValueOp(FieldChecks):
    """A value op: a frozen dataclass, picklable, equal by value."""

    name: ClassVar[str] = ""
    """The chained form, e.g. ``"normalize"``."""
    commutes: ClassVar[bool] = True
    """Whether later spatial ops may be done first: true if every voxel is treated alike, at least
    nearly. Else a later spatial op interpolates the result of this op."""
    keeps_dtype: ClassVar[bool] = False
    """Whether it takes and gives arrays of any type; else float32, in and out."""
    pointwise: ClassVar[bool] = False
    """Whether a result depends only on its value and parameters, so that statistics follow."""
    kind: ClassVar[str] = "intensity"
    """The kind of volume that it changes by default."""

    named_keys: ClassVar[tuple[str, ...]] = ()
    """The volumes that it names itself: those of a choice's members with keys."""

    late_because: ClassVar[str] = ""
    """Why later spatial ops wait for it, if that is not obvious."""

    def __init_subclass__(cls) -> None:
        # A class with its own ``apply`` must not inherit ``changes``.
        if "apply" in vars(cls) and "changes" not in vars(cls):
            cls.changes = ValueOp.changes  # type: ignore[method-assign]
        super().__init_subclass__()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Raise TypeError with the cure if an op gets its pipe's ``keys``."""
        if "keys" in kwargs and "keys" not in getattr(cls, "__dataclass_fields__", {}):
            raise TypeError(
                f"{cls.__name__}() has no argument 'keys'; write "
                f"On({kwargs['keys']!r}, {cls.__name__}(...)) in a choice, and "
                f".{cls.name}(..., keys=) in a chain"
            )
        return super().__new__(cls)

    def of_key(self, key: str, *, is_target: bool) -> ValueOp:
        """Return the op for the volume of a key.

        ``is_target`` is whether the pipe is for that volume; only a choice has others.
        """
        return self

    @property
    def waited_for(self) -> str:
        """Name of the cause for which later spatial ops wait, if it does not commute."""
        return self.name

    @property
    def looks_around(self) -> bool:
        """Whether it may look at voxels around a patch, that is, have a halo."""
        return type(self).halo is not ValueOp.halo

    @property
    def looks_at_all(self) -> bool:
        """Whether a voxel's result depends on all voxels that the op is given, as on their mean.

        Then a volume cannot be made part by part: each part would have a mean of its own.
        """
        return False

    @property
    def keeps_faces(self) -> bool:
        """Whether outermost voxels stand for all beyond, so that a halo may end where they do."""
        return self.pointwise

    @property
    def takes_statistics(self) -> bool:
        """Whether it asks for statistics of whole volumes: then each is read once, as a whole."""
        return False

    @property
    def by_channel(self) -> bool:
        """Whether a channel's result is independent of other channels.

        Then the op applies to each file of a stack, and only to channels in use.
        """
        return self.pointwise and not self.takes_statistics

    @property
    def mask_key(self) -> str | None:
        """The volume whose voxels above 0 are those that statistics are taken of."""
        return None

    @property
    def draws_axis(self) -> bool:
        """Whether it draws an axis, so that ``along`` is to be asked before."""
        return False

    @property
    def draws_channels(self) -> bool:
        """Whether it draws for each channel, so that ``of_channels`` is to be asked before."""
        return False

    def of_channels(self, count: int) -> ValueOp:
        """Return the op that draws for so many channels."""
        return self

    def along(self, axes: tuple[int, ...]) -> ValueOp:
        """Return the op that draws among these axes only: those of more than one voxel.

        An op that was given none of these stays as it is.
        """
        return self

    def draw(self, generator: np.random.Generator) -> Params | None:
        """Return the parameters for one item, or None if the op does not act on it.

        How many numbers are drawn, and in which order, never depends on a drawn value. An op that
        draws nothing keeps this: empty parameters.
        """
        return {}

    def halo(self, params: Params, grid: Grid) -> Halo:
        """Return how many voxels around a patch on ``grid`` the op looks at, on either side."""
        return NO_HALO

    def channels(self, count: int) -> int:
        """Return the number of channels that ``count`` become."""
        return count

    def kept_channels(self) -> tuple[int, ...] | None:
        """Return which channels are left, in their order, where that is all that the op does.

        So statistics can follow. None for any other op.
        """
        return None

    def dtype(self, in_dtype: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type of the result for an array of type ``in_dtype``."""
        return in_dtype if self.keeps_dtype else np.dtype(np.float32)

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue | None:
        """Return the same as scale, shift and clamp, which the resampler does in passing.

        None where it is something else, or where digits would be lost.
        """
        return None

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...] | None:
        """Return all that ``apply`` does, so that several ops are done in one pass.

        None where it is something else.
        """
        return None

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        """Return the result for ``array``, (C, I, J, K), which may be changed in place.

        The caller removes the halo. An op defines ``changes``, or its own method.
        """
        changes = self.changes(params, facts)
        if changes is None:
            raise NotImplementedError
        change_values(array, changes)
        return array

    def describe(self) -> str:
        """Return the op in the words of the user, on one line."""
        raise NotImplementedError


def same_as(path: str) -> Any:
    """Return a property for a dotted path of attributes."""
    return property(attrgetter(path))


ABOVE_0: Mapping[str, Any] = {"positive": True}
FROM_0: Mapping[str, Any] = {"least": 0.0}
ANY: Mapping[str, Any] = {}
VOLUME, PATCH = "volume", "patch"


as_over = partial(as_choice, choices=(VOLUME, PATCH))
NUMBER_OR_NONE = partial(as_number, optional=True)


@dataclass(frozen=True)
class RandomValueOp(ValueOp):
    """A value op whose ``amounts`` are drawn, one double each, after one that decides on ``p``."""

    p: float = field(default=1.0, kw_only=True)
    """Probability that the op acts."""

    amounts: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Names of fields that are numbers or ranges, in the order of drawing, with their limits."""
    draws_key: ClassVar[bool] = False
    """Whether random numbers belong to its voxels: ``"key"`` is drawn last, for these."""

    checks: ClassVar[Any] = {"p": as_probability}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        ranges = {name: partial(parse_range, **kind) for name, kind in cls.amounts.items()}
        cls.checks = {**cls.checks, **ranges}

    def draw(self, generator: np.random.Generator) -> Params | None:
        acts = generator.random() < self.p
        params: dict[str, Any] = {
            name: self.amount_at(name, generator.random()) for name in self.amounts
        }
        if self.draws_key:
            params["key"] = int(generator.random() * 2**53)  # all bits of a double
        return params if acts else None

    def amount_at(self, name: str, u: float) -> float:
        """Return the amount that a uniform number from [0, 1) stands for."""
        return value_at(getattr(self, name), u)

    def describe(self) -> str:
        return self.in_words(
            **{f.name: getattr(self, f.name) for f in fields(self) if f.name != "p"}
        )

    def in_words(self, **words: Any) -> str:
        """Return the chained form with the arguments, and ``p`` if it is not 1."""
        text = "".join(
            f" {number_text(value)}" if name == self.name else f" {name} {number_text(value)}"
            for name, value in words.items()
        )
        return f"{self.name}{text}{f' (p={self.p:g})' if self.p != 1 else ''}"


@dataclass(frozen=True)
class TwoSidedOp(RandomValueOp):
    """An op whose factor or power may be drawn below and above 1 equally often."""

    two_sided: bool = field(default=False, kw_only=True, metadata=LATER)
    """Whether first a side of 1 is drawn, evenly, and then the amount: half of (0.7, 1.5) are below
    1. A range that begins at 1 or above has one side."""

    about_1: ClassVar[str]
    """The amount that it is about."""

    checks: ClassVar[Any] = {"two_sided": as_flag}

    def __post_init__(self) -> None:
        super().__post_init__()
        _, high = bounds_of(getattr(self, self.about_1))
        if self.two_sided and high < 1:
            msg = f"{self.about_1} is drawn below 1 and above, so the range ends at 1 or above; "
            raise ValueError(f"{msg}got {getattr(self, self.about_1)!r}")

    def amount_at(self, name: str, u: float) -> float:
        low, high = bounds_of(getattr(self, name))
        if not self.two_sided or name != self.about_1 or low >= 1:
            return super().amount_at(name, u)
        return value_at((low, 1.0), 2 * u) if 2 * u < 1 else value_at((1.0, high), 2 * u - 1)

    def in_words(self, **words: Any) -> str:
        words.pop("two_sided", None)
        text = super().in_words(**words)
        if not self.two_sided:
            return text
        head, mark, tail = text.partition(" (p=")
        return f"{head} on either side of 1{mark}{tail}"


def number_text(value: Any) -> str:
    """Return a number or a range in words."""
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class AffineValueOp(RandomValueOp):
    """Derive, and say which epilogue it is, or which ``changes``."""

    pointwise: ClassVar[bool] = True

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue | None:
        steps: Any = self.changes(params, facts)
        return steps[0] if len(steps) == 1 else None

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...] | None:
        epilogue = self.as_epilogue(params, facts)
        return None if epilogue is None else (epilogue,)


@dataclass(frozen=True)
class MapValues(ValueOp):
    """Apply a function to every patch: float32 (C, I, J, K) in, the same shape out.

    Examples
    --------
    >>> MapValues(np.tanh).describe()
    'map_values tanh, which later spatial ops wait for'
    """

    function: Callable[[NDArray[np.float32]], NDArray[Any]]
    """For workers at the top of a module, where they find it. It may change its array."""
    commutes: bool = False  # type: ignore[misc]  # of other ops a matter of the class
    """Whether later spatial ops may be done first, in the same interpolation as earlier ones. Set
    it for functions that treat every voxel alike and nearly linearly."""

    name: ClassVar[str] = "map_values"
    checks: ClassVar[Any] = {"commutes": as_flag}

    def __post_init__(self) -> None:
        super().__post_init__()
        function: Any = self.function
        if not callable(function):
            raise ValueError(f"map_values takes a function, got {function!r}")

    @property
    def looks_at_all(self) -> bool:
        # Unknown, unless the function treats every voxel alike.
        return not self.commutes

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        shape = array.shape
        output = self.function(array)
        if output is None:
            raise SampleError(
                f"map_values: {_name_of(self.function)} returned None",
                do="Let it return the array, also where it changes it in place.",
            )
        result = np.asarray(output)
        if result.shape != shape:
            msg = f"map_values: {_name_of(self.function)} made {result.shape} of a patch of {shape}"
            raise SampleError(msg, do="A function for map_values keeps the shape.")
        if result.dtype.kind == "c":
            msg = f"map_values: {_name_of(self.function)} made complex numbers, {result.dtype}"
            raise SampleError(msg, do="Let it return their real part, magnitude or phase.")
        return result.astype(np.float32, copy=False)

    def describe(self) -> str:
        waits = "" if self.commutes else ", which later spatial ops wait for"
        return f"{self.name} {_name_of(self.function)}{waits}"


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", getattr(function, "__name__", None))
    return name or type(function).__qualname__


OPS = (MapValues,)
