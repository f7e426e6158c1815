"""Write volumes as sharded zarr v3, for fast patches.

Write one volume, or every volume below a folder, as sharded zarr v3 in its stored type. A killed
command continues when given again. A copy at the destination is whole or absent.

example: voxpipe convert scans/anna/ct.nii.gz ct.nii.zarr --patch 128
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from ...core.errors import UnknownFormat, UsageError, VoxpipeError
from ...core.suggest import few_names
from .cures import reword
from .options import add_store_options, place, positive, refuse_http, store_options
from .printing import one_line, print_json, remark
from .targets import Target, refuse_denied, wrong_use


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add source, destination, and the layout of the copies."""
    about = (
        "a volume, a folder of cases, or a glob of either; path or URL. Or a manifest, a table of "
    )
    about += "cases, or module:NAME of volumes"
    parser.add_argument("source", metavar="SRC", type=place, help=about)
    about = "the zarr to write, or the folder for all of them"
    parser.add_argument("destination", metavar="DST", type=place, help=about)
    whole = positive(int)
    for unit in ("chunk", "shard"):
        about = f"voxels per axis of a {unit} (default: chosen)"
        parser.add_argument(f"--{unit}", type=whole, metavar="N", help=about)
    about = "voxels per axis of the patches that will be read (default: %(default)s)"
    parser.add_argument("--patch", type=whole, default=96, metavar="N", help=about)
    about = (
        "lz4hc decodes fastest, lz4 is written fastest, zstd stores least (default: %(default)s)"
    )
    codecs = ("lz4hc", "lz4", "zstd", "none")
    parser.add_argument("--codec", choices=codecs, default="lz4hc", help=about)
    parser.set_defaults(go_on=lambda _: "; give it again to go on")
    parser.set_defaults(patterns=(), optional=(), labels=None)
    parser.add_argument("--overwrite", action="store_true", help="replace zarr groups at DST")
    add_store_options(parser, "source")


def run(arguments: argparse.Namespace) -> int:
    """Write the copies; return 1 if one failed."""
    from ...volumes.conversion.convert import refuse_other_formats
    from ...volumes.conversion.volume_file import writer_of
    from ..microscopy.ome_metadata import node_of

    refuse_http("convert", arguments.destination)
    store = store_options(arguments, arguments.source, arguments.destination)
    if writer_of(arguments.destination) is None:
        with wrong_use(UnknownFormat):
            refuse_other_formats(arguments.destination)
    jobs = _jobs(arguments)
    if [place for _, place in jobs] == [arguments.destination]:
        _refuse_other_suffix(arguments.destination)
    copies, failures, labels = [], [], set[str]()
    for volume, destination in jobs:
        source = volume.name
        try:
            result = _convert(volume, destination, arguments, store)
        except VoxpipeError as error:
            error = reword(arguments, error)
            if isinstance(error, UsageError):
                raise error from None
            failures.append({"source": source, "error": type(error).__name__, "reason": str(error)})
            remark(error)
        else:
            copies.append({"source": source, **vars(result)})
            node = node_of(volume)
            labels.update(() if node is None or volume.kind == "label" else node.label_names())
            if not arguments.json:
                print(one_line(_line_of(result)))
    if labels:
        text = f"label groups are not converted: {few_names(sorted(labels))}"
        remark(f"{text}. Convert each by its path, IMAGE.ome.zarr/labels/NAME.")
    if arguments.json:
        print_json({"converted": copies, "failed": failures})
    if failures and len(jobs) > 1:
        remark(f"{len(failures)} of {len(jobs)} volumes were not converted")
    return 1 if failures else 0


def _refuse_other_suffix(place: str) -> None:
    """Raise ``UsageError`` if the name of a copy has a suffix that is no format's."""
    from ...volumes.conversion.volume_file import writer_of

    stem, suffix = os.path.splitext(place.rstrip("/"))
    is_suffix = suffix[1:2].isalpha() and suffix[1:].isalnum()  # not that of scan-1.2
    if is_suffix and suffix.lower() != ".zarr" and writer_of(place) is None:
        msg = f"sharded zarr is written, and {place} has another suffix"
        raise UsageError(msg, do=f"Call it {stem}.nii.zarr.")


def _jobs(arguments: argparse.Namespace) -> list[tuple[Any, str]]:
    """Return the volumes and their destinations."""
    from ...core.errors import DestinationExists

    source, destination = arguments.source, arguments.destination
    refuse_denied(source)
    target = Target(source, arguments)
    if target.volume is not None:
        return [(target.volume, destination)]
    folder = destination.rstrip("/")
    jobs: dict[str, Any] = {}
    for case, volumes in _volumes_by_case(target).items():
        for key, volume in volumes.items():
            if not case:  # one volume of module:NAME
                return [(volume, destination)]
            alone = list(volumes) == ["image"]
            place = f"{folder}/{case if alone else f'{case}/{key}'}.nii.zarr"
            if place in jobs:
                msg = f"{volume.name} and {jobs[place].name} would both be written to {place}."
                raise DestinationExists(msg, do="Rename one of them, or convert them one by one.")
            jobs[place] = volume
    return [(volume, place) for place, volume in jobs.items()]


def _volumes_by_case(target: Target) -> dict[str, dict[str, Any]]:
    from ...volumes import Volume, find_by_folder

    by_case: dict[str, dict[str, Any]] = {}
    if target.user_object is not None or target.is_list:
        for case, key, volume in target.volumes():
            by_case.setdefault(case, {})[key] = volume
        return by_case
    options = {"storage_options": target.store, **dict(target.arguments.reader)}
    for case, places in find_by_folder(target.text, target.store).items():
        by_case[case] = {key: Volume(place, **options) for key, place in places.items()}
    return by_case


# Options of the command that are arguments of ``convert()``.
_CONVERTS = ("chunk", "shard", "patch", "codec", "overwrite")


def _convert(
    volume: Any, destination: str, arguments: argparse.Namespace, store: dict[str, Any]
) -> Any:
    from ...volumes import convert

    options = {name: getattr(arguments, name) for name in _CONVERTS}
    return convert(volume, destination, storage_options=store, **options)


def _line_of(result: Any) -> str:
    chunk, shard = ("x".join(map(str, n)) for n in (result.chunk, result.shard))
    msg = f"zarr, chunks {chunk}, {result.new_shards} shards {shard} written"
    note = f", {result.reused_shards} were there" if result.reused_shards else ""
    return f"{result.location}: {msg}{note}"
