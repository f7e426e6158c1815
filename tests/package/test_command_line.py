"""``python -m voxpipe`` says its version, what it can do, and what went wrong."""

import subprocess
import sys

import pytest

import voxpipe
from voxpipe import demo_data
from voxpipe.__main__ import main
from voxpipe.core.errors import MissingDependency
from voxpipe.demo_data import Case


def test_version_needs_no_heavy_library():
    """Asked from a shell, the version is all that is printed."""
    command = [sys.executable, "-m", "voxpipe", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert (done.stdout, done.stderr) == (f"voxpipe {voxpipe.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["demo-data", "--speed", "9"]])
def test_wrong_arguments_are_refused(arguments, capsys):
    """The exit status is that of a usage error, and the usage is shown."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert "usage: voxpipe" in capsys.readouterr().err


def test_demo_data_names_every_case(monkeypatch, tmp_path, capsys):
    """One line per case: its name, its use, its image."""
    case = Case("head-0", tmp_path / "t1.nii", tmp_path / "label.nii", held_out=True)
    folders = []
    monkeypatch.setattr(demo_data, "prepare", lambda f: folders.append(f) or [case])

    assert main(["demo-data", "--output", str(tmp_path)]) == 0
    assert folders == [tmp_path / "data"]
    assert capsys.readouterr().out.split() == ["head-0", "held", "out", str(case.image)]


def test_errors_are_sentences(monkeypatch, tmp_path, capsys):
    """What to do is shown; a traceback is not."""

    def fail(folder):
        raise MissingDependency("nilearn is not installed", do="Install it.")

    monkeypatch.setattr(demo_data, "prepare", fail)

    assert main(["demo-data", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().err == "voxpipe: nilearn is not installed\n  Install it.\n"
