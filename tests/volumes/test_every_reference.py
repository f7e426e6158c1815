"""Every file that another library wrote fulfils the store contract: local, by URL, in a bucket."""

import shutil

import numpy as np
import pytest
from contract_sample import (
    FEWER_IN_TURN,
    IN_TURN,
    OF_THE_FILE,
    REPRESENTATIVES,
    references_of,
)
from medical_files import warm
from reference_files import LOCAL_ONLY, REFERENCES, case_at, collect, contents, local, remote

from voxpipe.testing import StoreContract
from voxpipe.volumes import Volume

# Movies are opened whole: the warning has tests of its own.
pytestmark = pytest.mark.filterwarnings("ignore:times-and-channels")

collect()
BY_URL = [name for name in REFERENCES if name not in LOCAL_ONLY]
# More than the handles that are kept, so that each is opened again when its turn comes.
COPIES = 100


@pytest.fixture(scope="module", autouse=True)
def writer_is_warm():
    """Nothing that GDCM keeps open counts as left behind."""
    warm()


def pytest_generate_tests(metafunc):
    """Run each test of the contract on the references that ``contract_sample`` gives it."""
    place = getattr(metafunc.cls, "place", None)
    if place is not None:
        metafunc.parametrize("reference", references_of(metafunc.function.__name__, place))


class References(StoreContract):
    """What the contract asks of all of them."""

    def test_ten_thousand_volumes_in_turn(self, case, reference, tmp_path):
        """A data set of any size is read with few descriptors."""
        self.read_in_turn(case, tmp_path, FEWER_IN_TURN.get(reference, IN_TURN))


class TestLocal(References):
    place = "local"

    @pytest.fixture
    def case(self, reference, tmp_path):
        (tmp_path / "one").mkdir()
        return local(reference, tmp_path / "one")

    def others(self, case, folder, count):
        """Yield copies: a library may notice that two volumes are the same file."""
        place = case.source.relative_to(folder / "one")
        for n in range(min(count, COPIES)):
            shutil.copytree(folder / "one", folder / str(n))
        for n in range(count):
            yield Volume(folder / str(n % COPIES) / place, **case.options)


@pytest.mark.parametrize(
    ("place", "name"),
    [(local, name) for name in REFERENCES] + [(remote, name) for name in BY_URL],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_references(place, name, tmp_path):
    """Whole and in part, by path and by URL, each reads as what was written."""
    case = place(name, tmp_path)

    volume = Volume(case.source, **case.options)

    np.testing.assert_allclose(volume.affine, case.affine, rtol=1e-6, atol=1e-6)
    assert (volume.disk_dtype, volume.dtype) == (case.disk_dtype, case.array.dtype)
    np.testing.assert_array_equal(volume[:, 1:3, -2].numpy(), case.array[:, 1:3, -2:-1])
    np.testing.assert_array_equal(volume.numpy(), case.array)


class TestByUrl(References):
    place = "url"
    spawnable = False  # fsspec's memory file system

    @pytest.fixture
    def case(self, reference, tmp_path):
        return remote(reference, tmp_path)


@pytest.mark.parametrize("place", [local, remote])
def test_every_backend_is_represented(place, tmp_path):
    """The references that stand for backends open all classes that any reference opens."""
    opened = {}
    for number, name in enumerate(REFERENCES if place is local else BY_URL):
        (tmp_path / str(number)).mkdir()
        case = place(name, tmp_path / str(number))
        opened[name] = type(Volume(case.source, **case.options)._backend())

    assert set(opened.values()) == {opened[name] for name in REPRESENTATIVES if name in opened}


def test_tests_of_the_file_exist():
    """No name among them is misspelt, which would run that test on fewer references."""
    assert set(dir(StoreContract)) >= OF_THE_FILE


@pytest.mark.parametrize("name", ["nrrd, gzip, LAS", "mha", "hdr and img", "b2nd, three axes"])
def test_headers_from_every_client(name, tmp_path, server, client):
    """Clients answer with bytes or with views of them; parsers of text need bytes."""
    found = REFERENCES[name](tmp_path)
    for file, content in contents(tmp_path).items():
        if not file.startswith("s3/"):
            (server.bucket / file).write_bytes(content)
    url = f"s3://bucket/{found.path.name}"

    volume = Volume(url, storage_options=server.storage_options)

    np.testing.assert_array_equal(volume.numpy(), found.array)


class TestInABucket(StoreContract):
    """Without 10 000 in turn: counted locally and behind a URL; requests would take minutes."""

    place = "bucket"

    @pytest.fixture
    def case(self, reference, tmp_path, server):
        folder = tmp_path / "one"
        folder.mkdir()
        found = REFERENCES[reference](folder)
        for name, content in contents(folder).items():
            file = server.bucket / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        place = found.path.relative_to(folder).as_posix()
        return case_at(f"s3://bucket/{place}", found, storage_options=server.storage_options)
