"""Fragments of the changelog and decision records have the form that their readers expect."""

import re

import pytest
from checkout import ROOT

KINDS = ["feature", "change", "fix", "removal", "docs"]
FRAGMENT = re.compile(rf"\+[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md")
DECISION = re.compile(r"(\d{4})-[a-z0-9]+(-[a-z0-9]+)*\.md")
HEADINGS = ["Context", "Decision", "Consequences", "How we would know that it was wrong"]
DECISIONS = sorted(file.name for file in (ROOT / "docs" / "decisions").iterdir())
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
    """A record says why, what, what follows, and when it should be reversed."""
    lines = (ROOT / "docs" / "decisions" / name).read_text("utf-8").splitlines()

    assert HEADINGS == [line[3:] for line in lines if line.startswith("## ")]


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
