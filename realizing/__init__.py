"""The realizing part of a graph as frozen instructions: samples in, a batch out; no torch."""

from .gather import Gather
from .job import Job
from .memory import BatchMemory, Layout, OwnMemory, batch_memory, using
from .realize import ApplyValue, RealizePatches
from .realized import Realized
from .recipe import Instruction, Recipe, Transform, Watch
from .standing import NOWHERE, STANDING, Standing
from .threads import in_threads, usable_cores, using_threads

__all__ = [
    "NOWHERE",
    "STANDING",
    "ApplyValue",
    "BatchMemory",
    "Gather",
    "Instruction",
    "Job",
    "Layout",
    "OwnMemory",
    "RealizePatches",
    "Realized",
    "Recipe",
    "Standing",
    "Transform",
    "Watch",
    "batch_memory",
    "in_threads",
    "usable_cores",
    "using",
    "using_threads",
]
