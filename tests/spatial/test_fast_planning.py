"""What planning computes quickly is what the slow formulas say."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxpipe.core import Grid, Region, Stream
from voxpipe.core.affine3x4 import affine3x4
from voxpipe.core.errors import GraphError, PatchSizeError
from voxpipe.datapipes.iter import from_cases
from voxpipe.spatial import (
    INTENSITY,
    LABEL,
    Augment,
    FixedPatch,
    Flip,
    PlacedPatch,
    Rotate,
    Shear,
    SpatialPlan,
    Step,
    TransformChain,
    Translate,
    UniformPatch,
    Zoom,
)
from voxpipe.spatial.lazy.transform_chain import SPARE_GENERATORS
from voxpipe.spatial.ops.op import draw_amount
from voxpipe.spatial.plans.matrices import Space, pull_back, rotation, scaling, shearing
from voxpipe.spatial.plans.pull_back import COPY_TOLERANCE, source_region, whole_rows

SHAPE = (21, 18, 16)
# In voxels, over grids of a few dozen of them.
TOLERANCE = 1e-10

degrees = st.tuples(*[st.floats(-180, 180)] * 3)
factors = st.tuples(*[st.floats(0.5, 2)] * 3)
shears = st.tuples(*[st.floats(-0.5, 0.5)] * 3)
moves = st.tuples(*[st.floats(-20, 20)] * 3)


def oblique(turned: tuple[float, float, float], spacing: tuple[float, float, float]) -> Grid:
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(rotation(turned), (3, 3)) * spacing
    affine[:3, 3] = (-90, 126, -72)
    return Grid(SHAPE, affine)


grids = st.builds(oblique, degrees, st.tuples(*[st.floats(0.1, 5)] * 3))


def about_the_centre(
    plan: SpatialPlan, forward: NDArray[np.float64], move: Any, space: str
) -> NDArray[np.float64]:
    """Return the pull-back by its definition, from whole 4x4 matrices."""
    to_world = np.eye(4) if space == "voxel" else plan.affine
    centre = np.append((np.array(plan.shape) - 1) / 2, 1)
    to_centre, world = np.eye(4), np.eye(4)
    to_centre[:3, 3] = (to_world @ centre)[:3]
    world[:3, :3], world[:3, 3] = forward, move
    forth = to_centre @ world @ np.linalg.inv(to_centre)
    return np.asarray(np.linalg.inv(to_world) @ np.linalg.inv(forth) @ to_world)


@given(
    grids,
    degrees,
    st.one_of(
        degrees.map(rotation),
        factors.map(scaling),
        shears.map(shearing),
        st.floats(0.5, 2).map(lambda f: scaling((f, f, f))),
    ),
    moves,
    st.sampled_from(["world", "voxel"]),
)
def test_a_pull_back_is_its_definition(
    grid: Grid, before: Any, forward: Any, move: Any, space: Space
) -> None:
    """Forward maps about the centre, in the world of the present grid, on any affine."""
    plan = Rotate(before).then(SpatialPlan.identity(grid), {"degrees": before})

    slow = about_the_centre(plan, np.reshape(forward, (3, 3)), move, space)

    fast = np.reshape(pull_back(plan, forward, move, space=space), (3, 4))
    assert fast == pytest.approx(slow[:3], abs=TOLERANCE * 10, rel=1e-9)


@pytest.mark.filterwarnings("ignore:length-beyond-volume")
@given(grids, degrees, factors, moves, shears, st.lists(st.integers(0, 2), unique=True))
def test_a_bundle_is_its_ops_one_after_another(
    grid: Grid, turn: Any, zoom: Any, move: Any, shear: Any, flip: list[int]
) -> None:
    """Leaving out what does nothing changes nothing."""
    for parts in itertools.product((False, True), repeat=4):
        drawn = {
            "rotate": list(turn) if parts[0] else [0.0] * 3,
            "zoom": list(zoom) if parts[1] else [1.0] * 3,
            "translate": list(move) if parts[2] else [0.0] * 3,
            "shear": list(shear) if parts[3] else [0.0] * 3,
            "flip": flip,
        }
        plan = SpatialPlan.identity(grid)
        for op, one in (
            (Rotate(0), {"degrees": drawn["rotate"]}),
            (Zoom(1), {"factor": drawn["zoom"]}),
            (Translate(0), {"amount": drawn["translate"]}),
            (Shear(0), {"factor": drawn["shear"]}),
            (Flip(), {"axes": flip}),
        ):
            plan = op.then(plan, one)  # type: ignore[attr-defined]

        bundle = Augment().then(SpatialPlan.identity(grid), drawn)

        assert bundle == plan


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_a_bundle_draws_what_its_parts_would(item: int, p: float) -> None:
    """Sixteen numbers at once are the sixteen of one part after another."""
    op = Augment((-15, 15), (0.9, 1.1), ((0, 1), 2, (3, 4)), (0, 0.1), flip=(0.2, 0.5, 0.8), p=p)
    stream = Stream(7, 0, (item,), "augment")

    drawn = op.draw(stream.generator(), SpatialPlan.identity(Grid(SHAPE, np.eye(4))))

    generator = stream.generator()
    acts = generator.random() < p
    parts = {
        "rotate": draw_amount(generator, op.rotate),
        "zoom": draw_amount(generator, op.zoom, isotropic=True),
        "translate": draw_amount(generator, op.translate),
        "shear": draw_amount(generator, op.shear),
        "flip": [a for a, u in enumerate(generator.random(3)) if u < (0.2, 0.5, 0.8)[a]],
    }
    assert drawn == (parts if acts else None)


signed = st.permutations(range(3)).flatmap(
    lambda order: st.tuples(*[st.sampled_from([-1.0, 1.0])] * 3).map(
        lambda signs: np.eye(3)[list(order)] * signs
    )
)


@given(
    signed,
    st.tuples(*[st.integers(-50, 50)] * 3),
    st.lists(st.floats(-4 * COPY_TOLERANCE, 4 * COPY_TOLERANCE), min_size=12, max_size=12),
    st.tuples(*[st.integers(1, 300)] * 3),
    st.sampled_from([1.0, 0.1, 1e-3, 1e-4]),
)
def test_the_early_way_out_refuses_no_copy(
    turn: Any, shift: Any, off: list[float], shape: tuple[int, int, int], strength: float
) -> None:
    """A plan is a copy exactly if every corner lies within the tolerance of a whole voxel."""
    matrix = np.c_[turn, shift] + np.reshape(off, (3, 4)) * strength
    corners = np.array([[*c, 1] for c in itertools.product(*((0, n - 1) for n in shape))])
    error = np.abs(corners @ (matrix - np.round(matrix)).T).max()
    if abs(error - COPY_TOLERANCE) < 1e-9:
        return  # within rounding of the limit

    assert (whole_rows(affine3x4(matrix), shape) is not None) == (error < COPY_TOLERANCE)


def test_a_shift_may_make_up_for_a_scale() -> None:
    """An end that is 1.5 tolerances off is within one once the whole lies half of it lower."""
    matrix = np.eye(4)
    matrix[0, 0], matrix[0, 3] = 1 + 1.5 * COPY_TOLERANCE / 99, -0.75 * COPY_TOLERANCE

    assert whole_rows(affine3x4(matrix), (100, 1, 1)) is not None


@given(grids, degrees, st.tuples(*[st.integers(-9, 12)] * 3))
def test_what_is_remembered_is_what_would_be_computed(grid: Grid, turn: Any, start: Any) -> None:
    """Asked again, for image and label in turn, the regions are those of the first time."""
    crop = FixedPatch(start, (8, 8, 8))
    plan = SpatialPlan.identity(grid).crop(crop.start, crop.size)
    plan = Rotate(0).then(plan, {"degrees": turn})

    for policy in (INTENSITY, LABEL, INTENSITY):
        args = (plan.rows, plan.shape, plan.bounds, policy.mode, policy.padding)
        assert plan.source_region(policy) == source_region.__wrapped__(*args)
    assert plan.source_region() == SpatialPlan.from_json(plan.to_json()).source_region()


class Ct:
    """A volume without voxels."""

    name = "ct.nii"
    grid = oblique((10, 20, 30), (0.7, 0.7, 2.5))


STEPS = (
    Step(UniformPatch((8, 8, 8)), "lazy_patch"),
    Step(Rotate((-15, 15)), "rotate"),
    Step(Zoom((0.9, 1.1)), "zoom"),
    Step(Flip(p=0.5), "flip"),
)


def test_steps_at_once_are_steps_one_by_one() -> None:
    """The same plan, the same draws, and the same refusal of a stream used twice."""
    start = TransformChain({"image": Ct()}, 7, 1, (3, 4))
    one_by_one = start
    for step in STEPS:
        one_by_one = one_by_one.then(step)

    at_once = start.then(*STEPS)

    assert at_once.steps == one_by_one.steps
    assert at_once.plan == one_by_one.plan
    assert at_once.draws == one_by_one.draws
    for again in (lambda: at_once.then(STEPS[1]), lambda: start.then(STEPS[1], *STEPS)):
        with pytest.raises(GraphError, match="'rotate'"):
            again()


@dataclass(frozen=True)
class AsAnother:
    """An op that asks for the plan of another item in the middle of its own draw."""

    other: TransformChain
    name: ClassVar[str] = "as_another"
    lattice: ClassVar[bool] = True

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> dict[str, Any]:
        """Return numbers drawn before and after the other plan was worked out."""
        before = generator.random()
        size = self.other.draws["lazy_patch"]
        return {"numbers": [before, generator.random()], "size": size}

    def then(self, plan: SpatialPlan, drawn: Any) -> SpatialPlan:
        """Return the plan as it is."""
        return plan

    def describe(self) -> str:
        """Return a word."""
        return "as another"


def test_a_plan_inside_a_plan_draws_its_own_numbers() -> None:
    """The generator of a step is its own until the step has drawn."""
    other = TransformChain({"image": Ct()}, 7, 1, (9, 9), STEPS)
    outer = TransformChain({"image": Ct()}, 7, 1, (3, 4)).then(Step(AsAnother(other), "as_another"))

    drawn = outer.draws["as_another"]

    expected = Stream(7, 1, (3, 4), "as_another").generator().random(2).tolist()
    assert drawn is not None
    assert drawn["numbers"] == expected


def test_the_samples_of_a_chain_share_their_steps() -> None:
    """Steps are joined once per chain, and travel once per job, however many samples there are."""
    cases = [{"image": f"data/{n}.npy", "label": f"data/{n}_seg.npy"} for n in range(3)]
    opened = from_cases(cases).open_volume()
    chain = opened.lazy_patch((8, 8, 8), samples_per_volume=4).rotate((-15, 15)).flip(p=0.5)

    pendings = [sample["image"].pending for sample in chain]
    sent = pickle.loads(pickle.dumps(pendings))

    for plans in (pendings, sent):
        assert len(plans) == 12
        assert len({id(plan.steps) for plan in plans}) == 1
        assert len({plan.identity for plan in plans}) == 12
    assert [step.depth for step in sent[0].steps] == [2, 2, 2]


def test_chains_that_branch_keep_their_own_steps() -> None:
    """One pipe that is fed by two chains in turn gives each sample the steps of its own."""
    source = from_cases([{"image": "data/0.npy"}, {"image": "data/1.npy"}]).open_volume()
    turned, flipped = source.rotate((-15, 15)), source.flip(p=0.5)
    last = source.zoom((0.9, 1.1))
    samples = [s for pair in zip(list(turned), list(flipped), strict=True) for s in pair]

    names = [[step.stream_name for step in last.apply(s)["image"].pending.steps] for s in samples]

    assert names == [["rotate", "zoom"], ["flip", "zoom"]] * 2


def test_a_bound_region_of_no_voxel_gives_nothing() -> None:
    """Where a hard crop left nothing, no voxel is read."""
    nothing = Region((3, 3, 3), (3, 5, 5))
    plan = SpatialPlan(Ct.grid, np.eye(4), SHAPE, bounds=nothing)

    assert nothing.is_empty
    assert plan.source_region().is_empty


def test_a_matrix_of_tuples_is_a_matrix():
    """Only twelve plain numbers are taken for rows; what has rows of its own is a matrix."""
    grid = Grid((4, 4, 4), np.eye(4))
    nested = tuple(tuple(row) for row in np.eye(4).tolist())

    assert SpatialPlan(grid, nested, (4, 4, 4)).rows == SpatialPlan.identity(grid).rows
    assert SpatialPlan.identity(grid).then(nested, (2, 2, 2), lattice=True).shape == (2, 2, 2)


def test_a_placed_patch_needs_a_place() -> None:
    """It begins where its item says, and nowhere if nothing says so."""
    step = Step(PlacedPatch((0, 0, 0), (2, 2, 2)), "lazy_patch")
    generator, plan = np.random.default_rng(0), SpatialPlan.identity(Grid(SHAPE, np.eye(4)))
    assert step.draw(generator, plan, (3, 4, 5)) == {"start": [3, 4, 5], "size": [2, 2, 2]}
    with pytest.raises(PatchSizeError, match="nothing says where a placed patch begins"):
        step.draw(generator, plan)


def test_one_generator_draws_for_places_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is restarted, for the next patch, too: making one takes longer than all draws."""
    made, make = [], Stream.generator
    monkeypatch.setattr(Stream, "generator", lambda stream: made.append(stream) or make(stream))
    SPARE_GENERATORS.clear()
    pipe = from_cases([{"image": np.zeros(SHAPE, np.int16)}] * 3).open_volume().lazy_patch(8)

    drawn = [sample["image"].draws for sample in pipe.rotate((-5, 5)).noise((0, 1)).gamma((1, 2))]

    assert len({str(one) for one in drawn}) == 3
    assert len(made) == 1
