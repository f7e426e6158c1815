"""Train a small network on real data, in a few minutes: ``python examples/demo``.

Writes eight cases (T1 and tissue labels, as NIfTI and NIfTI-Zarr), trains a small U-Net on
streamed patches, and draws pictures.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from demo import run
from demo_data import Case, prepare
from demo_source import in_bucket, stream

from voxpipe.core.errors import VoxpipeError
from voxpipe.storage.location import public_name


def main() -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument(
        "--minutes",
        type=float,
        default=2.0,
        help="how long to train (default: %(default)g); data and testing come on top",
    )
    parser.add_argument(
        "--bucket",
        metavar="URL",
        help="copy the cases there, e.g. to s3://bucket/folder, and train from there; "
        "credentials and endpoint come from the environment",
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-output"),
        metavar="DIR",
        help="where to write (default: %(default)s)",
    )
    options = parser.parse_args()

    def copied(folder: Path) -> list[Case]:
        found = in_bucket(prepare(folder), options.bucket)
        print(f"Copied to {public_name(options.bucket)}; training reads them there\n", flush=True)
        return found

    cases = prepare if options.bucket is None else copied
    try:
        run(options.output, stream, seconds=60 * options.minutes, cases=cases)
    except VoxpipeError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
