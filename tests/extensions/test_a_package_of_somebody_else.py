"""A package with a format, a form, an adapter and a rule, installed from a wheel."""

import os
import subprocess
import sys
import textwrap
import zipfile

import pytest

PACKAGE = '''
import numpy as np
from voxpipe.adapters import Adapter
from voxpipe.datapipes import PerItem, chained_form
from voxpipe.graph import Rule, walk
from voxpipe.volumes import Backend, Format, Header, Voxels


class ToyBackend(Backend):
    """A text file: three sizes, then the voxels."""

    def __init__(self, file):
        with file.open() as stream:
            i, j, k, *values = stream.read().split()
        self.array = np.array(values, np.int16).reshape(1, int(i), int(j), int(k))
        super().__init__(Header.of(self.array.shape, self.array.dtype), file.name)

    def read(self, region, channels=None):
        return Voxels(self.array[(slice(*channels) if channels else slice(None), *region.slices)])


FORMAT = Format("toy", (".toy",), ToyBackend)


@chained_form("toy_double")
class ToyDouble(PerItem):
    """Double the image of a batch."""

    def apply(self, item):
        return {**item, "image": item["image"] * 2}


class ToyAdapter(Adapter):
    """Leave every `ToyDouble` out."""

    def rules(self):
        match = lambda site: site.pipe if isinstance(site.pipe, ToyDouble) else None
        return (Rule("leave toys out", match, lambda pipe: pipe.parent),)


def toy_rule(pipe):
    for one in walk(pipe):
        if isinstance(one, ToyDouble):
            yield one, "a toy doubles the image", "Leave it out."
'''
POINTS = """
[voxpipe.formats]
toy = toy_package:FORMAT
[voxpipe.forms]
toy_double = toy_package:ToyDouble
[voxpipe.adapters]
ToyAdapter = toy_package:ToyAdapter
[voxpipe.lint_rules]
toy-rule = toy_package:toy_rule
frozen-draws = toy_package:toy_rule
VX103 = toy_package:toy_rule
"""
SCRIPT = """
import sys
import warnings

import voxpipe as vp

def main():
    path = sys.argv[1]
    assert "toy_package" not in sys.modules
    cases = vp.from_cases([{"image": path}] * 4).open_volume()
    assert "toy_package" not in sys.modules
    pipe = cases.batch_patches(2).toy_double()
    for adapters in ([], [vp.adapters.ToyAdapter()]):
        service = vp.MultiProcessingReadingService(num_workers=2)
        with vp.DataLoader2(pipe, adapters, service) as loader:
            print([batch["image"].flatten().tolist() for batch in loader])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        print([mistake.name for mistake in vp.Lint().mistakes(pipe)])
    print(sorted(" ".join(str(each.message).split()[1:4]) for each in seen))
    vp.register_lint_rule("toy-rule", lambda pipe: [], code="TOY1")
    print(vp.Lint(ignore=["frozen-draws"]).mistakes(pipe))

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def site(tmp_path):
    """Return a folder into which pip installed the package."""
    wheel = tmp_path / "toy_package-1-py3-none-any.whl"
    info = "toy_package-1.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("toy_package.py", PACKAGE)
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-package\nVersion: 1\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/entry_points.txt", POINTS)
        file.writestr(f"{info}/RECORD", "")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    target = tmp_path / "site"
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True, timeout=120)
    return target


def test_a_package_adds_a_format_a_form_an_adapter_and_a_rule(site, tmp_path):
    """Each works in workers, and is imported at its first use only."""
    (tmp_path / "a.toy").write_text("1 1 2\n3 4")
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])

    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "a.toy")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    doubled, plain, names, refused, replaced = done.stdout.splitlines()
    assert doubled == str([[6, 8, 6, 8]] * 2)
    assert plain == str([[3, 4, 3, 4]] * 2)
    assert names == "['toy-rule']"
    assert refused == "['VX103 = toy_package:toy_rule', 'frozen-draws = toy_package:toy_rule']"
    assert replaced == "[]"
