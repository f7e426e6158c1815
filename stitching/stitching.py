"""Windows of many volumes, stitched concurrently; the last window finishes a volume."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.call_site import CallSite, warn
from ..core.errors import DestinationExists, NotFinite, PatchSizeError, SampleError, VoxpipeError
from ..storage.location import absolute_place, is_url, public_name
from ..volumes import Volume
from ..volumes.conversion.destination import disk_errors
from .outputs import is_finished
from .stitched_volume import HowToStitch, Scales, StitchedVolume, past_windows, refuse_shared
from .stitcher import CellMemory, Stitcher
from .windows import WindowPlace, Windows

Identity = tuple[int, ...]


@dataclass
class _Open:
    place: WindowPlace
    volume: StitchedVolume
    counts: NDArray[np.int64]  # windows that have not come yet, by layer
    has_warned: bool = False  # of NaN or infinite numbers


@dataclass(frozen=True)
class WindowOutput:
    """Output of a model for one window, with its place."""

    one: _Open
    place: WindowPlace
    number: int
    voxels: NDArray[Any]


class Stitching:
    """Add windows in any order, by their provenance.

    One thread adds and finishes. Another may open volumes, query needed windows, and check outputs.

    Parameters
    ----------
    how
        Settings and destination of the volumes.
    key
        Key of the sample's volume with the stored grid; by default the first.
    watch
        Called with the stitcher of each volume that begins.
    origin
        The user's line, for warnings.
    memory
        Memory of the sums, if others share it.
    """

    def __init__(
        self,
        how: HowToStitch,
        key: str | None = None,
        watch: Callable[[Stitcher], None] | None = None,
        origin: CallSite | None = None,
        memory: CellMemory | None = None,
    ) -> None:
        self._how, self._key, self._watch, self._origin = how, key, watch, origin
        self.head = how.head
        self._open: dict[Identity, _Open] = {}
        self._whole: dict[Identity, tuple[str, Volume]] = {}  # not handed out yet
        self._past: set[Identity] = set()
        self._places: dict[str, Identity] = {}
        self._names: dict[str, Identity] = {}
        self._channels = 0  # channels of the model
        self._scales: Scales = ()
        self.memory = memory or CellMemory(how.memory_bytes)  # sums of all volumes
        self._lock = threading.Lock()  # protects the dictionaries, not the voxels

    def open(self, meta: Mapping[str, Any], volumes: Mapping[str, Any]) -> Stitcher | None:
        """Return the stitcher of a window's volume; None if the volume is done.

        ``volumes`` are those of the sample, by key.
        """
        _, one = self._open_at(meta, volumes)
        return None if one is None else one.volume.stitcher

    def past(
        self, meta: Mapping[str, Any], volumes: Mapping[str, Any]
    ) -> tuple[Windows, NDArray[np.bool_]]:
        """Return the windows of a volume and the flags of those to skip; opens nothing."""
        place = WindowPlace.of(meta, self._key, volumes, self._how.storage_options)
        return place.windows(self._how.blend), past_windows(place, self._how)

    def _open_at(
        self, meta: Mapping[str, Any], volumes: Mapping[str, Any] | None = None
    ) -> tuple[WindowPlace, _Open | None]:
        """Return the place of a window, and its volume; None if the volume is done."""
        place = WindowPlace.of(meta, self._key, volumes, self._how.storage_options)
        with self._lock:
            one = self._open.get(place.identity)
            if one is not None or place.identity in self._past:
                return place, one
            destination = self._how.destination_of(place.case)
            is_place = isinstance(destination, str)
            if destination is not None and (is_place or destination is self._how.destination):
                own = os.path.normcase(absolute_place(destination)) if is_place else ""
                if self._places.setdefault(own, place.identity) != place.identity:
                    refuse_shared(destination)
            if self._names.setdefault(place.case, place.identity) != place.identity:
                msg = f"two cases are called {place.case!r}, and results are named by case"
                raise SampleError(msg, do="Give each case= of its own.")
            if is_place:
                place.refuse_itself(destination)
                if self._is_there(place, destination):
                    return place, None
            try:
                volume_of = StitchedVolume(place, self._how, destination, self.memory)
            except DestinationExists:  # another process may have finished it meanwhile
                if not (is_place and self._is_there(place, destination)):
                    raise
                return place, None
            one = _Open(place, volume_of, layers_left(volume_of.stitcher))
            self._open[place.identity] = one
            if self._watch is not None:
                self._watch(volume_of.stitcher)
            return place, one

    def _is_there(self, place: WindowPlace, destination: str) -> bool:
        """Register a volume that the same run finished before; return whether it has."""
        how, options = self._how, self._how.storage_options
        if how.overwrite or not how.continues(place):
            return False
        if not is_finished(destination, how.key_of(place), options):
            return False
        extra = options if is_url(destination) else None
        volume = Volume(destination, kind=how.activation.kind, storage_options=extra)
        self._past.add(place.identity)
        self._whole[place.identity] = (place.case, volume)
        return True

    def needs(self, meta: Mapping[str, Any]) -> bool:
        """Whether the window is still missing, as after a kill."""
        place, one = self._open_at(meta)
        if one is None:
            return False
        stitcher = one.volume.stitcher
        return not stitcher.past[stitcher.windows.number(place.start)]

    def add(self, meta: Mapping[str, Any], voxels: NDArray[Any]) -> Iterator[tuple[str, Volume]]:
        """Add the output (C, I, J, K) for one window; yield case and volume if finished."""
        return self.add_checked(self.check(meta, voxels))

    def check(self, meta: Mapping[str, Any], voxels: NDArray[Any]) -> WindowOutput | None:
        """Return the output (C, I, J, K) of a window with its place; None if it is not needed.

        Raises PatchSizeError or SampleError for voxels of another window.
        """
        place, one = self._open_at(meta)
        if one is None:
            return None
        stitcher = one.volume.stitcher
        try:
            place.refuse_moved(one.place)
            stitcher.refuse_shape(voxels)
            if self._how.classes not in (None, voxels.shape[0]):
                msg = f"classes={self._how.classes}, and the model gives {voxels.shape[0]} channels"
                raise PatchSizeError(msg, do="Leave it out: windows tell.")
            self._check_finite(place, one, voxels)
        except VoxpipeError as error:
            raise error.at(case=place.case)  # noqa: B904  the very same error
        return WindowOutput(one, place, stitcher.windows.number(place.start), voxels)

    def add_checked(self, window: WindowOutput | None) -> Iterator[tuple[str, Volume]]:
        """Add the output of a window; yield case and volume if finished."""
        if window is not None and not window.one.volume.stitcher.past[window.number]:
            try:
                self._add(window)
            except VoxpipeError as error:
                raise error.at(case=window.place.case)  # noqa: B904  the very same error
        yield from self._hand_out()

    def _add(self, window: WindowOutput) -> None:
        one, number = window.one, window.number
        stitcher = one.volume.stitcher
        before, behind = window.place.skips
        stitcher.leave_out(range(number - before, number))
        stitcher.leave_out(range(number + 1, number + 1 + behind))
        try:
            stitcher.add(number, window.voxels)
            counts = layers_left(stitcher)
            if ((counts == 0) & (one.counts > 0)).any():
                one.volume.note_layer()
            one.counts = counts
            self._channels = stitcher.channels
            self._scales = [*zip(stitcher.targets.size, stitcher.windows.size, strict=True)]
            if stitcher.is_whole:
                self._finish(window.place.identity)
        except OSError:
            with self._disk_errors(one):
                raise

    def _check_finite(self, place: WindowPlace, one: _Open, voxels: NDArray[Any]) -> None:
        """Raise SampleError for NaN that would become an integer; warn of other NaN.

        Minus infinity marks an impossible class: only ``"logits"`` warns of it.
        """
        keeps_nan = self._how.activation.dtype_of(voxels.shape[0]).kind == "f"
        if voxels.dtype.kind != "f" or (one.has_warned and keeps_nan):
            return
        # max() is NaN if any number is, and needs no array.
        highest = voxels.max()
        lowest = voxels.min() if self._how.activation.output == "logits" else 0
        if np.isfinite(highest) and np.isfinite(lowest):
            return
        what, is_it = ("NaN", np.isnan) if np.isnan(highest) else ("infinite numbers", np.isinf)
        size = "x".join(map(str, place.size))
        msg = f"the model gave {what} for the window of {size} voxels at {tuple(place.start)}, "
        msg += f"{int(is_it(voxels).sum())} of {voxels.size} numbers"
        do = "Look for NaN in its weights and in that part of the image, for overflow of float16, "
        do += "and for a division by 0"
        if what == "NaN" and not keeps_nan:
            msg += ", and no label stands for that"
            raise SampleError(msg, do=do + '; ⟦output="logits"⟧ keeps NaN.')
        if not one.has_warned:
            one.has_warned = True
            text = f"{msg}, in case {place.case}: the result has what comes of that. {do}."
            warn(text, NotFinite, self._origin)

    def _disk_errors(self, one: _Open) -> AbstractContextManager[None]:
        destination = one.volume.destination
        name = public_name(destination) if isinstance(destination, str) else one.place.case
        return disk_errors(f"{one.place.case} could not be predicted to {name}", name)

    def _finish(self, identity: Identity) -> None:
        one = self._open[identity]
        volume = one.volume.finish(self._channels, self._scales)
        with self._lock:
            del self._open[identity]
            self._past.add(identity)
            self._whole[identity] = (one.place.case, volume)

    def _hand_out(self) -> Iterator[tuple[str, Volume]]:
        with self._lock:
            whole = list(self._whole.values())
            self._whole.clear()
        yield from whole

    def finish(self) -> Iterator[tuple[str, Volume]]:
        """Yield volumes whose last windows a mask left out; call it after all windows.

        Raises SampleError if other windows are missing.
        """
        for identity, one in list(self._open.items()):
            stitcher = one.volume.stitcher
            if not stitcher.is_whole:
                count = int(np.count_nonzero(~stitcher.past))
                msg = f"{count} windows of {one.place.case} did not come, so it is not whole"
                do = "Leave windows out by lazy_patch(mask=), not by filter(); on ranks use "
                raise SampleError(msg, do=f"{do}predict().")
            with self._disk_errors(one):
                self._finish(identity)
        yield from self._hand_out()

    def close(self) -> None:
        """Release unfinished volumes; the next run continues them."""
        with ExitStack() as stack:
            for one in self._open.values():
                stack.callback(one.volume.close)
            self._open.clear()


def layers_left(stitcher: Stitcher) -> NDArray[np.int64]:
    """Return the missing windows per layer, along the slow axis and the first.

    ``predict()`` sorts windows by the slow axis, a user's chain by the first.
    """
    windows = stitcher.windows
    missing = ~stitcher.past.reshape(windows.counts)
    layers = [np.moveaxis(missing, axis, 0) for axis in {0, windows.slow_axis}]
    counts = [np.count_nonzero(one, axis=(1, 2)) for one in layers]
    return np.concatenate(counts)
