"""Stack samples into a batch; lazy patches are realized where the batch lies."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..core import META, CallSite, Sample
from ..core.call_site import WarnOnce, is_looking_ahead, warn
from ..core.errors import (
    LikelyLabel,
    PatchSizeError,
    ProvenanceLost,
    SampleError,
    UnopenedVolume,
    add_location,
    missing_key_hint,
)
from ..core.label_likeness import ValueSample, look_at, look_like_classes, look_like_image
from ..core.memory import refuse_beyond_memory
from ..core.sample import case_of
from ..spatial import LazyPatch, Source
from ..spatial.lazy.read_plan import stored_shown_to
from ..spatial.volume_like import patch_before
from ..storage.ranges import reads_of
from ..volumes import Volume, is_volume
from .threads import in_threads


@dataclass(frozen=True, eq=False)
class Realized:
    """An array that the user sees as a tensor of the same memory.

    A worker that only realizes plans has no torch, whose import takes a second and 190 MB;
    the tensor is made where the batch is handed over.
    """

    array: NDArray[Any]
    """Any shape and type that torch has too."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array."""
        return self.array.dtype


# Where a batch is put together.
#
# ``batch_patches`` asks for memory here. By default that is the process's own; a
# worker puts a shared-memory slot in its place, so that a batch is written where the
# consumer will read it.

ArraySpec: TypeAlias = "tuple[tuple[int, ...], np.dtype[np.generic]]"
"""Shape and type of one array of a batch."""


class BatchMemory(Protocol):
    """Something that hands out memory for all arrays of a batch at once."""

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
        """Return one C-ordered, uninitialised array per spec."""


class OwnMemory:
    """The process's own memory."""

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
        """Return one C-ordered, uninitialised array per spec."""
        return [np.empty(shape, dtype) for shape, dtype in specs]


_OWN = OwnMemory()
_CURRENT: ContextVar[BatchMemory] = ContextVar("batch_memory")


def batch_memory() -> BatchMemory:
    """Return the memory in which batches are made now."""
    return _CURRENT.get(_OWN)


@contextlib.contextmanager
def using(memory: BatchMemory) -> Iterator[None]:
    """Make batches in ``memory`` inside the ``with`` block."""
    token = _CURRENT.set(memory)
    try:
        yield
    finally:
        _CURRENT.reset(token)


# So many batches of a key are looked at: random patches of an organ are often empty.
_LOOKED_AT = 16


class LikelyLabels:
    """Looks whether what is taken for an image holds classes: in the first batches of a process.

    It sees the voxels as they are stored: between classes that were interpolated lie others.
    Copies of a pipe share one; in a worker it begins anew.
    """

    def __init__(self, origin: CallSite | None) -> None:
        self._origin = origin
        self._left: dict[str, int] = {}
        self._seen: dict[str, list[ValueSample]] = {}

    def watch(self, key: str, patch: LazyPatch) -> AbstractContextManager[None]:
        """Look at what is read for a patch inside the ``with`` block, if that is to be known."""
        guessed = patch.kind != "label" and patch.policy.mode != "nearest"
        if not guessed or self._left.get(key, _LOOKED_AT) == 0 or is_looking_ahead():
            return nullcontext()
        seen, moved = self._seen.setdefault(key, []), _is_interpolated(patch)

        def show(source: Source) -> None:
            # Integers that nothing interpolates stay what they are.
            if moved or source.array.dtype.kind == "f":
                seen.append(look_at(source.array, source.slope, source.intercept))

        return stored_shown_to(show)

    def tell(self, key: str) -> None:
        """Warn, once, where the voxels that were seen are few whole numbers."""
        seen = self._seen.get(key, [])
        if not seen or is_looking_ahead():
            return
        left = self._left[key] = self._left.get(key, _LOOKED_AT) - 1
        found = look_like_classes(seen)
        if found or left <= 0 or look_like_image(seen):
            self._left[key] = 0
            del self._seen[key]
        if not found:
            return
        # The text names no case, so that workers, and Python, tell it once.
        text = (
            f"{key!r} is sampled as an intensity, and holds few whole numbers, as a label does\n"
            f"  at {self._origin}\n"
            f"  If it holds classes, name {key!r} in open_volume(labels=...). "
            "If not, give labels= without it: then nothing is guessed."
        )
        warn(text, LikelyLabel, self._origin)

    def __reduce__(self) -> tuple[type[LikelyLabels], tuple[CallSite | None]]:
        return LikelyLabels, (self._origin,)


