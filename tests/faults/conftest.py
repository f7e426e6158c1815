"""Attacks that are tried many times, each from a seed; a table of all ends the run.

``make test`` tries a few of each, ``make test-faults`` all. A failing one is tried again by the
command that is told with it.
"""

from __future__ import annotations

import functools

import pytest
from attacks import ROW, Attacks
from isolated import Isolated


@pytest.fixture(scope="session")
def ready():
    """Start the process of which those of attacks are forked."""
    isolated = Isolated()
    yield isolated
    isolated.close()


@pytest.fixture
def isolated(ready, request):
    """Return what has an act of the module done for a seed, in a process of its own."""
    return lambda act, seed: ready(request.module.__name__, act, seed)


@pytest.fixture
def attacks(request) -> Attacks:
    """Return what tries an attack many times."""
    config, node = request.config, request.node
    whole, seed = config.getoption("whole_faults"), config.getoption("fault_seed")
    dogs = (getattr(plugin, "WATCHDOG", None) for plugin in config.pluginmanager.get_plugins())
    watchdog = next(dog for dog in dogs if dog is not None)
    begin = functools.partial(watchdog.at, node.nodeid)
    return Attacks(node.nodeid, whole, seed, node.user_properties, begin)


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
    for test, passed, tried, first, last, *told in rows:
        line = f"{passed:6} of {tried:6} passed, seeds {first} to {last}: {test}"
        terminalreporter.line(" ".join((line, *told)))
