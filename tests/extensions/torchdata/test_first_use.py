"""The general pipes are loaded when they are used, and not before."""

import inspect
import json
import subprocess
import sys

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from voxpipe.datapipes import iter as pipes
from voxpipe.datapipes.forms import FirstUse, chained_form

GENERAL = "voxpipe.extensions.torchdata."


LOADED = f"print(json.dumps([m for m in sys.modules if {GENERAL!r} in m]))"
PROGRAM = f"""
import json, sys
import voxpipe
voxpipe.from_cases, voxpipe.DataLoader2
{LOADED}
from torch.utils.data.datapipes.iter import IterableWrapper
import voxpipe.datapipes
IterableWrapper([1]).cycle
{LOADED}
"""


@pytest.fixture(scope="module")
def modules():
    """Return the modules of general pipes that two steps of a new interpreter have loaded."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    lines = map(json.loads, done.stdout.splitlines())
    return [{name.removeprefix(GENERAL) for name in line} for line in lines]


def test_pipes_of_volumes_load_none(modules):
    """A training program pays for what it chains."""
    assert modules[0] == set()


def test_a_chained_form_loads_its_own_module(modules):
    """On pipes of torch, too."""
    assert modules[1] == {"items"}


def test_a_class_is_loaded_by_its_name():
    """And is what its chained form makes."""
    assert type(IterableWrapper([[1, 2]]).flatten()) is pipes.Flattener
    assert "Flattener" in dir(pipes)


def test_the_text_of_a_form_is_that_of_its_class():
    """``help(pipe.cycle)`` says what it does before it was used, and after: parameters first."""
    first = FirstUse("voxpipe.extensions.torchdata.items:Cycler")
    text = f"cycle(count: int | None = None) -> Cycler\n\n{inspect.getdoc(pipes.Cycler)}"
    assert first.__doc__ == text == IterableWrapper([]).cycle.__doc__


def test_a_form_that_another_package_took_stays_its(monkeypatch):
    """As torch refuses to register a name twice; our class takes the place of our own entry."""
    monkeypatch.setattr(IterDataPipe, "functions", {"taken": print, "ours": FirstUse("a:B")})

    for name in ("taken", "ours"):
        chained_form(name, if_free=True)(pipes.Flattener)

    assert IterDataPipe.functions["taken"] is print
    assert IterDataPipe.functions["ours"].args[0] is pipes.Flattener
