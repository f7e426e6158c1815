"""Packages of others that cannot be imported, take names, or register backends when imported."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys, threading, warnings
warnings.simplefilter("always")
import h5py, numpy as np
import voxpipe as vp
from voxpipe.volumes.registry import registered_names
with h5py.File(sys.argv[1] + "/a.h5", "w") as file:
    file["d"] = np.ones((2, 3, 4), "i2")
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    print(vp.Volume(sys.argv[1] + "/a.h5").shape, "tiff" in registered_names())
print(sum("broken_package" in str(one.message) for one in seen))
"""
TWO_THREADS = """
import sys, threading
import h5py, numpy as np
import voxpipe as vp
with h5py.File(sys.argv[1] + "/a.h5", "w") as file:
    file["d"] = np.ones((2, 3, 4), "i2")
both = threading.Barrier(2)
sys.modules["meeting"] = both
def open_it():
    print(vp.Volume(sys.argv[1] + "/a.h5").shape)
def import_it():
    both.wait(30)
    import registering_package
threads = [threading.Thread(target=each, daemon=True) for each in (open_it, import_it)]
for each in threads: each.start()
for each in threads: each.join(60)
print([each.is_alive() for each in threads])
"""

BROKEN_POINTS = """
[voxpipe.frameworks]
json = broken_package:missing
os = broken_package:returns_words
sys = broken_package:raises
[voxpipe.epochs]
json = broken_package:missing
os = broken_package:returns_words
sys = broken_package:raises
[voxpipe.lint_rules]
absent = broken_package:missing
odd = broken_package:yields_numbers
raising = broken_package:yields_then_raises
[voxpipe.decoders]
mine = broken_package:missing
[voxpipe.formats]
own = broken_package:missing
wrong = broken_package:returns_words
[voxpipe.sources]
broken_package = broken_package:missing
"""
BROKEN = """
class Scan: pass
def returns_words(frame): return "three"
def raises(frame): return 1 / 0
def yields_numbers(pipe): yield 3
def yields_then_raises(pipe):
    yield pipe, "an effect", "a fix"
    raise KeyError("a")
"""
USES = """
import warnings
import numpy as np
import broken_package
import voxpipe as vp
from voxpipe.volumes.chunks.ranged_chunks import decoder_factory
from voxpipe.volumes.registry import registered_names
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    chain = vp.from_cases([{"image": np.zeros((2, 3, 4))}]).open_volume().batch_patches(1)
    for epoch in (3, 4):
        loader = vp.DataLoader2(chain)
        loader.sampler.set_epoch(epoch)
        case = vp.from_cases([{"image": broken_package.Scan(), "b": np.zeros((2, 3, 4))}])
        sample = next(iter(case.open_volume()))
        print(next(iter(loader))["meta"][0]["epoch"], vp.Lint().mistakes(chain))
        print(type(sample["image"]).__name__, decoder_factory("mine"), "own" in registered_names())
for text in sorted(str(one.message) for one in seen):
    print(text.partition(", and is left out: ")[0])
"""


def run(folder, script, package, points, source):
    """Return the lines of a script that sees one more installed package."""
    info = folder / f"{package}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(points)
    (folder / f"{package}.py").write_text(source)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(folder)!r})\n{script}",
            folder,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_package_that_cannot_be_imported(tmp_path):
    """Its formats are left out with a warning; all others stay."""
    points = "[voxpipe.formats]\nbroken = broken_package:FORMAT\n"

    lines = run(tmp_path, SCRIPT, "broken_package", points, "import there_is_no_such_module")

    assert lines == ["(1, 2, 3, 4) True", "1"]


def test_a_package_with_the_names_of_voxpipe(tmp_path):
    """The names stay voxpipe's, whatever the order of folders."""
    points = "[voxpipe.formats]\nhdf5 = broken_package:FORMAT\n"
    points += "[voxpipe.forms]\nrepeat = broken_package\n"

    lines = run(tmp_path, SCRIPT, "broken_package", points, "FORMAT = ()")

    assert lines == ["(1, 2, 3, 4) True", "1"]


@pytest.mark.slow
def test_names_of_the_engine_and_of_torch_are_not_replaced(tmp_path):
    """One warning for each name says whose it is; the engine's and torch's objects stay."""
    points = "[voxpipe.forms]\nrotate = taking_package:Mine\nbatch = taking_package:Mine\n"
    points += (
        "map.shuffle = taking_package:Mine\n[voxpipe.adapters]\nTimeout = taking_package:Mine\n"
    )
    script = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import voxpipe as vp
    print(vp.adapters.Timeout.__module__)
    pipe = vp.from_cases([{"image": "a.nii"}]).open_volume().rotate(15).batch(1)
