"""A backend of one's own: what its base class tells the scheme, the caches and diagnose()."""

import json
import os
import re
import shutil
import struct
import types
import zlib

import nibabel as nib
import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.core.errors import BadHeader, UnknownFormat, VolumeChanged, VolumeReadError
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
    vp.volumes.unregister_backend("planes")


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
    loader = vp.DataLoader2(pipe, [], vp.reading_services.InProcessReadingService())

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

    with pytest.raises(BadHeader, match=r"Planes of .*a\.planes returned shape \(1, 1, 1, 1\)"):
        vp.Volume(folder).numpy()


@pytest.mark.usefixtures("planes")
def test_a_backend_may_refuse_a_scheme(tmp_path, monkeypatch):
    """One that keeps no chunks says so by itself."""
    folder = write_planes(tmp_path / "a.planes", np.zeros((5, 6, 7), np.int16))
    scheme = ReadScheme("resident", cache_bytes=100)

    answer = vp.Volume(folder).adjust(scheme)

    assert isinstance(answer, SchemeRefusal)
    assert "keeps no chunks" in answer.reason


def read_array(path):
    return np.load(path), AFFINE


def read_lazily(path):
    return np.load(path, mmap_mode="r"), AFFINE


class Foreign:
    """A backend of TorchIO's kind."""

    def __init__(self, request):
        self._voxels = np.load(request.path)[None]
        self.shape, self.dtype, self.affine = self._voxels.shape, self._voxels.dtype, AFFINE

    def __getitem__(self, index):
        return torch.from_numpy(np.ascontiguousarray(self._voxels[index]))

    def to_tensor(self):
        return torch.from_numpy(self._voxels)


class Whole(vp.Backend):
    """A backend that says nothing of versions, of the first file in a folder."""

    def __init__(self, request):
        self._voxels = np.load(sorted(request.path.iterdir())[0])[None]
        super().__init__(vp.Header.of(self._voxels.shape, self._voxels.dtype, AFFINE))

    def read(self, region, channels=None):
        return vp.Voxels(self._voxels[(slice(*(channels or (0, 1))), *region.slices)])


@pytest.fixture(params=["reader", "lazy reader", "TorchIO's kind", "folder"])
def opens(request, tmp_path):
    """Return a path, the file of its voxels, and how it is opened as a volume."""
    name, file = tmp_path / "a.mine", tmp_path / "a.mine"
    if request.param == "folder":
        name.mkdir()
        file = name / "0.npy"
    how = {}
    if "reader" in request.param:
        how["reader"] = read_lazily if "lazy" in request.param else read_array
    else:
        make = Foreign if request.param == "TorchIO's kind" else Whole
        vp.register_backend("mine", lambda one: str(one.path).endswith(".mine"), make)
    yield name, file, how
    vp.volumes.unregister_backend("mine")


def write_other(file, array, moment=None):
    """Write a file anew, as another one that takes its place."""
    with open(f"{file}.new", "wb") as out:
        np.save(out, array)
    if moment is not None:
        os.utime(f"{file}.new", ns=(moment, moment))
    os.replace(f"{file}.new", file)


def test_a_file_that_was_written_again_is_read_again(opens):
    """A reader or backend that looks at no version shows the voxels that are there now."""
    path, file, how = opens
    for value, length in ((0, 5), (1, 7), (2, 7)):
        write_other(file, np.full((length, 5, 5), value, np.float32), 10**18 + value)
        volume = vp.Volume(path, **how)
        assert volume.shape == (1, length, 5, 5)
        assert (volume.numpy() == value).all()
    file.unlink()
    with pytest.raises(VolumeReadError):
        vp.Volume(path, **how).numpy()


