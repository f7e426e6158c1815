"""Each mistake that Lint names, in a chain that has it beside one that has not."""

import dataclasses
import dis
import functools
import itertools
import os
import re
import warnings
from typing import ClassVar

import numpy as np
import pytest
from checkout import ROOT
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.adapters import Lint, unregister_lint_rule
from voxpipe.core.errors import LintWarning
from voxpipe.datapipes.cost import measure_access
from voxpipe.datapipes.iter import Prefetcher, Repeater
from voxpipe.datapipes.values import ValuePipe


def same(x):
    return x


def cases(count=3):
    return vp.from_cases([{"image": np.zeros((8, 8, 8), np.float32)}] * count)


def patches(each=4):
    return cases().shuffle().open_volume().lazy_patch(4, samples_per_volume=each)


PAIRS = {
    "unshuffled-shards": (
        lambda: IterableWrapper(range(4)).sharding_filter().map(same),
        lambda: IterableWrapper(range(4)).shuffle().sharding_filter().map(same),
    ),
    "one-volume-batches": (
        lambda: patches().batch_patches(2),
        lambda: patches().shuffle().batch_patches(2),
    ),
    "own-state": (
        lambda: patches(1).batch_patches(2).map(functools.partial(next, itertools.count())),
        lambda: patches(1).batch_patches(2).map(functools.partial(dict, level=1)),
    ),
    "twice-interpolated": (
        lambda: patches(1).rotate((-5, 5)).flush().rotate((-5, 5)).batch_patches(2),
        lambda: patches(1).rotate((-5, 5)).rotate((-5, 5)).flush().batch_patches(2),
    ),
    "repeated-draws": (
        lambda: Repeater(patches(1), 2).batch_patches(2),
        lambda: patches(2).shuffle().batch_patches(2),
    ),
    "planned-functions": (
        lambda: IterableWrapper(range(4)).shuffle().map(same).shuffle().batch(2),
        lambda: IterableWrapper(range(4)).shuffle().sharding_filter().map(same).shuffle().batch(2),
    ),
}


def names(pipe):
    return [mistake.name for mistake in Lint().mistakes(pipe)]


@pytest.mark.parametrize("name", PAIRS)
def test_a_mistake_is_named_and_its_mending_is_clean(name):
    """The second chain is the first as the message says that it should be."""
    wrong, right = PAIRS[name]

    assert name in names(wrong())
    assert name not in names(right())


def test_every_mistake_is_on_the_page():
    """With its code, and no other."""
    page = (ROOT / "docs" / "lint.md").read_text("utf-8")
    rows = re.findall(r"^## (VX\d+) ([a-z-]+)$", page, re.MULTILINE)

    elsewhere = {"frozen-draws", "whole-volumes", "idle-workers"}
    assert {name for _, name in rows} == {*PAIRS, *elsewhere}
    assert [code for code, _ in rows] == [f"VX{number}" for number in range(101, 110)]
    for code, name in rows:  # each code belongs to its name
        assert Lint(ignore=[code]).ignore == {name}


def test_a_mistake_has_the_severity_of_the_page():
    """High where batches are worse, low where time is lost."""
    page = (ROOT / "docs" / "lint.md").read_text("utf-8")
    severities = dict(re.findall(r"^## VX\d+ ([a-z-]+)\n\nSeverity: (\w+)", page, re.MULTILINE))
    for name, (wrong, _) in PAIRS.items():
        (mistake,) = [each for each in Lint().mistakes(wrong()) if each.name == name]
        assert mistake.severity == severities[name]
        high = [each.name for each in Lint(severity="high").mistakes(wrong())]
        assert (name in high) == (mistake.severity == "high")
    with pytest.raises(ValueError, match="severity is one of 'high', 'low'"):
        Lint(severity="medium")


@dataclasses.dataclass(frozen=True)
class Halve(vp.intensity.ValueOp):
    name: ClassVar[str] = "halve"
    pointwise: ClassVar[bool] = True

    def apply(self, array, params, facts):
        return np.multiply(array, 0.5, out=array)


