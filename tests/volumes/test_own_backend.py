"""A backend of one's own: what its base class tells the scheme, the caches and diagnose()."""

import json
import shutil

import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import BadHeader, UnknownFormat
from voxpipe.testing import BackendContract, StoreCase
from voxpipe.volumes import close_volumes, volume_statistics
from voxpipe.volumes.scheme import ReadScheme, SchemeRefusal

AFFINE = np.diag([0.5, 0.5, 2.0, 1.0])


class Planes(vp.Backend):
    """A folder of planes, each a file of its own: a chunk."""

    def __init__(self, request):
        self._folder = request.path
        told = json.loads((self._folder / "planes.json").read_text())
        self._version = told["version"]
        i, j, k = told["shape"]
        super().__init__(vp.Header.of((1, i, j, k), told["dtype"], AFFINE, chunks=(i, j, 1)))
        self.loaded = []

    def read(self, region, channels=None):
        i, j, k = region.slices
        planes = [self._plane(n)[i, j] for n in range(k.start, k.stop)]
        return vp.Voxels(np.stack(planes, axis=-1)[None][slice(*(channels or (0, 1)))])

    def _plane(self, n):
        self.loaded.append(n)
        return np.load(self._folder / f"{n}.npy")

    @property
    def content_key(self):
        return f"{self._folder}@{self._version}"

    @property
    def is_current(self):
        return json.loads((self._folder / "planes.json").read_text())["version"] == self._version

    def fetch(self, region, channels=None):
        _, _, (first, last) = region
        return sum((self._folder / f"{n}.npy").stat().st_size for n in range(first, last))


def is_planes(request):
    return request.path is not None and request.path.suffix == ".planes"


def write_planes(folder, array, version=1):
    folder.mkdir(exist_ok=True)
    for n in range(array.shape[2]):
        np.save(folder / f"{n}.npy", array[..., n])
    told = {"shape": array.shape, "dtype": array.dtype.str, "version": version}
    (folder / "planes.json").write_text(json.dumps(told))
    return folder


@pytest.fixture
def planes():
    vp.register_backend("planes", is_planes, Planes)
    yield
    vp.unregister_backend("planes")


@pytest.mark.usefixtures("planes")
class TestPlanes(BackendContract):
    spawnable = False  # a process that inherits nothing has no registration of this module's

    @pytest.fixture
    def case(self, tmp_path):
        array = np.arange(5 * 6 * 7, dtype=np.int16).reshape(5, 6, 7)
        folder = write_planes(tmp_path / "a.planes", array)
        return StoreCase(folder, array[None], AFFINE, disk_dtype=np.dtype(np.int16))

    def rewrite(self, case, folder):
        write_planes(case.source, -case.array[0], version=2)
        return StoreCase(case.source, -case.array, AFFINE)

    def others(self, case, folder, count):
        for n in range(count):
            yield vp.Volume(shutil.copytree(case.source, folder / f"{n}.planes"))


@pytest.mark.usefixtures("planes")
def test_statistics_are_kept_under_the_key(tmp_path):
    """A second process, here a forgotten one, reads no voxel: the key found what was computed."""
    array = np.arange(5 * 6 * 7, dtype=np.int16).reshape(5, 6, 7)
    folder = write_planes(tmp_path / "a.planes", array)
    first = volume_statistics(vp.Volume(folder))

    again = vp.Volume(folder, affine=np.eye(4))  # another volume of the same content
    assert volume_statistics(again) == first
    assert again.probe().loaded == []
    write_planes(folder, 2 * array, version=2)
    close_volumes()

    assert volume_statistics(vp.Volume(folder, affine=AFFINE)).maximum == 2 * array.max()


@pytest.mark.usefixtures("planes")
def test_numbers_of_an_earlier_version_are_not_taken(tmp_path):
    """In one process, too: the header has no stamp, so the key is all that tells."""
    folder = write_planes(tmp_path / "a.planes", np.ones((3, 4, 5), np.int16))
    assert volume_statistics(vp.Volume(folder)).mean == 1

    write_planes(folder, np.full((3, 4, 5), 7, np.int16), version=2)

    assert volume_statistics(vp.Volume(folder)).mean == 7


@pytest.mark.usefixtures("planes")
def test_chunks_reach_the_scheme_of_a_loader(tmp_path):
    """A patch of two planes of seven decodes two chunks, and says so before anything is read."""
    folder = write_planes(tmp_path / "a.planes", np.zeros((5, 6, 7), np.int16))
    pipe = vp.from_cases([{"image": str(folder)}]).open_volume(keys=["image"])
    pipe = pipe.lazy_patch((5, 6, 2), samples_per_volume=2).batch_patches(1)
    loader = vp.DataLoader2(pipe, [], vp.InProcessReadingService())

    scheme = loader.schemes()["image"]
    loader.shutdown()

    assert scheme.chunks == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"shape": (4, 5, 6)}, BadHeader),
        ({"shape": (0, 4, 5, 6)}, BadHeader),
        ({"chunks": (4, 5)}, BadHeader),
        ({"chunks": (4, 5, 0)}, BadHeader),
        ({"affine": np.eye(3)}, BadHeader),
        ({"dtype": "U3"}, UnknownFormat),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(arguments, error):
    """What a backend says of itself is looked at where it says it."""
    with pytest.raises(error):
        vp.Header.of(**{"shape": (1, 4, 5, 6), "dtype": "int16", **arguments})


def test_a_header_takes_what_a_request_gives():
    """The affine of a request is a tensor."""
    affine = torch.diag(torch.tensor([2.0, 2, 3, 1], dtype=torch.float64))

    header = vp.Header.of([1, 4, 5, 6], np.int16, affine, chunks=[4, 5, 1])

    assert (header.shape, header.chunks, header.affine[10]) == ((1, 4, 5, 6), (4, 5, 1), 3.0)


@pytest.mark.usefixtures("planes")
def test_an_answer_of_the_wrong_shape_is_refused(tmp_path, monkeypatch):
    """The kernel would read whatever lies behind the array."""
    folder = write_planes(tmp_path / "a.planes", np.zeros((5, 6, 7), np.int16))
    monkeypatch.setattr(Planes, "read", lambda *_: vp.Voxels(np.zeros((1, 1, 1, 1), np.int16)))

    with pytest.raises(BadHeader, match=r"Planes of .*a\.planes answered shape \(1, 1, 1, 1\)"):
        vp.Volume(folder).numpy()


@pytest.mark.usefixtures("planes")
def test_a_backend_may_refuse_a_scheme(tmp_path, monkeypatch):
    """One that keeps no chunks says so by itself."""
    folder = write_planes(tmp_path / "a.planes", np.zeros((5, 6, 7), np.int16))
    scheme = ReadScheme("resident", cache_bytes=100)

    answer = vp.Volume(folder).adjust(scheme)

    assert isinstance(answer, SchemeRefusal)
    assert "keeps no chunks" in answer.reason
