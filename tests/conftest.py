"""Shared by all tests: private caches, and nothing left behind."""

from __future__ import annotations

import functools
import gc
import locale
import multiprocessing
import os
import random
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import leftovers
import pytest
from hypothesis import settings
from representatives import further_combinations
from watchdog import Watchdog

# Times are never asserted: a busy machine is not a bug. Of each property that says no number,
# `make test` tries these examples and `make test-slow` a hundred.
EXAMPLES = int(os.environ.get("VOXPIPE_TEST_EXAMPLES", "20"))
settings.register_profile("voxpipe", deadline=None, print_blob=True, max_examples=EXAMPLES)
settings.load_profile("voxpipe")


# A machine that is throttled to a fifth of its speed needs a minute for the longest test.
WATCHDOG = Watchdog(240)

# A process has one fork server, which imports what its first user needs: after workers without
# torch, each later one that needs it would import it anew, for seconds.
multiprocessing.set_forkserver_preload(
    ["torch.distributed", "pytest", "voxpipe.datapipes.iter", "voxpipe.dataloader2", "nibabel"]
)


def pytest_addoption(parser):
    """Say how often each attack of tests/faults is tried."""
    parser.addoption(
        "--whole-faults", action="store_true", help="try every attack as often as it says"
    )
    parser.addoption("--soak-seconds", type=float, help="how long tests/faults/test_soak.py runs")
    parser.addoption("--fault-seed", type=int, help="try each attack from this seed alone")


def compile_once(config):
    """Compile all modules in one process, if several would do so at the same time.

    Compiling the tests and the packages of a new environment takes 20 s of processor time.
    """
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
    compiled = Path(__file__).parent / "__pycache__" / f"test_layout.{tag}.pyc"
    is_whole, processes = config.args == ["tests"], config.getoption("numprocesses", None) or 1
    if is_whole and processes > 1 and not compiled.exists() and not sys.dont_write_bytecode:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=False, **quiet)


def pytest_configure(config):
    """Refuse to pass over the tests of the native library where ``make`` has built it."""
    from native_paths import paths_here

    if version("zarr").startswith("3.0."):
        from zarr_arrays import write_shards_whole

        write_shards_whole()
    if os.environ.get("VOXPIPE_TEST_NATIVE") == "1" and not paths_here():
        pytest.exit("the native library cannot be used: make native says why", returncode=1)
    if not hasattr(config, "workerinput"):
        compile_once(config)


def pytest_report_header():
    """Say which paths of the native library are tested."""
    from native_paths import paths_here

    return f"native paths: {', '.join(paths_here()) or 'none, NumPy alone'}"


@pytest.fixture(autouse=True, scope="session")
def functions_by_name():
    """Send functions to workers by name, as from a script.

    Workers of pytest-xdist look like sessions, where functions travel by value. Tests of that run
    programs of their own.
    """
    from voxpipe.reading_services.workers import by_value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_value, "is_available", lambda: False)
        yield


def pytest_sessionstart():
    """Watch for tests that hang."""
    WATCHDOG.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Tell the watchdog which test runs."""
    WATCHDOG.at(item.nodeid)
    try:
        return (yield)
    finally:
        WATCHDOG.at(None)


def pytest_collection():
    """Collect no garbage meanwhile: nearly all objects of modules and tests stay to the end."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark all combinations of parameters but the representatives as slow."""
    for item in list(further_combinations(items)):
        item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    """Let later garbage collections pass over the modules and tests that stay to the end."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def only_this_files_objects():
    """Let garbage collections pass over the objects of earlier files: some tests ask for many."""
    gc.collect()
    gc.freeze()
    yield
    states = sys.modules.get("accelerate.state")
    if states is not None:  # of an Accelerator: loaders would read one batch ahead in later files
        states.AcceleratorState._reset_state(reset_partial_state=True)
        states.GradientState._reset_state()


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory):
    """Point voxpipe's cache at a folder of this run, and send no request twice."""
    with pytest.MonkeyPatch.context() as patch:
        # Requests are counted: on a busy machine one may take long, and would be sent twice.
        patch.setenv("VOXPIPE_REMOTE_HEDGE", "0")
        patch.setenv("VOXPIPE_CACHE", str(tmp_path_factory.mktemp("voxpipe-cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_fork_server():
    """Let workers import the modules of functions: a server for each file imports torch anew.

    Scripts in processes of their own test that a server imports the modules of functions. No
    argument of a service turns this off: it gives all workers of a run one version of the code.
    """
    from voxpipe.reading_services.workers import pool, script

    start = pool.start_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool, "start_server", lambda modules, note: start([], note))
        # Else the first pool replaces a server that multiprocessing itself has started.
        patch.setattr(script, "_code_of_server", {"__main__"})
        yield


@pytest.fixture(scope="session")
def one_description_of_s3():
    """Let all clients of botocore share the description of S3, of 30 000 objects each.

    fsspec keeps the client of every server that a test ever had, and each collection of garbage
    would go through all of theirs.
    """
    from botocore.loaders import JSONFileLoader

    with pytest.MonkeyPatch.context() as patch:
        # Clients of one session of botocore share it as well: none of them changes it.
        read = functools.cache(JSONFileLoader().load_file)
        patch.setattr(JSONFileLoader, "load_file", lambda _, path: read(path))
        yield


@pytest.fixture(scope="session")
def started_clients(one_description_of_s3):
    """Start the threads that fsspec and obstore keep for the process."""
    import fsspec.asyn
    import obstore
    from obstore.store import HTTPStore

    fsspec.asyn.get_loop()
    plain = {"allow_http": True}
    store = HTTPStore("http://127.0.0.1:9", client_options=plain, retry_config={"max_retries": 0})
    with pytest.raises(obstore.exceptions.BaseError):
        obstore.get(store, "nothing")


@pytest.fixture(scope="session")
def warm_python():
    """Return a process whose forks run scripts without importing torch anew."""
    from warm_python import WarmPython

    process = WarmPython()
    yield process
    process.close()


@pytest.fixture(scope="session")
def started_store():
    """Let libuv, under torch's stores, open the pipe that it keeps for the process."""
    import torch.distributed as dist

    dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def seed_generators():
    """Seed the global generators, so that draws of a test depend on no other test."""
    random.seed(0)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        numpy.random.seed(0)
    if torch is not None:
        # torch.manual_seed() notes its stack for every kind of device, for whenever one is used.
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(0)


def forget_hints():
    """Forget what the page cache holds, so that requests of a test depend on no other test."""
    reader = sys.modules.get("voxpipe.storage.file_reader")
    if reader is not None:
        reader.HINTS.after_fork()


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fail a test that leaves a process, a thread, an open file, an epoch or another locale.

    It also resets the process before the test: a fixture for each reset costs more than the reset.
    """
    seed_generators()
    forget_hints()
    before, encoding = leftovers.alive(), locale.nl_langinfo(locale.CODESET)
    yield
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")  # it keeps figures, and warns of the twenty-first
    left = leftovers.left_behind(before)
    now = locale.nl_langinfo(locale.CODESET)
    if now != encoding:
        locale.setlocale(locale.LC_ALL, "")
        pytest.fail(
            f"the test changed the encoding of files from {encoding} to {now}", pytrace=False
        )
    if left:
        what = "\n  ".join(sorted(f"{kind} {name}" for kind, name in left))
        pytest.fail(f"the test left behind\n  {what}", pytrace=False)
