"""Functions of a session, a notebook cell or a pipe: refused at once where workers lack them."""

import subprocess
import sys

import pytest

CHAIN = """
import copy
import sys
import numpy as np
import voxpipe as vp
from voxpipe.datapipes import PerItem

def own(batch):
    return batch

class Own(PerItem):
    def apply(self, item):
        return item

def count(pipe, workers, method="forkserver"):
    service = vp.MultiProcessingReadingService(workers, method)
    with vp.DataLoader2(pipe, None, service) as loader:
        return len(list(loader))

pipe = vp.from_cases([{"image": np.zeros((4, 4, 4))}] * 4).open_volume().batch_patches(2)
"""
LAST_LINE = CHAIN.count("\n") + 1
PIPED, GIVEN = ["-"], ["-c"]


def run(code, how, folder):
    """Run a program that is in no file; return its exit status, output and errors."""
    command = [sys.executable, "-W", "error", *how, *([CHAIN + code] if how == GIVEN else [])]
    given = CHAIN + code if how == PIPED else None
    ended = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=240, cwd=folder, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


REFUSED = {"own": "pipe.map(own)", "Own": "Own(pipe)", "<lambda>": "pipe.map(lambda b: b)"}
# Printed between the errors; the last one ends the program.
NEXT = "the next error"
BEGIN = f"""
import traceback
def refused(make):
    try:
        make()
    except Exception:
        traceback.print_exc()
        print("{NEXT}", file=sys.stderr)
"""


@pytest.fixture(
    scope="module",
    params=[PIPED, pytest.param(GIVEN, marks=pytest.mark.slow)],
    ids=["piped", "given"],
)
def told(request, tmp_path_factory):
    """Return how a program calls itself that makes loaders which are refused, and what it says."""
    folder = tmp_path_factory.mktemp("program")
    loaders = [
        f"vp.DataLoader2({chain}, [], vp.MultiProcessingReadingService(2))"
        for chain in REFUSED.values()
    ]
    *caught, last = loaders
    code = BEGIN + "".join(f"refused(lambda: {loader})\n" for loader in caught) + last + "\n"
    status, out, said = run(code, request.param, folder)
    errors = said.split(f"{NEXT}\n")
    assert (status, out, len(errors)) == (1, "", len(REFUSED))
    return "<stdin>" if request.param == PIPED else "<string>", dict(
        zip(REFUSED, errors, strict=True)
    )


@pytest.mark.parametrize("name", REFUSED, ids=["function", "class", "lambda"])
def test_what_workers_cannot_import_is_refused_at_construction(told, name):
    """One message: the pipe, its line, what to do. No worker starts."""
    file, errors = told
    said = errors[name]
    last = said[said.index("NotPicklable") :]
    line = LAST_LINE + BEGIN.count("\n") + [*REFUSED].index(name)

    assert name in last
    assert f"{file}:{line}" in last
    assert "Move it to the top level of a module that you import" in last
    assert "num_workers=0" in last
    if name != "<lambda>":  # which no process can be sent
        assert f"%%writefile functions.py, and write `from functions import {name}`" in last
        assert 'multiprocessing_context="fork"' in last
    assert len(last.splitlines()) == 3
    assert said.count("Traceback") == 1 + (name == "<lambda>")


@pytest.mark.parametrize(
    "methods",
    [["forkserver"], pytest.param(["forkserver", "spawn"], marks=pytest.mark.slow)],
    ids=["server", "server and spawn"],
)
def test_what_needs_no_file_runs_all_the_same(tmp_path, methods):
    """In this process, in forked workers, and with functions of modules in any worker."""
    code, out, said = run(
        "print(count(pipe.map(own), 0), count(pipe.map(own), 1, 'fork'))\n"
        "of_a_module = pipe.map(copy.copy)\n"
        # In this order their fork server has torch.
        f"print(*(count(of_a_module, 1, method) for method in {methods}), count(pipe, 1))\n",
        PIPED,
        tmp_path,
    )

    assert (code, said) == (0, "")
    assert out.split() == ["2"] * (3 + len(methods))


@pytest.mark.slow
def test_functions_of_a_script_with_a_file_travel(tmp_path):
    """What is defined in the script that runs is imported by the workers, as ever."""
    script = tmp_path / "script.py"
    script.write_text(CHAIN + "if __name__ == '__main__':\n    print(count(pipe.map(own), 1))\n")

    ended = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False
    )

    assert (ended.stdout, ended.stderr) == ("2\n", "")
