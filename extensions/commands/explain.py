"""Show a chain as written and as it runs, and the cost of a patch.

Show the pipes of a chain, their changes by adapters, the process of each, how voxels would be read,
and the cost of a patch. Reads the headers of the first volumes, and no voxel.

example: voxpipe explain train.py:pipe
"""

from __future__ import annotations

import argparse
from typing import Any

from ...core.errors import UnknownName, VoxpipeError
from .cures import in_options
from .printing import print_json, print_text, warnings_as_remarks
from .targets import Target, add_target


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the chain, and the number of workers."""
    add_target(parser)
    about = "measure the parts of a patch, too: reads voxels for a few seconds"
    parser.add_argument("--measure", action="store_true", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Print the explanation of the loader of the chain; return 1 if no patch can be planned."""
    with warnings_as_remarks(arguments), Target(arguments.target, arguments).loader() as loader:
        error = _error_of(loader)
        if error is not None and (arguments.json or isinstance(error, UnknownName)):
            raise error
        text = loader.explain(measure=arguments.measure)
        if error is not None:
            text = text.replace(error.do, in_options(arguments, error.do))
        if arguments.json:
            schemes = {key: scheme.explain() for key, scheme in loader.schemes().items()}
            print_json({"explain": text, "schemes": schemes})
        else:
            print_text(text)
    return int(error is not None)


def _error_of(loader: Any) -> VoxpipeError | None:
    """Return the error of the first patches of a loader, if they cannot be planned."""
    from ...datapipes.cost import cost_of

    try:
        cost_of(loader.datapipe, 0, 0)
    except (VoxpipeError, OSError, Warning) as error:  # others are reported when it is read
        return error if isinstance(error, VoxpipeError) else None
    return None
