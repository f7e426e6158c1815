"""Every public name of torchdata 0.9.0's stack is found under the same path of voxpipe."""

import importlib
import json
import subprocess
import sys

import pytest
from checkout import ROOT

from voxpipe.core.errors import NotOffered

STORED = json.loads((ROOT / "tests" / "data" / "torchdata-0.9.0.json").read_text("utf-8"))
# Pipes that are there to say what to use in their place; the page on migrating names each.
LEFT_OUT = {
    "AISFileLister",
    "AISFileLoader",
    "DataFrameMaker",
    "GDriveReader",
    "HuggingFaceHubReader",
    "IoPathFileLister",
    "IoPathFileOpener",
    "IoPathSaver",
    "ParquetDataFrameLoader",
    "RarArchiveLoader",
    "S3FileLister",
    "S3FileLoader",
    "TFRecordLoader",
}
# An empty class in torchdata. Comes with the adapters that give it a meaning.
LATER = {"ShuffleSpec"}


@pytest.mark.parametrize("module", STORED["names"])
def test_every_name_is_importable(module):
    """Replacing the name of the package in an import is enough."""
    ours = importlib.import_module(f"voxpipe.{module}")
    missing = {name for name in STORED["names"][module] if not hasattr(ours, name)}

    assert missing - LATER == set()
    if module.startswith("datapipes."):
        assert {*STORED["names"][module]} - {*dir(ours)} == set()


@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_what_is_left_out_says_what_to_use(name):
    """At construction, and on the page."""
    pipes = importlib.import_module("voxpipe.datapipes.iter")

    with pytest.raises(NotOffered, match=r"\S") as refused:
        getattr(pipes, name)(iter(()))

    assert refused.value.do
    assert f"`{name}`" in (ROOT / "docs" / "migrating.md").read_text("utf-8")


def test_torch_pipes_are_torch_s_own():
    """What torchdata hands through is handed through."""
    import torch.utils.data.datapipes.iter as of_torch

    import voxpipe.datapipes.iter as ours

    for name in ("Batcher", "Forker", "IterableWrapper", "Mapper", "Shuffler", "Zipper"):
        assert getattr(ours, name) is getattr(of_torch, name)


@pytest.mark.slow
def test_torchdata_may_be_imported_before():
    """Its chained forms keep their names, and importing ours is no error."""
    names = STORED["names"]["datapipes.iter"]
    pipes = importlib.import_module("voxpipe.datapipes.iter")
    taken = {
        form
        for cls in (getattr(pipes, name, None) for name in names)
        if (form := vars(cls).get("form_name")) and cls.__module__.startswith("voxpipe.")
    }
    program = (
        "import sys\n"
        "from torch.utils.data import IterDataPipe, MapDataPipe\n"
        "for name in sys.argv[1:]:\n"
        "    for kind in (IterDataPipe, MapDataPipe):\n"
        "        kind.functions.setdefault(name, print)\n"
        "import voxpipe.datapipes\n"
        "assert IterDataPipe.functions['list_files_by_ais'] is print\n"
    )
    command = [sys.executable, "-c", program, *sorted(taken)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)

    assert len(taken) > 40
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_list_is_that_of_the_package(tmp_path):
    """Made again from torchdata 0.9.0 itself."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    subprocess.run([*install, "torchdata==0.9.0"], check=True, timeout=300, capture_output=True)
    tool = ROOT / "tools" / "torchdata_inventory.py"
    made = subprocess.run(
        [sys.executable, str(tool), str(tmp_path)], check=True, timeout=60, capture_output=True
    )

    assert json.loads(made.stdout) == STORED
