"""The page of guarantees names tests that are there, and all that this folder holds."""

import ast
import re

from checkout import ROOT

PAGE = ROOT / "tests" / "guarantees.md"
ROWS = [
    line
    for line in PAGE.read_text("utf-8").splitlines()
    if line.startswith("| ") and not line.endswith(("| tests |", "is not so here |"))
]
CITED = [re.findall(r"`([\w/.]+\.py(?:::\w+)+)`", row) for row in ROWS]


def names_of_tests(path):
    """Return the tests of a file, those of classes behind their name."""
    found = set()
    for node in ast.parse((ROOT / "tests" / path).read_text("utf-8")).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{path}::{node.name}::" if isinstance(node, ast.ClassDef) else f"{path}::"
        names = [one.name for one in inside if isinstance(one, ast.FunctionDef)]
        found |= {f"{prefix}{name}" for name in names if name.startswith("test_")}
    return found


def test_every_row_has_a_test():
    """At least one, in the form that pytest takes."""
    assert len(ROWS) > 100
    assert [] == [row for row, cited in zip(ROWS, CITED, strict=True) if not cited]


def test_every_test_that_is_named_exists():
    """Under its name, in its file."""
    named = {one for cited in CITED for one in cited}
    existing = set().union(*(names_of_tests(one.partition("::")[0]) for one in named))

    assert sorted(named - existing) == []


def test_the_page_names_all_tests_of_guarantees():
    """One that is written later gets its row, or it proves what the page does not promise."""
    folder = "torchdata_conformance"
    files = (f"{folder}/test_loader_guarantees.py", f"{folder}/test_further_guarantees.py")
    written = set().union(*map(names_of_tests, files))

    assert sorted(written - {one for cited in CITED for one in cited}) == []
