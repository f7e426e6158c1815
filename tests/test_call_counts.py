"""What a remote range, a batch and a read of chunks pass through does not grow unnoticed."""

import subprocess
import sys

import pytest
from checkout import ROOT

# Functions and modules of the package, by the names of `tools/count_calls.py`. They only fall.
BOUNDS = {
    "range by obstore": (33, 5),
    "range by fsspec": (35, 5),
    "range from Volume.read": (51, 14),
    "batch of one rotated patch": (140, 39),
    "first patch of a case": (230, 55),
    "window of a prediction": (205, 52),
}
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


@pytest.mark.parametrize("name", BOUNDS)
def test_few_functions_are_entered(name):
    """``python tools/count_calls.py --list`` prints their names."""
    command = [sys.executable, str(ROOT / "tools" / "count_calls.py"), "--only", name]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    functions, modules = (int(number) for number in table.splitlines()[1].split()[-2:])

    assert 0 < functions <= BOUNDS[name][0]
    assert 0 < modules <= BOUNDS[name][1]
