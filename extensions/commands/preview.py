"""Draw volumes, and patches of a chain before and after augmentation, to a picture.

A file, folder, manifest or table shows three planes of the first cases, with outlines of labels. A
chain, module:NAME, shows its first patches before and after augmentation, by the same draws.

example: voxpipe preview train.py:pipe --patches 8 -o preview.png
"""

from __future__ import annotations

import argparse
import warnings
import webbrowser
from pathlib import Path
from typing import Any

from ...core.errors import LikelyLabel, SampleError
from ...storage.location import local_path
from .options import output_file, positive
from .printing import print_json, print_text, remark, warnings_as_remarks, write_whole
from .targets import Target, add_target

_SUFFIXES = (".png", ".html", ".svg", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the target, the number of patches, and the file of the picture."""
    add_target(parser)
    about = "patches of a chain, or cases of a data set (default: %(default)s)"
    parser.add_argument("--patches", type=positive(int), default=8, metavar="N", help=about)
    about = (
        "where to write: .png, .svg or .pdf by matplotlib, .html without it (default: %(default)s)"
    )
    kind = output_file(*_SUFFIXES)
    parser.add_argument(
        "-o", "--output", type=kind, default="preview.png", metavar="FILE", help=about
    )
    parser.add_argument("--open", action="store_true", help="open the file in a browser")


def run(arguments: argparse.Namespace) -> int:
    """Write the picture, and print its path."""
    from ..pictures.preview import figure_of_pairs, page_of_pairs

    output = Path(local_path(arguments.output))
    with warnings_as_remarks(arguments), warnings.catch_warnings():
        warnings.simplefilter("ignore", LikelyLabel)
        pairs = _pairs_of(arguments)
    if not pairs:
        raise SampleError(f"{arguments.target} has no item.", do="Check the folder or the chain.")
    if output.suffix.lower() == ".html":
        write_whole(output, page_of_pairs(pairs, arguments.target))
    else:
        write_whole(output, figure_of_pairs(pairs))
    if arguments.json:
        print_json({"file": str(output), "items": [pair.after.title for pair in pairs]})
    else:
        print_text(output)
    if arguments.open and not webbrowser.open(output.resolve().as_uri()):
        remark(f"no browser was found: open {output} yourself")
    return 0


def _pairs_of(arguments: argparse.Namespace) -> Any:
    from ...volumes import Volume
    from ..pictures.preview import pair_of, pairs_of

    target = Target(arguments.target, arguments)
    if isinstance(target.thing, Volume):
        is_label = arguments.labels is not None
        return [pair_of(target.thing.of_kind("label") if is_label else target.thing)]
    return pairs_of(target.chain, arguments.patches)
