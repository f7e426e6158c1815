"""Predictions of several time points in one OME-Zarr group, with an axis of time.

Each time point is predicted into a group of its own. The last step copies these shard by shard.
It stays next to its only user, ``from_ome()``: the engine would need an entry point for it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from ...core.errors import DestinationExists, LeadsOutside, SampleError
from ...stitching.stitched_volume import refuse_shared
from ...storage.content import content_key
from ...storage.location import is_url, public_name
from ...volumes import Volume
from ...volumes.conversion.convert import create_arrays, publish
from ...volumes.conversion.convert_plan import ConvertPlan, plan_conversion
from ...volumes.conversion.destination import Destination, check_destination, destination_of, hold
from ...volumes.conversion.ome_group import list_label, plan_at, refuse_no_image, refuse_other_image
from ...volumes.conversion.volume_file import refuse_unwritable
from ...volumes.header import Times

IMAGE = "{image}"
"""Part of a destination that stands for the path of an image below the root."""


@dataclass(frozen=True)
class Place:
    """The times of one image that have one destination."""

    path: str
    sizes: Mapping[str, int]
    """Lengths of the axes of the image, by letter."""
    step: Times
    """Step between the time points of the image, with its unit."""
    parts: str
    """Folder of the groups of single times."""
    target: Destination
    """The destination, whose lock the first rank holds: a lease at a URL has one owner."""
    times: dict[str, int] = field(default_factory=dict)
    """Time of each case."""

    def part(self, case: str) -> str:
        """Return the place of the group of one case."""
        return f"{self.parts}/t{self.times[case]}.zarr"

    def join(
        self, volumes: Mapping[str, Volume], options: Mapping[str, Any], *, overwrite: bool
    ) -> dict[str, Volume]:
        """Write one group of all times; return the volume of each case, of its time.

        A time without a case is 0.
        """
        mine = {case: volume for case, volume in volumes.items() if case in self.times}
        if not mine:
            return {}
        first = next(iter(mine.values()))
        refuse_other_image(self.path, first.grid, options)
        plan = plan_at(self._plan(first), self.path, None, options)
        key = content_key(self.path, tuple(volume.token for volume in mine.values()))
        self.target.finished_shards(key)
        array = create_arrays(plan, self.target)
        one = replace(plan, header=first.header)  # of one time point
        for case, volume in mine.items():
            for _, region in plan.regions():
                voxels = one.in_order(volume.read(region).array)
                array[(self.times[case], *one.index(region))] = voxels
        how = {"overwrite": overwrite, "is_label": first.kind == "label"}
        publish(array, plan, self.target, key, **how)
        list_label(self.path, options)
        shutil.rmtree(self.parts, ignore_errors=True)
        own: dict[str, Any] = {"kind": first.kind}
        own |= {"storage_options": options} if is_url(self.path) else {}
        return {case: Volume(self.path, time=self.times[case], **own) for case in mine}

    def _plan(self, volume: Volume) -> ConvertPlan:
        header, count = volume.header, self.sizes["t"]
        plan = plan_conversion(header, codec="zstd")  # shards of one time point
        channels = header.shape[0]
        times = self.step._replace(number=count, stride=channels)
        whole = replace(header, shape=(count * channels, *header.shape[1:]), times=times)
        whole = replace(whole, channel_names=header.channel_names * count)
        return replace(plan, header=whole)


class JointTimes:
    """The destinations of the cases of ``from_ome()``, and their results.

    ``{image}`` in the destination is the path of the image below the root. Each of ``cases`` has
    a name, an image, a time, lengths of axes and a step in time. The ``stack`` holds the locks of
    destinations.
    """

    def __init__(
        self,
        destination: str,
        cases: list[tuple[str, str, int | None, Mapping[str, int], Times]],
        stack: ExitStack,
        options: Mapping[str, Any],
        *,
        is_first: bool,
        overwrite: bool,
        keeps_parts: bool,
    ) -> None:
        self._options, self._overwrite = options, overwrite
        self._paths: dict[str, str] = {}
        self._joint: dict[str, Place] = {}
        by_path: dict[str, list[Any]] = {}
        for case in cases:
            if {".", ".."} & {*case[1].split("/")} or os.path.isabs(case[1]):
                msg = f"the result of the image {case[1]!r} would lie outside of {destination}"
                raise LeadsOutside(msg, do="Give f(case) as the destination.")
            path = destination.replace(IMAGE, case[1]).replace("{case}", case[0])
            by_path.setdefault(path, []).append(case)
            self._paths[case[0]] = path
        for path, mine in by_path.items():
            if len(mine) == 1:
                continue
            _, image, _, sizes, step = mine[0]
            if refuse_unwritable(path):
                refuse_shared(path)
            if any(other[1] != image for other in mine):
                what = f"the results of two cases would be {public_name(path)}"
                do = f"Write {IMAGE}, the path of the image, into it, or give f(case)."
                raise DestinationExists(what, do=do)
            target = destination_of(path, options)
            self._joint[path] = Place(path, sizes, step, _parts(path, stack), target)
            self._joint[path].times.update((name, time) for name, _, time, *_ in mine)
            if is_first:
                refuse_no_image(path, options)
                stack.enter_context(hold(target, path))
                if check_destination(target, overwrite=overwrite):
                    target.make_way()
                if not keeps_parts:
                    shutil.rmtree(self._joint[path].parts, ignore_errors=True)

    def place_of(self, case: str) -> str:
        """Return the destination of one case."""
        path = self._paths.get(case)
        if path is None:
            msg = f"the case {case!r} is none of from_ome()"
            raise SampleError(msg, do="Keep the names of its cases, or give f(case).")
        return self._joint[path].part(case) if path in self._joint else path

    def join(self, volumes: Mapping[str, Volume]) -> dict[str, Volume]:
        """Return the results of all cases, after those of several times are one group."""
        results = dict(volumes)
        for place in self._joint.values():
            results |= place.join(volumes, self._options, overwrite=self._overwrite)
        return results


def _parts(path: str, stack: ExitStack) -> str:
    """Return the folder of the groups of single times: next to a local group."""
    if is_url(path):
        return stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
    folder, name = os.path.split(os.path.abspath(path.rstrip("/" + os.sep)))
    return os.path.join(folder, f".{name}.times")
