"""Facts about a patch that value ops may ask for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...core import Grid, Stream
from ...core.errors import VolumeError
from ...core.histogram import Floats, Histogram, merge_histograms
from ...core.lru_cache import LRUCache
from ...intensity import Params, RecordedStatistics, ValueStep, VolumeStatistics
from ...intensity.value_op import recorded_percentile, same_as
from ...storage.content import version_key
from ...volumes.header import ONE_TIME, Times
from ..plans.plan import SpatialPlan

Acting = tuple[ValueStep, Params, Any]
"""A step that acts, with its draws and its facts."""

# Numbers of histograms, by volume and steps.
_MEMORY: LRUCache[float] = LRUCache()

# Lattices of overlapping patches differ by whole voxels, except for rounding. The offset keeps
# lattices away from exact halves, so that both patches round to the same voxel.
_OFF_HALF = 0.1234567
# A record may hold any place; larger ones overflow 64-bit integers.
_FAR = 2.0**62


@dataclass(frozen=True)
class PatchFacts:
    """The facts of one patch for one step."""

    volume: Any
    plan: SpatialPlan  # where the array's voxels come from, halo included
    stream: Stream  # the step's random numbers
    source_of_statistics: Callable[[Any], RecordedStatistics] | None = None
    """Computes the statistics of a volume; by default ``volumes.volume_statistics``."""
    before: Sequence[Acting] = ()  # the steps before this one that act, with their facts
    mask: Any = None  # the volume inside which statistics are taken
    volume_key: str = ""
    members: Sequence[PatchFacts] = ()
    """Facts of patches whose channels were stacked before ``before``, each with its own steps."""
    channel: int | None = None  # the channel of the array whose statistics these are; None for all

    grid = same_as("plan.grid")
    """Shape and affine of the array."""

    @property
    def source(self) -> Grid:
        """Grid of the whole volume; of a stack, that of the first."""
        grid: Grid = self.members[0].source if self.members else self.stored_volume.grid
        return grid

    @property
    def corner(self) -> tuple[int, int, int]:
        """Index of the first voxel on the lattice that patches of one chain share."""
        matrix = self.plan.matrix
        place = np.linalg.solve(matrix[:3, :3], matrix[:3, 3])
        i, j, k = np.rint(np.clip(place + _OFF_HALF, -_FAR, _FAR)).astype(int).tolist()
        return (i, j, k)

    @property
    def key(self) -> tuple[int, int]:
        """A key for random numbers that belong to voxels of the lattice."""
        return self.stream.key()

    def key_from(self, params: int) -> tuple[int, int]:
        """Return a key of a drawn number and this volume's key in the sample."""
        return Stream(params, 0, (), self.volume_key).key()

    @property
    def stored_volume(self) -> Any:
        """The volume in a file."""
        return getattr(self.volume, "stored_volume", self.volume)

    def on_voxels(self, statistics: str) -> PatchFacts:
        """Return the facts whose statistics are of a coarser level, or of a sample."""
        from ...volumes.catalog.whole_pass import reduce_volume

        members = tuple(one.on_voxels(statistics) for one in self.members)
        volume = None if members else reduce_volume(self.stored_volume, statistics)
        return replace(self, volume=volume or self.volume, members=members)

    def on_channel(self, channel: int) -> PatchFacts:
        """Return the facts whose statistics are of one channel of the array."""
        return replace(self, channel=channel)

    def statistics(self, above: float | None = None) -> VolumeStatistics:
        """Return the statistics of the volume as it is before this step; may read it, once."""
        changing = self._changing
        if not self.members and self.mask is None and above is None and self._channels is None:
            affine = _as_affine(changing)
            if affine is not None:
                record = self._recorded_statistics()
                counts = _ScaledStatistics(partial(self._count_histogram, None, ()))

                def number(what: str, *arguments: float) -> float:
                    """Return a recorded number; percentiles without a record use the histogram."""
                    if what == "percentile":
                        return recorded_percentile(record, arguments[0], lambda: counts)
                    return float(getattr(record, what))

                return _ScaledStatistics(number, *affine)
        return _ScaledStatistics(partial(self._count_histogram, above, changing))

    def _count_histogram(
        self, above: float | None, changing: Sequence[Acting], what: str, *arguments: float
    ) -> float:
        """Return a number of the histogram, cached by number and volume."""

        def number() -> float:
            value = getattr(self._histogram(above, changing), what)
            return float(value(*arguments) if arguments else value)

        name = self._name(above, changing)
        if name is None:
            return number()
        return _MEMORY.get_or((*name, what, *arguments), number)

    @property
    def _channels(self) -> tuple[int, ...] | None:
        """Channels of the stored volume that remain; None for all."""
        channels: tuple[int, ...] | None = None
        for step, _, _ in self.before:
            picks = step.op.kept_channels()
            if picks is not None:
                channels = picks if channels is None else tuple(channels[index] for index in picks)
        if self.channel is not None:
            return (self.channel if channels is None else channels[self.channel],)
        return channels

    @property
    def _own_channels(self) -> Sequence[int]:
        """Channels that remain after the steps, as indices before the steps."""
        if self._channels is not None:
            return self._channels
        if self.members:
            return range(sum(len(part._own_channels) for part in self.members))
        return range(self.stored_volume.shape[0])

    @property
    def _changing(self) -> list[Acting]:
        return [acting for acting in self.before if acting[0].op.pointwise]

    def _name(self, above: float | None, changing: Sequence[Acting]) -> tuple[Any, ...] | None:
        """Return a cache key of the numbers; None if a volume has no version."""
        # A stack is identified by its parts.
        volume = None if self.members else self.stored_volume
        inputs = [volume, self.mask, *(step.mask for step, _, _ in changing)]
        parts = tuple(part._name(None, part._changing) for part in self.members)
        if None in parts or not all(v is None or hasattr(v, "probe") for v in inputs):
            return None
        volumes = [None if v is None else version_key(v) for v in inputs]
        return (
            *volumes,
            *parts,
            self._channels,
            above,
            *((step.op, json.dumps(params)) for step, params, _ in changing),
        )

    def _recorded_statistics(self) -> RecordedStatistics:
        if self.source_of_statistics is not None:
            return self.source_of_statistics(self.volume)
        from ...volumes.catalog.whole_pass import WITHOUT_NAN, volume_statistics

        statistics = volume_statistics(self.stored_volume)
        # One NaN voxel makes every normalized voxel NaN.
        if not (math.isfinite(statistics.mean) and math.isfinite(statistics.std)):
            low, high = statistics.minimum, statistics.maximum
            why = "NaN or infinite values, so it has no mean and no range"
            if math.isfinite(low) and math.isfinite(high):
                why = f"values from {low:g} to {high:g}, so large that they have no deviation"
            raise VolumeError(f"{self.stored_volume.name} holds {why}", do=f"{WITHOUT_NAN}.")
        return statistics

    def _histogram(self, above: float | None = None, changing: Sequence[Acting] = ()) -> Histogram:
        histogram = self._before_changes(self.mask, self._channels)
        for step, params, facts in changing:
            histogram = histogram.map(_on_values(step, params, facts))
        return histogram if above is None else histogram.above(above)

    def _before_changes(self, mask: Any, channels: Sequence[int] | None) -> Histogram:
        """Return the histogram of some channels before this patch's steps."""
        from ...volumes import volume_histogram

        if not self.members:
            return volume_histogram(self.stored_volume, mask, channels)
        histograms, first = [], 0
        for part in self.members:
            own = part._own_channels
            numbers = range(first, first + len(own)) if channels is None else channels
            indices = [own[c - first] for c in numbers if first <= c < first + len(own)]
            first += len(own)
            if indices:
                histogram = part._before_changes(mask, indices)
                for step, params, facts in part._changing:
                    histogram = histogram.map(_on_values(step, params, facts))
                histograms.append(histogram)
        return merge_histograms(histograms)


