"""What workers are told about the process they work for."""

import multiprocessing
import os
from multiprocessing import forkserver

import numpy as np
import pytest

import voxpipe as vp


def settings_there(batch):
    told = {k: v for k, v in os.environ.items() if k.startswith("VOXPIPE_TEST")}
    return {**batch, "told": told}


def told():
    pipe = vp.from_cases([{"image": np.zeros((4, 4, 4))}]).open_volume().batch_patches(1)
    service = vp.MultiProcessingReadingService(1)
    with vp.DataLoader2(pipe.map(settings_there), None, service) as loader:
        return next(iter(loader))["told"]


def test_settings_come_and_go(monkeypatch):
    """Workers have the settings of now, whatever was set when the fork server started."""
    from voxpipe.reading_services.workers import script

    monkeypatch.delenv("VOXPIPE_TEST_NATIVE", raising=False)
    monkeypatch.setenv("VOXPIPE_TEST_A", "1")
    assert told() == {"VOXPIPE_TEST_A": "1"}
    monkeypatch.delenv("VOXPIPE_TEST_A")
    assert told() == {}

    # The fork server of these tests started without it: what one that had it leaves behind.
    at_start = {"VOXPIPE_TEST_A": "old", "HOME": "/there"}
    environment = dict(at_start)
    script.adopt({"VOXPIPE_TEST_B": "new", "HOME": "/there"}, environment, at_start)
    assert environment == {"VOXPIPE_TEST_B": "new", "HOME": "/there"}


@pytest.fixture
def preloaded(monkeypatch):
    """The list of modules that a fork server would be told, put back afterwards."""
    server = forkserver._forkserver
    monkeypatch.setattr(server, "_preload_modules", ["__main__"])
    return lambda: server._preload_modules


def test_your_own_preload_list_is_extended(preloaded):
    """It comes first, each module once; the freezing comes last, also the second time."""
    from voxpipe.reading_services.workers import script as fork_server

    multiprocessing.set_forkserver_preload(["mine", "nibabel"])
    fork_server.preload(multiprocessing, ["nibabel", "numpy"])
    fork_server.preload(multiprocessing, ["nibabel", "json"])

    assert preloaded() == ["mine", "nibabel", "json", fork_server.FREEZE]


def test_the_script_is_preloaded_only_if_asked(preloaded):
    """Multiprocessing's own default is the script, which workers without torch do without."""
    from voxpipe.reading_services.workers import script as fork_server

    fork_server.preload(multiprocessing, ["nibabel"])

    assert preloaded() == ["nibabel", fork_server.FREEZE]
