"""Orders of named channels: volumes of one key must not contradict each other."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..core import CallSite
from ..core.call_site import WarnOnce
from ..core.errors import LikelyMistake, SampleError, add_location
from ..core.locks import ForkSafeLock
from ..core.sample import case_of
from ..core.suggest import few_names
from ..spatial.lazy.patch_facts import channel_names
from ..volumes.axis_map import refuse_other_order
from ..volumes.axis_map_source import names_below_numbers


@dataclass(frozen=True)
class _Channels:
    """The named channels of one volume."""

    name: str  # of the file
    header_names: tuple[str, ...]
    patch_names: tuple[str, ...]  # after the ops of the patch; empty after a mix of channels
    names_in_file: tuple[str, ...]  # of the file, where channels are chosen by number

    @property
    def lists(self) -> tuple[tuple[str, ...], ...]:
        """All names, without the file."""
        return self.header_names, self.patch_names, self.names_in_file


class NewChannels(NamedTuple):
    """Named channels of a volume, which a worker reports once in a pass."""

    origin: CallSite | None  # the pipe that makes the batches
    key: str
    case: str
    channels: _Channels
    is_made: bool  # whether a function may have changed the voxels


# Channels that a worker has not reported yet. Processes without reports keep the last ones.
_NEW: deque[NewChannels] = deque(maxlen=1024)


def take_channels() -> tuple[NewChannels, ...]:
    """Return the channels that were found in this process since the last call."""
    return tuple(_NEW.popleft() for _ in range(len(_NEW)))


class ChannelOrders:
    """The first named channels of each key, with which those of later volumes are compared."""

    # Copies of a pipe share one instance. Each worker process has its own, and reports its channels
    # to the consumer, which compares those of all workers in each pass. An instance is callable so
    # that Replica.renew() replaces it at the beginning of a pass, as it does with functions.

    def __init__(self, origin: CallSite | None = None) -> None:
        self.origin = origin
        self.first_names: dict[str, tuple[str, ...]] = {}
        """Stored names of the first volume, by key."""
        self._firsts: dict[str, _Channels] = {}
        self._kinds: set[tuple[str, tuple[tuple[str, ...], ...]]] = set()
        self._once = WarnOnce()
        self._lock = ForkSafeLock()

    def __call__(self, key: str, item: Any, patch: Any, *, is_made: bool = False) -> None:
        """Compare the channels of a patch with the first of its key, and report accepted ones.

        A function may have changed voxels that are made already: then the order causes a warning.

        Raises
        ------
        SampleError
            The volumes have the same channels in another order.
        """
        own = _channels_of(patch)
        new = NewChannels(self.origin, key, case_of(item), own, is_made)
        self.compare(new)
        if (key, own.lists) not in self._kinds:
            self._kinds.add((key, own.lists))
            _NEW.append(new)

    def compare(self, new: NewChannels) -> None:
        """Compare channels with the first of their key. Errors and warnings are those of a call."""
        key, own = new.key, new.channels
        with self._lock:
            first = self._firsts.setdefault(key, own)
            self.first_names.setdefault(key, own.header_names)
        if own.header_names == first.header_names and own.names_in_file == first.names_in_file:
            return
        if own.patch_names and own.patch_names == first.patch_names:
            return  # each patch has chosen the channels by their names
        try:
            for field in ("patch_names", "header_names", "names_in_file"):
                names, others = getattr(own, field), getattr(first, field)
                refuse_other_order(own.name, names, first.name, others)
        except SampleError as error:
            if not new.is_made:
                raise add_location(error, self.origin, new.case, key)  # noqa: B904
            text = f"{error.message}\n  at {self.origin}\n  {error.do}"
            self._once.warn(key, text, LikelyMistake, self.origin)
            return
        self._warn_of_places(
            key, own.patch_names or own.header_names, first.patch_names or first.header_names
        )

    def _warn_of_places(self, key: str, names: tuple[str, ...], others: tuple[str, ...]) -> None:
        """Warn once if channels of one name have different places in other sets of channels."""
        own, first = ([name.casefold() for name in one] for one in (names, others))
        common = [n for n in own if n and n in first and own.index(n) != first.index(n)]
        if not common:
            return
        lists = [few_names(dict.fromkeys(one)) for one in (others, names)]
        name = names[own.index(common[0])]
        # The text names no file, so that it is shown once for all workers.
        text = (
            f"channel-order: files of {key!r} have the channels {lists[0]} and {lists[1]}, so "
            f"{name} is not always the same channel of a batch\n  at {self.origin}\n"
            "  Choose one order by ⟦open_volume(channels=[...])⟧; vp.check() names the files."
        )
        self._once.warn(key, text, LikelyMistake, self.origin)

    def __reduce__(self) -> tuple[type[ChannelOrders], tuple[CallSite | None]]:
        return ChannelOrders, (self.origin,)


def header_names(patch: Any) -> tuple[str, ...]:
    """Return the names of channels in the headers that a patch, or each of its members, has."""
    if patch.members:  # the header of a stack would be made for each sample
        return tuple(name for one in patch.members for name in header_names(one))
    volume = getattr(patch.volume, "stored_volume", patch.volume)
    names: tuple[str, ...] = volume.header.channel_names
    return names


def _channels_of(patch: Any) -> _Channels:
    volume = getattr(patch.volume, "stored_volume", patch.volume)
    of_patch, of_file = channel_names(patch), names_below_numbers(getattr(volume, "_source", None))
    return _Channels(volume.name, header_names(patch), of_patch, of_file)
