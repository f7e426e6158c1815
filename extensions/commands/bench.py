"""Forecast patches per second from a few patches, and name the limit.

Measure the time of a patch, part by part, on a few patches of a data set or of a chain of yours.
From these times, forecast the patches per second of worker processes and threads.

example: voxpipe bench scans --patch 64 --workers 0 2
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ...core.errors import BudgetExceeded, NotPicklable, UsageError
from .options import add_store_options, positive
from .printing import print_json, print_text, remark, warnings_as_remarks
from .targets import Target, add_patterns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data set or the chain, and the settings to forecast."""
    place = "a folder or URL, a manifest (.json, .parquet), or a chain of yours: module:NAME or "
    place += "file.py:NAME of a pipe, a DataLoader2, a volume, or a function that returns one"
    add_patterns(parser, "data", place)
    whole, number = positive(int), positive(float)
    about = "voxels of a patch: one number, or one for each axis, x, y, z as in vp.Volume().shape; "
    about += "two for planes, y, x; not of a chain of yours (default: 96)"
    parser.add_argument("--patch", type=whole, nargs="+", metavar="N", help=about)
    numbers = {
        "batch": (4, "patches in a batch"),
        "samples": (8, "patches of each visit to a volume"),
    }
    for name, (usual, about) in numbers.items():
        text = f"{about}; not of a chain of yours (default: {usual})"
        parser.add_argument(f"--{name}", type=whole, metavar="N", help=text)
    others = {name: number for name, (number, _) in numbers.items()}
    parser.set_defaults(usual={"patch": [96], **others})
    count: Any = {"nargs": "+", "metavar": "N"}
    about = "numbers of worker processes to forecast (default: 0 1 2 4; of a loader its own rows)"
    none_too = positive(int, or_zero=True)
    parser.add_argument("--workers", type=none_too, default=[], **count, help=about)
    about = "numbers of threads to forecast (ThreadReadingService); measured, too, with --workers 0"
    parser.add_argument("--threads", type=whole, default=[], **count, help=about)
    about = "time for which each part is measured, in seconds (default: as loader.measure())"
    parser.add_argument("--seconds", type=number, metavar="S", help=about)
    add_store_options(parser, "data")


def run(arguments: argparse.Namespace) -> int:
    """Print the costs of a patch and the forecasts."""
    with warnings_as_remarks(arguments):
        return _bench(arguments)


def _bench(arguments: argparse.Namespace) -> int:
    from ...batching.collate import usable_cores
    from ...dataloader2 import DataLoader2
    from ...reading_services import MultiProcessingReadingService, ThreadReadingService

    chain = _chain_of(arguments)
    is_loader = isinstance(chain, DataLoader2)
    if is_loader and not (arguments.workers or arguments.threads):
        measurement = _measure(chain, None, arguments)
        if arguments.json:
            print_json(_document_of(measurement, [], []))
        else:
            print_text(measurement)
        return 0
    threads = arguments.threads
    workers = arguments.workers or ([0, 1, 2, 4] if not is_loader or not threads else [0])
    in_threads = bool(threads) and not any(workers)
    most = min(max(threads if in_threads else workers), usable_cores())
    service: Any = ThreadReadingService if in_threads else MultiProcessingReadingService
    try:
        measurement = _measure(chain, service(most), arguments)
    except NotPicklable as error:
        threads, workers = threads or [1, 2], [0]
        measurement = _measure(chain, ThreadReadingService(min(max(threads), most)), arguments)
        remark(f"no row of worker processes: {error}")
    if arguments.json:
        print_json(_document_of(measurement, workers, threads))
    else:
        print_text(measurement.table(workers, threads))
    for note in (*filter(None, [measurement.better]), *measurement.notes):
        remark(note)
    return 0


# Fields of the costs of a batch that are no times.
_NO_SECONDS = ("items", "bytes_read", "bytes_decoded", "remote", "at_once", "alone")


def _document_of(measurement: Any, workers: Sequence[int], threads: Sequence[int]) -> Any:
    """Return the seconds of the parts of a batch, and a forecast for each number of workers."""
    rows: list[dict[str, Any]] = []
    rows += [] if workers or threads else [{"workers": None, "threads": None}]
    rows += [{"workers": count, "threads": None} for count in workers]
    rows += [{"workers": None, "threads": count} for count in threads]
    items, forecasts = measurement.costs.items, []
    for row in rows:
        outlook = measurement.forecast(row["workers"], threads=row["threads"])
        rate = outlook.batches_per_second * items
        forecasts.append(row | {"patches_per_second": rate, "limit": outlook.limit})
    seconds = asdict(measurement.costs)
    batch = {name: seconds.pop(name) for name in _NO_SECONDS}
    own = {"batch": batch, "batch_seconds": seconds}
    return own | {"forecasts": forecasts, "notes": measurement.notes}


def _measure(chain: Any, service: Any, arguments: argparse.Namespace) -> Any:
    from ...dataloader2 import DataLoader2
    from ...diagnosing.effort import MEASURE_SECONDS

    if not isinstance(chain, DataLoader2):
        chain = DataLoader2(chain, None, service, seed=0)
    try:
        with chain as loader:
            return loader.measure(seconds=arguments.seconds or MEASURE_SECONDS)
    except BudgetExceeded as error:
        if arguments.patch:  # the default chain, with these settings
            error.do = "Give a smaller --patch or --batch, or fewer --workers."
        raise


def _chain_of(arguments: argparse.Namespace) -> Any:
    """Return the named pipe or loader, or a default chain over the found cases."""
    target = Target(arguments.data, arguments)
    if target.is_chain:
        for option in arguments.usual:
            if getattr(arguments, option):
                msg = f"--{option} is not of a chain of yours, which says so itself."
                raise UsageError(msg, do="Leave it out, or change the chain.")
        return target.user_object
    for option, usual in arguments.usual.items():
        setattr(arguments, option, getattr(arguments, option) or usual)
    patch = arguments.patch
    if len(patch) > 3:
        raise UsageError(f"--patch takes one number to three, got {len(patch)}")
    size = tuple(patch) if len(patch) > 1 else patch[0]
    return (
        target.with_volumes(target.pipe.shuffle())
        .lazy_patch(size, samples_per_volume=arguments.samples)
        .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
        .batch_patches(arguments.batch)
    )
