"""What a fused chain leaves to NumPy: more displacements than the kernel does in one plan."""

from __future__ import annotations

from collections.abc import Sequence

from ..datapipes.choices import ChoicePipe
from ..datapipes.iter import Cache, Flush, FusedSpatial, SpatialPipe, ValuePipe
from ..graph import Pipe, Refused, Site, parents_of
from ..spatial import Step
from ..spatial.ops.op import displaces
from ..spatial.plans.stages import BY_NUMPY, KERNEL_DISPLACEMENTS


def left_to_numpy(site: Site) -> Refused | None:
    """Refuse a pipe that displaces voxels after as many others in its plan as the kernel does."""
    mine = _displacing(site.pipe)
    names = [*_upstream(site.pipe), *mine]
    if not mine or len(names) <= KERNEL_DISPLACEMENTS:
        return None
    return Refused(f"{', '.join(names)} meet in one plan: {BY_NUMPY}")


def _upstream(pipe: Pipe) -> list[str]:
    """Return the displacing steps upstream in the same plan, the first one first.

    A pipe after which voxels are sampled anew begins a plan, of some volumes at least.
    """
    names: list[str] = []
    while len(parents := parents_of(pipe)) == 1 and not _begins_a_plan(parents[0]):
        (pipe,) = parents
        names = [*_displacing(pipe), *names]
    return names


def _displacing(pipe: Pipe) -> list[str]:
    return [step.stream_name for step in _steps(pipe) if displaces(step.op)]


def _steps(pipe: Pipe) -> Sequence[Step]:
    if isinstance(pipe, ChoicePipe):
        return () if pipe.adding is None else pipe.adding.steps
    if isinstance(pipe, FusedSpatial) or (isinstance(pipe, SpatialPipe) and pipe.is_step):
        return pipe.steps
    return ()


def _begins_a_plan(pipe: Pipe) -> bool:
    if isinstance(pipe, (Cache, Flush)):
        return pipe.keys is None
    if isinstance(pipe, ValuePipe):
        return not pipe.step.op.commutes
    change = pipe.change if isinstance(pipe, ChoicePipe) else None
    return change is not None and not change.step.op.commutes
