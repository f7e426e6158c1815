"""What a remote range, a batch and a read of chunks pass through does not grow unnoticed."""

import subprocess
import sys

import pytest
from checkout import ROOT

# Functions and modules, by what `tools/count_calls.py` calls it; a range for each client. Of a
# batch they were 170 while contexts were contextlib's, whose functions are not counted.
BOUNDS = {"range": (2, 40, 12), "batch": (1, 150, 41)}
# Calls of a read of 8 chunks, and how many more one of 216 may make.
MOST_CALLS, MOST_MORE = 13, 0
# Calls of a patch of image and label from converted zarr, of which none counts voxels or chunks.
MOST_OF_PATCH = 364


def test_no_call_is_made_per_chunk():
    """As many Python calls whether a read needs few chunks or many."""
    command = [sys.executable, str(ROOT / "tools" / "count_calls.py"), "--only", "read"]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    counts = [[int(number) for number in line.split()[-2:]] for line in table.splitlines()[2:]]

    assert len(counts) == 2
    for few, many in counts:
        assert few <= MOST_CALLS
        assert many - few <= MOST_MORE


def test_a_patch_makes_few_calls():
    """From the draw to the batch, of all Python code, in this process."""
    command = [sys.executable, str(ROOT / "tools" / "count_calls.py"), "--only", "patch"]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout

    assert 0 < int(table.split()[-1]) <= MOST_OF_PATCH


@pytest.mark.parametrize("what", BOUNDS)
def test_few_functions_are_entered(what):
    """``python tools/count_calls.py --list`` names them."""
    command = [sys.executable, str(ROOT / "tools" / "count_calls.py"), "--only", what]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    counts = [[int(number) for number in line.split()[-2:]] for line in table.splitlines()[1:]]

    rows, most_functions, most_modules = BOUNDS[what]
    assert len(counts) == rows
    for functions, modules in counts:
        assert functions <= most_functions
        assert modules <= most_modules
