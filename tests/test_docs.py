"""Fragments of the changelog and decision records have the form that their readers expect."""

import re

import pytest
from checkout import ROOT, modules, packages

KINDS = ["feature", "change", "fix", "removal", "docs"]
FRAGMENT = re.compile(rf"\+[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md")
DECISION = re.compile(r"(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.md")
HEADINGS = ["Context", "Decision", "Consequences", "How we would know that it was wrong"]
RECORDS = ROOT / "docs" / "decisions"
DECISIONS = sorted(file.name for file in RECORDS.iterdir() if file.name != "README.md")
FRAGMENTS = sorted(f.name for f in (ROOT / "changes").iterdir() if f.name != "README.md")


def test_fragments_are_named_by_what_changes():
    """``+short-name.kind.md`` needs no number and never conflicts."""
    assert [] == [name for name in FRAGMENTS if not FRAGMENT.fullmatch(name)]


def test_fragments_are_sentences():
    """Each can be copied into the changelog as it is."""
    texts = {name: (ROOT / "changes" / name).read_text("utf-8").strip() for name in FRAGMENTS}

    assert [] == [name for name, text in texts.items() if not text.endswith(".")]


def test_the_kinds_are_explained():
    """The page for those who write a fragment lists every kind."""
    page = (ROOT / "changes" / "README.md").read_text("utf-8")

    assert [] == [kind for kind in KINDS if f"`{kind}`" not in page]


def test_decisions_are_numbered():
    """Numbers are unique and leave no gap, so that one can be cited."""
    matches = [DECISION.fullmatch(name) for name in DECISIONS]

    assert [] == [name for name, m in zip(DECISIONS, matches, strict=True) if m is None]
    assert list(range(len(DECISIONS))) == [int(m[1]) for m in matches]


@pytest.mark.parametrize("name", DECISIONS)
def test_decisions_have_their_four_parts(name):
    """A record has a status and a date, and says why, what, what follows and when to reverse it."""
    lines = (RECORDS / name).read_text("utf-8").splitlines()

    assert lines[0].startswith(f"# {name[:4]}: ")
    assert re.fullmatch(r"- \*\*Status\*\*: (accepted|proposed|replaced)\b.*", lines[2])
    assert re.fullmatch(r"- \*\*Date\*\*: (\d{4}-\d{2}-\d{2}\b.*|YYYY-MM-DD)", lines[3])
    assert HEADINGS == [line[3:] for line in lines if line.startswith("## ")]


def test_the_index_lists_every_decision():
    """Number, file, title and status of each record stand in ``docs/decisions/README.md``."""
    index = (RECORDS / "README.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| \[\d{4}\]\((\S+)\) (\|.+)$", index, re.MULTILINE))

    assert [name for name in DECISIONS if not name.startswith("0000")] == list(rows)
    for name, row in rows.items():
        lines = (RECORDS / name).read_text("utf-8").splitlines()
        assert row.startswith(f"| {lines[0][8:]} | {lines[2].split()[2].strip(';,')} |")


def test_pages_link_to_pages_that_are_there():
    """A relative link of a page leads to a file of the repository."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    pages += [*(ROOT / "docs").rglob("*.md"), ROOT / "changes" / "README.md"]
    lost = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text("utf-8"))
        if not (page.parent / target).exists()
    ]

    assert [] == lost


def test_links_are_named_by_titles():
    """A reader of the site sees no file names; programs keep theirs."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").glob("*.md")]
    pages += [*ROOT.glob("*/README.md")]
    named = [
        f"{page.relative_to(ROOT)}: {text}"
        for page in pages
        for text in re.findall(r"\[`?([^\]\n]*\.md)`?\]\(", page.read_text("utf-8"))
    ]

    assert [] == named


def test_the_tree_in_contributing_is_that_of_the_repository():
    """Every folder of the package has a line, and every line a folder."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    shown, above = set(), ""
    for line in page.split("```")[3].splitlines():
        names = re.findall(r"([\w]+)/", line.split("  ")[1 if line.startswith("  ") else 0])
        above = above if line.startswith("  ") else "".join(names)
        shown |= {f"{above}/{name}" if line.startswith("  ") else name for name in names}
    folders = {name.removeprefix("voxpipe").strip(".").replace(".", "/") for name in packages()}

    assert sorted(folders - {""} - shown) == []
    assert [name for name in sorted(shown) if not (ROOT / name).is_dir()] == []


def test_the_architecture_page_names_what_is_there():
    """Classes that it speaks of exist."""
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"`([A-Z][a-zA-Z0-9]*)`", page))
    source = "\n".join(path.read_text("utf-8") for path in modules().values())

    assert len(named) > 15
    assert sorted(name for name in named if f"class {name}" not in source) == []


def test_every_chained_form_and_public_name_is_documented():
    """Each name that a user can write stands on a page."""
    from torch.utils.data import IterDataPipe

    import voxpipe
    import voxpipe.datapipes

    text = "\n".join(p.read_text("utf-8") for p in (ROOT / "docs").glob("*.md"))
    text += (ROOT / "README.md").read_text("utf-8")
    chained = [
        name
        for name, function in IterDataPipe.functions.items()
        if getattr(function, "args", [type(None)])[0].__module__.startswith("voxpipe.")
    ]
    adapters = ["FuseSpatial", "Timeout", "Profile"]
    services = [name for name in voxpipe.__all__ if name.endswith("ReadingService")]

    assert len(chained) > 15
    assert voxpipe.__all__
    assert [] == [name for name in chained + adapters + services if name not in text]
