"""``python -m voxpipe`` says its version, what it can do, and what went wrong."""

import argparse
import subprocess
import sys
import types

import pytest

import voxpipe
import voxpipe.__main__ as command_line
from voxpipe.__main__ import main


def test_version_needs_no_heavy_library():
    """Asked from a shell, the version is all that is printed."""
    command = [sys.executable, "-m", "voxpipe", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

    assert (done.stdout, done.stderr) == (f"voxpipe {voxpipe.__version__}\n", "")


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["check", "--speed", "9"]])
def test_wrong_arguments_are_refused(arguments, capsys):
    """The exit status is that of a usage error, and the usage is shown."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)

    assert caught.value.code == 2
    assert "usage: voxpipe" in capsys.readouterr().err


def test_errors_are_sentences(tmp_path, capsys):
    """What to do is shown; a traceback is not."""
    assert main(["check", str(tmp_path / "none.json")]) == 1
    *_, what, do = capsys.readouterr().err.replace("\r", "\n").splitlines()
    assert what == f"voxpipe: there is no manifest {tmp_path / 'none.json'}."
    assert do == "  Write one: voxpipe index URL."


@pytest.mark.parametrize("command", ["check", "index", "convert"])
def test_an_interrupted_command_says_so_in_one_line(command, monkeypatch, capsys):
    """The status is the one that shells give to SIGINT."""

    def interrupted(*_):
        raise KeyboardInterrupt

    parsed = argparse.Namespace(command=command, run=interrupted)
    if command != "check":  # the others go on where they were stopped
        parsed.go_on = lambda _: "; give it again to go on"
    known = types.SimpleNamespace(parse_known_args=lambda _: (parsed, []))
    monkeypatch.setattr(command_line, "parser", lambda: known)

    assert main([]) == 130
    told = capsys.readouterr().err
    assert told.startswith("voxpipe: stopped")
    assert ("give it again" in told) == (command != "check")
