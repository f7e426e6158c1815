"""What a reading service runs: a graph split into planning and realizing, or a whole graph.

Everything here is a pure function of the graph; nothing is started.
"""

from .choosing import Work, batch_count, replicated, work_of
from .doing import Doing
from .planning import jobs, planned
from .split import Planned
from .whole import Replicated

__all__ = [
    "Doing",
    "Planned",
    "Replicated",
    "Work",
    "batch_count",
    "jobs",
    "planned",
    "replicated",
    "work_of",
]
