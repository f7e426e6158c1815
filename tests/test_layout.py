"""The repository root is not a package; ``setup.cfg`` says what is."""

import functools
import os
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest
from checkout import ROOT, modules, package_dir, packages


def test_every_package_folder_is_installed():
    """An unknown folder would be missing from wheels."""
    found = []
    for package, folder in package_dir().items():
        for init in (ROOT / folder).rglob("__init__.py"):
            found.append(".".join((package, *init.parent.relative_to(ROOT / folder).parts)))

    assert sorted(packages()) == sorted(found)


def test_every_root_folder_with_code_is_mapped():
    """Each root folder that is a package has a name under voxpipe."""
    folders = sorted(init.parent.name for init in ROOT.glob("*/__init__.py"))

    assert sorted(package_dir().values()) == folders


def test_a_root_folder_keeps_its_name_in_the_package():
    """``datapipes/`` is ``voxpipe.datapipes``; only ``package/`` is the top."""
    expected = {f"voxpipe.{folder}": folder for folder in package_dir().values()}
    expected["voxpipe"] = expected.pop("voxpipe.package")

    assert expected == package_dir()


def test_every_folder_with_modules_is_a_package():
    """A folder without ``__init__.py`` would import from a checkout and not from a wheel."""
    folders = [ROOT / folder for folder in package_dir().values()]
    holders = {file.parent for folder in folders for file in folder.rglob("*.py")}

    assert [] == sorted(str(h) for h in holders if not (h / "__init__.py").exists())


def test_the_root_is_not_a_package():
    """``__init__.py`` or a folder ``voxpipe`` here would be a second copy of the package."""
    assert not (ROOT / "__init__.py").exists()
    assert not (ROOT / "voxpipe").exists()


def test_test_files_have_unique_names():
    """The default import mode knows test files by name only; ``__init__.py`` would change it."""
    names = Counter(file.name for file in (ROOT / "tests").rglob("*.py"))
    names["conftest.py"] = 0  # pytest loads these by path

    assert [] == [name for name, count in names.items() if count > 1]
    assert "__init__.py" not in names


def test_no_file_is_imported_under_two_names():
    """Two modules of one file are two registries: chained forms would go missing."""
    ours: dict[str, dict[int, str]] = {str(file): {} for file in modules().values()}
    folder_of = functools.cache(os.path.realpath)  # thousands of modules, few folders
    for name, module in list(sys.modules.items()):
        folder, file = os.path.split(getattr(module, "__file__", None) or "")
        path = os.path.join(folder_of(folder), file)
        ours.get(os.path.realpath(path) if os.path.islink(path) else path, {})[id(module)] = name

    assert {} == {file: n for file, n in ours.items() if len(n) > 1}


def test_a_folder_of_the_same_name_hides_no_package(tmp_path):
    """Python takes a folder in the working directory for a package: a checkout, for instance."""
    finder = Path(sysconfig.get_path("purelib")) / "voxpipe_first.pth"
    if not finder.exists():
        pytest.skip("this environment was not made by make")
    (tmp_path / "voxpipe").mkdir()
    command = [sys.executable, "-c", "import voxpipe; print(voxpipe.Volume.__name__)"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    assert done.stdout == "Volume\n", done.stderr
