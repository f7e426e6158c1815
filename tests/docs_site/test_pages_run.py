"""Programs of the start pages, guides and concepts run, in the order of their page."""

import re

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


def test_the_first_page_installs_and_makes_a_batch(scans, monkeypatch):
    """Its first program runs, with the size of the batch that its comment names."""
    text = (ROOT / "docs" / "index.md").read_text("utf-8")
    names = {}
    monkeypatch.chdir(scans)

    exec(compile(programs("index.md")[0][0], "index.md", "exec"), names)

    assert text.index("pip install voxpipe") < text.index("```python")
    assert f'batch["image"] is {tuple(names["batch"]["image"].shape)}' in text
