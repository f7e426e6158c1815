"""Shared by all tests: private caches, and nothing left behind."""

from __future__ import annotations

import leftovers
import pytest
from hypothesis import settings

# Times are never asserted: a busy machine is not a bug.
settings.register_profile("voxpipe", deadline=None, print_blob=True)
settings.load_profile("voxpipe")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    """Point voxpipe's cache at a folder of this run; workers inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VOXPIPE_CACHE", str(tmp_path_factory.mktemp("voxpipe-cache")))
        yield


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fail a test that leaves a process, a thread or an open file."""
    before = leftovers.alive()
    yield
    left = leftovers.left_behind(before)
    if left:
        what = "\n  ".join(sorted(f"{kind} {name}" for kind, name in left))
        pytest.fail(f"the test left behind\n  {what}", pytrace=False)
