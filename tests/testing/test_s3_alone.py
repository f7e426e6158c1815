"""The S3 server without pytest: the demo runs where nobody tests."""

import subprocess
import sys

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
