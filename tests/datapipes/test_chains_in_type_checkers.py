"""mypy and pyright find mistakes in chains at the user's line, and none in right chains."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
from checkout import ROOT

# One mistake on each line with the mark.
WRONG = """from typing import Any

import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper


def double(item: Any) -> Any:
    return item


cases = vp.list_cases("data")
patches = cases.open_volume().lazy_patch(64)

# Misspelt forms, on pipes of voxpipe, after pipes of torch, and on branches.
cases.open_volumes()  # wrong
cases.shuffle().open_volum()  # wrong
patches.rotat(15)  # wrong
patches.realize().map(double).batch_patch(2)  # wrong
patches.sharding_filter().prefetsh(4)  # wrong
patches.fork(2)[0].realise()  # wrong
IterableWrapper([1]).lazy_patsh(64)  # wrong
patches.unzip(2)[0].realize().nois(0.1)  # wrong
# Unknown or missing arguments.
cases.open_volume().lazy_patch(64, overlay=8)  # wrong
cases.open_volume().lazy_patch()  # wrong
patches.rotate(angle=15)  # wrong
patches.realize().batch_patches(2, drop=True)  # wrong
cases.shuffle(buffer=10)  # wrong
# Arguments of another type.
cases.open_volume().lazy_patch("64")  # wrong
patches.noise("0.1")  # wrong
patches.rotate(15, mode="cubical")  # wrong
patches.realize().batch_patches("2")  # wrong
patches.map(3)  # wrong
patches.flip(p="often")  # wrong
vp.DataLoader2(patches, num_workers=2)  # wrong
"""
RIGHT = """from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterDataPipe

import voxpipe as vp
from voxpipe.datapipes import PerItem
from voxpipe.datapipes.iter import IterableWrapper, Prefetcher, Shuffler


class Doubled(PerItem):
    def apply(self, item: Any) -> Any:
        return 2 * item


def double(item: Any) -> Any:
    return item


def has_image(item: Any) -> bool:
    return "image" in item


def last(pipe: IterDataPipe[Any]) -> Iterator[Any]:
    return iter(pipe)


cases = vp.list_cases("data")
patches = cases.open_volume().lazy_patch(64)

a1 = cases.shuffle().sharding_filter().open_volume()
a2 = cases.open_volume().lazy_patch((64, 64, 32), overlap=8, samples_per_volume=4)
a3 = patches.rotate(15).zoom((0.9, 1.1)).flip(p=0.5).realize()
a4 = patches.rotate((-10, 10), mode="nearest").realize().batch_patches(2, drop_last=True)
a5 = patches.realize().map(double).filter(has_image).batch(2)
a6: Shuffler = patches.shuffle(buffer_size=100)
one, other = patches.fork(2)
a7 = one.realize().zip(other.noise(0.1).realize())
a8 = IterableWrapper([{"image": "a.nii"}]).open_volume().lazy_patch(32)
a9: Prefetcher = patches.realize().prefetch(4)
a10 = Doubled(patches).realize().cycle(2).enumerate()
a11 = DataLoader(patches.realize(), batch_size=None)
a12 = vp.DataLoader2(patches.realize(), None, vp.MultiProcessingReadingService(2))
a13 = last(patches.shuffle())
a14 = vp.from_cases([{"image": np.zeros((4, 4, 4))}]).open_volume().resize([8, 8, 8]).realize()
a15 = patches.noise((0.0, 0.1)).gamma((0.7, 1.5)).normalize().realize().batch_patches(4)
a16 = patches.spacing((1.0, 1.0, 2.0)).pad(4).crop_or_pad((64, None, 64)).realize()
a17 = patches.realize().to_device(torch.device("cpu")).pin_memory()
a18 = cases.shuffle().set_shuffle(False).set_seed(3)
a19 = patches.realize().groupby(has_image, group_size=2).unbatch().collate()
a20 = patches.realize().concat(patches.realize()).mux(patches).zip_longest(patches)
text: str = patches.explain()
shape: tuple[int, int, int, int] = vp.Volume("a.nii").shape
"""
KINDS = """
import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper
cases = vp.list_cases("data")
reveal_type(cases)
reveal_type(cases.shuffle())
reveal_type(cases.shuffle().open_volume().lazy_patch(4))
reveal_type(cases.fork(2))
reveal_type(IterableWrapper([1]).shuffle().cycle())
reveal_type(cases.shuffle().set_seed(1))
"""
NAMES = ["ListCases", "Shuffler", "PatchSampler", "list[ChainedForms]", "Cycler", "Shuffler"]
MISTAKES = {n for n, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
FEWEST = 18  # mistakes that each checker finds


@pytest.fixture
def folder(tmp_path):
    """Return a folder with both programs, outside the checkout, as a user would have them."""
    if not (ROOT / ".typing" / "voxpipe").exists():
        pytest.skip("there is no .typing: run tools/link_package.py")
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "kinds.py").write_text(KINDS)
    return tmp_path


def pyright(folder):
    """Return the file, line and text of each error and type that pyright reports."""
    package = next((name for name in ("basedpyright", "pyright") if find_spec(name)), None)
    if package is None:
        pytest.skip("pyright is not installed: pip install basedpyright")
    options = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT / ".typing")]}
    (folder / "pyrightconfig.json").write_text(json.dumps(options))
    command = [sys.executable, "-m", package, "--outputjson", "--pythonpath", sys.executable, "."]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", timeout=240)
    return [
        (d["file"].rpartition("/")[2], d["range"]["start"]["line"] + 1, d["message"])
        for d in json.loads(done.stdout)["generalDiagnostics"]
    ]


def mypy(folder):
    """Return the file, line and text of each error of mypy, in its strict mode."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    options = ["--config-file=", "--strict", "--follow-imports=silent", "--no-error-summary"]
    options += ["--cache-dir", str(ROOT / "build" / "mypy_of_chains")]
    done = subprocess.run(
        [sys.executable, "-c", RUN_MYPY, *options, "wrong.py", "right.py", "kinds.py"],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
    )
    assert "error" in done.stdout, done.stderr
    found = [line.split(":", 2) for line in done.stdout.splitlines() if ": note: " not in line]
    found += [line.split(":", 2) for line in done.stdout.splitlines() if "Revealed" in line]
    return [(file, int(line), text) for file, line, text in found]


RUN_MYPY = f"""
import os, sys
os.environ["MYPYPATH"] = {str(ROOT / ".typing")!r}
from mypy.__main__ import console_entry
console_entry()
"""


@pytest.mark.parametrize("checker", [pyright, pytest.param(mypy, marks=pytest.mark.slow)])
def test_checkers_find_mistakes_at_their_lines(checker, folder):
    """At least 18 of 20; all 20 right chains pass, and no pipe is Any."""
    reports = checker(folder)
    wrong = {line for file, line, _ in reports if file == "wrong.py"}
    kinds = [text for file, _, text in reports if file == "kinds.py"]

    assert len(MISTAKES) == 20
    assert [report for report in reports if report[0] == "right.py"] == []
    assert wrong <= MISTAKES
    assert len(wrong) >= FEWEST
    assert len(kinds) == len(NAMES)
    for text, name in zip(kinds, NAMES, strict=True):
        assert name in text.replace("voxpipe.datapipes.chained_forms.", "")
