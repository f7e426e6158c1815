"""The command line: ``voxpipe``, or ``python -m voxpipe``.

Each command is a module, registered in the entry-point group ``voxpipe.commands``.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from traceback import extract_tb
from types import MappingProxyType
from typing import Any, NoReturn

from . import __version__
from .core.errors import UsageError, VoxpipeError
from .core.redact import public_text
from .first_use import extensions, load

# Exit statuses of shells for SIGINT and SIGPIPE: 128 + the number of the signal.
_SIGINT_EXIT, _SIGPIPE_EXIT = 130, 141
_BAD_DATA_EXIT, _USAGE_EXIT = 1, 2
# Commands that continue after an interruption.
_CONTINUABLE = ("convert", "index", "predict")
_NO_POINTS: Mapping[str, EntryPoint] = MappingProxyType({})


class _CommandParser(argparse.ArgumentParser):
    """The parser of one command, whose module is imported when the command is given."""

    point: EntryPoint
    is_json = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        module = load(self.point)
        if module is None:  # the warning of the entry point has the reason
            self.error(f"the command {self.point.name} cannot be imported")
        self.description, _, example = (module.__doc__ or "").strip().partition("\n\nexample: ")
        self.epilog = f"example: {example}" if example else None
        what = "print one JSON document on stdout, and nothing else"
        self.add_argument("--json", action="store_true", help=what)
        module.add_arguments(self)
        self.set_defaults(run=module.run)
        self.is_json = "--json" in (args or ())
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if self.is_json:
            _print_error("UsageError", message, f"voxpipe {self.point.name} --help")
        super().error(message)


class _Program(argparse.ArgumentParser):
    """The parser of the program; it imports every command only for its help."""

    points = _NO_POINTS

    def format_help(self) -> str:
        rows = ((name, load(point)) for name, point in sorted(self.points.items()))
        lines = [f"  {name:10} {_first_line(module)}" for name, module in rows if module]
        before, _, after = super().format_help().partition("positional arguments:")
        _, _, options = after.partition("\noptions:")
        return "\n".join([f"{before}commands:", *lines, f"\noptions:{options}"])


def _first_line(module: Any) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0].rstrip(".")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with the commands of all installed packages."""
    top = _Program(
        prog="voxpipe",
        description="Stream training patches out of volumes into PyTorch.",
        epilog="voxpipe COMMAND --help shows the arguments of a command, with an example",
    )
    top.points = extensions("commands", are_modules=True)
    top.add_argument("--version", action="version", version=f"voxpipe {__version__}")
    commands = top.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=_CommandParser
    )
    for name, point in top.points.items():
        command = commands.add_parser(
            name,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            conflict_handler="resolve",
        )
        command.point = point
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; by default of ``sys.argv``.

    The status is 1 for bad or missing data, and 2 for wrong use. It is 130 after SIGINT, and 141
    if another program closed the output, as ``head`` does.
    """
    try:
        try:
            return _run_command(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        # The interpreter flushes the output at its end, which would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGPIPE_EXIT


def _run_command(arguments: Sequence[str] | None) -> int:
    top = parser()
    options, rest = top.parse_known_args(arguments)
    if unknown := getattr(options, "take_rest", _leave)(options, rest):
        top.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        go_on = "; give it again to go on" if options.command in _CONTINUABLE else ""
        _remark(f"stopped{go_on}.")
        return _SIGINT_EXIT
    except VoxpipeError as error:
        error.origin = None  # a line of this package, not of the user
        return _fail(options, error, str(error))
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            raise
        return _fail(options, error, _with_place(error))


def _leave(_: argparse.Namespace, rest: list[str]) -> list[str]:
    return rest


def _with_place(error: Exception) -> str:
    """Return the text of an error of another library or of the user's code, with its place."""
    file, line, *_ = extract_tb(error.__traceback__)[-1]
    first = f"{type(error).__name__}: {error}".partition("\n")[0]
    return "\n  ".join([first, *getattr(error, "__notes__", ()), f"raised at {file}:{line}"])


def _fail(options: argparse.Namespace, error: Exception, text: str) -> int:
    """Print an error, with ``--json`` as a document too, and return the exit status."""
    _remark(text)
    if getattr(options, "json", False):
        message = getattr(error, "message", "") or public_text(str(error))
        _print_error(type(error).__name__, message, getattr(error, "do", ""))
    return _USAGE_EXIT if isinstance(error, UsageError) else _BAD_DATA_EXIT


def _print_error(kind: str, message: str, do: str) -> None:
    print(json.dumps({"error": {"type": kind, "message": message, "do": do}}))


def _remark(text: object) -> None:
    print(f"voxpipe: {text}", file=sys.stderr)


def _is_output_closed() -> bool:
    """Return whether the reader of the standard output is gone."""
    with suppress(OSError, ValueError):  # an output without a descriptor
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))
    return False


if __name__ == "__main__":
    sys.exit(main())