def _is_interpolated(patch: LazyPatch | None) -> bool:
    """Whether some step of a patch, or of one that it begins with, interpolates."""
    while patch is not None:
        if not patch.pending.keeps_dtype:
            return True
        patch = patch_before(patch.volume)
    return False


@dataclass(frozen=True)
class Gather:
    """Stack samples into ``{"image": (B, C, I, J, K), ..., "meta": [provenance, ...]}``."""

    straight: bool = True
    """Whether patches are realized straight into the batch, without memory of their own."""
    origin: CallSite | None = None
    """Where the user wrote the pipe."""
    of_cases: bool = False
    """Whether the chain began with cases, so that items without provenance have lost it."""
    likely: LikelyLabels | None = field(default=None, compare=False, repr=False)
    """Looks for labels among the images; None where the user has said which are labels."""
    once: WarnOnce = field(default_factory=WarnOnce, compare=False, repr=False)
    """Knows the keys of which it was said that they hold paths, or that they hold none."""

    def __call__(self, items: Sequence[Any]) -> list[dict[str, Any]]:
        """Return one batch of ``items``, in a list.

        Raises
        ------
        PatchSizeError
            If the samples differ in shape or in their keys.
        SampleError
            If an item is not a mapping.
        """
        try:
            keys = _keys(items)
            arrays = [key for key in keys if _is_array(items[0][key])]
            if not arrays:
                _refuse_unopened(items[0])
            specs = [_spec_of(key, items) for key in arrays]
            for key, (shape, dtype) in zip(arrays, specs, strict=True):
                refuse_beyond_memory(shape, dtype, f"the batch of {key!r}")
            memory = dict(zip(arrays, batch_memory().take(specs), strict=True))
            slots = [
                (out, sample, key)
                for key, stack in memory.items()
                for out, sample in zip(stack, items, strict=True)
            ]
            in_threads(self._fill, slots)
            self._tell(memory)
        except Exception as error:
            raise add_location(error, self.origin)  # noqa: B904  the very same error
        batch = {
            key: Realized(memory[key]) if key in memory else _collated([s[key] for s in items])
            for key in keys
        }
        if all(isinstance(sample, Sample) for sample in items):
            batch[META] = [sample.provenance() for sample in items]
            self._warn_of_paths(items[0], [key for key in keys if key not in memory])
        elif self.of_cases:
            self._warn_of_loss()
        return [batch]

    def _tell(self, keys: Iterable[str]) -> None:
        for key in keys:
            if self.likely is not None:
                self.likely.tell(key)

    def _warn_of_paths(self, sample: Sample, keys: Sequence[str]) -> None:
        """Warn of volumes that ``open_volume()`` was told to leave alone, or did not recognise."""
        if is_looking_ahead():
            return
        for key in keys:
            thing = sample[key]
            given = thing if isinstance(thing, (list, tuple)) and thing else [thing]
            if key in self.once or not isinstance(given[0], (str, PathLike)):
                continue
            if all(isinstance(one, (str, PathLike)) and is_volume(fspath(one)) for one in given):
                text = (
                    f"the batch holds the path of a volume under {key!r}, and not its voxels\n"
                    f"  at {self.origin}\n"
                    f"  Name {key!r} in open_volume(keys=...), or leave keys= out."
                )
                self.once.warn(key, text, UnopenedVolume, self.origin)
            else:  # the disk is not asked again
                self.once.leave(key)

    def _warn_of_loss(self) -> None:
        # The text names no case, so that Python shows it once.
        text = (
            "samples became plain mappings on their way, so the batch has no 'meta'\n"
            f"  at {self.origin}\n"
            "  Return sample.with_data(image=..., ...) from .map() instead of a dict of your own."
        )
        warn(text, ProvenanceLost, self.origin)

    def _fill(self, slot: tuple[NDArray[Any], Any, str]) -> None:
        out, sample, key = slot
        thing = sample[key]
        if not isinstance(thing, LazyPatch):
            out[...] = _array_of(thing)
            return
        try:
            likely = nullcontext() if self.likely is None else self.likely.watch(key, thing)
            with reads_of(key), likely:
                if self.straight:
                    thing.realize(out=out)
                else:
                    out[...] = thing.realize()
        except Exception as error:
            raise add_location(error, case=case_of(sample), key=key)  # noqa: B904


