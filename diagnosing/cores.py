"""How many of a machine's cores are one rank's: the others' loaders run beside it."""

from __future__ import annotations

from collections.abc import Mapping

# How launchers tell the ranks of one machine: torchrun and accelerate, Open MPI, Slurm.
LAUNCHERS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")


def ranks_beside(ranks: int, environment: Mapping[str, str]) -> int:
    """Return how many ranks of a job share this machine, the one that asks included.

    Where no launcher has told, all of them: that advises too few workers rather than too many.

    Examples
    --------
    >>> ranks_beside(16, {"LOCAL_WORLD_SIZE": "8"}), ranks_beside(4, {})
    (8, 4)
    """
    for name in LAUNCHERS:
        told = environment.get(name, "")
        if told.isdecimal() and 0 < int(told) <= ranks:
            return int(told)
    return ranks


def share_of(cores: int, ranks: int) -> int:
    """Return the cores of one of so many ranks.

    Examples
    --------
    >>> share_of(16, 8), share_of(2, 4)
    (2, 1)
    """
    return max(1, cores // ranks)
