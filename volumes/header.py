"""Headers: geometry and types of volumes, before voxels are read. Small, frozen, picklable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..core import Affine
from ..core.call_site import warn
from ..core.context import ContextKey
from ..core.errors import BadHeader, LikelyMistake, UnknownFormat
from ..core.lru_cache import cached_property
from ..core.validate import MILLIMETRES

EXACT_IN_FLOAT32 = 2  # bytes of integers that are exact in its mantissa of 24 bits
_LARGEST = 1e100  # of an affine's entries: the product of three must stay finite
_FLAT = 1e-6  # volume of three steps of length 1 below which they are in one plane
# Largest distance from a whole number that a scale of 1 or more may give a label.
_MOST_ERROR = 0.01

Access = Literal["view", "range", "stream"]
"""How a store is read: mapped into memory, by byte ranges, or only from its beginning."""

Shape = tuple[int, int, int, int]
Triple = tuple[int, int, int]

UNIT = "mm"
"""Unit of every affine and spacing, also where a file has another."""
IDENTITY = tuple(float(v) for v in np.eye(4).ravel())
"""Affine of voxels without one: index = millimetre."""


class Times(NamedTuple):
    """Time points that are channels of a volume."""

    number: int = 1
    stride: int = 1  # channels from one time point to the next
    step: float = 1.0  # from one time point to the next, in ``unit``
    start: float = 0.0
    unit: str = ""  # as OME-Zarr names it, such as ``"second"``; empty where there is none

    def at(self, step: float, start: float, unit: str) -> Times:
        """Return the times at other places; one time point has none."""
        return self._replace(step=step, start=start, unit=unit) if self.number > 1 else self

    def after(self, table: NDArray[Any] | None, channels: int) -> Times:
        """Return the time points of selected channels; one, unless each time has the same ones."""
        if table is None or self.number == 1:
            return self
        if len(table) % self.number == 0:
            begin = self.first(range(channels))[0]
            slowest, fastest = table.reshape(self.number, -1), table.reshape(-1, self.number).T
            for rows, stride in ((slowest, slowest.shape[1]), (fastest, 1)):
                is_alike = (np.diff(rows, axis=0) == self.stride).all()
                if is_alike and np.isin(rows[0], begin).all():
                    return self._replace(stride=stride)
        return ONE_TIME

    def first(self, voxels: Any) -> Any:
        """Return an array or sequence (channels, ...) as an array (time, channel, ...)."""
        array = np.asarray(voxels)
        shape = (-1, self.number, self.stride, *array.shape[1:])
        by_time = np.moveaxis(array.reshape(shape), 1, 0)
        return by_time.reshape(self.number, -1, *array.shape[1:])


ONE_TIME = Times()


@dataclass(frozen=True)
class Header:
    """Geometry, types and access of one stored volume."""

    shape: Shape  # (C, I, J, K)
    affine: tuple[float, ...]  # 16 entries, voxel to world, row by row, in millimetres, RAS+
    disk_dtype: np.dtype[Any]  # type of the numbers as stored
    chunks: Triple | None = None  # spatial decode unit in voxels, None where there is none
    access: Access = "view"  # how the store is read
    slope: float = 1.0  # factor from stored number to value
    intercept: float = 0.0  # value of a stored 0
    value_type: np.dtype[Any] | None = None
    """Type of values where it does not follow from the other fields (foreign backends)."""
    stamp: tuple[int, ...] = ()  # size and modification time of the file; empty where there is none
    tensor_dtype: str = ""
    """Type of torch that :attr:`Volume.data` has where NumPy lacks it, such as ``bfloat16``."""
    names_axes: bool = True  # whether the file, or ``axes=``, names the stored axes x, y and z
    file_unit: str = ""  # unit of lengths in the file, such as ``"um"``; empty where it names none
    channel_names: tuple[str, ...] = ()  # one for each channel; empty where the file has none
    times: Times = ONE_TIME
    """Time points among the channels."""

    @classmethod
    def of(
        cls,
        shape: Sequence[int],
        dtype: DTypeLike,
        affine: ArrayLike | None = None,
        *,
        chunks: Sequence[int] | None = None,
        access: Access = "range",
        slope: float = 1.0,
        intercept: float = 0.0,
    ) -> Header:
        """Return the checked header of a custom backend.

        Parameters
        ----------
        shape
            (C, I, J, K).
        dtype
            Type of the numbers as stored.
        affine
            4x4, voxel index to world millimetres, RAS+; anything that NumPy takes, a tensor too.
            None if unknown: one voxel is one millimetre.
        chunks
            (I, J, K) of the decode unit; None where every voxel can be read alone.
        access
            ``"view"``: in memory or mapped; ``"range"``: any part can be read; ``"stream"``: only
            from the beginning.
        slope, intercept
            From stored number to value.

        Raises
        ------
        BadHeader
            Shape, chunks or affine are invalid.
        UnknownFormat
            The type is no plain number.

        Examples
        --------
        >>> Header.of((1, 64, 64, 40), "int16", chunks=(64, 64, 1)).chunks
        (64, 64, 1)
        """
        sizes, units = tuple(map(int, shape)), None if chunks is None else tuple(map(int, chunks))
        if len(sizes) != 4 or min(sizes) < 1:
            raise BadHeader(f"a backend has shape {sizes}.", do="Give (C, I, J, K), all positive.")
        if units is not None and (len(units) != 3 or min(units) < 1):
            raise BadHeader(f"a backend has chunks {units}.", do="Give (I, J, K), all positive.")
        disk_dtype = np.dtype(dtype)
        refuse_unreadable(disk_dtype, "the backend")
        entries = IDENTITY if affine is None else affine_entries(affine, "the backend")
        return cls(sizes, entries, disk_dtype, units, access, slope, intercept)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values that reads return."""
        return self.value_type or value_dtype(self.disk_dtype, self.slope, self.intercept)

    @cached_property
    def of_labels(self) -> Header | None:
        """Header of the values as labels; None where a scale leaves no whole numbers.

        The same object for integers and unscaled floats. Scaled integers become int32, or int64 if
        their range needs it.
        """
        if self.dtype.kind != "f" or (self.slope, self.intercept) == (1.0, 0.0):
            return self
        dtype = self.dtype
        if self.disk_dtype.kind in "iu":
            limits = np.iinfo(self.disk_dtype)
            most = max(abs(limits.min), limits.max)
            error = abs(self.slope - round(self.slope)) * most
            error += abs(self.intercept - round(self.intercept))
            largest = most * abs(self.slope) + abs(self.intercept)
            if (abs(self.slope) >= 1 and error >= _MOST_ERROR) or largest >= np.iinfo(np.int64).max:
                return None
            dtype = np.dtype(np.int32 if largest <= np.iinfo(np.int32).max else np.int64)
        return replace(self, disk_dtype=dtype, slope=1.0, intercept=0.0)

    @property
    def lengths(self) -> str:
        """Voxel size in the file's unit; empty without a unit. A plane has two entries."""
        if not self.file_unit:
            return ""
        spacing = np.linalg.norm(affine_matrix(self.affine)[:3, :3], axis=0)
        # Planes without a z axis have one voxel of the default length along K.
        count = 2 if self.shape[3] == 1 and spacing[2] == 1.0 else 3
        sizes = spacing[:count] / MILLIMETRES.get(self.file_unit, 1.0)
        return f"{' x '.join(f'{size:.6g}' for size in sizes)} {self.file_unit}"

    def document(self) -> dict[str, Any]:
        """Return this header as JSON values; lengths are in millimetres.

        Examples
        --------
        >>> header = Header((1, 4, 4, 2), IDENTITY, np.dtype(">i2"))
        >>> header.document()["disk_dtype"], header.document()["unit"]
        ('>i2', 'mm')
        >>> Header.of_document(header.document()) == header
        True
        """
        values: dict[str, Any] = {"unit": UNIT, "dtype": self.dtype.str}
        for field in fields(self):
            value = getattr(self, field.name)
            value = value.str if isinstance(value, np.dtype) else value
            values[field.name] = list(value) if isinstance(value, tuple) else value
        return values

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Header:
        """Return the header of a :meth:`document`."""
        chunks, value_type = document["chunks"], document["value_type"]
        shape_c, shape_i, shape_j, shape_k = map(int, document["shape"])
        return cls(
            (shape_c, shape_i, shape_j, shape_k),
            tuple(map(float, document["affine"])),
            np.dtype(document["disk_dtype"]),
            triple(chunks),
            document["access"],
            float(document["slope"]),
            float(document["intercept"]),
            None if value_type is None else np.dtype(str(value_type)),
            tuple(map(int, document["stamp"])),
            document.get("tensor_dtype", ""),
            document.get("names_axes", True),
            document.get("file_unit", ""),
            tuple(map(str, document.get("channel_names", ()))),
            Times(*document.get("times", ())),
        )

    def agrees_with(self, other: Header) -> bool:
        """Whether both describe the same voxels, apart from the time of writing."""

        def without_stamp(header: Header) -> Header:
            # Bare voxels may be mapped on one machine and read on another.
            is_bare = header.chunks is None and header.access == "range"
            access: Access = "view" if is_bare else header.access
            usual: Any = {"names_axes": True, "file_unit": "", "channel_names": ()}
            usual["times"] = ONE_TIME
            return replace(header, stamp=(), access=access, **usual)

        return without_stamp(self) == without_stamp(other)


