"""The fixture that tries attacks: it tells each seed that failed, and how to try it again."""

import subprocess

import pytest
from attacks import ROOT, Attacks


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
    assert attacks.command(3) in str(told.value)
    assert properties == [("attack", [2, 4, 0, 3])]


def test_a_seed_is_tried_alone():
    """As the command of a failing one says."""
    tried = []
    Attacks("test", True, 7, []).each(tried.append, quick=1, whole=100)

    assert tried == [7]


def test_the_command_of_a_seed_runs_as_typed():
    """In a shell at the root, by the Python of this run, whatever the name of the test."""
    name = "tests/faults/test_attacks.py::test_of_an_odd_name[it's so]"
    typed = f"{Attacks(name, False, None, []).command(3)} --collect-only -q"

    done = subprocess.run(typed, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert "1 test collected" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["it's so"])
def test_of_an_odd_name(name):
    """A seed of the whole run is tried as it was there."""
    attacks = Attacks(name, True, None, [])
    assert attacks.command(3).endswith(" --fault-seed 3 --whole-faults")
