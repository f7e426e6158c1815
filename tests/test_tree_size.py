"""The package does not grow unnoticed."""

import sys

from checkout import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from count_tree import circles_of, count, imports_in, parts, read_modules

NATIVE = ROOT / "native"
# Bounds only fall: remove something before you add something. Decision 0041 lists the raises.
# Bounds of lines are multiples of STEP. A tree two steps below its bound has to lower it.
STEP = 100
LINES = {"engine": 71_700, "extensions": 23_100, "native": 4_700}
MODULES = {"engine": 249, "extensions": 99}
FOLDERS = 37
SMALL = 3
CIRCLES = 0


def test_the_package_does_not_grow():
    """`python tools/count_tree.py --list` names what is counted."""
    modules = read_modules()
    counts = count(modules)
    lines = {"native": sum(len(file.read_text().splitlines()) for file in NATIVE.iterdir())}
    for part, own in parts(modules).items():
        assert len(own) <= MODULES[part]
        lines[part] = sum(module.lines for module in own)
    for part, bound in LINES.items():
        assert lines[part] <= bound, part
        assert lines[part] > bound - 2 * STEP, f"lower the bound of {part}"
    assert counts.folders <= FOLDERS
    assert len(counts.small) <= SMALL
    assert len(counts.circles) <= CIRCLES


def test_imports_are_seen_wherever_they_stand():
    """At the top, in a function, for type checkers, of a module or of a name in it."""
    source = """
from .b import name
from . import c
if TYPE_CHECKING:
    import p.d
def late():
    from .none import thing
"""
    known = {"p.b", "p.c", "p.d", "p.e"}
    assert set(imports_in("p.a", source, False, known)) == {"p.b", "p.c", "p.d"}


def test_circles_are_groups_that_reach_each_other():
    """Two circles that touch are one; a chain is none."""
    chain = {name: [name - 1] for name in range(1, 3000)} | {0: []}
    assert circles_of(chain) == []
    circles = {"a": "b", "b": "a", "c": "ad", "d": "e", "e": "f", "f": "d", "g": "g"}
    assert circles_of(circles) == [("a", "b"), ("d", "e", "f")]
    assert circles_of(circles | {"a": "bd", "f": "dc"}) == [("a", "b", "c", "d", "e", "f")]