def triple(numbers: Sequence[int] | None) -> Triple | None:
    """Return three whole numbers of a document; None for None."""
    if numbers is None:
        return None
    i, j, k = map(int, numbers)
    return i, j, k


def value_dtype(dtype: np.dtype[Any], slope: float = 1.0, intercept: float = 0.0) -> np.dtype[Any]:
    """Return the native type of the values of stored numbers."""
    # By its text: torch and zarr do not know NumPy's second types of 64 bits.
    native = np.dtype(dtype.str).newbyteorder("=")
    if (slope, intercept) == (1.0, 0.0) or native.kind in "bc":
        return native
    if native.kind == "f":
        return np.dtype(np.float64 if native.itemsize > 4 else np.float32)
    return np.dtype(np.float32 if native.itemsize <= EXACT_IN_FLOAT32 else np.float64)


def refuse_unreadable(dtype: np.dtype[Any], name: str) -> None:
    """Raise ``UnknownFormat`` for voxels that are no plain numbers."""
    if dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8):
        return
    if dtype.kind == "c" and dtype.itemsize <= 16:
        return
    kind = "RGB" if dtype.names and dtype.names[0] == "R" else str(dtype)
    msg = f"{name} holds {kind} voxels, and a volume holds integers, floats up to 64 bits or "
    do = "Store each colour as a channel, or convert the voxels to a numeric type."
    raise UnknownFormat(f"{msg}complex numbers up to 128 bits.", do=do)


