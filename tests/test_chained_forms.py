"""Type checkers and editors know the chained forms: the stub is what the tool writes."""

import importlib.util
import inspect

import pytest
from checkout import ROOT

from voxpipe.datapipes import DataPipe


def tool():
    """Return ``tools/write_chained_forms.py`` as a module."""
    place = ROOT / "tools" / "write_chained_forms.py"
    spec = importlib.util.spec_from_file_location("write_chained_forms", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stub_is_what_the_tool_writes():
    """After a new form or argument: ``python tools/write_chained_forms.py``."""
    written = (ROOT / "datapipes" / "chained_forms.pyi").read_text("utf-8")

    assert tool().stub() == written


def test_every_form_has_its_arguments():
    """By name; the parent is what it is chained on."""
    methods = tool().stub()

    for name in ("cycle", "prefetch", "lazy_patch", "rotate", "noise", "unzip", "to_map_datapipe"):
        assert methods.count(f"def {name}(self") == 1
    assert "def prefetch(self, buffer_size: int = ..., *, buffer_bytes: int = ...)" in methods
    assert "def zip_longest(self, *datapipes: Pipe, fill_value: Any = ...)" in methods
    assert "-> list[Branch]" in methods


@pytest.mark.parametrize("name", ["cycle", "prefetch", "rotate"])
def test_forms_stay_in_torchs_table(name):
    """The stub is for type checkers alone: no method hides what torch looks up."""
    assert not any(name in vars(kind) for kind in DataPipe.__mro__)
    assert inspect.isclass(DataPipe)
