"""Reference files of all formats with bytes changed: right voxels, or an error that names them."""

import shutil
import sys
from pathlib import Path
from random import Random

import pytest

# The references are those of the tests of formats.
VOLUMES = str(Path(__file__).parent.parent / "volumes")
sys.path.insert(0, VOLUMES)
from medical_files import warm  # noqa: E402
from reading_child import ReadingChild, copied  # noqa: E402
from reference_files import collect  # noqa: E402

NAMES = sorted(collect())
# So that none takes minutes, and that they may run side by side.
PARTS = 8


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Return what makes a reference, or the one that was made before."""
    warm()
    made = {}

    def get(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("sound")
            made[name] = collect()[name](folder), folder
        return made[name]

    return get


@pytest.fixture
def child():
    """Return the process that reads."""
    found = ReadingChild()
    yield found
    found.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_mutated_files(attacks, sound, child, tmp_path, part):
    """No crash, no hang, no flood, no foreign error."""
    names = NAMES[part::PARTS]

    def attempt(seed):
        random = Random(f"{part} {seed}")
        found, folder = sound(names[seed % len(names)])
        place = tmp_path / str(seed)
        hostile, changes = copied(found, folder, place, random, random.choice([1, 1, 1, 2, 5]))
        try:
            child.read(hostile.path, **hostile.options)
        except AssertionError as error:
            raise AssertionError(f"{names[seed % len(names)]}, {changes}: {error}") from None
        finally:
            shutil.rmtree(place)

    attacks.each(attempt, quick=3, whole=1500)
