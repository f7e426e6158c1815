"""Draw a chain as Mermaid, DOT or SVG.

Print the graph of a chain as it runs: a Mermaid flowchart for Markdown, the DOT language of
Graphviz, or an SVG picture. SVG needs the program "dot". No volume is read.

example: voxpipe graph train.py:pipe --format dot
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

from ...core.errors import MissingDependency, UsageError
from ...storage.location import local_path
from .options import output_file
from .printing import print_json, print_text, warnings_as_remarks, write_whole
from .targets import Target, add_target

# Languages by the suffixes of their files.
_FORMS = {".md": "mermaid", ".mmd": "mermaid", ".dot": "dot", ".gv": "dot", ".svg": "svg"}
_SECONDS = 60.0  # for the layout of a graph of hundreds of pipes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the chain, the language and the file."""
    add_target(parser)
    forms = ("mermaid", "dot", "svg")
    about = "language of the drawing (default: that of the file, else mermaid)"
    parser.add_argument("--format", choices=forms, help=about)
    about = "the file to write (.md, .mmd, .dot, .gv or .svg), instead of stdout"
    kind = output_file(*_FORMS)
    parser.add_argument("-o", "--output", type=kind, metavar="FILE", help=about)


def run(arguments: argparse.Namespace) -> int:
    """Print or write the drawing."""
    output = None if arguments.output is None else Path(local_path(arguments.output))
    suffix = "" if output is None else output.suffix.lower()
    form = arguments.format or _FORMS.get(suffix, "mermaid")
    if output is not None and form != _FORMS[suffix]:
        msg = f"{output} is a file of {_FORMS[suffix]}, and --format is {form}"
        raise UsageError(msg, do="Leave --format out, or give another suffix.")
    with warnings_as_remarks(arguments), Target(arguments.target, arguments).loader() as loader:
        text = loader.to_mermaid() if form == "mermaid" else loader.to_dot()
    if form == "svg":
        text = _svg_of(text)
    elif form == "mermaid" and suffix == ".md":
        text = f"```mermaid\n{text}\n```"
    if output is not None:
        write_whole(output, f"{text}\n")
    if arguments.json:
        place = None if output is None else str(output)
        print_json({"format": form, "file": place, "graph": text})
    else:
        print_text(text if output is None else output)
    return 0


def _svg_of(dot: str) -> str:
    program = shutil.which("dot")
    if program is None:
        msg = "an SVG picture needs the program dot of Graphviz, which is not installed"
        raise MissingDependency(msg, do="Install it: apt install graphviz. Or use --format dot.")
    process = subprocess.run(
        [program, "-Tsvg"], input=dot, capture_output=True, text=True, timeout=_SECONDS, check=True
    )
    return process.stdout.strip()
