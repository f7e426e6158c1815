"""The program of the page on migrating runs as it stands there."""

import re
import subprocess
import sys

import pytest
from checkout import ROOT


@pytest.mark.slow
def test_the_program_with_voxpipe_runs(tmp_path):
    """Workers, epochs, a state and a resume; nothing is said on the way."""
    page = (ROOT / "docs" / "migrating.md").read_text("utf-8")
    before, after = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    assert "torchdata" in before
    assert "torchdata" not in after
    (tmp_path / "program.py").write_text(
        after + "    print(len(list(loader)), len(list(loader)))\n"
    )
    (tmp_path / "texts").mkdir()
    for number in range(8):
        (tmp_path / "texts" / f"{number}.txt").write_text(str(number))

    command = [sys.executable, "-W", "error", "program.py"]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )

    # The state was taken after the last batch of an epoch; the next one has two.
    assert (ended.stdout, ended.stderr) == ("0 2\n", "")