_NOTHING = "A function before it, in map() say, returned nothing: let it return the sample."
_OTHER = "Use torch's batch() and collate() for other items."


def _refuse_unopened(sample: Any) -> None:
    """Say so where paths would be collected, and nothing else."""
    if not isinstance(sample, Sample):
        return
    told = [key for key, thing in sample.items() if isinstance(thing, (str, PathLike, Volume))]
    if told:
        msg = f"batch_patches() stacks voxels, and the sample has {', '.join(told)} not opened yet"
        raise SampleError(msg, do="Put open_volume() before it.").at(case=sample.case)


def _keys(samples: Sequence[Any]) -> list[str]:
    for sample in samples:
        if not isinstance(sample, Mapping):
            msg = f"batch_patches stacks samples or mappings, got {type(sample).__name__}"
            raise SampleError(msg, do=_NOTHING if sample is None else _OTHER)
        if set(sample) != set(samples[0]):
            first, other = _name(samples[0]), _name(sample)
            msg = f"{first} has {sorted(samples[0])}, {other} has {sorted(sample)}"
            (lacked, *_) = sorted(set(sample) ^ set(samples[0]), key=str)
            do = missing_key_hint(lacked, "Every sample of a batch needs the same keys.")
            raise PatchSizeError(msg, do=do)
    return list(samples[0])


def _spec_of(key: str, samples: Sequence[Any]) -> ArraySpec:
    shapes = []
    for sample in samples:
        try:
            shapes.append(tuple(sample[key].shape))
        except Exception as error:
            raise add_location(error, case=case_of(sample))  # noqa: B904
        if shapes[-1] != shapes[0]:
            msg = (
                f"{key} of {_name(samples[0])} is {shapes[0]}, "
                f"that of {_name(sample)} is {shapes[-1]}"
            )
            do = "Cut patches of one size: .lazy_patch(size) or .crop_or_pad(size)."
            if shapes[-1][1:] == shapes[0][1:]:
                do = "They differ in channels alone, which no crop changes: leave such cases out."
            raise PatchSizeError(msg, do=do)
    dtype = np.result_type(*(_dtype_of(sample[key]) for sample in samples))
    return (len(samples), *shapes[0]), dtype


def _is_array(thing: Any) -> bool:
    """Whether ``thing`` is stacked: a tensor counts, but is not asked for its class by name."""
    if isinstance(thing, (LazyPatch, Realized, np.ndarray)):
        return True
    like = hasattr(type(thing), "__array__") and hasattr(type(thing), "numpy")
    return like and not isinstance(thing, (np.generic, Volume))


def _array_of(thing: Any) -> NDArray[Any]:
    return thing.array if isinstance(thing, Realized) else np.asarray(thing)


def _dtype_of(thing: Any) -> np.dtype[Any]:
    return thing.dtype if isinstance(thing, LazyPatch) else _array_of(thing).dtype


def _collated(things: list[Any]) -> Any:
    """Return numbers as one array, other things as they are, in a list."""
    if not all(isinstance(thing, (bool, int, float)) for thing in things):
        return things
    numbers = np.array(things)
    return Realized(numbers) if numbers.dtype.kind in "bif" else things


def _name(sample: Any) -> str:
    return f"case {sample.case}" if isinstance(sample, Sample) else "a sample"
