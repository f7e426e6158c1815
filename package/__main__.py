"""The command line: ``voxpipe``, or ``python -m voxpipe``."""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import extract_tb
from typing import Any

from . import __version__
from .core.errors import BudgetExceeded, LikelyLabel, NotPicklable, SampleError, VoxpipeError
from .core.suggest import closest
from .core.validate import count_text
from .storage.location import is_url


def _add_shared(command: argparse.ArgumentParser) -> None:
    """Add the options of a format, as of ``open_volume()``, and of a store to a command."""
    pairs: Any = {"type": _pair, "action": "append", "default": [], "metavar": "KEY=VALUE"}
    what = "an option of open_volume() for the format, VALUE as below: --reader dataset=ct, "
    command.add_argument("--reader", **pairs, help=f"{what}--reader level=1; may be repeated")
    what = (
        "for URLs: storage_options as a JSON object, or a file that holds one, which other "
        'users of the machine cannot see: \'{"endpoint_url": "https://..."}\' (default: what the '
        "environment says)"
    )
    command.add_argument("--storage-options", type=_object, default={}, metavar="JSON", help=what)
    what = "one of them; VALUE is JSON, or else a text: --option anon=true; may be repeated"
    command.add_argument("--option", **pairs, help=what)


def _options_of(arguments: argparse.Namespace, *places: str) -> dict[str, Any]:
    """Return the options of the store; none if no place is a URL."""
    if not any(map(is_url, places)):
        return {}
    return {**arguments.storage_options, **dict(arguments.option)}