def affine_entries(affine: ArrayLike, name: str) -> tuple[float, ...]:
    """Return a 4x4 matrix as 16 plain floats; refuse one that is not finite."""
    matrix = np.asarray(affine, dtype=np.float64)
    # ``not ... <=`` also refuses NaN.
    if matrix.shape != (4, 4) or not (np.abs(matrix) <= _LARGEST).all():
        if PLACEMENT.get().has_affine:
            return IDENTITY
        msg = f"the affine of {name} is not a finite 4x4 matrix: {matrix.tolist()}."
        raise BadHeader(msg, do="Pass ⟦affine=⟧, the voxel-to-world matrix in millimetres.")
    return tuple(float(v) for v in matrix.ravel())


class Placement(NamedTuple):
    """Source of the affine of a file that is being opened."""

    has_affine: bool = False  # whether the user gave one
    units: set[str] | None = None  # receives the units of length in the file


PLACEMENT = ContextKey(Placement())
TIMES_STAY = ContextKey(False)
"""Whether time points are written as an axis: then they are no channels, and nothing warns."""


def stored_affine(read: Callable[..., tuple[float, ...]], *args: Any) -> tuple[float, ...]:
    """Return ``read(*args)``, the affine of a file.

    The identity where it is invalid and the user gave one.
    """
    try:
        return read(*args)
    except BadHeader:
        if not PLACEMENT.get().has_affine:
            raise
        return IDENTITY


