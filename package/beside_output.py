"""What commands say beside their output, on standard error: remarks, and how far they are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def remark(text: object) -> None:
    """Print one line or error of voxpipe's."""
    print(f"voxpipe: {text}", file=sys.stderr)


@contextmanager
def progress(what: str, unit: str, *, scaled: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the context lasts; its value is told how many are done, and of how many.

    Parameters
    ----------
    what
        Stands before the bar.
    unit
        What is counted.
    scaled
        Whether numbers are shown in thousands, millions, ...
    """
    from tqdm import tqdm

    with tqdm(desc=what, unit=unit, unit_scale=scaled, leave=False, file=sys.stderr) as bar:

        def told(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield told
