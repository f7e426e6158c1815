"""What the tests of the repository itself need to know about it."""

from __future__ import annotations

import ast
import configparser
import functools
import gc
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOR_OTHERS = {"voxpipe.extensions.nnunet_trainers.voxpipe_trainers": "nnunetv2"}
"""Modules that another package imports by their place, as if they were in none, and which it is."""


@functools.cache
def options():
    """Return the ``[options]`` of ``setup.cfg``, which no test writes."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    return config["options"]


def package_dir():
    """Return the mapping of packages to root folders."""
    pairs = [line.split("=") for line in options()["package_dir"].splitlines() if line.strip()]
    return {package.strip(): folder.strip() for package, folder in pairs}


def packages():
    """Return the name of every package, ``voxpipe`` first."""
    return options()["packages"].split()


@functools.cache
def modules():
    """Return every module's name and file, packages included; one look at the folders for all."""
    found = {}
    for package, folder in package_dir().items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            found[".".join((package, *parts))] = file
    return found


@functools.cache
def trees():
    """Return the syntax tree of every module, by name."""
    gc.disable()  # each collection would go through all trees
    try:
        return {name: ast.parse(file.read_text("utf-8")) for name, file in modules().items()}
    finally:
        gc.freeze()
        gc.enable()
