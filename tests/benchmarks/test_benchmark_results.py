"""What the benchmarks make of what they measured: rates, ratios, verdicts, exact supports."""

import ast
import importlib.util
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from checkout import ROOT

import voxpipe as vp

FOLDER = ROOT / "benchmarks"


@pytest.fixture
def load(monkeypatch):
    """Return a function that imports a script of ``benchmarks/``, forgotten after the test."""
    monkeypatch.syspath_prepend(str(FOLDER))
    known = set(sys.modules)

    def script(name):
        # Not by its plain name: ``io`` is taken.
        path = FOLDER / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    yield script
    for name in set(sys.modules) - known:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def row(load):
    """Return a function that makes a row of the table."""
    results, processes = load("results"), load("processes")

    def make(what, rates, peak_mb=500, first=1.0, workers=2, target=None):
        peak = processes.Memory(peak_mb * 10**6)
        answers = [{"rate": r, "low": r, "high": r, "cpu_ms": 1, "first": first} for r in rates]
        rounds = [processes.Finished(json.dumps(answer), peak, 1) for answer in answers]
        return results.Result(what, workers, rounds, target=target)

    make.results = results
    return make


@pytest.mark.parametrize(("warm", "period", "taken"), [(0, 1, 1), (4, 1, 5), (0, 4, 4), (5, 4, 8)])
def test_whole_periods_come_before_the_clock(load, warm, period, taken):
    """Warming up ends with a period; then at least one whole period is measured."""
    seen = []

    def batches():
        while True:
            seen.append(1)
            yield 4

    found = load("steady").measure(
        batches(), lambda batch: batch, started=0.0, seconds=1e-9, warm=warm, period=period
    )

    assert len(seen) == taken + period
    assert found["rate"] > 0


