"""Collation: values change, patches are realized, and arrays are stacked to a batch."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from os import PathLike, fspath
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..core import META, CallSite, Sample, errors
from ..core.call_site import WarnOnce, is_looking_ahead, warn
from ..core.context import ContextKey, Values, holding, values_here
from ..core.errors import add_location
from ..core.label_likeness import ValueSample, look_at, look_like_classes, look_like_image
from ..core.locks import ForkSafeLock
from ..core.memory import beyond_memory, core_quota, usable_memory
from ..core.sample import case_of
from ..core.suggest import looks_like_label
from ..intensity import SelectChannels, ValueStep
from ..spatial import LazyPatch, SourceVoxels, stored_labels
from ..spatial.lazy.read_plan import SHOW
from ..spatial.lazy.stack import needs_header, select_by_name, select_by_number
from ..storage.ranges import COALESCING
from ..volumes import Volume, is_volume
from .channel_orders import ChannelOrders, header_names


@dataclass(frozen=True, eq=False)
class RealizedArray:
    """An array that the user sees as a tensor of the same memory."""

    # Workers that only realize plans do not import torch, which takes a second and 190 MB.

    array: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the array."""
        return self.array.dtype


ArraySpec: TypeAlias = "tuple[tuple[int, ...], np.dtype[np.generic]]"  # of one array


class BatchMemory(Protocol):
    """Source of memory for all arrays of a batch at once."""

    # A worker uses a slot of shared memory, so that the consumer reads the batch in place.

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
        """Return one C-ordered, uninitialised array per spec."""


_MEMORY: ContextKey[BatchMemory | None] = ContextKey(None)


