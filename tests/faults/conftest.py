"""Attacks that are tried many times, each from a seed; a table of all ends the run.

``make test`` tries a few of each, ``make test-faults`` all. A failing one is tried again by
``pytest TEST --fault-seed SEED``.
"""

from __future__ import annotations

import pytest
from attacks import Attacks, Row

ROWS = pytest.StashKey[list[Row]]()


@pytest.fixture
def attacks(request) -> Attacks:
    """Return what tries an attack many times."""
    config = request.config
    rows = config.stash.setdefault(ROWS, [])
    whole, seed = config.getoption("whole_faults"), config.getoption("fault_seed")
    return Attacks(request.node.nodeid, whole, seed, rows)


def pytest_terminal_summary(terminalreporter, config):
    """Print how often each attack was tried, and how often it passed."""
    rows = config.stash.get(ROWS, [])
    if not rows:
        return
    terminalreporter.section("attacks")
    for row in rows:
        passed = len(row.seeds) - row.failed
        seeds = f"seeds {row.seeds.start} to {row.seeds.stop - 1}"
        terminalreporter.line(
            f"{passed:6} of {len(row.seeds):6} passed, {seeds}: {row.test} {row.told}".rstrip()
        )