for text in sorted(str(one.message) for one in seen):
    print(text)
"""
    lines = run(tmp_path, script, "taking_package", points, "class Mine: pass")

    text = "voxpipe.{} = taking_package:Mine of taking_package has a name of {}, and is left out"
    assert lines == [
        "voxpipe.adapters.timeout",
        text.format("adapters: Timeout", "voxpipe"),
        text.format("forms: batch", "torch"),
        text.format("forms: map.shuffle", "torch"),
        text.format("forms: rotate", "voxpipe"),
    ]


@pytest.mark.parametrize("first", ["a registration", "a format"])
def test_a_package_that_registers_while_formats_load(tmp_path, first):
    """Two threads, one opens a file, one imports the package: neither waits for the other."""
    points = "[voxpipe.formats]\nregistering = registering_package:FORMAT\n"
    register = 'vp.register_backend("own", lambda request: False, print)\n'
    wait = 'sys.modules["meeting"].wait(30)\n' if first == "a format" else ""
    source = f"import sys\nimport voxpipe as vp\n{wait}{register}FORMAT = ()\n"
    script = TWO_THREADS if wait else TWO_THREADS.replace("both.wait(30)", "pass")

    assert run(tmp_path, script, "registering_package", points, source) == [
        "(1, 2, 3, 4)",
        "[False, False]",
    ]


@pytest.mark.slow
def test_an_installation_without_metadata(tmp_path):
    """One warning says why extensions are unavailable, and how to get them; the engine works."""
    script = """
import importlib.metadata, sys, warnings
open(sys.argv[1] + "/a.h5", "w").close()
importlib.metadata.entry_points = lambda **_: importlib.metadata.EntryPoints()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    import numpy as np
    import voxpipe as vp
    vp.Volume(np.zeros((2, 3, 4))).shape
    try: vp.Volume(sys.argv[1] + "/a.h5").shape
    except vp.errors.UnknownFormat as error: print("format")
    try: vp.from_cases([{"a": 1}]).map_monai()
    except AttributeError: print("form")
print([str(one.message)[-21:] for one in seen if "metadata" in str(one.message)])
"""
    lines = run(tmp_path, script, "other_package", "[voxpipe.lint_rules]\n", "")

    assert lines == ["format", "form", "['it again: pip install']"]


def test_an_object_of_a_package_is_a_volume_in_cases(tmp_path):
    """Objects with a source are opened; other objects of the package travel along."""
    source = """
import numpy as np
from voxpipe.volumes.array_source import from_array
from voxpipe.volumes.header import IDENTITY
class Scan: pass
class Note: pass
def source_of(thing, options):
    return from_array(np.ones((1, 2, 3, 4), "i2"), IDENTITY) if isinstance(thing, Scan) else None
"""
    script = """
import own_package
import voxpipe as vp
case = {"image": own_package.Scan(), "note": own_package.Note()}
sample = next(iter(vp.from_cases([case]).open_volume()))
print(sample["image"].shape, type(sample["note"]).__name__)
"""
    points = "[voxpipe.sources]\nown_package = own_package:source_of\n"

    assert run(tmp_path, script, "own_package", points, source) == ["(1, 2, 3, 4) Note"]


def test_every_broken_entry_point_is_left_out_with_one_warning(tmp_path):
    """Of all groups: it names the point and its package, and the epoch goes on."""
    lines = run(tmp_path, USES, "broken_package", BROKEN_POINTS, BROKEN)

    point = "voxpipe.{}: {} = broken_package:{} of broken_package {}"
    assert lines[:4] == ["3 []", "Scan None False", "4 []", "Scan None False"]
    assert lines[4:] == [
        point.format("decoders", "mine", "missing", "cannot be imported"),
        point.format("epochs", "json", "missing", "cannot be imported"),
        point.format("epochs", "os", "returns_words", "failed"),
        point.format("epochs", "sys", "raises", "failed"),
        point.format("formats", "own", "missing", "cannot be imported"),
        point.format("formats", "wrong", "returns_words", "names no Format, and is left out"),
        point.format("frameworks", "json", "missing", "cannot be imported"),
        point.format("frameworks", "os", "returns_words", "failed"),
        point.format("frameworks", "sys", "raises", "failed"),
        point.format("lint_rules", "absent", "missing", "cannot be imported"),
        point.format("lint_rules", "odd", "yields_numbers", "failed"),
        point.format("lint_rules", "raising", "yields_then_raises", "failed"),
        point.format("sources", "broken_package", "missing", "cannot be imported"),
    ]
