"""``voxpipe convert``: write volumes as sharded zarr."""

from __future__ import annotations

import argparse
import os
from typing import Any

from .beside_output import progress, remark
from .core.errors import VoxpipeError
from .storage_option import add_options, add_reader, of_place, options_of


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "convert",
        help="write volumes as sharded zarr v3, for fast patches",
        description="Write one volume, or every volume below a folder, as sharded zarr v3 in its "
        "stored type. A command that was killed continues where it was when given again; what is "
        "at the destination is whole or absent.",
    )
    command.add_argument(
        "source",
        metavar="SRC",
        help="a volume, a folder of cases, or a glob of either; path or URL",
    )
    command.add_argument(
        "destination", metavar="DST", help="the zarr to write, or the folder for all of them"
    )
    command.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="voxels per axis of a chunk (default: chosen)",
    )
    command.add_argument(
        "--shard",
        type=int,
        metavar="N",
        help="voxels per axis of a shard (default: chosen)",
    )
    command.add_argument(
        "--patch",
        type=int,
        default=96,
        metavar="N",
        help="voxels per axis of the patches that will be read (default: %(default)s)",
    )
    command.add_argument(
        "--codec",
        choices=("lz4", "zstd", "none"),
        default="lz4",
        help="lz4 decodes fastest, zstd stores least (default: %(default)s)",
    )
    command.add_argument("--overwrite", action="store_true", help="replace zarr groups at DST")
    add_reader(command)
    add_options(command)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Convert; return 1 if a volume could not be converted."""
    store = options_of(options, options.source, options.destination)
    jobs = _jobs(options.source, options.destination, of_place(store, options.source))
    failed = 0
    for source, destination in jobs:
        try:
            print(_convert(source, destination, options, store))
        except VoxpipeError as error:
            failed += 1
            error.do = error.do.replace("overwrite=True", "--overwrite")
            remark(error)
    if failed and len(jobs) > 1:
        remark(f"{failed} of {len(jobs)} volumes were not converted")
    return 1 if failed else 0


def _jobs(source: str, destination: str, store: dict[str, Any]) -> list[tuple[str, str]]:
    from .core.errors import DestinationExists
    from .storage.location import local_path
    from .volumes import find_by_folder, is_volume

    path = local_path(source)
    if is_volume(source) or (os.path.lexists(path) and not os.path.isdir(path)):
        return [(source, destination)]
    folder = destination.rstrip("/")
    jobs: dict[str, str] = {}
    for case, volumes in find_by_folder(source, store).items():
        for key, place in volumes.items():
            alone = list(volumes) == ["image"]
            written = f"{folder}/{case if alone else f'{case}/{key}'}.nii.zarr"
            if written in jobs:
                raise DestinationExists(
                    f"{place} and {jobs[written]} would both be written to {written}.",
                    do="Rename one of them, or convert them one by one.",
                )
            jobs[written] = place
    return [(place, written) for written, place in jobs.items()]


def _convert(
    source: str, destination: str, options: argparse.Namespace, store: dict[str, Any]
) -> str:
    from .volumes import Volume, convert

    reader = dict(options.reader)
    name = os.path.basename(source.rstrip("/"))
    with progress(name, "voxel", scaled=True) as told:
        done = convert(
            Volume(source, storage_options=of_place(store, source), **reader),
            destination,
            chunk=options.chunk,
            shard=options.shard,
            patch=options.patch,
            codec=options.codec,
            overwrite=options.overwrite,
            progress=told,
            storage_options=store,
        )
    chunk, shard = ("x".join(map(str, size)) for size in (done.chunk, done.shard))
    kept = f", {done.kept} were there" if done.kept else ""
    return f"{done.location}: chunks {chunk}, {done.written} shards {shard} written{kept}"