def test_epochs_of_a_file_that_was_written_again(opens):
    """Each epoch shows what is there then; within one the change is reported."""
    path, file, how = opens
    write_other(file, np.zeros((4, 4, 4), np.float32), 10**18)
    pipe = vp.from_cases([{"image": vp.Volume(path, **how)}]).open_volume()
    loader = vp.DataLoader2(pipe.lazy_patch(2, samples_per_volume=3).batch_patches(1))
    for value in (0, 1):
        write_other(file, np.full((4, 4, 4), value, np.float32), 10**18 + value)
        assert {float(batch["image"].mean()) for batch in loader} == {value}
    batches = iter(loader)
    next(batches)
    write_other(file, np.full((4, 4, 4), 2, np.float32), 10**18 + 2)
    with pytest.raises(VolumeChanged, match="written again"):
        list(batches)


def test_probe_has_the_affine_that_was_given(tmp_path):
    """So have the backends of a request, a reader and a class of one's own."""
    given = np.diag([2.0, 2.0, 2.0, 1.0])
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), "f4"), np.eye(4)), tmp_path / "a.nii")
    np.save(tmp_path / "a.npy", np.zeros((4, 4, 4), np.float32))
    volumes = [vp.Volume(tmp_path / "a.nii", affine=given)]
    volumes += [vp.Volume(tmp_path / "a.npy", affine=given, reader=read_array)]
    for volume in volumes:
        assert (volume.probe().affine == given).all()
        assert (volume.probe().grid.affine == volume.affine).all()
        assert (volume.header.affine == given.ravel()).all()
    request = vp.volumes.BackendRequest(path=tmp_path / "a.nii", affine=torch.from_numpy(given))
    assert (vp.volumes.resolve_backend(request).affine == given).all()
    assert (vp.Volume(tmp_path / "a.nii").probe().affine == np.eye(4)).all()


def test_statistics_of_a_file_that_was_written_again_are_taken_again(tmp_path):
    """They belong to the version of the file that a reader returned."""
    path = tmp_path / "a.npz"

    def means(value):
        np.savez(path, v=np.full((4, 4, 4), value, np.float32))
        os.utime(path, ns=(0, int(value)))
        volume = vp.Volume(path, reader=lambda file: (np.load(file)["v"], np.eye(4)))
        return volume_statistics(volume).mean

    assert [means(1.0), means(5.0)] == [1.0, 5.0]


def test_a_factory_of_no_module():
    """A function of a namespace without a name has no module."""
    made = types.FunctionType(is_planes.__code__, {})
    vp.register_backend("nowhere", made, made)
    try:
        pipe = vp.from_cases([{"image": np.zeros((4, 4, 4))}]).open_volume()
        assert len(list(pipe)) == 1
    finally:
        vp.volumes.unregister_backend("nowhere")


class Packed(vp.Backend):
    """A file of three sizes and packed voxels, whose reader checks nothing."""

    def __init__(self, request):
        self._path, head = request.path, request.path.read_bytes()[:12]
        super().__init__(vp.Header.of((1, *struct.unpack("<3i", head)), np.int16))

    def read(self, region, channels=None):
        raw = zlib.decompress(self._path.read_bytes()[12:])
        whole = np.frombuffer(raw, np.int16).reshape(self.shape)
        return vp.Voxels(whole[(slice(None), *region.slices)])

    @property
    def is_current(self):
        return self._path.stat().st_size > 0


class PackedOfTorchIO:
    """The same by TorchIO's contract alone."""

    def __init__(self, request):
        self._own = Packed(request)
        self.shape, self.affine, self.dtype = self._own.shape, np.eye(4), np.dtype(np.int16)

    def __getitem__(self, slices):
        box = vp.Region([s.start or 0 for s in slices[1:]], [s.stop for s in slices[1:]])
        return torch.from_numpy(self._own.read(box).array.copy())


def read_packed(path):
    """Return the same voxels as a reader."""
    backend = Packed(types.SimpleNamespace(path=path))
    return backend.read(vp.Region.of_shape(backend.shape[1:])).array, np.eye(4)


def is_packed(request):
    return request.path is not None and request.path.suffix == ".packed"


def is_packed_for_torchio(request):
    return request.path is not None and request.path.suffix == ".tio"


