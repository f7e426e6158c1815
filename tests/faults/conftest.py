"""Attacks that are tried many times, each from a seed; a table of all ends the run.

``make test`` tries a few of each, ``make test-faults`` all. A failing one is tried again by
``pytest TEST --fault-seed SEED``.
"""

from __future__ import annotations

import pytest
from attacks import ROW, Attacks


@pytest.fixture
def attacks(request) -> Attacks:
    """Return what tries an attack many times."""
    config, node = request.config, request.node
    whole, seed = config.getoption("whole_faults"), config.getoption("fault_seed")
    return Attacks(node.nodeid, whole, seed, node.user_properties)


def pytest_terminal_summary(terminalreporter):
    """Print how often each attack was tried, and how often it passed."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    rows = [
        (report.nodeid, *row)
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, row in report.user_properties
        if name == ROW
    ]
    if rows:
        terminalreporter.section("attacks")
    for test, passed, tried, first, last in rows:
        line = f"{passed:6} of {tried:6} passed, seeds {first} to {last}: {test}"
        terminalreporter.line(line)
