"""Show a chain as written and as it runs, and the cost of a patch.

Show the pipes of a chain, their changes by adapters, the process of each, how voxels would be read,
and the cost of a patch. Reads the headers of the first volumes, and no voxel.

example: voxpipe explain train.py:pipe
"""

from __future__ import annotations

import argparse

from ...core.errors import SampleError
from .cures import in_options, refuse_unknown_options
from .printing import print_json, print_text, warnings_as_remarks
from .targets import add_target, open_chain

# Begins the line of ``loader.explain()`` for volumes or pipes that raise an error.
_BAD_PLAN = "nothing could be planned: "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the chain, and the number of workers."""
    add_target(parser)
    about = "measure the parts of a patch, too: reads voxels for a few seconds"
    parser.add_argument("--measure", action="store_true", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation of the loader of the chain; return 1 if no patch can be planned."""
    with warnings_as_remarks(arguments), open_chain(arguments.target, arguments) as loader:
        chain, bad, reason = loader.explain(measure=arguments.measure).partition(_BAD_PLAN)
        refuse_unknown_options(arguments, {arguments.target: reason})
        if bad and arguments.json:
            lines = [line.strip() for line in reason.partition("\n\n")[0].splitlines()]
            where = f" ({', '.join(lines[1:-1])})" if lines[2:] else ""
            raise SampleError(f"{lines[0].rstrip('.')}{where}", do="".join(lines[1:][-1:]))
        text = chain + bad + "\n".join(_lines_of_command(arguments, reason.split("\n")))
        if arguments.json:
            schemes = {key: scheme.explain() for key, scheme in loader.schemes().items()}
            print_json({"explain": text, "schemes": schemes})
        else:
            print_text(text)
    return int(_BAD_PLAN in text)


def _lines_of_command(arguments: argparse.Namespace, lines: list[str]) -> list[str]:
    """Return the lines of an error with options of the command; pipes stay as they are written."""
    return [x if x.lstrip().startswith("at ") else in_options(arguments, x) for x in lines]
