"""Write volumes as sharded zarr v3, for fast patches.

Write one volume, or every volume below a folder, as sharded zarr v3 in its stored type. A killed
command continues when given again. A copy at the destination is whole or absent.

example: voxpipe convert scans/anna/ct.nii.gz ct.nii.zarr --patch 128
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from ...core.errors import VoxpipeError
from .options import add_store_options, positive, store_options
from .printing import print_json, progress, remark


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add source, destination, and the layout of the copies."""
    what = "a volume, a folder of cases, or a glob of either; path or URL"
    parser.add_argument("source", metavar="SRC", help=what)
    what = "the zarr to write, or the folder for all of them"
    parser.add_argument("destination", metavar="DST", help=what)
    whole = positive(int)
    for unit in ("chunk", "shard"):
        what = f"voxels per axis of a {unit} (default: chosen)"
        parser.add_argument(f"--{unit}", type=whole, metavar="N", help=what)
    what = "voxels per axis of the patches that will be read (default: %(default)s)"
    parser.add_argument("--patch", type=whole, default=96, metavar="N", help=what)
    what = "lz4hc decodes fastest, lz4 is written fastest, zstd stores least (default: %(default)s)"
    codecs = ("lz4hc", "lz4", "zstd", "none")
    parser.add_argument("--codec", choices=codecs, default="lz4hc", help=what)
    parser.add_argument("--overwrite", action="store_true", help="replace zarr groups at DST")
    add_store_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the copies; return 1 if one failed."""
    store = store_options(arguments, arguments.source, arguments.destination)
    source_store = store_options(arguments, arguments.source)
    jobs = _jobs(arguments.source, arguments.destination, source_store)
    copies, failures = [], []
    for source, destination in jobs:
        try:
            result = _convert(source, destination, arguments, store)
        except VoxpipeError as error:
            error.do = error.do.replace("overwrite=True", "--overwrite")
            failures.append({"source": source, "error": type(error).__name__, "reason": str(error)})
            remark(error)
        else:
            copies.append({"source": source, **vars(result)})
            if not arguments.json:
                print(_line_of(result))
    if arguments.json:
        print_json({"converted": copies, "failed": failures})
    if failures and len(jobs) > 1:
        remark(f"{len(failures)} of {len(jobs)} volumes were not converted")
    return 1 if failures else 0


def _jobs(source: str, destination: str, store: dict[str, Any]) -> list[tuple[str, str]]:
    from ...core.errors import DestinationExists
    from ...storage.location import local_path
    from ...volumes import find_by_folder, is_volume

    path = local_path(source)
    if is_volume(source) or (os.path.lexists(path) and not os.path.isdir(path)):
        return [(source, destination)]
    folder = destination.rstrip("/")
    jobs: dict[str, str] = {}
    for case, volumes in find_by_folder(source, store).items():
        for key, place in volumes.items():
            alone = list(volumes) == ["image"]
            target = f"{folder}/{case if alone else f'{case}/{key}'}.nii.zarr"
            if target in jobs:
                msg = f"{place} and {jobs[target]} would both be written to {target}."
                raise DestinationExists(msg, do="Rename one of them, or convert them one by one.")
            jobs[target] = place
    return [(place, target) for target, place in jobs.items()]


# Options of the command that are arguments of ``convert()``.
_CONVERTS = ("chunk", "shard", "patch", "codec", "overwrite")


def _convert(
    source: str, destination: str, arguments: argparse.Namespace, store: dict[str, Any]
) -> Any:
    from ...volumes import Volume, convert

    name = os.path.basename(source.rstrip("/"))
    own = store_options(arguments, source)
    with progress(name, "voxel", scale=True) as show:
        return convert(
            Volume(source, storage_options=own, **dict(arguments.reader)),
            destination,
            progress=show,
            storage_options=store,
            **{name: getattr(arguments, name) for name in _CONVERTS},
        )


def _line_of(result: Any) -> str:
    chunk, shard = ("x".join(map(str, n)) for n in (result.chunk, result.shard))
    what = f"zarr, chunks {chunk}, {result.new_shards} shards {shard} written"
    note = f", {result.reused_shards} were there" if result.reused_shards else ""
    return f"{result.location}: {what}{note}"
