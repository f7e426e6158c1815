import pytest
from torch.utils.data import IterDataPipe

from voxpipe.graph import Cut, NoCut, Traits, cut, walk


class Node(IterDataPipe):
    """A pipe with nothing but a name and traits."""

    def __init__(self, name, parent=None, **traits):
        self.name = name
        if parent is not None:
            self.parent = parent
        self.kind = Traits(**traits)

    @property
    def traits(self):
        return self.kind

    def describe(self):
        return self.name


def chain(*specs):
    pipe = None
    for name, traits in specs:
        pipe = Node(name, pipe, **traits)
    return pipe


ITEM = {"per_item": True}
VOXELS = {"per_item": True, "voxels": True}
OPAQUE = {"per_item": True, "runs_user_code": True}
BATCH = {"voxels": True, "group": 4}


def names(pipes):
    return [p.name for p in pipes]


@pytest.mark.parametrize(
    ("specs", "planner", "realizing", "group"),
    [
        # the plain chain: everything but the batch is planning
        (
            [("list", {}), ("patch", {}), ("augment", ITEM), ("batch", BATCH)],
            "augment",
            ["batch"],
            4,
        ),
        # voxels first, then value pipes, then the batch
        (
            [("list", {}), ("patch", {}), ("realize", VOXELS), ("norm", ITEM), ("batch", BATCH)],
            "patch",
            ["realize", "norm", "batch"],
            4,
        ),
        # a user's function on batches runs where the batch is made
        ([("list", {}), ("batch", BATCH), ("map", OPAQUE)], "list", ["batch", "map"], 4),
        # a user's function on lazy samples may read voxels: it goes to the worker
        ([("list", {}), ("map", OPAQUE), ("batch", BATCH)], "list", ["map", "batch"], 4),
        # ... unless a planning pipe follows it
        (
            [("list", {}), ("map", OPAQUE), ("shuffle", {}), ("batch", BATCH)],
            "shuffle",
            ["batch"],
            4,
        ),
        # nothing that needs voxels: all is planning
        ([("list", {}), ("shuffle", {})], "shuffle", [], 1),
        # no batch: each item is a job
        ([("list", {}), ("realize", VOXELS)], "list", ["realize"], 1),
    ],
)
def test_where_the_cut_falls(specs, planner, realizing, group):
    """The cut falls at the first pipe that needs voxels or may."""
    split = cut(chain(*specs))

    assert isinstance(split, Cut)
    assert (split.planner.name, names(split.realizing), split.group) == (planner, realizing, group)


@pytest.mark.parametrize(
    "specs",
    [
        [("list", {}), ("realize", VOXELS), ("filter", {}), ("batch", BATCH)],
        [("list", {}), ("realize", VOXELS), ("shuffle", {})],
        [("list", {}), ("batch", BATCH), ("again", {"group": 2})],
    ],
    ids=["filter", "shuffle", "two batches"],
)
def test_no_cut_names_the_pipe(specs):
    """A pipe after voxels that does not take its items one by one makes the cut impossible."""
    split = cut(chain(*specs))

    assert isinstance(split, NoCut)
    assert "does not take its items one by one" in split.reason
    assert specs[-2][0] in split.reason or specs[-1][0] in split.reason


def test_the_realizing_part_moves_onto_another_source():
    """onto() puts copies of the pipes on a new source and leaves the graph alone."""
    sink = chain(("list", {}), ("realize", VOXELS), ("batch", BATCH))
    split = cut(sink)
    source = Node("handoff")

    moved = split.onto(source)

    assert names(walk(moved)) == ["handoff", "realize", "batch"]
    assert names(walk(sink)) == ["list", "realize", "batch"]
