"""The whole site builds without a warning, and needs no network."""

import os
import re
import subprocess
import sys

import pytest
from checkout import ROOT

EXTERNAL = re.compile(
    r"<(?:script|img|iframe|source)[^>]+src=\"(?:https?:)?//[^\"]+"
    r"|<link[^>]+href=\"(?:https?:)?//[^\"]+"
    r"|(?:url\(|@import )[\"']?(?:https?:)?//[^\"')]+"
)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the folder of the built site."""
    pytest.importorskip("sphinx")
    folder = tmp_path_factory.mktemp("site")
    source, out = folder / "source", folder / "html"
    options = ["-W", "--keep-going", "-q", "-b", "html", "-c", "docs", "-d", folder / "doctrees"]
    for command in (["tools/stage_docs.py", source], ["-m", "sphinx", *options, source, out]):
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            cwd=ROOT,
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
    return out


@pytest.mark.slow
def test_no_file_of_the_site_comes_from_a_network(site):
    """Neither pages nor styles name a script, style, font or picture of another host."""
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    found = {
        f"{file.relative_to(site)}: {match[0]}"
        for file in files
        for match in EXTERNAL.finditer(file.read_text("utf-8"))
    }

    assert len(files) > 100
    assert found == set()


@pytest.mark.slow
def test_the_site_has_search_and_formulas(site):
    """The search index is a file, and a formula is MathML."""
    index = (site / "searchindex.js").read_text("utf-8")

    assert "batch_patches" in index
    assert "<math" in (site / "concepts" / "plans.html").read_text("utf-8")


@pytest.mark.slow
def test_types_of_signatures_are_links(site):
    """Those of chained forms, and of functions."""
    types = (site / "reference" / "types.html").read_text("utf-8")
    names = re.findall(r'<dt [^>]*id="(\w+)"', types)
    pages = [file.read_text("utf-8") for file in (site / "reference").rglob("*.html")]

    assert "Size" in names
    for name in names:
        bare = rf'<dt class="sig(?:(?!</dt>).)*<span class="n"><span class="pre">{name}</span>'
        assert [page for page in pages if re.search(bare, page, re.DOTALL)] == []
        assert any(f'types.html#{name}"' in page for page in pages)


@pytest.mark.slow
def test_the_program_of_the_guide_to_ranks_runs(scans):
    """Under torchrun with two ranks; each gets half of a batch."""
    text = (ROOT / "docs" / "how-to" / "distributed.md").read_text("utf-8")
    (scans / "train.py").write_text(text.partition("```python\n")[2].partition("```")[0])
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]

    done = subprocess.run(
        [sys.executable, *command],
        cwd=scans,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(2, 1, 16, 16, 16)") == 2
