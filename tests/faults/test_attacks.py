"""The fixture that tries attacks: it tells each seed that failed, and how to try it again."""

import pytest
from attacks import Attacks


def refuse_odd(seed):
    """Fail for odd seeds."""
    assert seed % 2 == 0, f"{seed} is odd"


def test_every_failing_seed_is_told_with_its_command():
    """One seed is enough to try a failure again."""
    properties = []
    attacks = Attacks("tests/faults/test_a.py::test_a", False, None, properties)

    with pytest.raises(pytest.fail.Exception) as told:
        attacks.each(refuse_odd, quick=4, whole=100)

    assert "2 of 4 failed: seeds [1, 3]" in str(told.value)
    assert "--fault-seed 3" in str(told.value)
    assert properties == [("attack", [2, 4, 0, 3])]


def test_a_seed_is_tried_alone():
    """As the command of a failing one says."""
    tried = []
    Attacks("test", True, 7, []).each(tried.append, quick=1, whole=100)

    assert tried == [7]
