"""Workers keep the memory that they free, and users may say otherwise."""

import ctypes
import platform
import subprocess
import sys
import textwrap

import pytest

from voxpipe.reading_services.workers.worker import keep_freed_memory

# Chunks are allocated in a thread of their own, some at a time, and all of them freed.
SCRIPT = """
import resource, threading
import numpy as np
from voxpipe.reading_services.workers.worker import keep_freed_memory

if {keeps}:
    assert keep_freed_memory({{}})
counts = []

def chunks():
    for _ in range(50):
        held = [np.ones(300_000, np.uint8) for _ in range(40)]
        held.clear()
        counts.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt)

thread = threading.Thread(target=chunks)
thread.start()
thread.join()
print(counts[-1] - counts[0])
"""


def has_mallopt():
    return sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")


def page_faults(keeps):
    """Return the page faults of 49 rounds of 40 chunks of 300 kB after the first round."""
    code = textwrap.dedent(SCRIPT).format(keeps=keeps)
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(not has_mallopt(), reason="glibc only")
def test_chunks_that_come_and_go_take_no_new_pages():
    assert page_faults(keeps=True) < 1_000
    # glibc 2.42 keeps them by itself.
    if (glibc := platform.libc_ver()[1]) and tuple(map(int, glibc.split("."))) < (2, 42):
        assert page_faults(keeps=False) > 10_000


@pytest.mark.parametrize(
    "said",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.top_pad=1:glibc.rtld.nns=4"},
    ],
)
def test_what_the_user_says_of_memory_holds(said):
    assert not keep_freed_memory(said)


@pytest.mark.skipif(not has_mallopt(), reason="glibc only")
def test_other_words_about_memory_change_nothing():
    code = (
        "from voxpipe.reading_services.workers.worker import keep_freed_memory as keep\n"
        "print(keep({'MALLOC_ARENA_MAX': '2', 'GLIBC_TUNABLES': 'glibc.rtld.nns=4'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "True\n"
