"""The reference of the site has every name that a user can write; pages of the site are linked."""

import posixpath
import re
import sys

import pytest
from checkout import ROOT

import voxpipe
from voxpipe.adapters import lint
from voxpipe.core import settings
from voxpipe.datapipes.forms import signature_of

sys.path.insert(0, str(ROOT / "tools"))
import parameter_texts
import stage_docs
import write_reference

PAGES = ROOT / "docs"
LINK = re.compile(r"\]\(([^)#:\s]*\.md|)#([^)\s]+)\)")
HOW_TO = sorted(file for file in (PAGES / "how-to").glob("*.md") if file.stem != "index")


@pytest.fixture(scope="module")
def stage():
    """Return the gathered pages, with the docstrings of forms as they are."""
    whole = stage_docs.Stage()
    whole.gather(convert=lambda text: text)
    return {str(place): text for place, text in whole.texts.items()}


def described(stage):
    """Return the full names that the reference describes."""
    text = "\n".join(text for place, text in stage.items() if place.startswith("reference/"))
    return re.findall(r"^\.\. (?:autoclass|autofunction|py:\w+):: ([\w.]+)", text, re.MULTILINE)


def test_every_public_name_is_described_once(stage):
    """Names of ``voxpipe``, and those of its public modules."""
    names = described(stage)
    public = {n for n in voxpipe.__all__ if not n.startswith("_")} - {"errors", "VoxpipeError"}

    assert len(names) == len(set(names))
    assert {f"voxpipe.{name}" for name in public} <= set(names)
    listed = set(re.findall(r":py:obj:`voxpipe\.(\w+)`", stage["reference/names.rst"]))
    assert listed == public
    for module in write_reference.MODULES:
        package = voxpipe.recipes if module.endswith("recipes") else sys.modules[module]
        things = write_reference.names_of(package).items()
        names_there = {name for name, thing in things if not write_reference.is_error(thing)}
        assert names_there <= {name.rpartition(".")[2] for name in names}


def test_every_form_is_described(stage):
    """Those of item pipes, and those of map pipes."""
    names = set(described(stage))
    forms = write_reference.form_classes()
    places = {
        f"MapDataPipe.{name.removeprefix('map.')}" if name[:4] == "map." else f"DataPipe.{name}"
        for name in forms
    }

    assert len(forms) > 100
    assert places <= names


def test_signatures_have_arguments_and_defaults(stage):
    """As they are written, without the pipe that a form is chained on."""
    text = stage["reference/forms/datapipes.rst"]

    assert "DataPipe.batch_patches(batch_size: int, *, drop_last: bool = False)" in text
    assert "parent" not in "".join(re.findall(r"^\.\. py:method:: .*", text, re.MULTILINE))


def test_every_parameter_of_an_op_has_a_text(stage):
    """Forms of ops show the texts of the fields of their op."""
    forms = {
        name: kind
        for name, kind in write_reference.form_classes().items()
        if getattr(kind, "op_class", None) is not None
    }
    lacks = []
    for name, kind in forms.items():
        texts = parameter_texts.section_texts(parameter_texts.with_parameters(kind))
        lacks += [(name, one) for one in signature_of(kind).parameters if not texts.get(one)]

    assert len(forms) > 40
    assert lacks == []
    entry = stage["reference/forms/spatial.rst"].partition("py:method:: DataPipe.elastic(")[2]
    assert "Largest move of a point along each axis" in entry.partition("py:method::")[0]


def test_every_type_of_a_signature_has_a_line(stage):
    """Types of chained forms, with what they stand for."""
    page = stage["reference/types.rst"]
    kinds = write_reference.aliases()

    assert sorted(kinds) == sorted(write_reference.TYPES.keys() - {"Place"})
    for name, kind in kinds.items():
        assert f".. py:type:: {name}\n   :canonical: {kind}\n" in page
    assert len(re.findall(r"^   [A-Z`].+\.$", page, re.MULTILINE)) == len(write_reference.TYPES)


@pytest.mark.parametrize("page", ["adapters", "services"])
def test_adapters_and_services_have_pages(stage, page):
    """Every name of their package is there or is a public name."""
    package = {"adapters": voxpipe.adapters, "services": voxpipe.reading_services}[page]
    names = {name.rpartition(".")[2] for name in described(stage)}

    assert set(write_reference.names_of(package)) <= names
    expected = {"adapters": "voxpipe.Timeout", "services": "voxpipe.ThreadReadingService"}[page]
    assert f".. autoclass:: {expected}" in stage[f"reference/{page}.rst"]


def test_every_command_and_option_is_described(stage):
    """By the help of the command line."""
    from voxpipe.__main__ import parser

    page = stage["reference/commands.rst"]
    for name, command in write_reference.commands_of(parser()).items():
        assert f"voxpipe {name}\n---" in page
        section = page.partition(f"voxpipe {name}\n---")[2].partition("\n---")[0]
        for action in command._actions:
            shown = action.option_strings or [action.metavar or action.dest]
            assert [text for text in shown if text not in section] == []


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("bench", "--patch"),
        ("cache", "--clear"),
        ("check", "--voxels"),
        ("convert", "--shard"),
        ("demo", "--folder"),
        ("doctor", "--json"),
        ("explain", "--measure"),
        ("graph", "--format"),
        ("index", "--no-statistics"),
        ("info", "--patch"),
        ("predict", "--overlap"),
        ("preview", "--patches"),
        ("replay", "--epoch"),
        ("split", "--folds"),
    ],
)
def test_the_reference_shows_options_of_commands(stage, command, option):
    """Each section has its whole help, and not only ``-h``."""
    page = stage["reference/commands.rst"]
    section = page.partition(f"voxpipe {command}\n---")[2].partition("\n---")[0]

    assert re.search(rf"^ +(-\w, )?{option}\b", section, re.MULTILINE)


