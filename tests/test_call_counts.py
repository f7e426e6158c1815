"""What a remote range passes through does not grow unnoticed."""

import subprocess
import sys

from checkout import ROOT

FUNCTIONS, MODULES = 40, 12


def test_a_range_of_a_bucket_enters_few_functions():
    """``python tools/count_calls.py --list`` names them; a batch has bounds of its own."""
    command = [sys.executable, str(ROOT / "tools" / "count_calls.py"), "--only", "range"]
    table = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    counts = [[int(number) for number in line.split()[-2:]] for line in table.splitlines()[1:]]

    assert len(counts) == 2
    for functions, modules in counts:
        assert functions <= FUNCTIONS
        assert modules <= MODULES