class HalvePipe(ValuePipe, op=Halve):
    """A pipe of a user that defines no function: workers run its op."""


QUIET = {
    "an op of a user": lambda: HalvePipe(cases().open_volume()).batch_patches(2),
    "interleaved": lambda: patches().interleave(visits=2).batch_patches(2),
    "shuffled shares": lambda: (
        IterableWrapper(range(4)).shuffle().sharding_filter().map(same).shuffle().batch(2)
    ),
    "a lambda that stays here": lambda: cases().shuffle().filter(lambda case: True).open_volume(),
    "ahead and on a device": lambda: Prefetcher(patches(1).batch_patches(2).to_device("cpu"), 2),
}


@pytest.mark.parametrize("name", QUIET)
def test_what_looks_like_a_mistake_and_is_none(name):
    """No false alarm."""
    assert names(QUIET[name]()) == []


ADAPTERS = [
    vp.FuseSpatial(),
    vp.OnError("skip"),
    vp.Timeout(item=60),
    vp.Profile(),
]


def test_what_adapters_leave_is_no_mistake():
    """Given last, it looks at the graph as it runs."""
    chain = patches().shuffle().rotate((-5, 5)).batch_patches(2)
    for adapter in ADAPTERS:
        chain = adapter(chain)

    assert names(chain) == []


def test_patches_of_a_grid_follow_each_other_too():
    """Their number depends on the volume: 'all'."""
    chain = cases().open_volume().lazy_patch(4, sampling="grid").batch_patches(2)

    (mistake,) = Lint().mistakes(chain)
    assert mistake.message.startswith("all patches of a volume")


def test_a_frozen_cache_is_told_by_the_name_of_the_pipe(monkeypatch):
    """Whoever wrote the pipe."""
    from torch.utils.data import IterDataPipe

    class Cache(IterDataPipe):
        def __init__(self, parent):
            self.parent = parent

    functions = dict(IterDataPipe.functions)
    monkeypatch.setattr(IterDataPipe, "functions", functions)
    functions.pop("in_memory_cache", None)
    IterDataPipe.register_datapipe_as_function("in_memory_cache", Cache)

    assert "frozen-draws" in names(Cache(patches()))
    assert "frozen-draws" not in names(Cache(cases().open_volume()))


def test_a_warning_says_what_where_and_what_to_do():
    """Three lines: the name and what follows from it, the user's line, the fix."""
    chain = patches().batch_patches(2)

    with pytest.warns(LintWarning) as told, vp.DataLoader2(chain, Lint()):
        pass

    lines = str(told[0].message).splitlines()
    assert lines[0].startswith("VX102 one-volume-batches: 4 patches of a volume")
    assert re.fullmatch(rf"  at .batch_patches\(2\)\s+{os.path.basename(__file__)}:\d+", lines[1])
    assert ".shuffle() after .lazy_patch()" in lines[2]


@pytest.mark.parametrize("each", ["n", lambda sample: sample["n"]])
def test_numbers_by_case_are_several(each):
    """A key and a function may say 1 for a case, and many for another."""
    data = [{"image": np.zeros((8, 8, 8), np.float32), "n": 4}] * 3
    pipe = vp.from_cases(data).shuffle().open_volume().lazy_patch(4, samples_per_volume=each)

    mistakes = Lint().mistakes(pipe.batch_patches(2))

    texts = [str(one) for one in mistakes if one.code == "VX102"]
    assert len(texts) == 1
    assert "VX102 one-volume-batches: several patches of a volume" in texts[0]
    assert measure_access(pipe.batch_patches(2), 0, 0).demands["image"].draws == 4


def test_what_stays_in_the_process_of_the_loader_is_no_mistake():
    """A chain that ends on a device is split before that."""
    assert names(patches(1).shuffle().batch_patches(2).to_device("cpu")) == []