def given_affine(affine: ArrayLike, name: str) -> tuple[float, ...]:
    """Return a user's affine as 16 plain floats; refuse one without an inverse."""
    if np.shape(affine) != (4, 4):
        msg = f"the affine given for {name} has the shape {np.shape(affine)}, and a 4x4 is needed."
        do = "Its first three columns are the step of each axis in mm, the fourth is the origin."
        raise BadHeader(msg, do=do)
    return invertible_affine(
        affine_entries(affine, name), (0, 0, 0), f"the affine given for {name}"
    )


def invertible_affine(
    entries: tuple[float, ...], sizes: Sequence[int], noun: str
) -> tuple[float, ...]:
    """Return an affine with an inverse; refuse any other.

    A step of zero along an axis of one voxel is replaced, with a warning, by 1 mm perpendicular to
    the others.
    """
    matrix = affine_matrix(entries)
    steps = matrix[:3, :3]
    lengths = np.linalg.norm(steps, axis=0)
    if np.prod(lengths) and abs(np.linalg.det(steps / lengths)) > _FLAT:
        return entries
    missing = lengths == 0
    if missing.any() and set(np.asarray(sizes)[missing]) == {1}:
        # The last right singular vectors are perpendicular to all steps.
        across = np.linalg.svd(steps.T)[2][3 - missing.sum() :]
        across *= np.sign(across[np.arange(len(across)), np.abs(across).argmax(axis=1)])[:, None]
        steps[:, missing] = across.T + 0.0  # no negative zeros
        if np.linalg.matrix_rank(steps) == 3:
            warn(
                f"{noun} has a step of 0 mm along an axis of one voxel; 1 mm is used.",
                LikelyMistake,
            )
            return tuple(float(v) for v in matrix.ravel())
    msg = f"{noun} has no inverse: several voxels would have one place ({steps.tolist()})."
    do = "Pass ⟦affine=⟧, a 4x4 whose first three columns are the step of each axis in millimetres."
    raise BadHeader(msg, do=do)


def affine_matrix(entries: tuple[float, ...]) -> Affine:
    """Return 16 floats as a matrix."""
    return np.array(entries, dtype=np.float64).reshape(4, 4)


def channels_first(array: NDArray[Any], name: str) -> NDArray[Any]:
    """Return (I, J), (I, J, K) or (C, I, J, K) as (C, I, J, K), a view."""
    if not 2 <= array.ndim <= 4:
        msg = f"{name} has {array.ndim} axes."
        raise BadHeader(msg, do="Give (I, J), (I, J, K) or (C, I, J, K).")
    array = array[..., None] if array.ndim == 2 else array
    return array[None] if array.ndim == 3 else array


def array_header(array: NDArray[Any], affine: tuple[float, ...], name: str, **more: Any) -> Header:
    """Return the header of an array (C, I, J, K) in memory; ``more`` are fields of it."""
    refuse_unreadable(array.dtype, name)
    shape = array.shape
    if min(shape) < 1:
        raise BadHeader(f"{name} holds no voxels: shape {shape}.", do="Give at least one voxel.")
    entries = invertible_affine(affine, shape[1:], f"the affine of {name}")
    return Header(shape, entries, np.dtype(array.dtype.str), **more)
