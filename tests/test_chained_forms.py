"""Type checkers and editors know the chained forms: the stub is what the tool writes."""

import ast
import configparser
import importlib.util
import inspect
import os
import re
import subprocess
import sys

import pytest
from checkout import ROOT, package_dir

from voxpipe.datapipes import DataPipe


def tool():
    """Return ``tools/write_chained_forms.py`` as a module."""
    place = ROOT / "tools" / "write_chained_forms.py"
    spec = importlib.util.spec_from_file_location("write_chained_forms", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_stub_is_what_the_tool_writes():
    """After a new form or argument: ``python tools/write_chained_forms.py``."""
    for place, text in tool().stubs().items():
        if "Union[" in text:
            pytest.skip("this version of torch writes unions in another way")
        # Older versions of torch have the older name of a type.
        assert place.read_text("utf-8") == re.sub(r"\bType\[", "type[", text)


def table():
    """Return the table ``voxpipe.names`` of ``setup.cfg``: modules and names, and their places."""
    config = configparser.ConfigParser(delimiters="=")
    config.optionxform = str
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = config["options.entry_points"]["voxpipe.names"].splitlines()
    pairs = [line.split(" = ") for line in lines if " = " in line]
    return {tuple(path.rsplit(".", 1)): place for path, place in pairs}


def names_in(stub):
    """Return the names that a stub imports from other packages, and their places."""
    found = {}
    for node in ast.parse(stub.read_text("utf-8")).body:
        if isinstance(node, ast.ImportFrom) and not (node.module or "torch").startswith("torch"):
            home = f"voxpipe.{node.module}".replace("voxpipe.voxpipe.", "voxpipe.")
            found |= {alias.name: f"{home}:{alias.name}" for alias in node.names}
    return found


def test_the_stubs_of_paths_equal_the_table():
    """Names of torchdata's paths in ``setup.cfg``: none is missing, none is left over."""
    stubs = [*(ROOT / "dataloader2").rglob("*.pyi"), *ROOT.glob("datapipes/[mn]*.pyi")]
    found = {}
    for stub in stubs:
        path = stub.relative_to(ROOT).with_suffix("")
        module = ".".join(path.parts).replace("names_of_", "")
        module = module.removesuffix(".__init__").removesuffix(".exported_names")
        names = names_in(stub)
        if path.name == "exported_names":  # the package has names of its own, too
            names = {name: place for name, place in names.items() if ".extensions." in place}
        found |= {(module, name): place for name, place in names.items()}
    in_chained_forms = {key for key in table() if key[0] == "datapipes.iter"}
    text = (ROOT / "datapipes" / "chained_forms.pyi").read_text("utf-8")
    names = ast.literal_eval(text.rpartition("__all__ = ")[2])

    assert found == {key: at for key, at in table().items() if key not in in_chained_forms}
    assert in_chained_forms
    assert {name for _, name in in_chained_forms} <= set(names)
    folders = [ROOT / folder for folder in package_dir().values()]
    assert {file for folder in folders for file in folder.rglob("*.pyi")} == set(tool().stubs())


@pytest.mark.slow
def test_type_checkers_know_every_path_of_the_table(tmp_path):
    """In another folder, with the files that setuptools installs: no name is ``Any``."""
    build = "from setuptools import setup; setup(script_args=['-q', 'build_py', '-d', 'PLACE'])"
    command = [sys.executable, "-c", build.replace("PLACE", str(tmp_path / "site"))]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    imports = [f"from voxpipe.{m} import {n} as _{i}" for i, (m, n) in enumerate(table())]
    numbers = range(len(imports))
    lines = [*imports, "import voxpipe.dataloader2"]
    lines += [f"reveal_type(_{i})" for i in numbers]
    lines += ["reveal_type(voxpipe.dataloader2.graph.utils.find_dps)"]
    (tmp_path / "program.py").write_text("\n".join(lines) + "\n")
    options = ["--config-file=", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *options, "program.py"]

    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=300,
    )

    types = [line.partition("Revealed type is ")[2] for line in done.stdout.splitlines()[:-1]]
    assert done.returncode == 0, done.stdout
    assert len(types) == len(imports) + 1
    assert [] == [name for name, kind in zip(imports, types, strict=False) if kind == '"Any"']


