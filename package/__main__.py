"""The command line: ``voxpipe``, or ``python -m voxpipe``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import __version__
from .commands import add_check, add_convert, add_index, gather_patterns, remark
from .core.errors import VoxpipeError


def parser() -> argparse.ArgumentParser:
    """Return what the command line understands."""
    top = argparse.ArgumentParser(
        prog="voxpipe", description="Stream training patches out of volumes into PyTorch."
    )
    top.add_argument("--version", action="version", version=f"voxpipe {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (add_convert, add_index, add_check):
        add(commands)
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
        return int(options.run(options))
    except VoxpipeError as error:
        error.origin = None  # a line of this package's, of which the reader knows nothing
        remark(error)
        return 1
    except KeyboardInterrupt:
        go_on = "; give it again to go on" if options.command == "convert" else ""
        remark(f"stopped{go_on}.")
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
