"""One volume that is being made of windows, and brought back to where its voxels came from."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core import Region
from ..core.call_site import shorten
from ..core.cures import cure
from ..core.errors import DestinationExists, LeadsOutside, SampleError, VolumeChanged, VolumeError
from ..core.grid import XYZ
from ..core.redact import RedactedDict
from ..core.sample import parse_json
from ..core.validate import FieldChecks, as_choice, entries_of, is_finite, or_none, validate_int
from ..graph import Pipe, fingerprint, is_pipe, parents_of, traits_of, walk
from ..spatial import Policy
from ..spatial.lazy.read_plan import ReadPlan
from ..spatial.ops.axis_op import all_names
from ..spatial.plans.plan import SpatialPlan
from ..storage.disk_cache import boot, open_no_link, write_beside
from ..storage.location import is_url, public_name
from ..volumes import Volume
from ..volumes.conversion.convert import known_version
from ..volumes.conversion.destination import part_folder
from ..volumes.conversion.ome_group import image_above
from ..volumes.conversion.volume_file import refuse_archive
from .outputs import ActivatedOutput, Activation, Output, is_finished, output_at
from .stitcher import BLENDS, CellMemory, OpenCells, Slot, Stitcher
from .windows import WindowPlace

MEMORY_BYTES = 512 * 1024**2
"""Memory for open sums, by default; the rest is written to a file."""
STATE = "state.json"
"""The name of a checkpoint."""
SUMS = "sums"
"""The name of the file of the sums, in the same folder."""
_LEAST_SIGMA = 1e-3
_VERSION = 1
_FLAGS = ("present", "past")  # of each window, in a checkpoint
BETWEEN = "windows.nii.zarr"  # result on the windows' grid, before the resample to the stored one
# Edge of the boxes of that resample: as large as a window of a network.
_BACK = 128
# Outside of the windows' grid the result is 0.
_SHARES = Policy("linear", "constant", fill=0.0)
_COPIES = Policy("nearest", "constant", fill=0.0)

Scales = Sequence[tuple[int, int]]
"""Voxels of the model's output and of its window, for each axis."""
Destination = Any
"""None, an array, a path or URL with ``{case}`` in it, or ``f(case)`` that returns one of them."""


def _refuse_no_array(place: Any) -> None:
    if not hasattr(place, "shape") or not hasattr(place, "__setitem__"):
        kind = type(place).__name__
        msg = f"destination is a path, an array (C, I, J, K), f(case) or None, got {kind}"
        raise TypeError(f'{msg}. For several cases write "results/{{case}}.nii.gz"')


def refuse_shared(destination: Any) -> None:
    """Raise DestinationExists if two cases would have the same result."""
    is_place = isinstance(destination, (str, os.PathLike))
    if destination is None or callable(destination):
        return
    if not is_place or "{case}" not in os.fspath(destination):
        name = public_name(os.fspath(destination)) if is_place else "one array"
        what = f"the results of two cases would be {name}."
        raise DestinationExists(what, do="Write {case} into the destination, or give f(case).")


