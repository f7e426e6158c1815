"""Every tutorial runs, as its reader would run it."""

import os
import subprocess
import sys

import pytest
from checkout import ROOT

TUTORIALS = sorted((ROOT / "tutorials").glob("*.py"))


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_it_runs_and_explains(script, tmp_path):
    """It ends well, says nothing on stderr, and shows what it planned."""
    environment = {**os.environ, "VOXPIPE_CACHE": str(tmp_path)}
    command = [sys.executable, "-W", "error", str(script)]

    done = subprocess.run(
        command, env=environment, capture_output=True, encoding="utf-8", timeout=100
    )

    assert done.stderr == ""
    assert done.returncode == 0
    assert "per patch:" in done.stdout


@pytest.mark.parametrize("script", TUTORIALS, ids=lambda script: script.stem)
def test_it_is_found_from_the_readme_and_the_pages(script):
    """By a link that leads there."""
    pages = (ROOT / "docs").glob("*.md")

    assert f"](tutorials/{script.name})" in (ROOT / "README.md").read_text("utf-8")
    assert any(f"](../tutorials/{script.name})" in page.read_text("utf-8") for page in pages)
