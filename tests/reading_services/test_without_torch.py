"""Workers that only realize plans import neither torch nor the user's script."""

import importlib
import multiprocessing as mp
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from checkout import ROOT
from scenes import full_chain, same, write_cases

import voxpipe as vp
from voxpipe.core.errors import NotPicklable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


def untouched(batch):
    """Stand for a function of the user's."""
    return batch


def add_lock(sample):
    """Put into a sample what cannot travel."""
    import threading

    return sample.with_data(lock=threading.Lock())


def loaded_by_workers(pipe, *adapters, workers=2):
    """Return the libraries of torch that the workers have mapped in the middle of an epoch."""
    service = vp.MultiProcessingReadingService(workers, "spawn")
    with vp.DataLoader2(pipe, adapters, service, seed=7) as it:
        batches = iter(it)
        for _ in range(2):  # the second comes from the other worker
            assert isinstance(next(batches)["image"], torch.Tensor)
        maps = [Path(f"/proc/{w.pid}/maps").read_text("utf-8") for w in mp.active_children()]
    assert len(maps) == workers
    lines = [line for text in maps for line in text.splitlines()]
    return {line.rsplit("/", 1)[-1] for line in lines if "torch" in line}


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(lambda pipe: pipe.batch_patches(2), id="batch"),
        pytest.param(lambda pipe: pipe.realize().normalize().batch_patches(2), id="realize"),
    ],
)
def test_workers_that_realize_have_no_torch(cases, tail):
    """With every adapter; the batches are tensors all the same."""
    patches = vp.from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=2)
    pipe = tail(patches.rotate((-15, 15)))

    found = loaded_by_workers(pipe, vp.FuseSpatial(), vp.Profile(), vp.Timeout(item=60))

    assert found == set()


def test_the_documented_op_of_your_own_has_no_torch(cases, tmp_path, monkeypatch):
    """The page keeps the op and its pipe in two files, named in their first lines."""
    page = (ROOT / "docs" / "values.md").read_text("utf-8")
    _, _, section = page.partition("## An op of your own\n")
    (tmp_path / "mypackage").mkdir()
    for block in section.split("```python\n# ")[1:]:
        text = block.partition("```")[0]
        (tmp_path / text.partition(":")[0]).write_text(f"# {text}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("mypackage.invert_pipe")

    pipe = vp.from_cases(cases).open_volume().lazy_patch(4).invert().batch_patches(1)

    assert loaded_by_workers(pipe, workers=1) == set()


def test_workers_with_a_function_of_the_users_have_torch(cases):
    """It may expect tensors, and draw from torch's generator."""
    assert loaded_by_workers(full_chain(cases).map(untouched), workers=1) != set()


def test_explain_says_so(cases):
    """Which of the two it is stands in the loader's explanation."""
    service = vp.MultiProcessingReadingService(2)

    lean = vp.DataLoader2(full_chain(cases), None, service).explain()
    full = vp.DataLoader2(full_chain(cases).map(untouched), None, service).explain()

    assert "in each of 2 workers, 4 items a batch, torch not needed" in lean
    assert "torch not needed" not in full


UNGUARDED_EXIT = """
import os
import sys
import numpy as np
import voxpipe as vp

os.write(1, f"script {__name__}\\n".encode())  # at once: two workers may do so together

class Tag:
    def __init__(self, number):
        self.number = number

def tagged(sample):
    return sample.with_data(tag=Tag(sample.identity[0]))

volumes = [{"image": np.full((6, 6, 6), n, np.int16)} for n in range(4)]
pipe = vp.from_cases(volumes)TAGGED.open_volume().lazy_patch(4).batch_patches(2)
GUARD
    for start_method in sys.argv[1:]:
        service = vp.MultiProcessingReadingService(2, start_method)
        with vp.DataLoader2(pipe, None, service, seed=1) as loader:
            for batch in loader:
                numbers = [tag.number for tag in batch.get("tag", [])]
                print(batch["image"][:, 0, 0, 0, 0].tolist(), numbers, flush=True)
"""
METHODS = [
    pytest.param(["forkserver", "fork"], id="servers and forks"),
    pytest.param(["forkserver", "spawn", "fork"], id="one after the other", marks=pytest.mark.slow),
]


def run_script(warm_python, tmp_path, *start_methods, tagged, guard):
    """Return what a script prints that runs a loader under one start method after the other."""
    text = UNGUARDED_EXIT.replace("TAGGED", ".map(tagged)" if tagged else "").replace(
        "GUARD", guard
    )
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(text), "utf-8")
    done = warm_python.run(script, *start_methods)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("methods", METHODS)
def test_a_script_without_a_guard_runs_once(warm_python, tmp_path, methods):
    """``if __name__ == "__main__"`` is not needed: workers do not import the script."""
    printed = run_script(warm_python, tmp_path, *methods, tagged=False, guard="if True:")

    assert printed == ["script __main__", *["[0, 1] []", "[2, 3] []"] * len(methods)]


@pytest.mark.parametrize(
    "start_method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_a_class_of_the_script_arrives(warm_python, tmp_path, start_method):
    """A worker imports the script when a sample holds something that was defined there."""
    guard = 'if __name__ == "__main__":'

    printed = run_script(warm_python, tmp_path, start_method, tagged=True, guard=guard)

    assert [line for line in printed if line[0] == "["] == ["[0, 1] [0, 1]", "[2, 3] [2, 3]"]
    assert printed.count("script __main__") == 1
    assert 1 <= printed.count("script __mp_main__") <= 2


def test_a_sample_that_cannot_travel_is_named(cases):
    """The error names the cases and says what to do."""
    pipe = vp.from_cases(cases).map(add_lock).open_volume().lazy_patch(4).batch_patches(2)
    service = vp.MultiProcessingReadingService(1)

    with vp.DataLoader2(pipe, None, service) as it, pytest.raises(NotPicklable, match="case0") as e:
        list(it)

    assert "plain data" in str(e.value)


def test_threads_in_a_worker_change_nothing(cases):
    """Several patches at once give the same batches."""
    with vp.DataLoader2(full_chain(cases), None, seed=7) as it:
        expected = list(it)
    service = vp.MultiProcessingReadingService(1, threads_per_worker=3)

    with vp.DataLoader2(full_chain(cases), None, service, seed=7) as it:
        assert same(list(it), expected)


def test_no_threads_is_refused():
    """At the line where the service is made."""
    with pytest.raises(ValueError, match="threads_per_worker is a whole number of at least 1"):
        vp.MultiProcessingReadingService(1, threads_per_worker=0)
