"""What a remote range, a batch and a read of chunks pass through does not grow unnoticed."""

import re

import pytest
from checkout import ROOT

# Functions and modules of the package, by the names of `tools/count_calls.py`. They only fall.
BOUNDS = {
    "range by obstore": (33, 5),
    "range by fsspec": (35, 5),
    "range from Volume.read": (51, 14),
    "batch of one rotated patch": (109, 32),
    "first patch of a case": (160, 41),
    "window of a prediction": (155, 37),
}
# Calls of a read of 8 chunks, and how many more one of 216 may make.
MOST_CALLS, MOST_MORE = 13, 0
# Calls of a patch of image and label from converted zarr, of which none counts voxels or chunks.
MOST_OF_PATCH = 324


@pytest.fixture(scope="module")
def table(warm_python):
    """Return the numbers of each row of the table."""
    done = warm_python.run(ROOT / "tools" / "count_calls.py")
    assert done.returncode == 0, done.stderr
    text = done.stdout
    rows = (re.fullmatch(r"(\S.*?) +(\d+)(?: +(\d+))?", line) for line in text.splitlines())
    return {row[1]: [int(number) for number in row.groups()[1:] if number] for row in rows if row}


def test_no_call_is_made_per_chunk(table):
    """As many Python calls whether a read needs few chunks or many."""
    reads = [counts for name, counts in table.items() if name.startswith("read of")]

    assert len(reads) == 2
    for few, many in reads:
        assert few <= MOST_CALLS
        assert many - few <= MOST_MORE


def test_a_patch_makes_few_calls(table):
    """From the draw to the batch, of all Python code, in this process."""
    (count,) = table["patch of image and label, calls"]

    assert 0 < count <= MOST_OF_PATCH


@pytest.mark.parametrize("name", BOUNDS)
def test_few_functions_are_entered(name, table):
    """``python tools/count_calls.py --list`` prints their names."""
    functions, modules = table[name]

    assert 0 < functions <= BOUNDS[name][0]
    assert 0 < modules <= BOUNDS[name][1]
