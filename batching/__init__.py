"""The realizing part of a graph as frozen instructions: samples in, a batch out; no torch."""

from .collate import (
    ApplyValue,
    ArraySpec,
    Collate,
    LikelyLabels,
    Realized,
    RealizePatches,
    batches_in,
)
from .job import (
    CURRENT_STEP,
    DATA_ERRORS,
    NOWHERE,
    BatchResult,
    ErrorPolicy,
    ErrorTolerant,
    Failure,
    Instruction,
    Job,
    Recipe,
    Transform,
    Watch,
)
from .join_reads import JoinReads
from .threads import InThreads, in_threads, usable_cores, using_threads

__all__ = [
    "CURRENT_STEP",
    "DATA_ERRORS",
    "NOWHERE",
    "ApplyValue",
    "ArraySpec",
    "BatchResult",
    "Collate",
    "ErrorPolicy",
    "ErrorTolerant",
    "Failure",
    "InThreads",
    "Instruction",
    "Job",
    "JoinReads",
    "LikelyLabels",
    "RealizePatches",
    "Realized",
    "Recipe",
    "Transform",
    "Watch",
    "batches_in",
    "in_threads",
    "usable_cores",
    "using_threads",
]
