"""Variables of the environment: read in one place, and refused when a loader is made."""

import re

import numpy as np
import pytest
from checkout import ROOT

import voxpipe as vp
from voxpipe.core import settings
from voxpipe.core.errors import BadSetting
from voxpipe.core.native_library import PATHS, best_level

SOURCES = ("core", "storage", "intensity", "volumes", "spatial", "batching", "datapipes")
SOURCES += ("adapters", "reading_services", "diagnosing", "dataloader2", "package")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("25165824", 24 * 2**20),
        ("24M", 24 * 2**20),
        ("24 mib", 24 * 2**20),
        ("0", 0),
        ("1.5 kB", 1500),
        ("2GB", 2 * 10**9),
        (" 1 TiB ", 2**40),
    ],
)
def test_sizes_are_written_as_people_do(text, size):
    """A bare letter is a power of 1024, as is ``iB``; ``B`` with a letter is one of 1000."""
    assert settings.size_of_text(text) == size


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("VOXPIPE_MAPPED_BYTES", "-5", "a number of bytes, such as 25165824 or 24M"),
        ("VOXPIPE_CACHE_BYTES", "1e9", "a number of bytes"),
        ("VOXPIPE_NATIVE", "off", "0, portable, avx2, avx512 or avx512_gather"),
        ("VOXPIPE_REMOTE", "boto", "fsspec or obstore"),
        ("VOXPIPE_REMOTE_DEADLINE", "0", "a positive number of seconds"),
        ("VOXPIPE_REMOTE_HEDGE", "yes", "0 or 1"),
    ],
)
def test_a_loader_refuses_what_a_setting_cannot_be(monkeypatch, name, text, allowed):
    """At once, and not as the fault of a file, which ``OnError`` would skip."""
    monkeypatch.setenv(name, text)
    pipe = vp.from_cases([{"image": np.zeros((4, 4, 4))}]).open_volume()

    with pytest.raises(BadSetting) as caught:
        vp.DataLoader2(pipe, [vp.OnError("skip", budget=100)])

    assert f"{name} is {text!r}, but must be {allowed}" in str(caught.value)
    assert f"unset {name}" in str(caught.value)


def test_an_empty_setting_is_none():
    """``VOXPIPE_CACHE_BYTES=`` is as good as unset."""
    assert settings.read_setting("VOXPIPE_CACHE_BYTES", 7, {"VOXPIPE_CACHE_BYTES": ""}) == 7


def test_every_variable_is_listed_and_explained():
    """No module reads one by itself, and users find all of them in one table."""
    table = (ROOT / "docs" / "reference" / "environment.md").read_text("utf-8")
    named = {
        name
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"\"(VOXPIPE_[A-Z_]+)\"", path.read_text("utf-8"))
    }

    assert named == set(settings.NAMES)
    assert [name for name in settings.NAMES if f"| `{name}` |" not in table] == []


@pytest.mark.parametrize(
    ("text", "level"),
    [("Not affected", 0), ("Mitigation: Microcode", 3), ("Unknown: Dependent on hypervisor", 3)],
)
def test_nothing_is_gathered_where_that_may_be_slow(tmp_path, text, level):
    """Level 3 is the path before the one that gathers; without the file it is the best, too."""
    assert PATHS[2:] == ("avx512", "avx512_gather")
    (tmp_path / "gather_data_sampling").write_text(f"{text}\n")
    assert best_level(str(tmp_path / "gather_data_sampling")) == level
    assert best_level(str(tmp_path / "none")) == 0
