"""Look whether one volume can be read, and say in a sentence why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.errors import VoxpipeError
from ...core.redact import public_text
from ...core.validate import count_text
from ..chunks.decoders import register_decoder
from ..header import Shape
from ..registry import register_backend
from ..session import close_volumes
from ..volume import Volume
from ..voxels import Voxels
from .whole_pass import slabs_of

_NOT_WHOLE = "no whole numbers"


@dataclass(frozen=True)
class Finding:
    """What was found at one volume."""

    case: str
    """Name of its case."""
    key: str
    """What it is in the case."""
    name: str
    """Path or URL, without credentials."""
    error: str = ""
    """Class of the error; ``"NotFinite"`` or ``"NotWhole"`` for what is odd about the voxels,
    ``"MissingLabel"`` or ``"MissingVolume"`` where a case has none; empty for a sound volume."""
    reason: str = ""
    """What is wrong, and what to do; empty for a sound volume."""
    shape: Shape | None = None
    """(C, I, J, K), where the header could be read."""
    affine: tuple[float, ...] | None = None
    """The 16 entries of the affine, where the header could be read."""

    @property
    def is_bad(self) -> bool:
        """Whether something is wrong."""
        return bool(self.error)

    @classmethod
    def of_missing(cls, case: str, key: str, labels: Collection[str], reason: str) -> Finding:
        """Return the finding of a volume that a case lacks."""
        return cls(case, key, "", "MissingLabel" if key in labels else "MissingVolume", reason)

    @classmethod
    def of_error(
        cls,
        error: Exception,
        case: str,
        key: str,
        name: str,
        shape: Shape | None = None,
        affine: tuple[float, ...] | None = None,
    ) -> Finding:
        """Return what an error says about a volume."""
        kind = type(error).__name__
        told = public_text(str(error))
        if isinstance(error, VoxpipeError):
            stop = "" if error.what.endswith(".") or not error.do else "."
            told = f"{error.what}{stop} {error.do}"
        return cls(case, key, name, kind, told.strip() or kind, shape, affine)

    def __str__(self) -> str:
        told = " ".join(self.reason.split()) if self.is_bad else "sound"
        return f"{self.case}/{self.key}: {self.error + ': ' if self.error else ''}{told}"


def examine(volume: Volume, case: str, key: str, *, voxels: bool = False) -> Finding:
    """Open a volume and read its header, or every voxel; any error becomes a finding."""
    shape, affine = None, None
    try:
        header = volume.probe().header
        shape, affine = header.shape, tuple(float(v) for v in np.ravel(volume.affine))
        if voxels:
            odd: Counter[str] = Counter()
            for region in slabs_of(volume):
                odd += _odd_values(volume.read(region), volume.kind == "label")
            if odd:
                return _finding_of(odd, Finding(case, key, volume.name, shape=shape, affine=affine))
    except Exception as error:  # a bad file may raise anything in whatever library reads it
        return Finding.of_error(error, case, key, volume.name, shape, affine)
    return Finding(case, key, volume.name, shape=shape, affine=affine)


def _odd_values(read: Voxels, is_label: bool) -> Counter[str]:
    """Count the voxels that are NaN, infinite or, in a label, no whole number."""
    array = read.array
    array.max()  # a mapped page is read when it is looked at
    is_whole = array.dtype.kind in "iub" and float(read.slope).is_integer()
    if array.dtype.kind not in "fciub" or (is_whole and float(read.intercept).is_integer()):
        return Counter()
    counts = {}
    if array.dtype.kind in "fc":
        counts = {"NaN": np.isnan(array).sum(), "infinite": np.isinf(array).sum()}
    if is_label and array.dtype.kind != "c":
        values = array.astype(np.float64) * read.slope + read.intercept
        finite = values[np.isfinite(values)]
        counts[_NOT_WHOLE] = (finite != np.rint(finite)).sum()
    return +Counter({what: int(count) for what, count in counts.items()})


def _finding_of(odd: Mapping[str, int], sound: Finding) -> Finding:
    """Return what is told of odd voxels."""
    counted = " and ".join(_text_of_odd(count, what) for what, count in odd.items())
    if "NaN" in odd or "infinite" in odd:
        kind, do = "NotFinite", "Replace them: each spreads to what is interpolated or averaged."
    else:
        kind, do = "NotWhole", "Write labels with nearest neighbour, or open this key as an image."
    return replace(sound, error=kind, reason=f"{sound.name}: {counted}. {do}")


def _text_of_odd(count: int, what: str) -> str:
    singular = "no whole number" if what == _NOT_WHOLE else what
    return count_text(count, f"voxel is {singular}", f"voxels are {what}")


def serve(
    connection: Any,
    voxels: bool,
    backends: tuple[Any, ...] = (),
    decoders: tuple[Any, ...] = (),
) -> None:
    """Examine the volumes that arrive, ``(volume, case, key)`` each, until None or the end."""
    for codec, maker in decoders:
        register_decoder(codec, maker)
    for name, matcher, factory in reversed(backends):
        register_backend(name, matcher, factory)
    try:
        connection.send(None)  # ready
    except OSError:  # all was examined by others while this process started
        return
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        if task is None:
            return
        finding = examine(*task, voxels=voxels)
        close_volumes()
        try:
            connection.send(finding)
        except OSError:  # whoever asked has left
            return
