"""Run the examples in the docstrings, importing by name and never by path."""

import doctest
import importlib

import pytest
from checkout import FOR_OTHERS, ROOT, modules
from torch.utils.data import IterDataPipe

# Whose examples need a library that a bridge leads to.
NEEDS = {
    "voxpipe.extensions.bridges.monai_equals": ["monai"],
    "voxpipe.extensions.bridges.monai_pipes": ["monai"],
    "voxpipe.extensions.bridges.torchio_pipes": ["torchio"],
    "bridges.md": ["monai", "torchio"],
}


def need_libraries(name):
    """Skip what cannot run here, and say which library it is for."""
    for library in NEEDS.get(name, ()):
        pytest.importorskip(library)


@pytest.mark.parametrize(
    "name", [name for name, file in modules().items() if ">>> " in file.read_text("utf-8")]
)
def test_examples(name, tmp_path, monkeypatch):
    """Every example gives what it shows; files that it writes land in a temporary folder."""
    need_libraries(name)
    if name in FOR_OTHERS:
        pytest.importorskip(FOR_OTHERS[name])
    module = importlib.import_module(name)
    monkeypatch.chdir(tmp_path)

    failed, _ = doctest.testmod(module, optionflags=doctest.ELLIPSIS)

    assert failed == 0


PAGES = sorted(p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if "decisions/" not in page])
def test_pages(page, monkeypatch):
    """Examples on the pages that are written as a session give what they show."""
    need_libraries(page)
    # Forms that a page registers are of this page alone.
    monkeypatch.setattr(IterDataPipe, "functions", {**IterDataPipe.functions})
    failed, _ = doctest.testfile(
        str(ROOT / "docs" / page), module_relative=False, optionflags=doctest.ELLIPSIS
    )

    assert failed == 0