def test_every_form_has_its_arguments():
    """By name; the parent is what it is chained on."""
    methods = tool().stub()

    for name in ("cycle", "prefetch", "lazy_patch", "rotate", "noise", "unzip", "to_map_datapipe"):
        assert methods.count(f"def {name}(self") == 1
    assert "def prefetch(self, buffer_size: int = 10, *, buffer_bytes: int = " in methods
    assert "def zip_longest(self, *datapipes: Pipe, fill_value: Any = None)" in methods
    assert "-> list[Branch]" in methods


def test_arguments_have_types():
    """At most a tenth of the arguments may be anything: those of shims, and options of others."""
    functions = [
        node for node in ast.walk(ast.parse(tool().stub())) if isinstance(node, ast.FunctionDef)
    ]
    every = [a.annotation for f in functions for a in ast.walk(f) if isinstance(a, ast.arg)]
    types = [ast.unparse(annotation) for annotation in every if annotation is not None]

    assert types.count("Any") <= len(types) / 10


@pytest.mark.parametrize("name", ["cycle", "prefetch", "rotate"])
def test_forms_stay_in_torchs_table(name):
    """The stub is for type checkers alone: no method hides what torch looks up."""
    assert not any(name in vars(kind) for kind in DataPipe.__mro__)
    assert inspect.isclass(DataPipe)


SKEW = """
from dataclasses import dataclass
from typing import ClassVar
from voxpipe.spatial.ops.axis_op import Flip

@dataclass(frozen=True)
class Skew(Flip):
    "Lean to one side."
    name: ClassVar[str] = "skew"

OPS = (Skew,)
"""
POSTERIZE = """
from dataclasses import dataclass
from typing import ClassVar
from voxpipe.intensity.brightness import Brightness

@dataclass(frozen=True)
class Posterize(Brightness):
    "Leave few values."
    name: ClassVar[str] = "posterize"

OPS = (Posterize,)
"""
PROGRAM = """
import importlib.util, pickle, sys
from importlib.machinery import PathFinder

class Beside:
    "Finds the files of a second folder as if they lay in the package."

    def find_spec(self, name, path=None, target=None):
        if name not in ("voxpipe.spatial.ops", "voxpipe.intensity"):
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        sys.meta_path.insert(0, self)
        spec.submodule_search_locations.append(f"{sys.argv[1]}/{name.split('.')[1]}")
        return spec

sys.meta_path.insert(0, Beside())
sys.path.insert(0, sys.argv[2])
import numpy as np
import voxpipe as vp
import write_chained_forms
from voxpipe.datapipes.iter import PosterizePipe, SkewPipe

assert (vp.spatial.Skew.name, vp.intensity.Posterize.name) == ("skew", "posterize")
pipe = vp.from_cases([{"image": np.ones((4, 4, 4))}]).open_volume().skew(0).posterize(2.0)
assert (type(pipe), type(pipe.parent)) == (PosterizePipe, SkewPipe)
assert next(iter(pickle.loads(pickle.dumps(pipe)).realize()))["image"].max() == 2
stubs = "".join(write_chained_forms.stubs().values())
assert "def skew(self, axes: " in stubs
assert "class PosterizePipe(ValuePipe): ..." in stubs
assert "from .ops.skew import Skew" in stubs
assert "from .posterize import Posterize" in stubs
"""


def test_an_op_of_ones_own_is_one_file(tmp_path):
    """Its export, its chained form, its pipe and the stubs follow from what the file lists."""
    for folder, name, text in (("spatial", "skew", SKEW), ("intensity", "posterize", POSTERIZE)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(text)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(ROOT / "tools")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
