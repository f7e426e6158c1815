"""The chains that the pages and tutorials tell people to write have no mistake."""

import ast
import re

import numpy as np
import pytest
from checkout import ROOT

import voxpipe as vp
import voxpipe.datapipes.iter as pipes
from voxpipe.adapters import Lint

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted((ROOT / "tutorials").glob("*.py"))


class Pages:
    """Stands for the package: cases are in memory, whatever files a page speaks of."""

    def __getattr__(self, name):
        sources = ("list_cases", "from_bids", "from_decathlon", "from_manifest")
        return cases if name in sources else getattr(vp, name)


def cases(*_, **__):
    volume = np.zeros((100, 100, 100), np.int16)
    return vp.from_cases([{"image": volume, "label": volume.astype(np.uint8)}] * 3)


def parse(pair):
    return pair


def programs():
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            if not block.startswith((">>>", "from torchdata.dataloader2")):
                yield page.name, block
    yield from ((script.name, script.read_text("utf-8")) for script in SCRIPTS)


KNOWN = {"vp", "parse", "FileLister", "folder", "options", "lost"}


def chains():
    """Yield where each ``pipe = ...`` of known names is written, and the expression."""
    for number, (name, text) in enumerate(programs()):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pipe":
                names = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
                if not names <= KNOWN:
                    continue
                which = f"{name}-{number}-{node.lineno}"
                yield pytest.param(name, ast.unparse(node.value), id=which)


CHAINS = list(chains())


def test_there_are_chains():
    """The README's, those of pages, and those of tutorials."""
    found = {one.values[0] for one in CHAINS}

    assert {"README.md", "volumes.md", "migrating.md"} <= found
    assert {"01_first_patches.py", "03_bucket.py"} <= found


@pytest.mark.parametrize(("name", "chain"), CHAINS)
def test_no_mistake(name, chain, tmp_path):
    """As it stands there, on other cases."""
    known = {"vp": Pages(), "parse": parse, "FileLister": pipes.FileLister}
    known |= {"folder": tmp_path, "options": {}, "lost": None}

    found = [mistake.name for mistake in Lint().mistakes(eval(chain, known))]  # noqa: S307

    assert found == []
