"""The package does not grow unnoticed: who needs more raises a limit here, and says why."""

import sys

from checkout import ROOT

sys.path.insert(0, str(ROOT / "tools"))
from count_tree import circles_of, count, imports_in, read_modules

# 261, and three that were parts of others: the cost model, the page-locking of slots, and the cache
# of decoded chunks, whose rule stands in NumPy beside the calls that follow it; nine: recipes (4),
# layouts of others, ops on channels and on masks, steps of whole batches and their pipes; and
# prediction: windows, sums, outputs, checkpoints, files (17); and bridges (5): pipes of MONAI and
# of TorchIO, what both share, which of MONAI's transforms are pipes, Lightning's data module;
# nnU-Net's trainers, and what they get their batches from (3); lists of cases, and numbers in
# another type; a file that is written box by box, apart from what is saved in one.
MODULES = 301
# 62 000, and threads that make batches (700), chunks (460) and values (240) that go to native code
# in one call, predictions from measured parts, of threads too (590), counted pages of mapped files
# (160), settings of the environment that are refused when a loader is made (80), shards in the page
# cache that native code reads itself (180), heads of two modules, what a newcomer asked for (80),
# chunks that it plans and finds, beside NumPy's way to do so (300), nnU-Net's
# recipe: plans, layouts of data sets, and what its transforms lacked, each channel's draws, masks,
# regions, scales of labels (2 150), whole volumes predicted out of core, brought back to their
# stored grid and saved (2 700), stitched beside the model, in the order of files (120), known
# again by all that they are made of (560), transforms
# and data of MONAI, TorchIO and Lightning (1 200), nnU-Net's trainers (500), what is wrong with
# tables, splits and plans of others, said (160), chains written as the code that makes them (190),
# what branches and stitch do, explained, lists that are predicted and NaN that is refused (160),
# what two first-time readers stumbled over: paths, arguments, cases and models, told (150), sums
# of windows in one pass, copied natively into the order of a file (10), a file that is another one
# of the same size and times, told (30), where a result is copied natively, said once (10), rows of
# a result that are written, not mapped (80), windows checked beside those that are added (40), what
# else two readers found in predictions: errors in their order, volumes of one name (80).
LINES = 73_355
FOLDERS = 30  # recipes, stitching, prediction; nnU-Net imports all that lies beside its trainers
SMALL = 3
CIRCLES = 0
# C++: 3 900 and values in native passes (770), chunks that are planned and placed (305), less what
# one tile loop for every map saved. It is to become less.
NATIVE = 4_600


def test_the_package_does_not_grow():
    """`python tools/count_tree.py --list` names what is counted."""
    counts = count(read_modules())
    assert counts.modules <= MODULES
    assert counts.lines <= LINES
    assert counts.folders <= FOLDERS
    assert len(counts.small) <= SMALL
    assert len(counts.circles) <= CIRCLES
    native = ROOT / "native"
    assert sum(len(file.read_text().splitlines()) for file in native.iterdir()) <= NATIVE


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
