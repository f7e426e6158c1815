"""Headers of the native kernel: each includes what it needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
COMPILER = shutil.which("g++") or shutil.which("c++")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize("header", sorted(path.name for path in NATIVE.glob("*.h")))
def test_a_header_compiles_alone(header: str) -> None:
    """Nothing has to be included before it."""
    command = [str(COMPILER), "-std=c++17", "-fsyntax-only", "-Wno-psabi", "-I", str(NATIVE)]

    run = subprocess.run(
        [*command, "-x", "c++", "-"],
        input=f'#include "{header}"\n',
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert run.returncode == 0, run.stderr
