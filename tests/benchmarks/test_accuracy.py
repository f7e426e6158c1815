"""The accuracy table: voxpipe's own columns are what docs/accuracy.md says, or better."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from checkout import ROOT

FOLDER = ROOT / "benchmarks"
PAGE = ROOT / "docs" / "accuracy.md"
SLACK = 1.01
"""Other processors round other last bits."""
LINE = re.compile(r"^\| ([a-z][^|]*?) \| (.*) \|$")


@pytest.fixture(scope="module")
def accuracy() -> Iterator[Any]:
    """Import benchmarks/accuracy.py, and forget it and what it imports."""
    known = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield import_module("accuracy")
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(sys.modules) - known:
            if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.fixture(scope="module")
def found(accuracy: Any) -> Any:
    """Measure both columns once."""
    return accuracy.measured(*accuracy.OWN)


def written(what: str) -> dict[str, list[float | None]]:
    """Return the rows of one table of the page, by chain."""
    part = PAGE.read_text(encoding="utf-8").split(f"### {what}")[1].split("###")[0]
    rows = (match.groups() for line in part.splitlines() if (match := LINE.match(line)))
    return {
        name: [None if cell == "-" else float(cell.strip("*")) for cell in cells.split(" | ")]
        for name, cells in rows
        if name != "chain"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "what", "scale", "step"),
    [("RMSE", "rmse", 1e4, 0.005), ("Largest", "max", 1e4, 0.05), ("Mean Dice", "dice", 1, 5e-5)],
)
def test_the_table_is_true(
    found: Any, accuracy: Any, title: str, what: str, scale: float, step: float
) -> None:
    """Every error is at most that of the page, every Dice at least; all chains are there."""
    rows = written(title)
    chains = [c.name for c in accuracy.a.CHAINS if what != "dice" or c.has_labels]

    assert list(rows) == chains
    for column, way in enumerate(accuracy.OWN):
        for name, cells in rows.items():
            said, got = cells[column], found[way][name][what] * scale
            assert said is not None
            if what == "dice":
                assert got >= said / SLACK - step, (way, name)
            else:
                assert got <= said * SLACK + step, (way, name)


@pytest.mark.slow
def test_fused_is_never_worse_than_eager(found: Any, accuracy: Any) -> None:
    """One interpolation loses no more than several."""
    fused, eager = (found[way] for way in accuracy.OWN)

    assert all(fused[name]["rmse"] <= eager[name]["rmse"] * SLACK for name in fused)
    assert sum(fused[name]["rmse"] < 0.7 * eager[name]["rmse"] for name in fused) >= 3


def test_the_best_of_each_row_is_ours_but_for_ties_of_spacing() -> None:
    """What the page says of the peers' columns."""
    for name, cells in written("RMSE").items():
        linear = [cell for cell in cells[:-1] if cell is not None]
        assert cells[0] == min(linear), name
    behind = [name for name, cells in written("Mean Dice").items() if cells[0] != max(cells)]
    assert behind == ["spacing", "spacing, orientation, crop"]


@pytest.mark.slow
def test_no_label_is_invented(found: Any) -> None:
    """Labels come out as they went in."""
    assert all(not row.get("invented") for rows in found.values() for row in rows.values())


def test_the_truth_is_no_copy_of_what_is_measured(accuracy: Any) -> None:
    """A chain that is done otherwise is found out: turned the other way, or half a voxel off."""
    a = accuracy.a
    chain = a.CHAINS[0]
    exact = chain.truth(chain.place(a.indices(chain.shape)))
    half = chain.truth(chain.place(np.add(a.indices(chain.shape), (0.5, 0, 0))))

    assert a.judged(chain, exact, None)["rmse"] == 0
    assert a.judged(chain, half, None)["rmse"] > 0.02
    with pytest.raises(SystemExit, match="expected"):
        a.judged(chain, exact[1:], None)
    assert np.ptp(exact) < a.RANGE
