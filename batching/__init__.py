"""The realizing part of a graph as frozen instructions: samples in, a batch out; no torch."""

from .failing import DATA_ERRORS, ErrorPolicy, Outcome, Tolerant
from .gather import Gather, LikelyLabels
from .job import Failure, Job
from .join_reads import JoinReads
from .memory import ArraySpec, BatchMemory, OwnMemory, batch_memory, using
from .realize import ApplyValue, RealizePatches
from .realized import Realized
from .recipe import Instruction, Recipe, Transform, Watch
from .standing import NOWHERE, STANDING, Standing
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
