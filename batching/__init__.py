"""The realizing part of a graph as frozen instructions: samples in, a batch out; no torch."""

from .collate import (
    ArraySpec,
    BatchMemory,
    Gather,
    LikelyLabels,
    OwnMemory,
    Realized,
    batch_memory,
    using,
)
from .job import DATA_ERRORS, ErrorPolicy, Failure, Job, Outcome, Tolerant
from .join_reads import JoinReads
from .realize import ApplyValue, RealizePatches
from .recipe import NOWHERE, STANDING, Instruction, Recipe, Standing, Transform, Watch
from .threads import InThreads, in_threads, usable_cores, using_threads, with_threads

__all__ = [
    "DATA_ERRORS",
    "NOWHERE",
    "STANDING",
    "ApplyValue",
    "ArraySpec",
    "BatchMemory",
    "ErrorPolicy",
    "Failure",
    "Gather",
    "InThreads",
    "Instruction",
    "Job",
    "JoinReads",
    "LikelyLabels",
    "Outcome",
    "OwnMemory",
    "RealizePatches",
    "Realized",
    "Recipe",
    "Standing",
    "Tolerant",
    "Transform",
    "Watch",
    "batch_memory",
    "in_threads",
    "usable_cores",
    "using",
    "using_threads",
    "with_threads",
]
