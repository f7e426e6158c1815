"""The S3 server as a command: the demo runs where nobody tests."""

import subprocess
import sys

import pytest
import s3_server
from s3_server import main


def test_the_server_needs_no_package(tmp_path):
    """It serves a folder for as long as a command runs, with no installed package in reach."""
    told = [sys.executable, "-c", "print('served')"]
    command = [sys.executable, "-S", s3_server.__file__, str(tmp_path), "--", *told]

    found = subprocess.run(command, capture_output=True, text=True, timeout=100)

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
