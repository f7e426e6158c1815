"""Dialect words and long sentences become fewer, folder by folder."""

import sys

import pytest
from checkout import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from count_english import Prose, count, prose_by_folder

# Words and openings of `tools/count_english.py`, and sentences above 25 words. They only fall.
BOUNDS = {
    "adapters": (0, 6),
    "batching": (0, 0),
    "core": (2, 6),
    "dataloader2": (0, 9),
    "datapipes": (0, 28),
    "diagnosing": (0, 2),
    "extensions": (0, 54),
    "graph": (0, 3),
    "intensity": (0, 4),
    "package": (0, 1),
    "prediction": (0, 6),
    "reading_services": (0, 34),
    "spatial": (0, 27),
    "stitching": (0, 4),
    "storage": (0, 9),
    "testing": (0, 2),
    "volumes": (0, 62),
    "docs": (1, 318),
    "root": (0, 8),
}


@pytest.fixture(scope="module")
def prose():
    """Return the paragraphs of each folder, read once."""
    return prose_by_folder()


def test_every_folder_has_a_bound(prose):
    """A new folder begins with a bound of its own."""
    assert prose.keys() == BOUNDS.keys()


@pytest.mark.parametrize("folder", BOUNDS)
def test_counts_only_fall(folder, prose):
    """``python tools/count_english.py --list FOLDER`` prints the paragraphs."""
    row = count(prose[folder])

    assert sum(row.hits.values()) <= BOUNDS[folder][0]
    assert row.long <= BOUNDS[folder][1]


def test_a_riddle_counts_and_a_question_does_not():
    """Only the relative pronoun is dialect."""
    texts = ("What a patch says of itself.", "What is a patch?")
    riddle, question = (count([Prose(ROOT, 1, text)]) for text in texts)

    assert riddle.hits["what"] == 1
    assert question.hits["what"] == 0