def test_windows_hold_whole_periods(load):
    """A burst and the wait before it belong together."""
    # Two batches at once, every second.
    arrivals = [(float(1 + n // 2), 4) for n in range(12)]

    rates = load("steady").window_rates(arrivals, 0.0, period=2)

    assert rates == [8.0] * 6


def test_the_ratio_is_taken_within_each_round(row):
    """A slow minute that hits both rows does not change how they compare."""
    rows = [row("nii", [200, 20, 100]), row("peer", [10, 1, 4])]

    assert row.results.faster(rows[1], rows) == 20


def test_promises_are_judged(row):
    """Each promise has its line; the numbers that decide are in it."""
    rows = [
        row("nii", [160], peak_mb=700, first=3.5),
        row("nii, threads", [159], peak_mb=399),
        row("nii.gz", [120], peak_mb=650),
        row("converted", [90], peak_mb=650),
        row("nnunet recipe: blosc2", [10], peak_mb=900),
        row("slow peer", [2], peak_mb=900, target=60),
        row("small peer", [10], peak_mb=300, target=20),
    ]

    lines = row.results.verdicts(rows, size=96)

    assert [line.partition(" (")[0] for line in lines] == [
        "- FAIL: converted is 9.0 x nnunet recipe: blosc2",
        "- PASS: threads have 0.99 of the rate of processes from nii",
        "- FAIL: peak of all processes 700 MB from nii",
        "- PASS: peak of all processes 399 MB from nii, threads",
        "- FAIL: peak of all processes 650 MB from converted",
        "- FAIL: nii.gz has 0.75 of the rate of nii",
        "- PASS: 80.0 x slow peer",
        "- FAIL: 16.0 x small peer",
        "- FAIL: first batch after 3.50 s",
        "- FAIL: small peer took less memory than nii",
    ]


def test_other_settings_are_not_judged(row):
    """What was promised for patches of 96 and two workers says nothing about others."""
    assert row.results.verdicts([row("nii", [1])], size=64) == []
    assert row.results.verdicts([row("nii", [1], workers=1)], size=96) == []


def test_a_row_without_a_figure_says_why(row):
    """A peer that cannot be installed stays in the table."""
    rows = [row("nii", [1]), row.results.Result("peer", 2, (), "no such version")]

    assert (
        row.results.table(rows).splitlines()[-1] == "| peer | 2 | not measured: no such version |"
    )


@pytest.mark.parametrize("name", ["monai_lazy", "torchio_queue", "nnunet_recipe", "partition"])
def test_peers_are_measured_without_voxpipe(name):
    """What runs in a peer's environment imports neither voxpipe nor what only voxpipe needs."""
    tree = ast.parse((FOLDER / "peers" / f"{name}.py").read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert not {name.partition(".")[0] for name in names} & {"voxpipe", "phantom", "zarr"}


def test_every_peer_names_its_variants(load):
    """The script of each peer knows the variants that the list asks it for, and pins are exact."""
    for peer in load("peers/venvs").PEERS.values():
        text = peer.script.read_text()
        # nnU-Net has one way, which its script need not tell apart.
        assert len(peer.variants) == 1 or all(v.split(", ")[-1] in text for v in peer.variants)


def test_every_promise_is_judged(load):
    """A number that no script compares with is no promise, and rows of peers exist."""
    promises = load("promises")
    texts = [path.read_text("utf-8") for path in FOLDER.glob("*.py") if path.stem != "promises"]
    rows = {
        f"{peer.name.replace('_', ' ')}: {variant}"
        for peer in load("peers/venvs").PEERS.values()
        for variant in (*peer.variants, *peer.nnunet)
    }

    names = [name for name in vars(promises) if name.isupper()]

    assert len(names) > 10
    assert [n for n in names if not any(re.search(rf"promises\.{n}\b", t) for t in texts)] == []
    assert set(promises.FASTER) <= rows


def test_an_environment_is_made_once_for_its_pins(load, tmp_path, monkeypatch):
    """The same pins are not installed again; others are, into a fresh environment."""
    venvs = load("peers/venvs")
    made = []
    monkeypatch.setattr(
        venvs.venv, "create", lambda place, **_: (made.append("new"), place.mkdir())
    )
    monkeypatch.setattr(venvs, "_install", lambda python, pins: made.append(pins))
    peer = venvs.Peer("one", ("a==1",), ("x",))

    first, again = venvs.python_of(peer, tmp_path), venvs.python_of(peer, tmp_path)
    monkeypatch.setattr(venvs.venv, "create", lambda place, **_: made.append("new"))
    venvs.python_of(venvs.Peer("one", ("a==2",), ("x",)), tmp_path)

    assert first == again == tmp_path / "one" / "bin" / "python"
    assert made == ["new", [venvs.TORCH], ["a==1"], "new", [venvs.TORCH], ["a==2"]]


def test_pip_that_fails_is_quoted(load, tmp_path, monkeypatch):
    """The last line of pip becomes the reason; nothing counts as installed."""
    venvs = load("peers/venvs")
    monkeypatch.setattr(venvs.venv, "create", lambda place, **_: place.mkdir())
    answer = subprocess.CompletedProcess([], 1, "", "noise\nERROR: No matching distribution")
    monkeypatch.setattr(venvs.subprocess, "run", lambda *_, **__: answer)

    with pytest.raises(venvs.CannotInstall, match=r"torch==.*: ERROR: No matching distribution"):
        venvs.python_of(venvs.Peer("one", ("a==1",), ("x",)), tmp_path)

    assert list((tmp_path / "one").iterdir()) == []


@pytest.mark.parametrize(
    ("patch", "chunk", "block"),
    [
        ((128, 128, 128), (128, 128, 96), (32, 32, 32)),
        ((96, 160, 160), (96, 128, 128), (32, 32, 32)),
        ((16, 320, 320), (16, 384, 256), (4, 128, 64)),
    ],
)
def test_blosc2_volumes_are_cut_as_nnunet_cuts_them(load, patch, chunk, block):
    """The shapes that nnU-Net itself gives float32 volumes, for three of its patches."""
    assert load("peers/partition").partition((512, 512, 512), patch, 4) == (chunk, block)


def test_the_exact_support_of_a_copy_is_its_region(load):
    """A patch that is not turned needs the voxels that it shows, and no other."""
    array = np.zeros((20, 20, 20), np.int16)
    pipe = vp.from_cases([{"image": array}]).open_volume().crop((3, 4, 5), (6, 7, 8))

    (sample,) = list(pipe)

    assert load("io").exact_voxels(sample["image"]).sum() == 6 * 7 * 8


def test_the_exact_support_of_half_a_step_has_both_neighbours(load):
    """Linear interpolation between two voxels needs both, nearest needs one."""
    array = np.zeros((20, 20, 20), np.int16)
    pipe = vp.from_cases([{"image": array, "label": array.astype(np.uint8)}]).open_volume()
    pipe = pipe.crop((3, 4, 5), (6, 7, 8)).translate((0.25, 0, 0))

    (sample,) = list(pipe)

    assert load("io").exact_voxels(sample["image"]).sum() == 7 * 7 * 8
    assert load("io").exact_voxels(sample["label"]).sum() == 6 * 7 * 8


def test_cost_that_grows_with_the_volume_is_told(load):
    """By the clock and by processor time, each by itself."""
    scaling = load("scaling")
    costs = [scaling.Cost(5, 5, 0, 1), scaling.Cost(7, 5.5, 9, 1)]

    lines = scaling.verdicts(costs)

    assert [line[2:6] for line in lines] == ["FAIL", "PASS"]
    assert "1.40 x" in lines[0]


def test_the_page_names_every_benchmark():
    """Each script that can be run stands in benchmarks/README.md; one was forgotten once."""
    page = (FOLDER / "README.md").read_text("utf-8")
    scripts = [f.name for f in FOLDER.glob("*.py") if '"__main__"' in f.read_text("utf-8")]

    assert len(scripts) > 15
    # What makes the volumes of others is run by them.
    others = {name for name in scripts if f"benchmarks/{name}" not in page}
    assert others == {"phantom.py", "nnunet_data.py"}
