"""The command line: ``python -m voxpipe``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import __version__
from .core.errors import VoxpipeError


def parser() -> argparse.ArgumentParser:
    """Return what the command line understands."""
    top = argparse.ArgumentParser(
        prog="voxpipe", description="Stream training patches out of volumes into PyTorch."
    )
    top.add_argument("--version", action="version", version=f"voxpipe {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo-data",
        help="write the demo's cases: one real head in three formats",
        description="Write eight cases, T1 and tissue labels, as NIfTI and NIfTI-Zarr.",
    )
    demo.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="where to write (default: %(default)s)",
    )
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; ``arguments`` are the process's by default."""
    options = parser().parse_args(arguments)
    try:
        demo_data(options.output)
    except VoxpipeError as error:
        print(f"voxpipe: {error}", file=sys.stderr)
        return 1
    return 0


def demo_data(output: Path) -> None:
    """Write the demo's cases and print where they are."""
    from .demo_data import prepare

    for case in prepare(output / "data"):
        print(f"{case.name:12}{'held out' if case.held_out else 'training':12}{case.image}")


if __name__ == "__main__":
    sys.exit(main())
