"""Show a chain as written and as it runs, and the cost of a patch.

Show the pipes of a chain, their changes by adapters, the process of each, how voxels would be read,
and the cost of a patch. Reads the headers of the first volumes, and no voxel.

example: voxpipe explain train.py:pipe
"""

from __future__ import annotations

import argparse

from .printing import print_json, warnings_as_remarks
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
    with warnings_as_remarks(), open_chain(arguments.target, arguments) as loader:
        text = loader.explain(measure=arguments.measure)
        if arguments.json:
            schemes = {key: scheme.explain() for key, scheme in loader.schemes().items()}
            print_json({"explain": text, "schemes": schemes})
        else:
            print(text)
    return int(_BAD_PLAN in text)
