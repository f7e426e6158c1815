"""The S3 server without pytest: the demo runs where nobody tests."""

import subprocess
import sys

import pytest

from voxpipe.testing.s3 import main

SCRIPT = """
import sys
sys.modules["pytest"] = None
import importlib.util
true = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "pytest" else true(name, *rest)
from voxpipe.testing.s3 import main
sys.exit(main([sys.argv[1], "--", sys.executable, "-c", "print('served')"]))
"""


def test_the_server_needs_no_pytest(tmp_path):
    """It serves a folder for as long as a command runs, with pytest out of reach."""
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=100
    )

    assert (found.returncode, found.stdout.strip()) == (0, "served"), found.stderr


@pytest.mark.parametrize(
    "before",
    [
        ["{folder}", "--latency", "0", "--"],
        ["--latency", "0", "{folder}", "--"],
        ["{folder}", "--bandwidth", "1e9", "--latency", "0", "--"],
    ],
)
def test_the_command_comes_behind_the_options(tmp_path, before):
    """Wherever they stand: the folder is the folder, and the command's own options are its."""
    told = [each.format(folder=tmp_path / "root") for each in before]
    script = "import os, sys; sys.exit(7 if os.environ['AWS_ENDPOINT_URL'] else 1)"

    assert main([*told, sys.executable, "-c", script]) == 7
    assert (tmp_path / "root").is_dir()
