"""Run a command and watch the memory of all its processes.

    python benchmarks/processes.py python my_training.py

The measure is PSS, the proportional set size: a page that n processes map counts 1/n for each,
so that the sum over a tree counts a library or a shared-memory batch once. (RSS would count it
once per process, and private memory not at all.) The sum is taken every 50 ms over the command,
its fork server, resource tracker and workers; the largest is the peak.

The sum has three parts:

anonymous
    The heap: what only this program needs, and what kills it when the machine has no more.
shared
    Memory files and ``/dev/shm``: batches on their way from workers.
mapped
    Pages of files: libraries, and volumes that are mapped. The kernel takes these back whenever
    it needs memory, but a limit on a container counts them as well, and so do we.

Two limits: what lives for less than the interval is missed, and a page that a process outside
the tree maps too (another Python with the same torch) is shared with that one, so that a busy
machine shows a little less. The watching process is outside the tree: it imports no libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

INTERVAL = 0.05
"""Seconds between two looks."""
PROC = Path("/proc")
MB = 10**6


@dataclass(frozen=True)
class Memory:
    """The memory of a tree of processes at one moment, in bytes of PSS."""

    anonymous: int = 0
    """Heap and stacks."""
    shared: int = 0
    """Memory files and /dev/shm."""
    mapped: int = 0
    """Pages of files."""
    by_process: Mapping[str, tuple[int, int, int]] = field(default_factory=dict)
    """The three of each process: ``command``, ``fork server``, ``worker`` with its pid ..."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.anonymous + self.shared + self.mapped


@dataclass(frozen=True)
class Finished:
    """What a command printed, and what it took."""

    output: str
    peak: Memory
    samples: int
    """How often the memory was looked at."""

    def answer(self) -> Any:
        """Return the last line of the output, which is JSON."""
        return json.loads(self.output.strip().splitlines()[-1])


def run(command: Sequence[str], settings: Mapping[str, str] | None = None) -> Finished:
    """Run a command to its end and return its output and the peak of its memory.

    Raises
    ------
    SystemExit
        With the exit status of the command, if it fails; its messages are on stderr.
    """
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, **(settings or {})}
    )
    peak, samples = Memory(), 0
    try:
        while child.poll() is None:
            now = memory_of(tree(child.pid))
            peak, samples = max(peak, now, key=lambda memory: memory.total), samples + 1
            time.sleep(INTERVAL)
        assert child.stdout is not None
        # The answers are far shorter than what a pipe holds, so nobody waits for this read.
        output = child.stdout.read()
    finally:
        child.kill()
        child.communicate()
    if child.returncode:
        raise SystemExit(child.returncode)
    return Finished(output, peak, samples)


def tree(root: int) -> dict[int, str]:
    """Return the role of each process by its id: ``root`` and all that descend from it."""
    parents = {}
    for entry in PROC.iterdir() if PROC.is_dir() else ():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None:
                parents[int(entry.name)] = int(fields[1])
    found = {root: "command"}
    news = [root]
    while news:
        news = [pid for pid, parent in parents.items() if parent in news and pid not in found]
        for pid in news:
            found[pid] = _role(pid, found[parents[pid]])
    return found


def _role(pid: int, parent: str) -> str:
    if parent.startswith("fork server"):
        return f"worker {pid}"
    try:
        line = (PROC / str(pid) / "cmdline").read_text().replace("\0", " ")
    except OSError:
        line = ""
    for name in ("forkserver", "resource_tracker"):
        if f"multiprocessing.{name}" in line:
            return {"forkserver": "fork server", "resource_tracker": "resource tracker"}[name]
    return f"child {pid}"


def memory_of(processes: Mapping[int, str]) -> Memory:
    """Return the memory of processes, summed; those that have ended meanwhile count nothing."""
    sums = {"Pss_Anon": 0, "Pss_Shmem": 0, "Pss_File": 0}
    by_process = {}
    for pid, role in processes.items():
        mine = dict.fromkeys(sums, 0)
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, rest = line.partition(":")
            if name in mine:
                mine[name] = int(rest.split()[0]) * 1024
        by_process[role] = (mine["Pss_Anon"], mine["Pss_Shmem"], mine["Pss_File"])
        sums = {name: sums[name] + mine[name] for name in sums}
    return Memory(sums["Pss_Anon"], sums["Pss_Shmem"], sums["Pss_File"], by_process)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time that processes have used so far, user and system."""
    ticks = 0
    for pid in pids:
        fields = _stat(pid)
        if fields is not None:
            ticks += int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def neighbour(cores: float) -> Iterator[None]:
    """Let another process compute meanwhile, that many cores of the time."""
    code = (
        "import time\nstart = time.monotonic()\nwhile True:\n"
        f"    if time.process_time() > {cores!r} * (time.monotonic() - start): time.sleep(0.002)"
    )
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def busy_seconds() -> float:
    """Return the processor time that the whole machine has used so far, without idle cores."""
    names = (PROC / "stat").read_text().partition("\n")[0].split()[1:]
    # user, nice, system, idle, iowait, irq, softirq, steal; then guests, which user holds.
    ticks = sum(int(each) for n, each in enumerate(names[:8]) if n not in (3, 4))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/pid/stat from the state on; the name before may hold anything."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def require_linux() -> None:
    """Leave with a message where the kernel does not tell PSS."""
    if not (PROC / "self" / "smaps_rollup").is_file():
        raise SystemExit("Peak memory is read from /proc/<pid>/smaps_rollup: Linux 4.14 or later.")


def as_text(memory: Memory) -> str:
    """Return a peak as one line; of each process, too, of what it consists."""
    parts = ", ".join(
        f"{role} {parts_as_text(Memory(*sizes))}" for role, sizes in memory.by_process.items()
    )
    return f"{parts_as_text(memory)} MB: {parts}"


def parts_as_text(memory: Memory) -> str:
    """Return the sum and its three parts, in MB."""
    parts = " + ".join(
        f"{size / MB:.0f}" for size in (memory.anonymous, memory.shared, memory.mapped)
    )
    return f"{memory.total / MB:.0f} ({parts})"


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    require_linux()
    finished = run(sys.argv[1:])
    print(finished.output, end="")
    print(f"peak {as_text(finished.peak)}")