def test_the_pages_that_readers_open_name_every_command(stage):
    """The first page of the reference, and the table of the page of the command line."""
    from voxpipe.__main__ import parser

    names = [*write_reference.commands_of(parser())]
    [row] = re.findall(r"^\| Commands \| (.+) \|$", stage["reference/index.md"], re.MULTILINE)

    assert re.findall(r"\w+", row.replace("voxpipe ", "")) == names
    rows = re.findall(r"^\| `([a-z]+)[` ]", stage["command-line.md"].partition("\n## ")[0], re.M)
    assert sorted(rows) == names


def test_every_variable_is_described(stage):
    """Those that a loader checks."""
    page = stage["reference/environment.md"]

    assert [name for name in settings.NAMES if f"| `{name}` |" not in page] == []


def test_every_error_has_one_cure(stage):
    """No table has a class that is not there, and the reference shows each cure."""
    rows = re.findall(r"^\| `(\w+)` \|", stage["reference/cures.md"], re.MULTILINE)
    cures = {name for name, _ in write_reference.CURE.findall(stage["reference/cures.md"])}
    errors = set(write_reference.error_classes())

    assert len(rows) == len(set(rows))
    assert set(rows) == cures == errors
    assert stage["reference/errors.rst"].count("**Cure**") == len(errors)


def test_every_lint_rule_is_described(stage):
    """By code and name."""
    rules = [(rule.code, rule.name) for rule in lint._RULES.values()]

    assert rules
    assert [rule for rule in rules if f"## {rule[0]} {rule[1]}" not in stage["lint.md"]] == []


def test_every_how_to_page_is_linked():
    """From the index of the guides, in its text and in its list of pages."""
    text = (PAGES / "how-to" / "index.md").read_text("utf-8")
    listed = text.partition("{toctree}")[2].split()

    assert [file.name for file in HOW_TO if f"]({file.name})" not in text] == []
    assert [file.stem for file in HOW_TO if file.stem not in listed] == []


@pytest.mark.parametrize("file", HOW_TO, ids=lambda file: file.stem)
def test_how_to_pages_are_short_and_begin_with_an_example(file):
    """Less than 400 words without code, and a program before any heading below the title."""
    text = file.read_text("utf-8")
    words = re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()

    assert len(words) < 400
    assert "```" in text.partition("\n## ")[0]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("microscopy", "which pyramid level do i train on"),
        ("microscopy", "one z plane per tiff"),
        ("microscopy", "a case per time point"),
        ("microscopy", "instance labels with more than 65 535 objects"),
        ("find-what-limits", "threads processes or in process workers"),
        ("gpu", "pinned memory"),
        ("gpu", "mixed precision"),
        ("contrasts", "multi channel image"),
        ("labels", "class imbalance"),
        ("labels", "merge labels"),
    ],
)
def test_questions_of_readers_stand_on_their_page(page, words):
    """In their own words, so that the search of the site finds the page."""
    text = (PAGES / "how-to" / f"{page}.md").read_text("utf-8").lower()

    assert f" {words} " in f" {' '.join(re.findall(r'[a-z0-9]+', text))} "


def test_links_out_of_the_docs_lead_to_copies(stage):
    """Programs become pages, and pages of other folders are copied."""
    page = stage["tutorials/index.md"]

    assert "](01_first_patches.md)" in page
    assert "import voxpipe as vp" in stage["tutorials/01_first_patches.md"]
    assert "](../repository/examples/segment.py.md)" in page
    assert "repository/CONTRIBUTING.md" in stage


def test_links_in_programs_stay():
    """Only links of the text are rewritten."""
    text = "[a](../README.md)\n\n```python\nx[0](../README.md)\n```\n"

    rewritten = stage_docs.Stage()._with_links(PAGES / "pipes.md", text)

    assert "[a](repository/README.md)" in rewritten
    assert "x[0](../README.md)" in rewritten


def anchors(text):
    """Return the anchors of the headings of a page, as GitHub and the site make them."""
    prose = re.sub(r"^(```+).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = [
        re.sub(r"\]\([^)]*\)", "", h) for h in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_there():
    """Also on GitHub; ``make docs`` checks the same links."""
    pages = [*PAGES.rglob("*.md"), *ROOT.glob("*.md")]
    lost, count = [], 0
    for page in pages:
        for target, anchor in re.findall(
            r"\]\(([^)#:\s]*\.md|)#([^)\s]+)\)", page.read_text("utf-8")
        ):
            count += 1
            file = (page.parent / target) if target else page
            if anchor not in anchors(file.read_text("utf-8")):
                lost.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")

    assert count > 100
    assert lost == []


def test_every_page_is_in_a_list_of_pages(stage):
    """``make docs`` warns of others: add a new page to the ``toctree`` of an ``index.md``."""
    listed = {"index"}
    for place, text in stage.items():
        for block in re.findall(r"\{toctree\}\n(.*?)```", text, re.DOTALL):
            for name in re.findall(r"(?:^|<)([\w./-]+?)(?:>|$)", block, re.MULTILINE):
                listed.add(posixpath.normpath(posixpath.join(posixpath.dirname(place), name)))
    pages = {place.removesuffix(".md") for place, text in stage.items() if "orphan:" not in text}

    assert sorted(page for page in pages - listed if not page.endswith(".rst")) == []
