"""Names of files with any byte, in the outputs of commands and in pictures."""

import json
import os

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.__main__ import main
from voxpipe.core.redact import escape_controls
from voxpipe.volumes import close_volumes

NAMES = (b"\x1b[31mred", b"two\nlines", b"\xff\xfebytes", "北 $a_b$".encode())
SHOWN = (r"\x1b[31mred", r"two\nlines", r"\xff\xfebytes", "北 $a_b$")


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """A folder of volumes with odd names, which is the current one."""
    (tmp_path / "odd").mkdir()
    for name in NAMES:
        try:
            with open(os.fsencode(tmp_path / "odd") + b"/" + name + b".npy", "wb") as file:
                np.save(file, np.zeros((4, 4, 4), np.int16))
        except OSError:
            pytest.skip("this file system takes no such names")
    (tmp_path / "odd" / "bad\x1b[1m.npy").write_text("none")
    monkeypatch.chdir(tmp_path)
    yield "odd"
    close_volumes()


def test_names_have_escapes_in_tables_lines_and_remarks(odd, capsys):
    """A terminal would run controls, and a line end would split a row."""
    for line in ("info odd", "check odd --workers 1", "convert odd out", "index odd -o i.json"):
        assert main(line.split()) == 1
        told = capsys.readouterr()
        text = told.out + told.err
        assert escape_controls(text) == text
        assert r"bad\x1b[1m" in text
        if line.split()[0] in ("info", "convert"):
            assert all(name in text for name in SHOWN)
    assert main(["info", os.fsdecode(b"odd/two\nlines.npy")]) == 0
    assert r"odd/two\nlines.npy" in capsys.readouterr().out


def test_names_are_whole_in_documents(odd, capsys):
    """JSON has escapes of its own, also for controls of eight bits."""
    np.save(f"{odd}/a\x9b.npy", np.zeros((4, 4, 4)))

    main(["info", odd, "--json"])

    text = capsys.readouterr().out
    assert text.isascii()
    cases = [one["case"] for one in json.loads(text)["volumes"]]
    assert {*map(os.fsdecode, NAMES), "a\x9b"} == {*cases}


@pytest.mark.parametrize("suffix", ["html", "svg", "png"])
def test_names_have_escapes_in_pictures(odd, capsys, suffix):
    """Warnings about missing glyphs would be errors here."""
    if suffix != "html":
        pytest.importorskip("matplotlib")
    os.unlink(f"{odd}/bad\x1b[1m.npy")
    assert main(["preview", odd, "-o", f"p.{suffix}", "--patches", "9"]) == 0
    if suffix == "html":
        with open("p.html", encoding="utf-8") as file:
            page = file.read()
        assert all(name in page for name in (*SHOWN[:1], *SHOWN[2:]))


def test_names_have_escapes_in_figures_and_reprs(odd):
    """A title of the user may have mathematics."""
    pytest.importorskip("matplotlib")
    volume = vp.Volume(os.fsdecode(b"odd/\xff\xfebytes.npy"))
    sample = {"case": "北 $a_b$", "image": volume}
    (opened,) = vp.from_cases([sample]).open_volume()

    figure = vp.show(opened, title="$x^2$")

    (title, *_) = [axes.get_title(loc="left") for axes in figure.axes]
    assert title.endswith(" $a_b$ · image")
    assert "\\xff\\xfebytes" in volume._repr_html_()
    volume._repr_html_().encode()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("predict net.pt odd", "stopped; with --run NAME it goes on"),
        ("predict net.pt odd --run a", "stopped; give it again to go on."),
        ("convert odd out", "stopped; give it again to go on."),
        ("index odd", "stopped; give it again to go on."),
        ("check odd", "stopped.\n"),
        ("bench odd", "stopped.\n"),
    ],
)
def test_a_stopped_command_names_its_way_to_go_on(monkeypatch, capsys, line, text):
    """Without --run, predict does not know its own results."""

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"voxpipe.extensions.commands.{line.split()[0]}.run", interrupt)

    assert main(line.split()) == 130
    assert text in capsys.readouterr().err