@pytest.fixture
def packed(tmp_path):
    """Return a function that writes a file of so many bytes, under registered formats."""
    vp.register_backend("packed", is_packed, Packed)
    vp.register_backend("tio", is_packed_for_torchio, PackedOfTorchIO)

    def write(suffix, size):
        whole = struct.pack("<3i", 8, 8, 8) + zlib.compress(np.arange(512, dtype="<i2").tobytes())
        (path := tmp_path / f"a{suffix}").write_bytes(whole[:size])
        return path

    yield write
    for name in ("packed", "tio"):
        vp.volumes.unregister_backend(name)


@pytest.mark.parametrize("suffix", [".packed", ".tio", ".own"])
@pytest.mark.parametrize(("size", "cause"), [(5, struct.error), (40, zlib.error)])
def test_a_cut_file_of_a_users_format_is_an_error_of_the_file(suffix, size, cause, packed):
    """Where it is opened or read, with the raw error as its cause; a whole file is read."""
    how = {"reader": read_packed} if suffix == ".own" else {}
    assert int(vp.Volume(packed(suffix, None), **how).numpy().max()) == 511
    close_volumes()
    name = f"{cause.__module__}.error"

    with pytest.raises(VolumeReadError, match=rf"failed .*ing .*a\{suffix}: {name}") as info:
        vp.Volume(packed(suffix, size), **how).numpy()
    assert isinstance(info.value.__cause__, cause)


RAW = [ValueError("bad"), KeyError("x"), OSError(5, "bad"), EOFError(), MemoryError(), TypeError()]


@pytest.mark.parametrize("error", RAW, ids=repr)
@pytest.mark.parametrize("place", ["matcher", "__init__", "read"])
def test_raw_errors_of_a_users_format_are_errors_of_the_file(error, place, packed, monkeypatch):
    """Whichever member raises them; they are also the error of Python where one of ours is."""

    def fail(*_):
        raise error

    path = packed(".packed", None)
    if place == "matcher":
        vp.register_backend("packed", fail, Packed)
    else:
        monkeypatch.setattr(Packed, place, fail)

    with pytest.raises(VolumeReadError, match=type(error).__name__) as info:
        vp.Volume(path).numpy()
    assert info.value.__cause__ is error
    assert isinstance(info.value, type(error)) is isinstance(error, (EOFError, MemoryError))


def test_errors_of_the_system_keep_their_class(packed, monkeypatch):
    """A caller may wait after a timeout, and not after a damaged file."""

    def fail(*_):
        raise TimeoutError(110, "late")

    monkeypatch.setattr(Packed, "read", fail)

    with pytest.raises(TimeoutError) as info:
        vp.Volume(packed(".packed", None)).numpy()
    assert "Packed failed reading" in info.value.__notes__[0]


PLACES = ["process", "threads", "workers", "convert", "predict"]


@pytest.mark.parametrize("place", [*PLACES, pytest.param("check", marks=pytest.mark.slow)])
def test_a_cut_file_of_a_users_format_is_named_everywhere(place, packed, tmp_path):
    """By its name and the raw error, also where a worker reads it."""
    path = packed(".packed", 40)
    cases = [{"image": str(path)}]
    words, chain = r"a\.packed: zlib\.error", vp.from_cases(cases).open_volume().lazy_patch(4)
    services = {"threads": vp.ThreadReadingService(1)}
    services["workers"] = vp.MultiProcessingReadingService(1, "fork")
    acts = {
        "convert": lambda: vp.convert(vp.Volume(path), tmp_path / "a.zarr"),
        "predict": lambda: vp.predict(torch.nn.Identity(), path, tmp_path / "a.nii", patch=4),
    }
    if place == "check":
        report = vp.check(vp.from_cases(cases), voxels=True, num_workers=1)
        assert re.search(f"VolumeReadError: .*{words}", str(report))
        return
    act = acts.get(place) or (
        lambda: list(vp.DataLoader2(chain.batch_patches(1), [], services.get(place)))
    )
    with pytest.raises(VolumeReadError, match=words):
        act()
