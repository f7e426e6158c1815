"""Functions of a session, a notebook cell or a pipe: by value, or refused at once.

cloudpickle sends them by value. Where it is not installed, as in most programs here, functions
that workers cannot import are refused.
"""

import re

import pytest

CHAIN = """
import copy
import sys
import warnings
sys.modules["cloudpickle"] = None
warnings.simplefilter("error")
sys.warnoptions.append("error")  # of workers, too
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
PIPED, GIVEN = "-", "-c"


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
    params=[PIPED, GIVEN],
    ids=["piped", "given"],
)
def told(request, tmp_path_factory, warm_python):
    """Return how a program calls itself that makes loaders which are refused, and what it says."""
    folder = tmp_path_factory.mktemp("program")
    loaders = [
        f"vp.DataLoader2({chain}, [], vp.MultiProcessingReadingService(2))"
        for chain in REFUSED.values()
    ]
    *caught, last = loaders
    code = BEGIN + "".join(f"refused(lambda: {loader})\n" for loader in caught) + last + "\n"
    ended = warm_python.run(CHAIN + code, cwd=folder, is_piped=request.param == PIPED)
    errors = ended.stderr.split(f"{NEXT}\n")
    assert (ended.returncode, ended.stdout, len(errors)) == (1, "", len(REFUSED))
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
    assert 'pip install "voxpipe[notebook]"' in last
    assert len(last.splitlines()) == 3
    assert said.count("Traceback") == 1 + (name == "<lambda>")


@pytest.mark.parametrize(
    "methods",
    [["forkserver"], pytest.param(["forkserver", "spawn"], marks=pytest.mark.slow)],
    ids=["server", "server and spawn"],
)
def test_what_needs_no_file_runs_all_the_same(tmp_path, methods, warm_python):
    """In this process, in forked workers, and with functions of modules in any worker."""
    ended = warm_python.run(
        f"{CHAIN}print(count(pipe.map(own), 0), count(pipe.map(own), 1, 'fork'))\n"
        "of_a_module = pipe.map(copy.copy)\n"
        # In this order their fork server has torch.
        f"print(*(count(of_a_module, 1, method) for method in {methods}), count(pipe, 1))\n",
        cwd=tmp_path,
        is_piped=True,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["2"] * (3 + len(methods))


@pytest.mark.slow
def test_functions_of_a_script_with_a_file_travel(tmp_path, warm_python):
    """What is defined in the script that runs is imported by the workers, as ever."""
    script = tmp_path / "script.py"
    script.write_text(CHAIN + "if __name__ == '__main__':\n    print(count(pipe.map(own), 1))\n")

    ended = warm_python.run(script)

    assert (ended.stdout, ended.stderr) == ("2\n", "")


# By value: functions with globals, classes of pipes, lambdas, closures; classes of results.
TYPED = (
    CHAIN.replace('sys.modules["cloudpickle"] = None', "")
    .replace('warnings.simplefilter("error")', "")
    .replace('sys.warnoptions.append("error")', "")
    + """
from dataclasses import dataclass
SCALE, TABLE = 3, np.arange(5)

@dataclass
class Answer:
    number: int

def scaled(number):
    return SCALE * number + int(TABLE.sum())

def answer(batch):
    return Answer(scaled(int(batch["image"].sum())))

def adding(more):
    def add(one):
        return Answer(one.number + more)
    return add

def epochs(chain, method):
    global SCALE
    SCALE = 3
    service = vp.MultiProcessingReadingService(2, method)
    with vp.DataLoader2(chain, None, service) as loader:
        first = [one.number for one in loader]
        SCALE = 0
        return [*first, *(one.number for one in loader)]

whole = vp.from_cases([{"image": np.ones((4, 4, 4))}] * 2).open_volume().batch_patches(1)
chain = Own(whole).map(answer).map(lambda one: one).map(adding(1))
"""
)
NOTICE = "workers get copies of"


def number(scale):
    return scale * 64 + 10 + 1


@pytest.mark.parametrize(
    "method", [pytest.param(m, marks=() if m == "fork" else pytest.mark.slow) for m in
               ("fork", "forkserver", "spawn")],
)  # fmt: skip
def test_functions_of_a_session_travel_by_value(tmp_path, method, warm_python):
    """With one notice in a process; each epoch has the present values of globals."""
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    code = f"print(epochs(chain, {method!r}))\nprint(epochs(chain, {method!r}))\n"
    ended = warm_python.run(TYPED + code, cwd=tmp_path, is_piped=True)
    expected = [number(3)] * 2 + [number(0)] * 2

    assert ended.stdout.splitlines() == [str(expected)] * 2, ended.stderr
    assert ended.stderr.count(NOTICE) == 1
    assert all(name in ended.stderr for name in ("Own", "answer"))
    assert len(ended.stderr.splitlines()) <= 2


CLOSURES = """
import threading
def with_lock(lock):
    return lambda batch: lock and batch
def with_file(file):
    return lambda batch: file and batch
made = [with_lock(threading.Lock()), with_file(open(sys.executable)), lambda batch: batch]
for function in made:
    try:
        vp.DataLoader2(pipe.map(function), [], vp.MultiProcessingReadingService(2))
    except vp.errors.VoxpipeError as error:
        print(type(error).__name__, *str(error).splitlines(), sep="|")
    else:
        print("made")
"""


def test_closures_over_locks_and_files_are_refused(warm_python):
    """In one sentence, with the object and what to do; other closures are not."""
    pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")
    ended = warm_python.run(TYPED + CLOSURES, is_piped=True)
    lock, file, last = ended.stdout.splitlines()

    for said, name in ((lock, "lock"), (file, "TextIOWrapper")):
        assert said.startswith("NotPicklable|map(")
        # Python words the end of this, and calls a file by another name from 3.14 on.
        assert re.search(rf"cannot travel to a worker: cannot pickle '(_\w+\.)?{name}'", said)
        assert "Open or construct it in the function" in said
    assert last == "made"
