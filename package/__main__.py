"""The command line: ``voxpipe``, or ``python -m voxpipe``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__, check_command, convert_command, index_command
from .beside_output import remark
from .core.errors import VoxpipeError
from .patterns_argument import gather_patterns


def parser() -> argparse.ArgumentParser:
    """Return what the command line understands."""
    top = argparse.ArgumentParser(
        prog="voxpipe", description="Stream training patches out of volumes into PyTorch."
    )
    top.add_argument("--version", action="version", version=f"voxpipe {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="train a small network on real data, in a few minutes",
        description="Write the cases, train a small U-Net on streamed patches, draw pictures.",
    )
    demo.add_argument(
        "--minutes",
        type=float,
        default=2.0,
        help="how long to train (default: %(default)g); data and testing come on top",
    )
    demo.add_argument(
        "--bucket",
        metavar="URL",
        help="copy the cases there, e.g. to s3://bucket/folder, and train from there; "
        "credentials and endpoint come from the environment",
    )
    data = commands.add_parser(
        "demo-data",
        help="write the demo's cases: one real head in three formats",
        description="Write eight cases, T1 and tissue labels, as NIfTI and NIfTI-Zarr.",
    )
    for command in (demo, data):
        command.add_argument(
            "--output",
            type=Path,
            default=Path("demo-output"),
            metavar="DIR",
            help="where to write (default: %(default)s)",
        )
    for module in (convert_command, index_command, check_command):
        module.add(commands)
    return top


# What a shell reports for a command that SIGINT ended: 128 + 2.
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; ``arguments`` are the process's by default."""
    top = parser()
    options, left = top.parse_known_args(arguments)
    if unknown := gather_patterns(options, left):
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        if "run" in options:
            return int(options.run(options))
        if options.command == "demo":
            demo(options.output, options.minutes, options.bucket)
        else:
            demo_data(options.output)
    except VoxpipeError as error:
        error.origin = None  # a line of this package's, of which the reader knows nothing
        remark(error)
        return 1
    except KeyboardInterrupt:
        go_on = "; give it again to go on" if options.command == "convert" else ""
        remark(f"stopped{go_on}.")
        return _INTERRUPTED
    return 0


def demo(output: Path, minutes: float, bucket: str | None = None) -> None:
    """Train the demo's network on streamed patches, from the local disk or from a bucket."""
    from .demo import run
    from .demo_data import Case, prepare
    from .demo_source import stream

    if bucket is None:
        run(output, stream, seconds=60 * minutes)
        return
    from .demo_bucket import in_bucket
    from .volumes.stores.location import public_name

    def copied(folder: Path) -> list[Case]:
        found = in_bucket(prepare(folder), bucket)
        print(f"Copied to {public_name(bucket)}; training reads them there\n", flush=True)
        return found

    run(output, stream, seconds=60 * minutes, cases=copied)


def demo_data(output: Path) -> None:
    """Write the demo's cases and print where they are."""
    from .demo_data import prepare

    for case in prepare(output / "data"):
        print(f"{case.name:12}{'held out' if case.held_out else 'training':12}{case.image}")


if __name__ == "__main__":
    sys.exit(main())