# Messages never quote a text that does not parse: it may hold a secret.
def _object(text: str) -> dict[str, Any]:
    is_json = text.lstrip().startswith("{")
    document = None
    with suppress(OSError, ValueError):
        document = json.loads(text if is_json else Path(text).read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        msg = "the value is neither a JSON object nor a file with one"
        raise argparse.ArgumentTypeError(msg)
    return document


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError("an option is KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _add_patterns(command: argparse.ArgumentParser, name: str, place: str) -> None:
    what = f"{place}; with patterns, a glob of case folders, or the first pattern"
    command.add_argument(name, metavar=name.upper(), help=what)
    what = (
        "the volumes of a case, as in list_cases(): image=ct.nii.gz label=seg.nii.gz below "
        'a glob of folders, or "image=imagesTr/*_0000.nii.gz" "label=labelsTr/*.nii.gz" alone '
        "(default: every volume that is found)"
    )
    # Without a default, argparse would report this optional argument as required.
    command.add_argument("patterns", metavar="KEY=PATTERN", nargs="*", default=[], help=what)
    what = "keys that a case may lack, as in list_cases(); each is one of the patterns"
    command.add_argument("--optional", nargs="+", default=[], metavar="KEY", help=what)
    what = "keys that hold labels (default: those of open_volume())"
    command.add_argument("--labels", nargs="+", metavar="KEY", help=what)


# Options with several values, among which argparse may put a pattern.
_SEVERAL_VALUES = ("labels", "optional")


def _gather_patterns(options: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """Move each ``KEY=PATTERN`` of the command line to ``patterns``; return the other texts."""
    if "patterns" not in options:
        return list(rest)
    for option in _SEVERAL_VALUES:
        values = getattr(options, option, None) or []
        options.patterns += [value for value in values if _is_pattern(value)]
        if values:
            setattr(options, option, [value for value in values if not _is_pattern(value)])
    unknown = [text for text in rest if text.startswith("-")]
    if unknown:  # a pattern after an unknown option may be its value
        return list(rest)
    options.patterns += [text for text in rest if _is_pattern(text)]
    return [text for text in rest if not _is_pattern(text)]


def _is_pattern(text: str) -> bool:
    return "=" in text and text.partition("=")[0].isidentifier()


def _cases_of(
    data: str,
    patterns: Sequence[str],
    storage_options: Mapping[str, Any],
    optional: Sequence[str] = (),
) -> Any:
    """Return the argument of ``check()`` and ``index()``: a place, or a pipe of found cases.

    ``data`` is a place, a glob of case folders, or a pattern without a folder.
    """
    from .datapipes.iter import list_cases

    is_pattern = _is_pattern(data) and not os.path.exists(data)
    if not (patterns or is_pattern):
        if optional:
            what = f"--optional needs patterns: {optional[0]} is the key of none."
            raise SampleError(what, do=f"Write image=ct.nii.gz {optional[0]}=PATTERN.")
        return data
    texts = [data, *patterns] if is_pattern else patterns
    by_key: dict[str, Any] = dict(text.partition("=")[::2] for text in texts)
    for key, pattern in by_key.items():
        if not (key and pattern):
            msg = f"{key or pattern!r} is no KEY=PATTERN."
            do = 'Write image=ct.nii.gz; a glob of folders needs quotes: "scans/*/".'
            raise SampleError(msg, do=do)
    for key in optional:
        if key not in by_key:
            near = closest(key, by_key, 0.5)
            do = f"did you mean --optional {near[0]}?" if near else "Name one of them."
            raise SampleError(f"--optional {key} is none of the keys: {', '.join(by_key)}", do=do)
    folder = None if is_pattern else data
    try:
        return list_cases(folder, optional=optional, storage_options=storage_options, **by_key)
    except ValueError as error:
        raise SampleError(str(error), do='Write image="imagesTr/*_0000.nii.gz".') from error


def _remark(text: object) -> None:
    print(f"voxpipe: {text}", file=sys.stderr)


@contextmanager
def progress(what: str, unit: str, *, scale: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a bar inside the ``with`` block; its value is a function of count and total."""
    from tqdm import tqdm

    with tqdm(
        desc=what, unit=unit, unit_scale=scale, leave=False, disable=None, file=sys.stderr
    ) as bar:

        def show(count: int, total: int) -> None:
            bar.total = total
            bar.update(count - bar.n)

        yield show


def _add_check(commands: Any) -> None:
    command = commands.add_parser(
        "check",
        epilog='example: voxpipe check "scans/*/" image=ct.nii.gz label=seg.nii.gz --voxels',
        help="open every volume of a data set and name every bad one",
        description="Open every volume of a manifest, of a table or below a folder, in worker "
        "processes, and name every bad one with its reason: files that are not there or cannot be "
        "read, images and labels that do not fit each other, labels of no whole type. The exit "
        "status is 1 if there is one.",
    )
    place = "a manifest (.json, .parquet), a table of cases (.csv, .tsv, .jsonl), a folder or URL"
    _add_patterns(
        command, "data", f"{place}, one volume, or a glob (in quotes) of volumes or folders"
    )
    whole, number = _positive(int), _positive(float)
    what = "processes (default: %(default)s)"
    command.add_argument("--workers", type=whole, default=2, metavar="N", help=what)
    what = "decode every voxel too: finds damage inside files"
    command.add_argument("--voxels", action="store_true", help=what)
    what = "longest time for one volume, in seconds (default: 60; 600 with --voxels)"
    command.add_argument("--timeout", type=number, metavar="S", help=what)
    _add_shared(command)
    command.set_defaults(run=_run_check)


def _run_check(options: argparse.Namespace) -> int:
    from .dataloader2 import check
    from .volumes import is_by_columns

    option = "--reader" if options.reader else "--labels" if options.labels else ""
    if option and (options.data.lower().endswith(".json") or is_by_columns(options.data)):
        what = f"{options.data} is a manifest, which says how its volumes are read."
        raise SampleError(what, do=f"Leave {option} out, or give the folder.")
    timeout = options.timeout or (600.0 if options.voxels else 60.0)
    own = {"num_workers": options.workers, "voxels": options.voxels, "timeout": timeout}
    own["only_bad"] = True
    report = _report("check", check, options, options.data, **own)
    print(str(report).replace("voxels=True", "--voxels"))
    _remark_likely_labels(report)
    if not options.voxels:
        _remark("headers only; --voxels also finds damage inside of files")
    return 0 if report.ok else 1


def _report(
    name: str, run: Any, options: argparse.Namespace, data: str, *places: str | None, **own: Any
) -> Any:
    """Run a function over volumes with the common options of two commands, and show a bar."""
    store = _options_of(options, data, *options.patterns, *filter(None, places))
    cases = _cases_of(data, options.patterns, store, options.optional)
    own |= {} if options.labels is None else {"labels": options.labels}
    with progress(name, "volume") as show, warnings.catch_warnings():
        warnings.simplefilter("ignore", LikelyLabel)  # printed as remarks instead
        reader = dict(options.reader)
        return run(cases, *places, progress=show, storage_options=store, **own, **reader)


def _positive(kind: type[float], *, or_zero: bool = False) -> Callable[[str], float]:
    """Return a parser of numbers above 0, or of at least 0."""

    def number(text: str) -> float:
        value = kind(text)
        if not (value > 0 or (or_zero and value == 0)):
            least = "at least" if or_zero else "above"
            raise argparse.ArgumentTypeError(f"{text} is not {least} 0")
        return value

    return number


def _add_index(commands: Any) -> None:
    command = commands.add_parser(
        "index",
        epilog="example: voxpipe index scans -o scans.json",
        help="write a manifest of a data set: headers, statistics, versions",
        description="Write a manifest: shape, affine, type, layout, statistics (mean, range, "
        "percentiles, class counts) and version of every volume. vp.from_manifest() then plans "
        "without opening a file. Given again, only volumes that changed are read, and after an "
        "interruption only those that were not.",
    )
    place = "a folder of cases, one volume, or a glob (in quotes) of volumes or folders"
    _add_patterns(command, "url", place)
    what = "path or URL, .parquet or .json (default: manifest.json; manifest.parquet for more than "
    what += "50,000 volumes, if pyarrow is installed)"
    command.add_argument("-o", "--output", metavar="FILE", help=what)
    what = "read headers only; normalize() will compute what it needs"
    command.add_argument("--no-statistics", dest="statistics", action="store_false", help=what)
    _add_shared(command)
    command.set_defaults(run=_run_index)


def _run_index(options: argparse.Namespace) -> int:
    from .dataloader2 import index

    places = options.url, options.output
    own = {"statistics": options.statistics, "only_bad": True}
    report = _report("index", index, options, *places, **own)
    for finding in report.bad:
        _remark(finding)
    _remark_likely_labels(report)
    cases, volumes = report.size
    if cases:
        print(f"{report.manifest}: {count_text(cases, 'case')}, {count_text(volumes, 'volume')}")
    if report.bad:
        bad, why = len({finding.case for finding in report.bad}), "with bad or missing volumes"
        _remark(count_text(bad, f"case {why} was left out", f"cases {why} were left out"))
    return 1 if report.bad else 0


def _add_convert(commands: Any) -> None:
    command = commands.add_parser(
        "convert",
        epilog="example: voxpipe convert scans/anna/ct.nii.gz ct.nii.zarr --patch 128",
        help="write volumes as sharded zarr v3, for fast patches",
        description="Write one volume, or every volume below a folder, as sharded zarr v3 in its "
        "stored type. A command that was killed continues where it was when given again; what is "
        "at the destination is whole or absent.",
    )
    what = "a volume, a folder of cases, or a glob of either; path or URL"
    command.add_argument("source", metavar="SRC", help=what)
    what = "the zarr to write, or the folder for all of them"
    command.add_argument("destination", metavar="DST", help=what)
    whole = _positive(int)
    for unit in ("chunk", "shard"):
        what = f"voxels per axis of a {unit} (default: chosen)"
        command.add_argument(f"--{unit}", type=whole, metavar="N", help=what)
    what = "voxels per axis of the patches that will be read (default: %(default)s)"
    command.add_argument("--patch", type=whole, default=96, metavar="N", help=what)
    what = "lz4hc decodes fastest, lz4 is written fastest, zstd stores least (default: %(default)s)"
    codecs = ("lz4hc", "lz4", "zstd", "none")
    command.add_argument("--codec", choices=codecs, default="lz4hc", help=what)
    command.add_argument("--overwrite", action="store_true", help="replace zarr groups at DST")
    _add_shared(command)
    command.set_defaults(run=_run_convert)


def _run_convert(options: argparse.Namespace) -> int:
    store = _options_of(options, options.source, options.destination)
    jobs = _jobs(options.source, options.destination, _options_of(options, options.source))
    failures = 0
    for source, destination in jobs:
        try:
            print(_convert(source, destination, options, store))
        except VoxpipeError as error:
            failures += 1
            error.do = error.do.replace("overwrite=True", "--overwrite")
            _remark(error)
    if failures and len(jobs) > 1:
        _remark(f"{failures} of {len(jobs)} volumes were not converted")
    return 1 if failures else 0


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
            target = f"{folder}/{case if alone else f'{case}/{key}'}.nii.zarr"
            if target in jobs:
                msg = f"{place} and {jobs[target]} would both be written to {target}."
                raise DestinationExists(msg, do="Rename one of them, or convert them one by one.")
            jobs[target] = place
    return [(place, target) for target, place in jobs.items()]


# Options of the command that are arguments of ``convert()``.
_CONVERTS = ("chunk", "shard", "patch", "codec", "overwrite")


def _convert(
    source: str, destination: str, options: argparse.Namespace, store: dict[str, Any]
) -> str:
    from .volumes import Volume, convert

    name = os.path.basename(source.rstrip("/"))
    with progress(name, "voxel", scale=True) as show:
        result = convert(
            Volume(source, storage_options=_options_of(options, source), **dict(options.reader)),
            destination,
            progress=show,
            storage_options=store,
            **{name: getattr(options, name) for name in _CONVERTS},
        )
    chunk, shard = ("x".join(map(str, n)) for n in (result.chunk, result.shard))
    what = f"zarr, chunks {chunk}, {result.new_shards} shards {shard} written"
    note = f", {result.reused_shards} were there" if result.reused_shards else ""
    return f"{result.location}: {what}{note}"


def _add_bench(commands: Any) -> None:
    command = commands.add_parser(
        "bench",
        epilog="example: voxpipe bench scans --patch 64 --workers 0 2",
        help="forecast patches per second from a few patches, and say what limits",
        description="Measure what a patch takes, part by part, on a few patches of a data set or "
        "of a chain of yours, and forecast from that how many patches per second workers give.",
    )
    place = "a folder or URL, a manifest (.json, .parquet), or a chain of yours: module:NAME or "
    place += "file.py:NAME of a pipe, a DataLoader2, or a function that returns one"
    _add_patterns(command, "data", place)
    whole, number = _positive(int), _positive(float)
    numbers = {
        "patch": (96, "voxels per axis of a patch"),
        "batch": (4, "patches in a batch"),
        "samples": (8, "patches of each visit to a volume"),
    }
    for name, (usual, what) in numbers.items():
        text = f"{what}; not of a chain of yours (default: {usual})"
        command.add_argument(f"--{name}", type=whole, metavar="N", help=text)
    command.set_defaults(usual={name: usual for name, (usual, _) in numbers.items()})
    count: Any = {"nargs": "+", "metavar": "N"}
    what = "numbers of worker processes to forecast (default: 0 1 2 4; of a loader its own rows)"
    none_too = _positive(int, or_zero=True)
    command.add_argument("--workers", type=none_too, default=[], **count, help=what)
    what = "the same of threads (ThreadReadingService); with --workers 0 they are measured, too"
    command.add_argument("--threads", type=whole, default=[], **count, help=what)
    what = "time for which each part is measured, in seconds (default: as loader.measure())"
    command.add_argument("--seconds", type=number, metavar="S", help=what)
    _add_shared(command)
    command.set_defaults(run=_run_bench)


def _run_bench(options: argparse.Namespace) -> int:
    from .batching.collate import usable_cores
    from .dataloader2 import DataLoader2
    from .reading_services import MultiProcessingReadingService, ThreadReadingService

    chain = _chain_of(options)
    is_loader = isinstance(chain, DataLoader2)
    if is_loader and not (options.workers or options.threads):
        print(_measure(chain, None, options))
        return 0
    threads = options.threads
    workers = options.workers or ([0, 1, 2, 4] if not is_loader or not threads else [0])
    in_threads = bool(threads) and not any(workers)
    most = min(max(threads if in_threads else workers), usable_cores())
    service: Any = ThreadReadingService if in_threads else MultiProcessingReadingService
    try:
        measurement = _measure(chain, service(most), options)
    except NotPicklable as error:
        threads, workers = threads or [1, 2], [0]
        measurement = _measure(chain, ThreadReadingService(min(max(threads), most)), options)
        _remark(f"no row of worker processes: {error}")
    print(measurement.table(workers, threads))
    for note in (*filter(None, [measurement.better]), *measurement.notes):
        _remark(note)
    return 0


def _measure(chain: Any, service: Any, options: argparse.Namespace) -> Any:
    from .dataloader2 import DataLoader2
    from .diagnosing.measurement import MEASURE_SECONDS

    if not isinstance(chain, DataLoader2):
        chain = DataLoader2(chain, None, service, seed=0)
    try:
        with chain as loader:
            return loader.measure(seconds=options.seconds or MEASURE_SECONDS)
    except BudgetExceeded as error:
        if options.patch:  # the default chain, with these settings
            error.do = "Give a smaller --patch or --batch, or fewer --workers."
        raise


def _chain_of(options: argparse.Namespace) -> Any:
    """Return the named pipe or loader, or a default chain over the found cases."""
    from .diagnosing.check_data import pipe_of

    module, _, name = options.data.rpartition(":")
    is_name = bool(module) and name.isidentifier()
    if is_name and not is_url(options.data) and not os.path.exists(options.data):
        file = Path(module)
        if file.suffix == ".py" and not file.exists():
            raise SampleError(f"{module} does not exist.", do="Write module:NAME or file.py:NAME.")
        for option in options.usual:
            if getattr(options, option):
                what = f"--{option} is not of a chain of yours, which says so itself."
                raise SampleError(what, do="Leave it out, or change the chain.")
        sys.path.insert(0, str(file.resolve().parent if file.suffix == ".py" else Path.cwd()))
        try:
            thing = getattr(importlib.import_module(file.stem if file.suffix else module), name)
            if inspect.isroutine(thing):
                inspect.signature(thing).bind()
        except (ImportError, AttributeError, SyntaxError, TypeError) as error:
            what = f"{options.data} is no chain: {error}."
            do = "Write module:NAME or file.py:NAME of one, or of a function without arguments."
            raise SampleError(what, do=do) from error
        return thing() if inspect.isroutine(thing) else thing
    for option, usual in options.usual.items():
        setattr(options, option, getattr(options, option) or usual)
    store = _options_of(options, options.data, *options.patterns)
    cases = _cases_of(options.data, options.patterns, store, options.optional)
    own = {} if options.labels is None else {"labels": options.labels}
    return (
        pipe_of(cases, store)
        .shuffle()
        .open_volume(storage_options=store, **own, **dict(options.reader))
        .lazy_patch(options.patch, samples_per_volume=options.samples)
        .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
        .batch_patches(options.batch)
    )


def _remark_likely_labels(report: Any) -> None:
    for key in report.likely_labels:
        all_of_them = " ".join((*report.labels, *report.likely_labels))
        others = " ".join(report.labels) or "label"
        _remark(
            f"{key}: LikelyLabel: it looks like a label, and counts as an image. If it holds "
            f"classes, give --labels {all_of_them}; if not, --labels {others}."
        )


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="voxpipe",
        description="Stream training patches out of volumes into PyTorch.",
        epilog="voxpipe COMMAND --help says what a command takes, with an example",
    )
    top.add_argument("--version", action="version", version=f"voxpipe {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_add_convert, _add_index, _add_check, _add_bench):
        add(commands)
    return top


# The shell's exit status of a command that SIGINT ended: 128 + 2.
_SIGINT_EXIT = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; by default of ``sys.argv``."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    if unknown := _gather_patterns(options, rest):
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(options.run(options))
    except VoxpipeError as error:
        error.origin = None  # a line of this package, not of the user
        _remark(error)
        return 1
    except Exception as error:
        file, line, *_ = extract_tb(error.__traceback__)[-1]
        where = [*getattr(error, "__notes__", ()), f"raised at {file}:{line}"]
        _remark("\n  ".join([f"{type(error).__name__}: {error}".partition("\n")[0], *where]))
        return 1
    except KeyboardInterrupt:
        go_on = "; give it again to go on" if options.command in ("convert", "index") else ""
        _remark(f"stopped{go_on}.")
        return _SIGINT_EXIT


if __name__ == "__main__":
    sys.exit(main())
