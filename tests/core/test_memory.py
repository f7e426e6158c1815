"""How much memory a process may use, as control groups of either version say."""

import os

import pytest

from voxpipe.core.memory import core_quota, memory_of

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def written(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("", {"memory.max": 2**24}, 2**24),
        ("", {"memory.max": "max"}, MACHINE),
        ("", {"memory/memory.limit_in_bytes": 2**25}, 2**25),
        ("", {"memory/memory.limit_in_bytes": 2**63 - 4096}, MACHINE),
        ("0::/job/step", {"job/step/memory.max": "max", "job/memory.max": 2**24}, 2**24),
        ("0::/job", {"other/memory.max": 2**24}, MACHINE),
        ("5:cpu:/a\n4:memory:/job", {"memory/job/memory.limit_in_bytes": 2**26}, 2**26),
        ("0::/../x", {"x/memory.max": 2**24}, MACHINE),
    ],
)
def test_the_least_limit_around_the_process_counts(tmp_path, own, limits, expected):
    """That of a job as well as that of the container; never that of another job."""
    for path, limit in limits.items():
        written(tmp_path / "groups" / path, f"{limit}\n")

    found = memory_of(tmp_path / "groups", written(tmp_path / "own", own))

    assert found == expected


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        ("", {"cpu.max": "150000 100000"}, 1.5),
        ("", {"cpu.max": "max 100000"}, float("inf")),
        ("0::/job/step", {"job/step/cpu.max": "max 100000", "job/cpu.max": "50000 100000"}, 0.5),
        ("", {"cpu/cpu.cfs_quota_us": 200000, "cpu/cpu.cfs_period_us": 100000}, 2.0),
        ("", {"cpu/cpu.cfs_quota_us": -1, "cpu/cpu.cfs_period_us": 100000}, float("inf")),
        (
            "4:cpu,cpuacct:/job",
            {"cpu/job/cpu.cfs_quota_us": 300000, "cpu/job/cpu.cfs_period_us": 100000},
            3.0,
        ),
        ("0::/job", {"other/cpu.max": "50000 100000"}, float("inf")),
    ],
)
def test_the_least_quota_of_cores_around_the_process_counts(tmp_path, own, limits, expected):
    """Of both versions of control groups, nested ones too."""
    for name, limit in limits.items():
        written(tmp_path / "groups" / name, str(limit))

    assert core_quota(tmp_path / "groups", written(tmp_path / "own", own)) == expected


def test_without_control_groups_it_is_the_memory_of_the_machine(tmp_path):
    """As on other systems."""
    assert memory_of(tmp_path / "none", tmp_path / "neither") == MACHINE