def test_what_is_ignored_is_not_told():
    """By name; the graph comes back as it is."""
    chain = patches().batch_patches(2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Lint(ignore=["one-volume-batches"])(chain) is chain
        assert Lint(ignore=["VX102"])(chain) is chain


@pytest.mark.parametrize("ignore", [["one-volume"], ["VX1"], [""], "idle-workers", "VX102"])
def test_unknown_names_are_refused(ignore):
    """With those that there are."""
    with pytest.raises(ValueError, match="unshuffled-shards"):
        Lint(ignore=ignore)


class Step:
    """One transform of many."""

    def __init__(self):
        self.count = 0

    def __call__(self, batch):
        return batch


class Steps:
    def __init__(self, count):
        self.steps = [Step() for _ in range(count)]

    def __call__(self, batch):
        return batch


def test_a_class_is_read_once_whatever_many_objects_it_has(monkeypatch):
    """Methods are disassembled by class, not by object; loaders need none of that."""
    codes = []
    read = dis.get_instructions
    monkeypatch.setattr(dis, "get_instructions", lambda code: codes.append(code) or read(code))
    few, many = (patches(1).batch_patches(2).map(Steps(count)) for count in (1, 900))

    assert names(few) == []
    assert len(codes) < 20
    codes.clear()
    assert names(many) == []
    assert codes == []


@pytest.fixture
def registered():
    """Register rules, and remove them afterwards."""
    names = []

    def register(name, rule, **options):
        names.append(name)
        vp.register_lint_rule(name, rule, **options)

    yield register
    for name in names:
        unregister_lint_rule(name)


def last(pipe):
    yield pipe, "it is the last", "Add one."


def test_a_rule_of_a_user_is_reported(registered):
    """With its code, severity and line; Lint ignores it by name and by code."""
    registered("is-last", last, code="LAB1", severity="low")
    chain = patches(1).batch_patches(2)

    (mistake,) = Lint().mistakes(chain)
    assert (mistake.name, mistake.code, mistake.severity) == ("is-last", "LAB1", "low")
    assert str(mistake).startswith("LAB1 is-last: it is the last\n  at .batch_patches(2)")
    for options in ({"ignore": ["is-last"]}, {"ignore": ["LAB1"]}, {"severity": "high"}):
        assert Lint(**options).mistakes(chain) == []
    unregister_lint_rule("is-last")
    unregister_lint_rule("is-last")
    assert Lint().mistakes(chain) == []


def test_a_rule_of_the_same_name_is_replaced(registered):
    """As backends are; without a code the name stands alone."""
    registered("is-last", lambda pipe: [(pipe, "first", "")], code="LAB1")
    registered("is-last", lambda pipe: [(pipe, "second", "Nothing.")])

    (mistake,) = Lint().mistakes(patches(1).batch_patches(2))
    assert str(mistake).startswith("is-last: second")
    with pytest.raises(ValueError, match="LAB1"):
        Lint(ignore=["LAB1"])


@pytest.mark.parametrize(
    ("name", "code", "owner"),
    [
        ("frozen-draws", "", "voxpipe"),
        ("mine", "VX103", "voxpipe"),
        ("VX103", "", "voxpipe"),
        ("mine", "idle-workers", "voxpipe"),
        ("mine", "LAB1", "another rule"),
        ("LAB1", "", "another rule"),
    ],
)
def test_a_name_or_code_of_another_rule_is_refused(registered, name, code, owner):
    """Nothing is registered then."""
    registered("is-last", last, code="LAB1")

    with pytest.raises(ValueError, match=f"belongs to a rule of {owner}"):
        vp.register_lint_rule(name, last, code=code)
    assert names(patches(1).batch_patches(2)) == ["is-last"]


@pytest.mark.parametrize("arguments", [("", last), (1, last), ("mine", "rule"), ("mine", last, 3)])
def test_a_rule_is_a_name_and_a_function(arguments):
    """A class of a mistake in the call itself."""
    name, rule, *code = arguments

    with pytest.raises(TypeError, match="takes a name, a function of a pipe and a code"):
        vp.register_lint_rule(name, rule, **dict.fromkeys(["code"], *code) if code else {})


def test_an_error_of_a_rule_is_raised(registered):
    """The rule is part of the user's program."""
    registered("broken", lambda pipe: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        Lint().mistakes(patches(1))
    assert Lint(ignore=["broken"]).mistakes(patches(1)) == []
