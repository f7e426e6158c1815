"""The examples of storage give what they show."""

import doctest
from pathlib import Path


def test_examples():
    """Run as one session."""
    page = Path(__file__).with_name("storage_examples.md")
    failed, tried = doctest.testfile(str(page), module_relative=False)

    assert failed == 0
    assert tried > 70
