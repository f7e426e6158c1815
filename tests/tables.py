"""Read the tables of the docs that say which test proves each row."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from checkout import ROOT

Row = tuple[str, ...]


def rows_of(page: Path, last: str) -> list[Row]:
    """Return the rows, cell by cell, of all tables of a page whose last column is ``last``."""
    found, inside = [], False
    for line in page.read_text("utf-8").splitlines():
        cells = tuple(cell.strip() for cell in line.strip("|").split("|"))
        if not line.startswith("|"):
            inside = False
        elif inside and not set(line) <= set("|-"):
            found.append(cells)
        elif cells[-1] == last:
            inside = True
    assert found, f"no table of {page.name} ends with a column {last!r}"
    return found


def proofs_of(row: Row) -> set[str]:
    """Return the names in the last cell."""
    return set(re.findall(r"`([^`]+)`", row[-1]))


_TEST = re.compile(r"^ *def (test_\w+)\(", re.MULTILINE)


@cache
def names_of_tests() -> frozenset[str]:
    """Return the name of every test function there is."""
    texts = (file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    return frozenset(name for text in texts for name in _TEST.findall(text))
