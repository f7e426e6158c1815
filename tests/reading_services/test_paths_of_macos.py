"""The paths of macOS, forced on Linux: spawned workers, and no memory files."""

import multiprocessing
import os
import runpy
from pathlib import Path

import numpy as np
import pytest
from scenes import same

import voxpipe as vp
from voxpipe.reading_services.workers import worker
from voxpipe.volumes import array_source

FOLDER = Path(__file__).resolve().parent.parent / "macos"


def epoch(service):
    """Return the batches of one epoch of arrays in memory, which travel by their files."""
    images = [np.arange(24**3, dtype=np.float32).reshape(24, 24, 24) + n for n in range(3)]
    cases = [{"image": image} for image in images]
    pipe = vp.from_cases(cases).open_volume().lazy_patch(12)
    with vp.DataLoader2(pipe.flip(p=0.5).batch_patches(2), None, service, seed=7) as loader:
        return list(loader)


def test_spawned_workers_without_memory_files_make_the_same_batches(monkeypatch):
    """Batches travel through pipes, and arrays of this process through named files."""
    expected = epoch(None)
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    monkeypatch.setattr(worker, "HAS_SLOTS", False)
    monkeypatch.setattr(array_source, "HAS_NAMELESS", False)

    batches = epoch(vp.MultiProcessingReadingService(1, "spawn"))

    assert same(batches, expected)


def reports(connection):
    """Send whether a spawned process has memory files, slots and files without a name."""
    connection.send((hasattr(os, "memfd_create"), worker.HAS_SLOTS, array_source.HAS_NAMELESS))


@pytest.mark.slow  # a new interpreter imports voxpipe
def test_spawned_processes_lack_the_names(monkeypatch):
    """The folder on PYTHONPATH counts in every process, so the test above tests something."""
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=reports, args=(there,))
    process.start()

    assert here.recv() == (False, False, False)
    process.join()


def test_names_that_are_absent_exist_here(monkeypatch):
    """A name that Linux lacks as well would force nothing."""
    absent = runpy.run_path(str(FOLDER / "sitecustomize.py"), run_name="names")["ABSENT"]

    for module, names in absent.items():
        assert [name for name in names if not hasattr(module, name)] == []
