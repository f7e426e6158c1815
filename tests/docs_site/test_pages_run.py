"""Programs of the start pages, guides and concepts run, in the order of their page."""

import re

import nibabel
import numpy as np
import pytest
from checkout import ROOT

PAGES = sorted(
    file.relative_to(ROOT / "docs").as_posix()
    for folder in ("start", "how-to", "concepts")
    for file in (ROOT / "docs" / folder).glob("*.md")
)
# A comment of the page excludes a program that needs a bucket, ranks or another package.
BLOCK = re.compile(r"(<!-- no test: [^>]+ -->\n)?^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w.]+\.py)\n")


def programs(page):
    """Return the programs of a page, and whether each runs here."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return [(match[2], not match[1]) for match in BLOCK.finditer(text) if ">>>" not in match[2]]


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Return a folder with ``scans/p1/ct.nii.gz`` and ``seg.nii.gz`` of four cases."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(1)
    for number in range(1, 5):
        case = folder / "scans" / f"p{number}"
        case.mkdir(parents=True)
        label = np.zeros((40, 36, 32), np.uint8)
        label[10:20, 12:24, 8:16] = 1
        scan = (label * 300.0 + rng.normal(0, 50, label.shape)).astype(np.int16)
        affine = np.diag([1.0, 1.0, 1.5, 1.0])
        nibabel.save(nibabel.Nifti1Image(scan, affine), case / "ct.nii.gz")
        nibabel.save(nibabel.Nifti1Image(label, affine), case / "seg.nii.gz")
    return folder


@pytest.mark.parametrize("page", [page for page in PAGES if programs(page)])
def test_programs_run(page, scans, monkeypatch, capsys):
    """In one namespace; programs of the page's other files are compiled."""
    monkeypatch.chdir(scans)
    names = {"__name__": "page"}
    for number, (source, runs) in enumerate(programs(page)):
        code = compile(source, f"{page}:{number}", "exec")
        if runs and not FILE.match(source):
            exec(code, names)


def test_programs_are_found():
    """Most pages have one that runs, so that the pattern is right."""
    assert len([page for page in PAGES if any(runs for _, runs in programs(page))]) > 8
