"""Ctrl-C ends a command with one line."""

from __future__ import annotations

import pytest

import voxpipe.__main__ as command


def test_an_interrupted_demo_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The status is the one that shells give to SIGINT."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "demo", interrupted)

    assert command.main(["demo"]) == 130
    assert capsys.readouterr().err == "voxpipe: stopped.\n"
