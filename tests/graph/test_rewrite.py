import pytest
from torch.utils.data import IterDataPipe

from voxpipe.core.errors import GraphError
from voxpipe.graph import (
    Change,
    Refused,
    Rule,
    explain_graph,
    explain_rewritten,
    parents_of,
    settle,
    walk,
    with_parents,
)


class Numbers(IterDataPipe):
    def __iter__(self):
        return iter(range(3))

    def describe(self):
        return "numbers"


class Apply(IterDataPipe):
    def __init__(self, parent, *functions):
        self.parent, self.functions = parent, functions

    def __iter__(self):
        for item in self.parent:
            for function in self.functions:
                item = function(item)
            yield item

    def describe(self):
        return "+".join(f.__name__ for f in self.functions)


class Wrap(IterDataPipe):
    def __init__(self, parent):
        self.parent = parent

    def __iter__(self):
        return iter(self.parent)

    def describe(self):
        return "wrap"


class Both(IterDataPipe):
    def __init__(self, left, right):
        self.left, self.right = left, right

    def __iter__(self):
        yield from zip(list(self.left), list(self.right), strict=True)

    def describe(self):
        return "both"


def inc(x):
    return x + 1


def dbl(x):
    return 2 * x


def neighbours(site):
    second = site.pipe
    if not (isinstance(second, Apply) and isinstance(second.parent, Apply)):
        return None
    if site.is_shared(second.parent):
        return Refused(f"{second.parent.describe()} has another reader")
    return second.parent, second


def unwrapped(site):
    parents = parents_of(site.pipe)
    bare = any(not isinstance(p, Wrap) for p in parents)
    return site if bare and not isinstance(site.pipe, Wrap) else None


def wrap_parents(site):
    parents = [p if isinstance(p, Wrap) else Wrap(p) for p in parents_of(site.pipe)]
    return with_parents(site.pipe, parents)


FUSE = Rule(
    "fuse",
    neighbours,
    lambda pair: Apply(pair[0].parent, *pair[0].functions, *pair[1].functions),
)
WRAP = Rule("wrap", unwrapped, wrap_parents)


def test_a_chain_fuses_to_one_and_the_input_stays():
    """Three applications become one pipe; the graph that was given is as before."""
    graph = Apply(Apply(Apply(Numbers(), inc), dbl), inc)
    before = explain_graph(graph)

    after = settle(graph, [FUSE]).after

    assert explain_graph(graph) == before
    assert list(after) == list(graph) == [3, 5, 7]
    assert [p.describe() for p in walk(after)] == ["numbers", "inc+dbl+inc"]


def test_a_shared_pipe_is_refused_with_its_reason():
    """A pipe with two readers is not swallowed by one of them."""
    shared = Apply(Numbers(), inc)
    graph = Both(Apply(shared, dbl), Apply(shared, inc))

    result = settle(graph, [FUSE])

    assert not result.has_changes
    assert result.after is graph
    assert {c.reason for c in result.changes} == {"inc has another reader"}


def test_sharing_survives_a_rewrite_above_it():
    """What two pipes shared before, they share after."""
    shared = Apply(Apply(Numbers(), inc), inc)
    graph = Both(Apply(shared, dbl), Apply(shared, inc))

    after = settle(graph, [FUSE]).after

    assert after.left.parent is after.right.parent
    assert [p.describe() for p in walk(after)] == ["numbers", "inc+inc", "dbl", "inc", "both"]


@pytest.mark.parametrize("rule", [FUSE, WRAP], ids=["merge", "wrap"])
def test_settled_stays_settled(rule):
    """Applying the rules again gives the very same object."""
    graph = Both(Apply(Apply(Numbers(), inc), dbl), Apply(Numbers(), inc))
    once = settle(graph, [rule]).after

    assert settle(once, [rule]).after is once
    assert once is not graph
    assert list(once) == list(graph)


def test_rules_that_undo_each_other_are_named():
    """A graph that never settles tells which rules fight."""

    def swap(old, new):
        def match(site):
            fits = isinstance(site.pipe, Apply) and site.pipe.functions == (old,)
            return site.pipe if fits else None

        return Rule(f"{old.__name__} to {new.__name__}", match, lambda p: Apply(p.parent, new))

    with pytest.raises(GraphError, match="'dbl to inc', 'inc to dbl'"):
        settle(Apply(Numbers(), inc), [swap(dbl, inc), swap(inc, dbl)])


def test_explain_shows_before_and_after():
    """The two graphs stand side by side, and each change on a line of its own."""
    graph = Apply(Apply(Numbers(), inc), dbl)
    result = settle(graph, [FUSE])

    lines = explain_rewritten(graph, result.after, result.changes).splitlines()

    assert lines[0].split() == ["as", "written", "as", "it", "runs"]
    assert lines[2].split() == ["1", "inc", "1", "inc+dbl"]
    assert lines[3] == "2 dbl"
    assert lines[-1] == "changed  dbl → inc+dbl   (fuse)"


def first_inc(site):
    is_inc = isinstance(site.pipe, Apply) and site.pipe.functions == (inc,)
    return site.pipe if is_inc else None


def test_a_pipe_that_is_removed_is_left_out():
    """Its readers read what it read; the change says so, and does not name that pipe."""
    graph = Apply(Apply(Numbers(), inc), dbl)

    result = settle(graph, [Rule("drop", first_inc, lambda pipe: pipe.parent)])

    assert [type(pipe) for pipe in walk(result.after)] == [Numbers, Apply]
    assert str(result.changes[0]) == "changed  inc → left out   (drop)"


def test_what_a_rule_builds_is_a_pipe():
    """A build that forgets to return is named, with the pipe that it was for."""
    with pytest.raises(GraphError, match="rule 'drop' built NoneType of inc, which is no pipe"):
        settle(Apply(Numbers(), inc), [Rule("drop", first_inc, lambda pipe: None)])


def test_explain_counts_what_is_only_watched():
    """A pipe that looks the same as before is not worth a line of its own."""
    graph = Wrap(Numbers())
    changes = [Change("time pipes", "a", became="a"), Change("time pipes", "b", became="b")]

    lines = explain_rewritten(graph, graph, changes).splitlines()

    assert lines[-1] == "watched  2 pipes   (time pipes)"


def test_explain_names_the_branches():
    """A pipe with two parents says which lines it reads."""
    graph = Both(Apply(Numbers(), inc), Numbers())

    assert explain_graph(graph).splitlines()[-1] == "3 both   ← 1, 2"