def new_arrays(specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
    """Return one C-ordered, uninitialised array per spec, from the memory in use."""
    memory = values_here().get(_MEMORY)
    return [np.empty(*spec) for spec in specs] if memory is None else memory.take(specs)


def batches_in(memory: BatchMemory | None) -> holding[BatchMemory | None]:
    """Make batches in ``memory`` inside the ``with`` block; None for the process's own."""
    return holding(_MEMORY, memory)


# Decoding and resampling release the interpreter lock: several threads pay for one batch.

T = TypeVar("T")
R = TypeVar("R")
_EXECUTOR: ContextKey[Executor | None] = ContextKey(None)


def usable_cores() -> int:
    """Return the number of cores that this process may use, within its quota."""
    has_mask = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_mask else os.cpu_count() or 1
    quota = core_quota()
    return count if quota >= count else max(1, math.ceil(quota))


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    """Realize up to ``count`` patches at once inside the block."""
    name = "voxpipe-realize"
    pool = nullcontext() if count < 2 else ThreadPoolExecutor(count, thread_name_prefix=name)
    with pool as executor, holding(_EXECUTOR, executor):
        yield


def in_threads(function: Callable[[T], R], things: Iterable[T]) -> list[R]:
    """Return ``function`` of each thing, in order; raise the first error in order."""
    # Returns or raises only after all calls, because the caller then releases their memory.
    executor, items = values_here().get(_EXECUTOR), list(things)
    if executor is None or len(items) < 2:
        return [function(thing) for thing in items]
    # Threads inherit the context of the caller's reads.
    futures = [executor.submit(copy_context().run, function, thing) for thing in items]
    wait(futures)
    try:
        return list(map(Future.result, futures))
    finally:
        # An error keeps this frame alive: drop the futures, which hold the voxels.
        futures.clear()


def reading(key: str, more: Values | None = None) -> AbstractContextManager[Any]:
    """Read ``key`` of samples inside the ``with`` block, with the values of ``more`` keys."""
    policies, _ = values_here().get(COALESCING, COALESCING.default)
    return holding(COALESCING, (policies, key), more)


# Batches that are checked per key: random patches of an organ are often empty.
_LOOKED_AT = 16


class LikelyLabels:
    """Checks in the first batches of a process whether an image holds classes."""

    # Checks stored voxels, before interpolation. Copies of a pipe share one instance.

    def __init__(self, origin: CallSite | None, data: str = "") -> None:
        self._origin = origin
        self._data = data  # a line that names the data set, if known
        self._looks = Counter[str]()
        self._samples: dict[str, list[ValueSample]] = {}
        self.over: set[str] = set()
        """Keys whose check is finished."""
        self._lock = ForkSafeLock()  # threads of one process may make several batches at once

    def watch(self, key: str, patch: LazyPatch) -> Values | None:
        """Return the values with which a read of a patch records its stored voxels, if checked."""
        is_guess = patch.volume.kind != "label" and patch.policy.mode != "nearest"
        # ``open_volume`` has warned of keys that look like a label.
        is_over = key in self.over or looks_like_label(key)
        if not is_guess or is_over or is_looking_ahead():
            return None
        samples, below = self._samples.setdefault(key, []), patch
        while below.pending.keeps_dtype and (before := getattr(below.volume, "patch", None)):
            below = before
        is_resampled = not below.pending.keeps_dtype

        def show(source: SourceVoxels) -> None:
            # Integers without interpolation keep their values.
            if is_resampled or source.array.dtype.kind == "f":
                samples.append(look_at(source.array, source.slope, source.intercept))

        return {SHOW: show}

    def judge(self, key: str) -> None:
        """Warn once if the recorded voxels are few whole numbers."""
        with self._lock:
            samples = self._samples.get(key, [])
            if not samples or key in self.over or is_looking_ahead():
                return
            self._looks[key] += 1
            likely = look_like_classes(samples)
            if likely or self._looks[key] >= _LOOKED_AT or look_like_image(samples):
                self.over.add(key)
                del self._samples[key]
        if not likely:
            return
        # The text names the data set and no case: workers, and Python, show it once for each.
        text = (
            f"{key!r} is sampled as an intensity, and holds few whole numbers, as a label does\n"
            f"  at {self._origin}\n{self._data}"
            f"  If it holds classes, name {key!r} in open_volume(labels=...). "
            "If not, give ⟦labels=⟧ without it: then nothing is guessed."
        )
        warn(text, errors.LikelyLabel, self._origin)

    def __reduce__(self) -> tuple[type[LikelyLabels], tuple[CallSite | None, str]]:
        return LikelyLabels, (self._origin, self._data)


class ItemByItem:
    """An instruction that changes each item by itself."""

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        """Return the changed items."""
        return [self.of(item) for item in items]

    def of(self, item: Any) -> Any:
        """Return the item, changed."""
        raise NotImplementedError


@dataclass(frozen=True)
class Collate:
    """Stack samples into ``{"image": (B, C, I, J, K), ..., "meta": [provenance, ...]}``."""

    origin: CallSite | None = None
    of_cases: bool = False  # whether the chain began with cases: their provenance must not be lost
    likely: LikelyLabels | None = field(default=None, compare=False, repr=False)
    """None where the user has said which are labels."""
    once: WarnOnce = field(default_factory=WarnOnce, compare=False, repr=False)
    """Keys that were checked for paths."""
    place_keys: tuple[str, ...] = ()
    """Keys of masks and weights, opened by an earlier pipe."""
    orders: ChannelOrders = field(default_factory=ChannelOrders, compare=False, repr=False)

    def __call__(self, items: Sequence[Any]) -> list[dict[str, Any]]:
        """Return one batch of ``items``, in a list."""
        try:
            if not all(isinstance(i, Mapping) and i.keys() == items[0].keys() for i in items):
                _refuse_other_keys(items)
            things = {key: [item[key] for item in items] for key in items[0]}
            specs = {key: _spec_of(items, key) for key in things}
            array_specs = {key: spec for key, spec in specs.items() if spec is not None}
            if not array_specs and isinstance(items[0], Sample):
                is_unopened = (str, PathLike, Volume)
                names = [k for k, thing in items[0].items() if isinstance(thing, is_unopened)]
                if names:
                    keys = ", ".join(names)
                    msg = f"batch_patches() stacks voxels, and the sample has {keys} not opened yet"
                    do = "Put open_volume() before it."
                    raise errors.SampleError(msg, do=do).at(case=items[0].case)
            # Inline, without a call: most files name no channels.
            for key in array_specs:
                for item, patch in zip(items, things[key], strict=True):
                    if not isinstance(patch, LazyPatch):
                        patch = getattr(item, "patches", {}).get(key)
                    if isinstance(patch, LazyPatch):
                        volume = getattr(patch.volume, "stored_volume", patch.volume)
                        header = getattr(volume, "_header", None)
                        own = header_names(patch) if header is None else header.channel_names
                        if own and own != self.orders.first_names.get(key):
                            self.orders(key, item, patch, is_made=patch is not item[key])
            arrays = dict(zip(array_specs, new_arrays([*array_specs.values()]), strict=True))
            slots = (zip(arrays[key], items, (key,) * len(items), strict=True) for key in arrays)
            in_threads(self._fill, chain.from_iterable(slots))
            if self.likely is not None:
                for key in [key for key in arrays if key not in self.likely.over]:
                    self.likely.judge(key)
        except Exception as error:
            raise add_location(error, self.origin)  # noqa: B904  the very same error
        batch = {
            k: RealizedArray(arrays[k]) if k in arrays else _as_list(things[k]) for k in things
        }
        if all(map(isinstance, items, repeat(Sample))):
            batch[META] = [item.provenance() for item in items]
            if len(arrays) < len(things) and not is_looking_ahead():
                self._warn_of_paths({key: things[key][0] for key in things if key not in arrays})
        elif self.of_cases:
            # The text names no case, so that Python shows it once.
            text = (
                "samples became plain mappings on their way, so the batch has no 'meta'\n"
                f"  at {self.origin}\n  Return sample.with_data(image=..., ...) from .map() "
                "instead of a dict of your own."
            )
            warn(text, errors.ProvenanceLost, self.origin)
        return [batch]

    def _fill(self, slot: tuple[NDArray[Any], Any, str]) -> None:
        out, item, key = slot
        thing = item[key]
        if not isinstance(thing, LazyPatch):
            out[...] = _array_of(thing)
            return
        try:
            likely = self.likely
            more = None if likely is None or key in likely.over else likely.watch(key, thing)
            with reading(key, more):
                voxels = thing.realize(out)
        except Exception as error:
            raise add_location(error, case=case_of(item), key=key)  # noqa: B904
        if voxels is not out:
            out[...] = voxels

    def _warn_of_paths(self, things: Mapping[str, Any]) -> None:
        """Warn of volumes that ``open_volume()`` skipped, by ``keys=`` or by their name."""
        for key, thing in things.items():
            paths = thing if isinstance(thing, (list, tuple)) and thing else [thing]
            is_path = isinstance(paths[0], (str, PathLike))
            if not is_path or key in self.once or key in self.place_keys:
                continue
            if all(isinstance(one, (str, PathLike)) and is_volume(fspath(one)) for one in paths):
                text = (
                    f"the batch holds the path of a volume under {key!r}, and not its voxels\n"
                    f"  at {self.origin}\n"
                    f"  Name {key!r} in open_volume(keys=...), or leave keys= out."
                )
                self.once.warn(key, text, errors.UnopenedVolume, self.origin)
            else:  # do not check the disk again
                self.once.leave(key)


def _refuse_other_keys(samples: Sequence[Any]) -> None:
    for sample in samples:
        if not isinstance(sample, Mapping):
            do = "Use torch's batch() and collate() for other items."
            if sample is None:
                do = "A function before it, in map() say, returned nothing: let it return the "
                do += "sample."
            msg = f"batch_patches stacks samples or mappings, got {type(sample).__name__}"
            raise errors.SampleError(msg, do=do)
        if set(sample) != set(samples[0]):
            first, other = _name(samples[0]), _name(sample)
            msg = f"{first} has {sorted(samples[0])}, {other} has {sorted(sample)}"
            (missing, *_) = sorted(set(sample) ^ set(samples[0]), key=str)
            do = errors.missing_key_hint(missing, "Every sample of a batch needs the same keys.")
            raise errors.PatchSizeError(msg, do=do)


def _spec_of(samples: Sequence[Any], key: str) -> ArraySpec | None:
    """Return shape and type of a stacked key; None for a listed one."""
    first = samples[0][key]
    if not isinstance(first, (LazyPatch, RealizedArray, np.ndarray)):
        # Tensors count, without an import of torch.
        like = hasattr(type(first), "__array__") and hasattr(type(first), "numpy")
        if not like or isinstance(first, (np.generic, Volume)):
            return None
    shapes = []
    for sample in samples:
        try:
            shapes.append(tuple(sample[key].shape))
        except Exception as error:
            raise add_location(error, case=case_of(sample))  # noqa: B904
        if shapes[-1] != shapes[0]:
            one, other = _name(samples[0]), _name(sample)
            msg = f"{key} of {one} is {shapes[0]}, that of {other} is {shapes[-1]}"
            do = "Cut patches of one size: .lazy_patch(size) or .crop_or_pad(size)."
            if shapes[-1][1:] == shapes[0][1:]:
                do = (
                    "They differ in channels alone, which no crop changes: choose channels that "
                    "all files have by ⟦open_volume(channels=[...])⟧, or leave such cases out."
                )
            raise errors.PatchSizeError(msg, do=do)
    things = [sample[key] for sample in samples]
    arrays = [one if isinstance(one, LazyPatch) else _array_of(one) for one in things]
    dtypes = [one.dtype for one in arrays]
    dtype = np.result_type(*dtypes)
    if dtype == np.float64:  # NumPy's answer also for types that it does not hold
        _refuse_rounding(samples, key, dtypes)
    shape = (len(samples), *shapes[0])
    if 0 < usable_memory() < math.prod(shape) * dtype.itemsize:
        raise beyond_memory(shape, dtype, f"the batch of {key!r}")
    return shape, dtype


def _refuse_rounding(samples: Sequence[Any], key: str, dtypes: Sequence[np.dtype[Any]]) -> None:
    wide = next((n for n, own in enumerate(dtypes) if own.kind in "iu" and own.itemsize == 8), None)
    if wide is not None:
        other = next(n for n, own in enumerate(dtypes) if own != dtypes[wide])
        msg = f"{key} of {_name(samples[wide])} is {dtypes[wide]}, "
        msg += f"that of {_name(samples[other])} is {dtypes[other]}, and no type holds both"
        do = "Give dtype= to a spatial pipe, or to a Policy of open_volume(policies=)."
        raise errors.SampleError(msg, do=do)


def _array_of(thing: Any) -> NDArray[Any]:
    return thing.array if isinstance(thing, RealizedArray) else np.asarray(thing)


def _as_list(things: list[Any]) -> Any:
    """Return numbers as one array, other things unchanged in a list."""
    if not all(isinstance(thing, (bool, int, float)) for thing in things):
        return things
    numbers = np.array(things)
    return RealizedArray(numbers) if numbers.dtype.kind in "bif" else things


def _name(sample: Any) -> str:
    return f"case {sample.case}" if isinstance(sample, Sample) else "a sample"


@dataclass(frozen=True)
class RealizePatches(ItemByItem):
    """Read and resample every lazy patch of each sample; other items stay."""

    origin: CallSite
    likely: LikelyLabels | None = field(default=None, compare=False, repr=False)
    """None where the user has said which are labels."""

    def of(self, item: Any) -> Sample:
        """Return the sample with voxels in it."""
        if not isinstance(item, Sample):
            do = "Put realize() after open_volume(); from .map() return sample.with_data(...)."
            _refuse_no_sample(item, do, self.origin)
        lazy = {key: thing for key, thing in item.items() if isinstance(thing, LazyPatch)}
        try:
            arrays = in_threads(self._realize, lazy.items())
            if self.likely is not None:
                for key in lazy:
                    self.likely.judge(key)
        except Exception as error:
            raise add_location(error, self.origin, item.case)  # noqa: B904
        voxels = dict(zip(lazy, map(RealizedArray, arrays), strict=True))
        return item.replace(data={**dict(item), **voxels}, patches={**item.patches, **lazy})

    def _realize(self, entry: tuple[str, LazyPatch]) -> NDArray[Any]:
        key, patch = entry
        try:
            more = None if self.likely is None else self.likely.watch(key, patch)
            with reading(key, more):
                return patch.realize()
        except Exception as error:
            raise add_location(error, key=key)  # noqa: B904


def _refuse_no_sample(item: Any, do: str, origin: CallSite) -> NoReturn:
    raise errors.SampleError(f"a sample expected, got {type(item).__name__}", do=do).at(origin)


@dataclass(frozen=True)
class ApplyValue(ItemByItem):
    """Apply a value op to each sample: deferred on lazy patches, at once on realized ones."""

    step: ValueStep
    keys: Collection[str] | None  # default: all of the op's kind
    origin: CallSite

    def of(self, item: Any) -> Sample:
        """Return the sample with the op applied or deferred."""
        op = self.step.op
        if not isinstance(item, Sample):
            do = f"Put {op.name}() after open_volume()."
            if isinstance(item, Mapping) and META in item:
                do = f"Put {op.name}() before batch_patches(): it changes one sample."
            _refuse_no_sample(item, do, self.origin)
        both = (*item.patches.items(), *item.items())
        patches = {key: one for key, one in both if isinstance(one, LazyPatch)}
        if not patches and not item.patches:  # no volumes yet
            have = ", ".join(f"{key!r} ({type(one).__name__})" for key, one in item.items())
            msg = f"{op.name}() changes opened volumes, and the sample has {have or 'nothing'}"
            do = "Put open_volume() before it."
            raise errors.SampleError(msg, do=do).at(self.origin, item.case)
        keys: Collection[str] = self.keys or ()
        if self.keys is None:
            is_label = op.kind == "label"
            keys = [key for key, one in patches.items() if (one.kind == "label") == is_label]
        if not getattr(op, "for_given_keys", True):
            keys = ()
        for key in (*keys, *op.named_keys):
            if key not in item:
                msg = f"{op.name}() is to change {key!r}, but the sample has {', '.join(item)}"
                do = f"Name one of these in {'On()' if key in op.named_keys else 'keys='}."
                do = errors.missing_key_hint(key, do)
                raise errors.SampleError(msg, do=do).at(self.origin, item.case)
        data, sources = dict(item), dict(item.patches)
        try:
            for key in dict.fromkeys((*keys, *op.named_keys)):
                data[key], after = self._apply_to(item, key, primary=key in keys)
                if after is not None:
                    sources[key] = after
        except Exception as error:
            raise add_location(error, self.origin, item.case)  # noqa: B904
        return item.replace(data=data, patches=sources)

    def _apply_to(self, sample: Sample, key: str, *, primary: bool) -> tuple[Any, LazyPatch | None]:
        """Return the volume with the op applied, and the source patch of a realized one."""
        op = self.step.op.of_key(key, is_target=primary)
        step = replace(self.step, op=op, key=key, mask=self._mask(sample, op.mask_key))
        thing = sample[key]
        made_from = thing if isinstance(thing, LazyPatch) else sample.patches.get(key)
        if (
            isinstance(op, SelectChannels)
            and isinstance(made_from, LazyPatch)
            and needs_header(made_from, op)
        ):
            if made_from is thing and (by_name := select_by_name(thing, op)) is not None:
                return by_name, None
            step = replace(step, op=select_by_number(made_from, op))
        if isinstance(thing, LazyPatch):
            return thing.with_value(step), None
        if not isinstance(made_from, LazyPatch) or not isinstance(thing, RealizedArray):
            msg = f"{op.name}() does not know where {key!r} of case {sample.case} comes from"
            do = "It changes lazy patches and what realize() made of them."
            raise errors.SampleError(msg, do=do).at(self.origin)
        after = made_from.with_value(step)
        return RealizedArray(after.changed_by_last(thing.array)), after

    def _mask(self, sample: Sample, key: str | None) -> Any:
        """Return the stored mask volume for the op's statistics, or None."""
        if key is None:
            return None
        patch: Any = sample.get(key)
        if not isinstance(patch, LazyPatch):
            patch = sample.patches.get(key)
        name = self.step.op.name
        if not isinstance(patch, LazyPatch):
            msg = f"{name}() takes statistics inside {key!r}, but the sample has "
            msg += ", ".join(sample)
            do = "Name one of these in inside=."
            do = do if key in sample else errors.missing_key_hint(key, do)
            raise errors.SampleError(msg, do=do).at(self.origin, sample.case)
        stored_labels(patch, (), f"{name}(inside={key!r})", key)
        return getattr(patch.volume, "stored_volume", patch.volume)