@dataclass(frozen=True)
class _ScaledStatistics:
    """Statistics of ``value * scale + shift``, of which ``number`` returns those of ``value``."""

    number: Callable[..., float]
    scale: float = 1.0
    shift: float = 0.0

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return self._at("mean")

    @property
    def std(self) -> float:
        """Population standard deviation of the values."""
        return self.number("std") * abs(self.scale)

    @property
    def minimum(self) -> float:
        """Smallest value."""
        return self._at("minimum" if self.scale >= 0 else "maximum")

    @property
    def maximum(self) -> float:
        """Largest value."""
        return self._at("maximum" if self.scale >= 0 else "minimum")

    def percentile(self, q: float) -> float:
        """Return the value that ``q`` percent of the voxels do not exceed."""
        return self._at("percentile", q if self.scale >= 0 else 100 - q)

    def _at(self, what: str, *arguments: float) -> float:
        return self.number(what, *arguments) * self.scale + self.shift


def _as_affine(changing: Sequence[Acting]) -> tuple[float, float] | None:
    """Return scale and shift of all steps together; None where they are something else."""
    scale, shift = 1.0, 0.0
    for step, params, facts in changing:
        epilogue = step.op.as_epilogue(params, facts)
        if epilogue is None or not epilogue.is_affine:
            return None
        scale, shift = scale * epilogue.scale, shift * epilogue.scale + epilogue.shift
    return scale, shift


def _on_values(step: ValueStep, params: Params, facts: Any) -> Callable[[Floats], Floats]:
    def values_after(values: Floats) -> Floats:
        array = values.astype(np.float32).reshape(1, -1, 1, 1)
        result: Floats = step.op.apply(array, params, facts).ravel().astype(np.float64)
        return result

    return values_after


def channel_names(patch: Any) -> tuple[str, ...]:
    """Return the names of the channels of a patch; empty without names, or after their mix."""
    if patch.members:
        each = [(channel_names(one), one.shape[0]) for one in patch.members]
        has_names = any(names for names, _ in each)
        names = tuple(name for own, count in each for name in own or ("",) * count)
        names = names if has_names else ()
    else:
        names = getattr(getattr(patch.volume, "header", None), "channel_names", ())
    for step in patch.values if names else ():
        picks = step.op.kept_channels()
        if picks is not None:
            names = tuple(names[n] for n in picks)
        elif step.channels(len(names)) != len(names):
            return ()
    return names


def times_of(patch: Any) -> Times:
    """Return the time points among the channels of a patch; one after a mix of channels."""
    times: Times = ONE_TIME if patch.members else patch.volume.header.times
    if times.number == 1:
        return ONE_TIME
    count = patch.volume.shape[0]
    for step in patch.values:
        picks, before = step.op.kept_channels(), count
        count = step.channels(count)
        if picks is not None:
            times = times.after(np.array(picks), before)
        elif count != before:
            return ONE_TIME
    return times
