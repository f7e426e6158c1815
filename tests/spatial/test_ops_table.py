"""docs/ops.md: every spatial pipe has a row, every row a proof, and every reference is in a row."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from checkout import ROOT
from random_ops import chained_ops
from tables import names_of_tests, proofs_of, rows_of
from test_deciding_crops import PEERS
from test_ops_beside_peers import EVERY
from test_random_transforms_of_peers import ELASTIC, OPS

import voxpipe.datapipes.values as choice_forms
from voxpipe.datapipes.values import ChoicePipe

PAGE = ROOT / "docs" / "ops.md"
REFERENCES = {
    *(f"{peer}-{row.name}" for peer, row in EVERY),
    *PEERS,
    *OPS,
    *(f"torchio-{name}" for name in ELASTIC),
    *("torchio-anisotropy", "torchio-grid", "monai-grid"),
}
"""What the peers made, and a test compares with."""
NOT_THERE = "none"
"""How the first cell of a row begins that a peer has and voxpipe has not."""


def forms() -> set[str]:
    """Return the chained form of each spatial op, and of each choice between them."""
    choices = {
        kind.form_name
        for _, kind in inspect.getmembers(choice_forms, inspect.isclass)
        if issubclass(kind, ChoicePipe) and kind.form_name
    }
    return {op.name for op in chained_ops()} | choices  # type: ignore[attr-defined]


def test_every_pipe_has_a_row_with_a_proof() -> None:
    """One that is added without is found out."""
    rows = rows_of(PAGE, "proved by")
    said = " ".join(row[0] for row in rows if proofs_of(row))

    assert {"elastic", "augment", "random_crop", "one_of", "some_of"} < forms()
    assert {name for name in forms() if not re.search(rf"\b{name}\(", said)} == set()


def test_every_row_has_proofs_that_there_are() -> None:
    """References that a test compares with, or tests by name; nothing for what is not there."""
    known = REFERENCES | names_of_tests()
    for row in rows_of(PAGE, "proved by"):
        assert row[0].startswith(NOT_THERE) != bool(proofs_of(row)), row[0]
        assert proofs_of(row) <= known, row[0]


def test_every_reference_is_in_a_row() -> None:
    """Nothing is proved that the page does not say."""
    named = set().union(*map(proofs_of, rows_of(PAGE, "proved by")))

    assert REFERENCES - named == set()


def test_a_page_without_tables_is_found_out(tmp_path: Path) -> None:
    """Else an empty table would prove everything."""
    page = tmp_path / "empty.md"
    page.write_text("# Nothing\n")

    with pytest.raises(AssertionError, match="no table"):
        rows_of(page, "proved by")
