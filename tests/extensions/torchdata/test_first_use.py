"""The general pipes are loaded when they are used, and not before."""

import json
import subprocess
import sys

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from voxpipe.datapipes import iter as pipes
from voxpipe.datapipes.datapipe import FirstUse, chained_form

GENERAL = "voxpipe.extensions.torchdata."


def loaded_by(program):
    """Return the modules of general pipes that a program loads, in an interpreter of its own."""
    program += (
        f"; import json, sys; print(json.dumps([m for m in sys.modules if {GENERAL!r} in m]))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return {name.removeprefix(GENERAL) for name in json.loads(done.stdout)}


def test_pipes_of_volumes_load_none():
    """A training program pays for what it chains."""
    assert loaded_by("import voxpipe; voxpipe.from_cases, voxpipe.DataLoader2") == set()


def test_a_chained_form_loads_its_own_module():
    """On pipes of torch, too."""
    wrapper = (
        "from torch.utils.data.datapipes.iter import IterableWrapper; import voxpipe.datapipes"
    )
    assert loaded_by(f"{wrapper}; IterableWrapper([1]).cycle") == {"items"}


def test_a_class_is_loaded_by_its_name():
    """And is what its chained form makes."""
    assert type(IterableWrapper([[1, 2]]).flatten()) is pipes.Flattener
    assert "Flattener" in dir(pipes)


def test_the_text_of_a_form_is_that_of_its_class():
    """``help(pipe.cycle)`` says what it does before it was used, and after."""
    first = FirstUse("voxpipe.extensions.torchdata.items:Cycler")
    assert first.__doc__ == pipes.Cycler.__doc__ == IterableWrapper([]).cycle.__doc__


def test_a_form_that_another_package_took_stays_its(monkeypatch):
    """As torch refuses to register a name twice; our class takes the place of our own entry."""
    monkeypatch.setattr(IterDataPipe, "functions", {"taken": print, "ours": FirstUse("a:B")})

    for name in ("taken", "ours"):
        chained_form(name, if_free=True)(pipes.Flattener)

    assert IterDataPipe.functions["taken"] is print
    assert IterDataPipe.functions["ours"].args[0] is pipes.Flattener
