"""Describe the machine that the figures of a benchmark belong to.

python benchmarks/machine.py
"""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

# What the speed of voxpipe depends on. Their versions are read from their metadata: importing
# them here would map their libraries once more and so lower the memory measured elsewhere.
PACKAGES = ("torch", "numpy", "zarr", "numcodecs", "nibabel", "isal")
GIB = 2**30


def describe() -> str:
    """Return the machine and the versions, a few lines of Markdown."""
    cores = f"{usable_cores()} of {os.cpu_count()} cores"
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return "\n".join(
        [
            f"- {cpu_model()}, {cores}, {memory_bytes() / GIB:.1f} GiB memory",
            f"- {platform.system()} {platform.release()}, Python {platform.python_version()}",
            f"- {versions}",
            f"- load of the last minute when this was printed: {load()}",
        ]
    )


def cpu_model() -> str:
    """Return the name that the processor gives itself."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown processor"


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int:
    """Return the size of the main memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def version(package: str) -> str:
    """Return the installed version, or that there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def load() -> str:
    """Return how many processes wanted to run on average: neighbours make figures worse."""
    try:
        return f"{os.getloadavg()[0]:.1f}"
    except (AttributeError, OSError):
        return "unknown"


if __name__ == "__main__":
    sys.stdout.write(describe() + "\n")
