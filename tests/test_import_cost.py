"""Importing voxpipe is cheap: what is heavy is imported where it is used."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    "SimpleITK",
    "aiohttp",
    "blosc2",
    "botocore",
    "fsspec",
    "h5py",
    "imagecodecs",
    "isal",
    "matplotlib",
    "nibabel",
    "nilearn",
    "numcodecs",
    "pandas",
    "s3fs",
    "scipy",
    "tifffile",
    "torch",
    "torchdata",
    "zarr",
}
# Everything below the datapipes but the graph, whose nodes are torch's; and what workers run.
CHEAP = ["voxpipe", "voxpipe.core", "voxpipe.intensity"]
CHEAP += ["voxpipe.spatial", "voxpipe.volumes", "voxpipe.batching"]
CHEAP += ["voxpipe.reading_services.workers.worker", "voxpipe.batching.parts"]
# What is started by itself, time and again: the child of a store's contract.
CHEAP += ["voxpipe.testing.store_contract"]
# Other packages may have been imported at start-up, by a .pth file of the environment.
PROGRAM = """
import json, sys
before = set(sys.modules)
__import__(sys.argv[1])
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def imported_by(name):
    """Return the top names that a fresh interpreter imports for ``name``."""
    command = [sys.executable, "-c", PROGRAM, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("name", CHEAP)
def test_importing_costs_no_heavy_library(name):
    """No library that takes long or much memory to load comes along."""
    assert imported_by(name) & HEAVY == set()


def test_core_brings_only_numpy():
    """Core values need numpy and nothing else that has to be installed."""
    names = {name for name in imported_by("voxpipe.core") if "cython" not in name}  # of NumPy
    assert names - sys.stdlib_module_names <= {"numpy", "voxpipe"}


def test_the_check_sees_a_heavy_library():
    """A module that does import numpy is seen to do so."""
    assert "numpy" in imported_by("numpy")


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_of_garbage_is_left_as_it_was(is_on):
    """It pauses while modules are imported, also where one of them is missing."""
    switch = "enable" if is_on else "disable"
    program = f"""
import gc, sys
gc.{switch}()
import voxpipe as vp
vp.Volume  # without torch, whose import takes 2 s
sys.modules["voxpipe.prediction.predict"] = None
try:
    vp.predict
except ImportError:
    print(gc.isenabled())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{is_on}\n"
