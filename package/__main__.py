"""The command line: ``voxpipe``, or ``python -m voxpipe``.

Each command is a module, registered in the entry-point group ``voxpipe.commands``.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import EntryPoint
from traceback import extract_tb
from types import MappingProxyType
from typing import Any, NoReturn

from . import __version__
from .core.errors import UsageError, VoxpipeError
from .core.redact import escape_controls, public_text
from .core.suggest import closest
from .first_use import extensions, load

# Exit statuses of shells for SIGINT and SIGPIPE: 128 + the number of the signal.
_SIGINT_EXIT, _SIGPIPE_EXIT = 130, 141
_BAD_DATA_EXIT, _USAGE_EXIT = 1, 2
_STATUSES = "exit status: 0 good, 1 bad data or a failure, 2 wrong use, 130 stopped by Ctrl-C"
_WRITABLE = "Check who may write there, or choose another place."
_SPACE = "Free some space, or choose another disk."
# Cures of errors of the operating system.
_CURES: Mapping[int | None, str] = MappingProxyType(
    {
        errno.EACCES: _WRITABLE,
        errno.EPERM: _WRITABLE,
        errno.EROFS: _WRITABLE,
        errno.ENOSPC: _SPACE,
        errno.EDQUOT: _SPACE,
        errno.EBADF: "Redirect the output to a file.",
        errno.ENOENT: "Check the path, or create its folder first.",
        errno.ENOTDIR: "Check the path: one of its folders is a file.",
        errno.EISDIR: "Give a file: this is a folder.",
    }
)
_NO_POINTS: Mapping[str, EntryPoint] = MappingProxyType({})


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are documents too, if the command line asks for JSON."""

    is_json = False

    def error(self, message: str) -> NoReturn:
        if self.is_json:
            _print_error("UsageError", message, f"{self.prog} --help")
        super().error(escape_controls(message))


class _CommandParser(_Parser):
    """The parser of one command, whose module is imported when the command is given."""

    point: EntryPoint

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.is_json = _asks_for_json(args or ())
        self.add_own_arguments()
        return super().parse_known_args(args, namespace)

    def add_own_arguments(self) -> None:
        """Add the text and the arguments of the module of the command."""
        module = load(self.point)
        if module is None:  # the warning of the entry point has the reason
            self.error(f"the command {self.point.name} cannot be imported")
        self.description, _, example = (module.__doc__ or "").strip().partition("\n\nexample: ")
        self.epilog = f"{_STATUSES}\n\nexample: {example}" if example else _STATUSES
        about = "print one JSON document on stdout, and nothing else"
        self.add_argument("--json", action="store_true", help=about)
        module.add_arguments(self)
        self.set_defaults(run=module.run, parser=self)


