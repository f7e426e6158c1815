"""Every tutorial runs, as its reader would run it."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from checkout import ROOT

TUTORIALS = sorted((ROOT / "tutorials").glob("[0-9]*.py"))
# Each starts an interpreter and trains or serves, so one of them represents the others.
QUICK = "01_first_patches"
PARAMETERS = [
    pytest.param(script, id=script.stem, marks=() if script.stem == QUICK else pytest.mark.slow)
    for script in TUTORIALS
]
NEEDS = {"03_bucket": "s3fs", "12_cluster": "ray"}


@pytest.mark.parametrize("script", PARAMETERS)
def test_it_runs_and_draws(script, tmp_path):
    """It ends well, writes nothing to stderr, and saves a picture."""
    if (needed := NEEDS.get(script.stem)) and find_spec(needed) is None:
        pytest.skip(f"could not import {needed!r}")
    environment = {**os.environ, "VOXPIPE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-W", "error", str(script)]

    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=300
    )

    assert done.returncode == 0, done.stderr
    if script.stem != "12_cluster":  # Ray reports its start
        assert done.stderr == ""
    (picture,) = (tmp_path / "tutorial-output").iterdir()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert f"picture: {picture.relative_to(tmp_path)}" in done.stdout


def test_tutorials_are_listed():
    """The page of the tutorials has a link to each, and the README one to the page."""
    page = (ROOT / "tutorials" / "README.md").read_text("utf-8")

    assert all(f"]({script.name})" in page for script in TUTORIALS)
    assert "](tutorials/README.md)" in (ROOT / "README.md").read_text("utf-8")