class Joins:
    """Results that a source joins: several cases in one volume, such as times of one image.

    A pipe of the source may have a method ``join_results``. It gets the destination of an output
    and the other arguments. It returns the destination of each case, and a function of the volumes
    by case, which returns the final ones. Then ``outputs`` have the destinations of the cases.
    """

    def __init__(
        self,
        source: Any,
        outputs: Sequence[dict[str, Any]],
        stack: ExitStack,
        options: Mapping[str, Any],
        overwrite: bool,
        run: str | None,
        is_first: bool,
    ) -> None:
        how: dict[str, Any] = {"stack": stack, "options": options, "overwrite": overwrite}
        how |= {"run": run, "is_first": is_first}
        graph = getattr(source, "datapipe", source)
        pipes = list(walk(graph)) if is_pipe(graph) else []
        self._joins: list[Any] = []
        for pipe in (one for one in pipes if hasattr(type(one), "join_results")):
            for own in outputs:
                own["destination"], join = pipe.join_results(own["destination"], **how)
                self._joins.append((own["head"], join))

    def join(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return the results by case, after the source has joined them."""
        for head, join in self._joins:
            volumes = {case: one if head is None else one[head] for case, one in results.items()}
            for case, volume in join(volumes).items():
                if head is None:
                    results[case] = volume
                else:
                    results[case][head] = volume
        return results


def _as_sigma_scale(name: str, value: Any) -> tuple[float, ...]:
    each = entries_of(value) or (value,) * 3
    # The square of a smaller one, in voxels, is 0 in float32.
    if len(each) != 3 or not all(is_finite(v) and v >= _LEAST_SIGMA for v in each):
        raise ValueError(f"{name} is a number from {_LEAST_SIGMA:g}, or three, got {value!r}")
    return tuple(map(float, each))


@dataclass(frozen=True)
class HowToStitch(FieldChecks):
    """Settings for stitching windows to volumes."""

    destination: Destination = None
    blend: str = "gaussian"
    activation: Activation = field(default_factory=lambda: Activation("argmax"))
    memory_bytes: int = MEMORY_BYTES
    overwrite: bool = False
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    """Identifier of the run, such as a digest of the weights; empty: no run is continued."""
    chain: str = ""
    """Identifier of the chain, from :func:`chain_key`."""
    classes: int | None = None
    """Channels of the model's output, for a volume without windows."""
    sigma_scale: Any = None
    """Standard deviation of ``"gaussian"`` weights as a part of the window: one number or three."""
    head: int | str | None = None
    """Name of the model's output, which may have another scale; None for the only one."""

    checks: ClassVar[Any] = {
        "blend": partial(as_choice, choices=tuple(BLENDS)),
        "storage_options": lambda _, options: RedactedDict(options),
        "sigma_scale": or_none(_as_sigma_scale),
        "classes": or_none(partial(validate_int, least=1)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sigma_scale is not None and self.blend != "gaussian":
            raise ValueError(f"sigma_scale belongs to blend='gaussian', got blend={self.blend!r}")
        place = self.destination
        if not (place is None or isinstance(place, (str, os.PathLike)) or callable(place)):
            _refuse_no_array(place)

    def destination_of(self, case: str) -> Any:
        """Return the destination of a case's volume."""
        place = self.destination
        if callable(place):
            place = place(case)
        if not isinstance(place, (str, os.PathLike)):
            if place is not None:
                _refuse_no_array(place)
            return place
        text = os.fspath(place)
        if "{case}" in text and (".." in re.split(r"[/\\]", case) or os.path.isabs(case)):
            msg = f"the result of the case {case!r} would lie outside of {public_name(text)}"
            raise LeadsOutside(msg, do="Rename the case, or give f(case) as the destination.")
        other = re.search(r"\{(?!case\})\w*\}", text)
        if other is not None:
            msg = f"the destination has {other[0]}, and only {{case}} stands for something"
            raise VolumeError(msg, do="Give f(case), which returns a place, as the destination.")
        refuse_archive(text)
        folder = text.rstrip("/" + os.sep)
        # Without a suffix it has no format, unless it is a label group.
        if "." not in os.path.basename(folder) and image_above(folder) is None:
            msg = f"the destination {public_name(text)} is a folder, or has no ending"
            name = "" if "{case}" in folder else "/{case}"
            do = f'Write "{public_name(folder)}{name}.nii.gz" for a file of each case.'
            if re.search(r"\.zarr[/\\]", folder):
                do = "Labels of an OME-Zarr image that exists are IMAGE.ome.zarr/labels/NAME."
            raise VolumeError(msg, do=do)
        # A glob of folders, "scans/*/", gives names that end with a slash.
        text = text.replace("{case}", case.rstrip("/" + os.sep))
        if "\0" in text:
            msg = f"the result of the case {case!r} would have a null byte in its name"
            raise VolumeError(msg, do="Rename the case, or give another destination.")
        return text

    def in_words(self, place: WindowPlace) -> str:
        """Return one line about the windows of a volume and their memory."""
        windows = place.windows(self.blend)
        numbers = (place.size, place.overlap, windows.shape)
        size, overlap, shape = ("x".join(map(str, n)) for n in numbers)
        goal = self.destination if callable(self.destination) else self.destination_of(place.case)
        where = public_name(goal) if isinstance(goal, str) else "an array in memory"
        where = f"where {shorten(goal)} says" if callable(goal) else where
        back = "" if place.is_stored else ", brought back onto the stored grid,"
        return (
            f"{len(windows)} windows of {size} voxels, {overlap} of them shared, cover {shape} of "
            f"{place.case}; at most {windows.band_bytes / 1e6:.3g} MB of sums are open for each "
            f"channel of the model, beyond {self.memory_bytes / 1e6:.3g} MB in a file; "
            f"{self.activation.output} of {self.blend} means{back} goes to {where}"
        )

    def continues(self, place: WindowPlace) -> bool:
        """Whether a killed run is continued: its weights and its volumes must be known."""
        return bool(self.run and place.version)

    def key_of(self, place: WindowPlace) -> str:
        """Return a key that is equal for runs with the same voxels."""
        facts: list[Any] = [self.run, self.chain, self.blend, str(self.activation), self.classes]
        facts += [
            self.sigma_scale,
            self.head,
            next(iter(place.files)),
            place.file,
            place.version if self.run else "",
        ]
        facts += [place.plan.to_json(), place.size, place.overlap]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def chain_key(graph: Pipe) -> str:
    """Return a key of a chain, different for chains with other voxels.

    Batches and the list of cases do not count: volumes have their own versions.
    """
    facts = [fingerprint(graph, lambda pipe: not parents_of(pipe) or bool(traits_of(pipe).group))]
    for pipe in walk(graph):
        # Volumes that are arguments, such as a mask of all cases.
        own = [one for one in vars(pipe).values() if isinstance(one, Volume)]
        facts += [known_version(volume) or volume.token for volume in own]
        # The options of a volume are not in its name.
        cases = getattr(pipe, "cases", ())
        each = cases if isinstance(cases, (list, tuple)) else ()
        every = [one for case in each if isinstance(case, Mapping) for one in case.values()]
        facts += [one.token for one in every if isinstance(one, Volume) and one.located_source]
    return hashlib.sha256(" ".join(facts).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Checkpoint:
    """State of a run: the windows that came, and the sums that were open.

    A JSON file next to the file of the sums, written after it and then renamed. A kill leaves the
    checkpoint before, whose slots are not overwritten until the next one is complete.
    """

    channels: int
    """Channels of the model's output; 0 before the first window."""
    present: NDArray[np.bool_]
    """Windows that were added."""
    past: NDArray[np.bool_]
    """Windows that were added or left out."""
    table: list[tuple[tuple[Any, ...], Slot]]
    """Slots of the open sums in the file."""
    size: tuple[int, ...]
    """Voxels of the output for a window."""

    @classmethod
    def read(cls, folder: Path | None, key: str, count: int) -> Checkpoint | None:
        """Return the checkpoint of a run of ``count`` windows; None without a valid one."""
        # Without an identifier of this boot the written bytes cannot be trusted.
        if folder is None or not boot():
            return None
        with suppress(OSError, ValueError, KeyError, TypeError):
            with open(folder / STATE, "rb", opener=open_no_link) as file:
                state = parse_json(file.read())
            # Bytes that were not synced before a crash of the machine are lost.
            if [state["version"], state["key"], state["boot"]] == [_VERSION, key, boot()]:
                table = [
                    (tuple(name), Slot(int(offset), tuple(map(int, shape)), str(np.dtype(dtype))))
                    for name, offset, shape, dtype in state["open"]
                ]
                end = max((slot.offset + slot.size for _, slot in table), default=0)
                if not end or end <= (folder / SUMS).stat().st_size:
                    raw = (np.frombuffer(bytes.fromhex(state[n]), np.uint8) for n in _FLAGS)
                    present, past = (np.unpackbits(n, count=count).astype(np.bool_) for n in raw)
                    own = tuple(map(int, state["size"]))
                    return cls(int(state["channels"]), present, past, table, own)
        return None

    @staticmethod
    def write(folder: Path, key: str, stitcher: Stitcher, cells: OpenCells) -> None:
        """Write the state of a run; write nothing if :meth:`read` would refuse it."""
        if not boot():
            return
        table = cells.write_all()
        state = {
            "version": _VERSION,
            "key": key,
            "boot": boot(),
            "channels": stitcher.channels,
            "size": stitcher.targets.size,
            **{n: np.packbits(getattr(stitcher, n)).tobytes().hex() for n in _FLAGS},
            "open": [[list(name), slot.offset, slot.shape, slot.dtype] for name, slot in table],
        }
        write_beside(folder / STATE, [json.dumps(state).encode()], sync=False, key="run")
        cells.keep(table)


class StitchedVolume:
    """The target of the windows of one volume.

    If windows cover another grid than the stored one, the result is made on that grid first. The
    inverse of the plan then resamples it once. A plan of whole voxels copies classes. Any other
    interpolates the shares of classes, and the largest share gives the class.

    ``destination`` comes from ``how.destination_of()``, called once per case: a user's function may
    return a new array each time. The open sums count in ``memory``.
    """

    def __init__(
        self, place: WindowPlace, how: HowToStitch, destination: Any, memory: CellMemory
    ) -> None:
        self._place, self._how, self.destination = place, how, destination
        self._memory = memory
        self._key, self._continues = how.key_of(place), how.continues(place)
        self._is_copy = place.is_stored or place.plan.is_copy
        first = how.activation if self._is_copy else how.activation.before_resampling
        self._first = first
        self._between: Output | None = None
        self._ready: Volume | None = None
        self._is_whole = False
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._version = place.version if isinstance(destination, str) else ""
        self._output = self._open_output(destination)
        with ExitStack() as stack:
            stack.callback(self.close)
            if not place.is_stored:
                self._between = self._open_between()
            goal = self._output if self._between is None else self._between
            windows = place.windows(how.blend)
            own: Any = {"sigma_scale": how.sigma_scale, "head": how.head}
            target = ActivatedOutput(goal, first)
            self.stitcher = Stitcher(windows, how.blend, target, goal.cells, **own)
            self._goal = goal
            self._resume()
            stack.pop_all()  # keep it open

    def _open_output(self, destination: Any) -> Output:
        is_file = isinstance(destination, (str, os.PathLike))
        folder = part_folder(destination) if is_file else None
        cells = self._new_cells(folder if self._place.is_stored else None)
        place, how = self._place, self._how
        own: Any = {"options": how.storage_options, "overwrite": how.overwrite}
        own |= {"key": self._key, "like": place.volume, "axes": all_names(place.plan.axes)}
        try:
            return output_at(destination, place.stored_grid, cells, **own)
        except DestinationExists as error:
            if place.version and not self._continues:
                error.do += cure(
                    " A later call returns a finished result where ⟦run=⟧ names the model."
                )
            raise

    def _new_cells(self, folder: Path | None) -> OpenCells:
        path = folder / SUMS if folder is not None and self._continues else None
        return OpenCells(self._memory, None if path is None else str(path))

    def _open_between(self) -> Output:
        """Return the output on the windows' grid: in memory, or next to the result."""
        folder, place = self._output.folder, None
        if folder is not None:
            place = str(folder / BETWEEN)
        elif isinstance(self.destination, str):
            self._scratch = tempfile.TemporaryDirectory(prefix="voxpipe-")
            place = f"{self._scratch.name}/{BETWEEN}"
        if place is not None and self._continues and is_finished(place, self._key, {}):
            self._ready = Volume(place)  # killed during the resample
        cells = self._new_cells(None if place is None else part_folder(place))
        own: Any = {"options": {}, "overwrite": True, "key": self._key, "like": None}
        own |= {"axes": XYZ}
        return output_at(place, self._place.plan.grid, cells, **own)

    def _resume(self) -> None:
        goal, stitcher = self._goal, self.stitcher
        self._folder = goal.folder if self._continues else None
        if self._ready is not None:
            every = np.ones(len(stitcher.windows), np.bool_)
            stitcher.resume(every, every, 0)
            return
        state = Checkpoint.read(self._folder, self._key, len(stitcher.windows))
        if state is not None:
            goal.cells.restore(state.table)
            stitcher.resume(state.present, state.past, state.channels, *state.size)
            goal.resume(stitcher.finished_regions())
        elif self._folder is not None:
            # An invalid checkpoint must not be read by another rank later.
            (self._folder / STATE).unlink(missing_ok=True)

    def note_layer(self) -> None:
        """Write a checkpoint."""
        if self._folder is not None:
            self._goal.flush()
            Checkpoint.write(self._folder, self._key, self.stitcher, self._goal.cells)

    def finish(self, channels: int = 0, scales: Scales = ()) -> Volume:
        """Return the finished volume at its destination.

        ``channels`` and ``scales`` are those of other volumes, for a volume without windows.
        """
        if self._ready is None and not self.stitcher.channels:
            windows = self.stitcher.windows
            size = [n * a // b for n, (a, b) in zip(windows.size, scales, strict=False)]
            self.stitcher.begin(self._channels_without_window(channels, scales), *size)
        if self._version and replace(self._place).version != self._version:
            # The result would mix versions.
            msg = f"{self._place.file}, or another volume of {self._place.case}, was written "
            do = "Predict it again once it is written."
            raise VolumeChanged(f"{msg}again while it was predicted.", do=do)
        if self._between is not None:
            between = self._ready or self._between.finish(self._first.kind)
            bring_back(between, self._place, self._how.activation, self._output, self._is_copy)
        volume = self._output.finish(self._how.activation.kind)
        self._is_whole = True
        if self._between is not None:
            self.close()
        return volume

    def _channels_without_window(self, channels: int, scales: Scales) -> int:
        """Return the number of a model's channels; SampleError if it is unknown."""
        shape = getattr(self.destination, "shape", ())
        own = shape[0] if shape and self._how.activation.output != "argmax" else 0
        # The argmax of any number of classes has one channel.
        least = 2 if self._how.activation.output == "argmax" else 0
        count = self._how.classes or own or channels or least
        is_named = self._how.head is not None
        if not count or (is_named and not scales):
            msg = f"no window of {self._place.case} touches the mask, so the model was not run, "
            msg += f"and its number of channels{' and its scale' * is_named} is unknown"
            do = "Leave such cases out." if is_named else "Give classes=, the number of channels."
            raise SampleError(msg, do=do)
        return int(count)

    def close(self) -> None:
        """Release open files; the state for the next run stays."""
        if self._between is not None:
            self._between.close()
        folder = self._output.folder if self._continues else None
        has_state = folder and ((folder / BETWEEN).exists() or any(folder.rglob(STATE)))
        if not (self._is_whole or has_state):
            self._output.drop()
        self._output.close()
        if self._scratch is not None:
            self._scratch.cleanup()


def past_windows(place: WindowPlace, how: HowToStitch) -> NDArray[np.bool_]:
    """Return the flags of windows to skip; opens nothing, so that every rank may call it.

    Windows written by the stitching process since its start count, too.
    """
    count = len(place.windows(how.blend))
    none, every = np.zeros(count, np.bool_), np.ones(count, np.bool_)
    destination = how.destination_of(place.case)
    if not isinstance(destination, str) or not how.continues(place):
        return none
    key = how.key_of(place)
    if not how.overwrite and is_finished(destination, key, how.storage_options):
        return every
    if is_url(destination):
        return none
    folder = part_folder(destination)
    if not place.is_stored:
        between = str(folder / BETWEEN)
        if is_finished(between, key, {}):
            return every
        folder = part_folder(between)
    state = Checkpoint.read(folder, key, count)
    return none if state is None else state.past


def bring_back(
    between: Volume, place: WindowPlace, activation: Activation, output: Output, is_copy: bool
) -> None:
    """Resample a result to the stored grid, box by box, by the inverse of the plan."""
    # A result of another scale keeps the grid of its windows.
    is_scaled = between.spatial_shape != place.plan.shape
    output.grid = between.grid if is_scaled else place.stored_grid
    back = SpatialPlan.identity(between.grid) if is_scaled else place.plan.inverse()
    channels = between.shape[0]
    last = Activation("logits", between.dtype) if is_copy else activation.after_resampling
    policy = _COPIES if is_copy else _SHARES
    output.begin(last.channels(channels), last.dtype_of(channels))
    whole = output.grid.region
    for start in itertools.product(*(range(0, n, _BACK) for n in whole.shape)):
        region = Region(start, [a + _BACK for a in start]).intersect(whole)
        plan = back.crop(region.start, region.shape)
        dtype = between.dtype if is_copy else np.dtype(np.float32)
        voxels = np.empty((channels, *region.shape), dtype)
        ReadPlan.of(between, plan, policy).resample_into(voxels, policy, None)
        output.write(region, last.of(voxels))
