"""Every file that another library wrote fulfils the store contract: local, by URL, in a bucket."""

import shutil

import numpy as np
import pytest
from medical_files import warm
from reference_files import LOCAL_ONLY, REFERENCES, case_at, collect, contents, local, remote

from voxpipe.testing import StoreContract
from voxpipe.volumes import Volume

collect()
BY_URL = [name for name in REFERENCES if name not in LOCAL_ONLY]
# One of each backend whose own test file has no contract; all the others are slow.
QUICK = {
    "nii, RGB24",
    "nii, complex64",
    "hdr and img of NIfTI-2, big-endian, by the .img",
    "Analyze of SPM, moved by a .mat",
    "nrrd, big-endian, RAS",
    "nrrd, list last, gzip",
    "mha, vectors",
    "mhd, a pattern of compressed planes",
    "vtk",
    "dicom",
}
MANY = 10_000
# More than the handles that are kept, so that each is opened again when its turn comes.
COPIES = 100


@pytest.fixture(scope="module", autouse=True)
def writer_is_warm():
    """Nothing that GDCM keeps open counts as left behind."""
    warm()


class References(StoreContract):
    """What the contract asks of all of them; a spawned child takes seconds."""

    @pytest.mark.slow
    def test_a_spawned_child_reads(self, case):
        super().test_a_spawned_child_reads(case)

    @pytest.mark.slow
    def test_ten_thousand_volumes_in_turn(self, case, tmp_path):
        """A data set of any size is read with few descriptors."""
        self.read_in_turn(case, tmp_path, MANY)


class TestLocal(References):
    @pytest.fixture(
        params=[
            pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
            for name in REFERENCES
        ]
    )
    def case(self, request, tmp_path):
        (tmp_path / "one").mkdir()
        return local(request.param, tmp_path / "one")

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


@pytest.mark.slow
class TestByUrl(References):
    spawnable = False  # fsspec's memory file system

    @pytest.fixture(params=BY_URL)
    def case(self, request, tmp_path):
        return remote(request.param, tmp_path)


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


@pytest.mark.slow
class TestInABucket(References):
    @pytest.fixture(params=BY_URL)
    def case(self, request, tmp_path, server):
        folder = tmp_path / "one"
        folder.mkdir()
        found = REFERENCES[request.param](folder)
        for name, content in contents(folder).items():
            file = server.bucket / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        place = found.path.relative_to(folder).as_posix()
        return case_at(f"s3://bucket/{place}", found, storage_options=server.storage_options)

    def test_ten_thousand_volumes_in_turn(self, case):
        """Counted locally, and in memory behind a URL: requests would take minutes."""
        pytest.skip("counted elsewhere")
