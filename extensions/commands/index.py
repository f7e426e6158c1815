"""Write a manifest of a data set: headers, statistics, versions.

Write a manifest: shape, affine, type, layout, statistics (mean, range, percentiles, class counts)
and version of every volume. With it, vp.from_manifest() plans without opening a file. Given again,
the command reads only volumes that changed, and after an interruption only the remaining ones.

example: voxpipe index scans -o scans.json
"""

from __future__ import annotations

import argparse

from ...core.validate import count_text
from .options import add_store_options, output_file, refuse_http
from .printing import document_of, print_json, print_text, remark
from .targets import Target, add_patterns, remark_likely_labels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data set, its patterns, and the manifest."""
    place = "a folder of cases, one volume, or a glob (in quotes) of volumes or folders"
    add_patterns(parser, "url", place)
    about = (
        "path or URL, .parquet or .json (default: manifest.json; manifest.parquet for more than "
    )
    about += "50,000 volumes, if pyarrow is installed)"
    kind = output_file(".parquet", ".json")
    parser.add_argument("-o", "--output", type=kind, metavar="FILE", help=about)
    about = "read headers only; normalize() will compute what it needs"
    parser.set_defaults(go_on=lambda _: "; give it again to go on")
    parser.add_argument("--no-statistics", dest="statistics", action="store_false", help=about)
    add_store_options(parser, "url")


def run(arguments: argparse.Namespace) -> int:
    """Write the manifest; return 1 if a case was left out."""
    from ...dataloader2 import index

    refuse_http("index", arguments.output or "")
    own = {"statistics": arguments.statistics, "only_bad": True}
    report = Target(arguments.url, arguments).report(index, arguments.output, **own)
    for finding in report.bad:
        remark(finding)
    remark_likely_labels(report)
    cases, volumes = report.size
    if arguments.json:
        bad = [document_of(finding) for finding in report.bad]
        facts = {"cases": cases, "volumes": volumes, "bad": bad}
        print_json({"manifest": report.manifest if cases else None, **facts})
    elif cases:
        print_text(
            f"{report.manifest}: {count_text(cases, 'case')}, {count_text(volumes, 'volume')}"
        )
    if report.bad:
        bad_cases, why = (
            len({finding.case for finding in report.bad}),
            "with bad or missing volumes",
        )
        remark(count_text(bad_cases, f"case {why} was left out", f"cases {why} were left out"))
    return 1 if report.bad else 0