class _Program(_Parser):
    """The parser of the program; it imports every command only for its help."""

    points = _NO_POINTS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.color = False  # of Python 3.14: format_help() searches plain text

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if not args:
            self.print_help(sys.stderr)
            self.exit(_USAGE_EXIT)
        if args[0] == "help" and "help" not in self.points:
            args = [*args[1:], "--help"]
        name = args[0]
        if not name.startswith("-") and name not in self.points:
            near = closest(name, self.points, 0.6)
            did = f"did you mean {near[0]}?" if near else "voxpipe --help lists the commands"
            self.error(f"there is no command {name!r}; {did}")
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        rows = ((name, load(point)) for name, point in sorted(self.points.items()))
        texts = {name: (module.__doc__ or "").strip() for name, module in rows if module}
        lines = [f"  {name:10} {text.splitlines()[0].rstrip('.')}" for name, text in texts.items()]
        before, _, after = super().format_help().partition("positional arguments:")
        _, _, options = after.partition("\noptions:")
        return "\n".join([f"{before}commands:", *lines, f"\noptions:{options}"])


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Return whether ``--json`` is among the arguments, as argparse abbreviates it too."""
    return any(len(text) > len("--") and "--json".startswith(text) for text in arguments)


def parser() -> _Program:
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
    _prepare_outputs()
    try:
        try:
            with _noted_writes(sys.stdout):
                return _run_command(sys.argv[1:] if arguments is None else arguments)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:  # while the module of the command is imported
        _remark("stopped.")
        return _SIGINT_EXIT
    except OSError as error:
        status = _SIGPIPE_EXIT
        if not isinstance(error, BrokenPipeError):
            status = _BAD_DATA_EXIT
            _remark(f"the output cannot be written: {error.strerror}.\n  {_cure_of(error)}")
        elif not _is_output_closed():
            raise
        # The interpreter flushes the output at its end, which would raise again.
        with suppress(OSError, ValueError):  # an output without a descriptor
            descriptor, null = sys.stdout.fileno(), os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, descriptor)
            os.close(null)
        return status


def _prepare_outputs() -> None:
    """Escape characters that the encoding of an output lacks, and replace closed outputs."""
    with suppress(AttributeError, OSError, ValueError):  # PYTHONUNBUFFERED hides errors of --help
        sys.stdout.reconfigure(write_through=False)  # type: ignore[union-attr]
    for name, descriptor, mode in (("stdout", 1, os.O_RDONLY), ("stderr", 2, os.O_WRONLY)):
        if getattr(sys, name) is None:  # a command without output shall still run
            null = os.open(os.devnull, mode)  # writes to a read-only stdout fail at its flush
            if null != descriptor:
                os.dup2(null, descriptor)
            setattr(sys, name, open(descriptor, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
        with suppress(AttributeError, OSError, ValueError):  # a stream that is not of io
            getattr(sys, name).reconfigure(errors="backslashreplace")


@contextmanager
def _noted_writes(output: Any) -> Iterator[None]:
    """Set ``of_output`` of each error that a write on an output raises inside the block."""

    def noting(call: Any) -> Any:
        def write(*texts: str) -> Any:
            try:
                return call(*texts)
            except OSError as error:
                error.of_output = True  # type: ignore[attr-defined]
                raise

        return write

    own = {"write": noting(output.write), "flush": noting(output.flush)}
    with suppress(AttributeError, TypeError):  # a stream that is not of io
        vars(output).update(own)
    try:
        yield
    finally:
        with suppress(TypeError):
            for name in own:
                vars(output).pop(name, None)


def _run_command(arguments: Sequence[str]) -> int:
    top = parser()
    top.is_json = _asks_for_json(arguments)
    options, rest = top.parse_known_args(arguments)
    if unknown := getattr(options, "take_rest", _leave)(options, rest):
        options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        _remark(f"stopped{getattr(options, 'go_on', lambda _: '')(options)}.")
        return _SIGINT_EXIT
    except VoxpipeError as error:
        error.origin = None  # a line of this package, not of the user
        error = getattr(options, "reword", _leave)(options, error)
        return _fail(options, error, str(error))
    except Exception as error:
        is_of_output = getattr(error, "of_output", False)
        if is_of_output or (isinstance(error, OSError) and _is_output_closed()):
            raise
        return _fail(options, error, _with_place(error))


def _leave(_: argparse.Namespace, value: Any) -> Any:
    return value


def _with_place(error: Exception) -> str:
    """Return the text of an error of another library or of the user's code, with its place."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return "\n  ".join(filter(None, [f"{error.filename}: {error.strerror}", _cure_of(error)]))
    file, line, *_ = extract_tb(error.__traceback__)[-1]
    first = f"{type(error).__name__}: {error}".partition("\n")[0]
    lines = [first, *getattr(error, "__notes__", ()), f"raised at {file}:{line}", _cure_of(error)]
    return "\n  ".join(filter(None, lines))


def _cure_of(error: Exception) -> str:
    return _CURES.get(error.errno, "") if isinstance(error, OSError) else ""


def _fail(options: argparse.Namespace, error: Exception, text: str) -> int:
    """Print an error, with ``--json`` as a document too, and return the exit status."""
    _remark(text)
    if getattr(options, "json", False):
        message = getattr(error, "message", "") or public_text(str(error))
        _print_error(type(error).__name__, message, getattr(error, "do", "") or _cure_of(error))
    return _USAGE_EXIT if isinstance(error, UsageError) else _BAD_DATA_EXIT


def _print_error(kind: str, message: str, do: str) -> None:
    print(json.dumps({"error": {"type": kind, "message": message, "do": do}}))


def _remark(text: object) -> None:
    print(f"voxpipe: {escape_controls(str(text))}", file=sys.stderr)


def _is_output_closed() -> bool:
    """Return whether the reader of the standard output is gone, or its disk is full."""
    with suppress(OSError, ValueError):  # an output without a descriptor
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if any(events & select.POLLERR for _, events in poll.poll(0)):
            return True
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
