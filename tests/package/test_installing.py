"""What an installation without a compiler prints, and which versions it accepts."""

import os
import re
import runpy
import shutil
import subprocess

import pytest
import setuptools
from checkout import ROOT, options
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError


@pytest.fixture
def library(monkeypatch):
    """Return the command of ``setup.py`` that builds the kernel, and the kernel."""
    given = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    runpy.run_path(str(ROOT / "setup.py"))
    (kernel,) = given["ext_modules"]
    package = setuptools.Distribution({"ext_modules": [kernel]})
    return given["cmdclass"]["build_ext"](package), kernel


def test_an_installation_without_a_compiler_names_the_loss_once(library, monkeypatch, capfd):
    """It goes on, because the kernel is optional."""

    def fails(self, ext):
        raise CompileError("no such file: g++")

    command, kernel = library
    command.ensure_finalized()
    monkeypatch.setattr(build_ext, "build_extension", fails)
    monkeypatch.setattr("builtins.open", no_terminal(open))

    with pytest.raises(CompileError):
        command.build_extension(kernel)

    text = capfd.readouterr().err
    assert text.count("voxpipe: the native kernel was not built") == 1
    # Without --no-cache-dir, pip installs the wheel that it built without the kernel again.
    for word in ("no such file: g++", "slower", "C++17 compiler", "pip install", "--no-cache-dir"):
        assert word in text
    assert kernel.optional


def no_terminal(plain):
    """Return ``open()`` of a process without a terminal."""

    def opened(file, *arguments, **options):
        if file == "/dev/tty":
            raise OSError(6, "No such device or address")
        return plain(file, *arguments, **options)

    return opened


def test_the_oldest_versions_are_those_of_the_constraints():
    """``constraints-min.txt`` pins each dependency to the lower bound of ``setup.cfg``."""
    lines = (ROOT / "constraints-min.txt").read_text("utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    bounds = dict(line.split(">=") for line in options()["install_requires"].split())

    assert pins.keys() == bounds.keys() | {"pyarrow"}  # of an extra, for this numpy
    for name, bound in bounds.items():
        assert re.match(rf"{re.escape(bound)}(\.|$)", pins[name]), name


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("versions", ["constraints.txt", "constraints-min.txt", ""])
def test_the_wheel_is_tested_with_the_versions_of_a_file(versions):
    """Those of ``constraints.txt`` unless another file is named, or none: the newest."""
    named = [] if versions == "constraints.txt" else [f"VERSIONS={versions}"]
    command = ["make", "--dry-run", "--always-make", "wheel", *named]
    # Not by the arguments of a make that runs this test.
    env = {
        name: value
        for name, value in os.environ.items()
        if "MAKE" not in name and name != "VERSIONS"
    }
    lines = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env=env
    ).stdout
    install = next(line for line in lines.splitlines() if "install torch" in line)

    assert re.findall(r"-c (\S+)", install) == ([versions] if versions else [])
