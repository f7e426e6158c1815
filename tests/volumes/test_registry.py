"""Backends of others: TorchIO's contract, its documented example, and readers."""

import re
from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from nifti_files import AFFINE, numbered, write_nifti

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import BadHeader, UnknownFormat, VolumeNotFound, VolumeReadError
from voxpipe.volumes import (
    BackendRequest,
    Volume,
    close_volumes,
    register_backend,
    resolve_backend,
    unregister_backend,
)

ARRAY = numbered((2, 4, 5, 6), np.float32)


class NpyBackend:
    """The example of TorchIO's documentation: nothing but its contract."""

    def __init__(self, path, affine=None):
        self._data = np.load(path, mmap_mode="r")
        self._affine = affine if affine is not None else torch.eye(4, dtype=torch.float64)
        self.asked = []

    @property
    def shape(self):
        return self._data.shape

    @property
    def affine(self):
        return self._affine

    @property
    def dtype(self):
        return self._data.dtype

    def __getitem__(self, slices):
        self.asked.append(slices)
        return torch.from_numpy(np.array(self._data[slices]))

    def to_tensor(self):
        return torch.from_numpy(np.array(self._data))


def is_npy(request):
    return request.path is not None and request.path.suffix == ".npy"


def make_npy(request):
    return NpyBackend(request.path, affine=request.affine)


@pytest.fixture
def npy(tmp_path):
    np.save(tmp_path / "a.npy", ARRAY)
    return tmp_path / "a.npy"


@pytest.fixture
def registered():
    """Register names for one test only."""
    names = []

    def register(name, matcher, factory, **options):
        names.append(name)
        register_backend(name, matcher, factory, **options)

    yield register
    for name in names:
        unregister_backend(name)


def test_torchios_example_runs_unchanged(npy, registered):
    """A backend with TorchIO's contract and no more is read region by region."""
    made = []
    registered("npy", is_npy, lambda request: made.append(make_npy(request)) or made[-1])
    volume = Volume(npy)

    assert volume.shape == (2, 4, 5, 6)
    assert volume.affine.tolist() == np.eye(4).tolist()
    assert volume.dtype == np.float32
    made[0].asked.clear()
    assert volume.read(Region((1, 2, 3), (2, 4, 6))).values().tolist() == (
        ARRAY[:, 1:2, 2:4, 3:6].tolist()
    )
    assert made[0].asked == [np.s_[0:2, 1:2, 2:4, 3:6]]
    assert volume.data.tolist() == ARRAY.tolist()
    assert len(made) == 1


def test_unregistering_gives_the_format_back(npy, registered):
    """The built-in backend of a format returns when the user's is taken away."""
    registered("npy", is_npy, make_npy)
    assert Volume(npy).access == "range"

    unregister_backend("npy")
    unregister_backend("npy")

    assert Volume(npy).access == "view"


def test_the_request_says_what_the_user_said(npy, registered):
    """Path, affine as a tensor, options and reader arguments reach the factory."""
    seen = []
    registered("npy", is_npy, lambda request: seen.append(request) or make_npy(request))

    volume = Volume(npy, affine=AFFINE, storage_options={"anon": True}, level=2)

    assert volume.affine.tolist() == AFFINE.tolist()
    request = seen[0]
    assert request.path == npy
    assert isinstance(request.path, Path)
    assert request.affine.dtype == torch.float64
    assert request.affine.tolist() == AFFINE.tolist()
    assert request.reader_kwargs == {"level": 2}
    assert request.storage_options == {"anon": True}
    assert (request.uri, request.remote_zarr_uri, request.zarr_store) == (None, None, None)


def test_requests_are_frozen_and_have_defaults():
    """A request can be made by hand, and not changed."""
    request = BackendRequest(path=Path("a.npy"))

    assert (request.affine, request.reader, dict(request.reader_kwargs)) == (None, None, {})
    with pytest.raises(AttributeError):
        request.affine = torch.eye(4)


def test_a_remote_zarr_is_announced(registered):
    """A matcher sees a zarr URL as TorchIO names it."""
    seen = []
    registered("see", lambda request: bool(seen.append(request)), make_npy)

    with pytest.raises(VolumeNotFound):
        _ = Volume("memory://nowhere/a.nii.zarr").shape

    assert seen[0].remote_zarr_uri == seen[0].uri == "memory://nowhere/a.nii.zarr"
    assert seen[0].path is None


def test_order(npy, registered):
    """The last one registered is asked first, unless it asks to be the last."""
    one, two, three = object(), object(), object()
    registered("one", is_npy, lambda request: one)
    registered("two", is_npy, lambda request: two)
    request = BackendRequest(path=npy)
    assert resolve_backend(request) is two

    registered("three", is_npy, lambda request: three, prepend=False)
    assert resolve_backend(request) is two
    registered("two", is_npy, lambda request: three)
    assert resolve_backend(request) is three
    unregister_backend("two")
    assert resolve_backend(request) is one


def test_nobody_answers():
    """Without a match the answer is None; a volume then says what there is."""
    assert resolve_backend(BackendRequest(path=Path("a.what"))) is None


def test_unknown_formats_say_what_is_there(tmp_path):
    """The formats and, where there is one, the way out are in the message."""
    every = r"\.zarr, .*\.nii, \.nii\.gz, .*\.npy, .*\n.*register_backend"
    for name, words in (("a.par", r"a file of Philips PAR.\n.*nibabel"), ("a.what", every)):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(UnknownFormat, match=words):
            _ = Volume(tmp_path / name).shape
    with pytest.raises(VolumeNotFound, match=r"none\.tif"):
        _ = Volume(tmp_path / "none.tif").shape


def test_what_a_factory_raises_is_not_hidden(npy, registered):
    """The next matcher is not tried when a factory fails."""

    def fail(request):
        raise KeyError(request.path.name)

    registered("npy", is_npy, fail)

    with pytest.raises(
        VolumeReadError, match=r"fail failed opening .*: KeyError: 'a\.npy'"
    ) as info:
        _ = Volume(npy).shape
    assert isinstance(info.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("change", "region"),
    [
        ({"shape": (4, 5, 6)}, Region((0, 0, 0), (1, 1, 1))),
        ({"affine": torch.eye(3)}, Region((0, 0, 0), (1, 1, 1))),
        ({"shape": (2, 4, 5, 7)}, Region((0, 0, 0), (4, 5, 7))),
        ({"__getitem__": lambda self, _: torch.ones(2, 4, 5, 6)}, Region((0, 0, 0), (1, 1, 1))),
    ],
    ids=["axes", "affine", "too large", "ignores the index"],
)
def test_backends_that_break_the_contract(npy, registered, change, region):
    """What does not fit the contract is refused."""
    broken = type("Broken", (NpyBackend,), change)
    registered("npy", is_npy, lambda request: broken(request.path))

    with pytest.raises(BadHeader):
        Volume(npy).read(region)


def test_a_plain_reader_is_not_bypassed(tmp_path):
    """The header, too, is the reader's, although a backend knows the suffix."""
    path = write_nifti(tmp_path / "a.nii", numbered((5, 6, 7)))
    calls = []

    def reader(path, factor=1):
        calls.append(path)
        return torch.full((2, 3, 4, 5), 9 * factor, dtype=torch.int16), torch.from_numpy(AFFINE)

    volume = Volume(path, reader=reader, factor=2)
    before = IO_COUNTERS.headers

    assert volume.dtype == np.int16
    assert volume.shape == (2, 3, 4, 5)
    assert volume.affine.tolist() == AFFINE.tolist()
    assert volume.data.unique().tolist() == [18]
    assert calls == [path]
    assert IO_COUNTERS.headers == before


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((np.ones((2, 3, 4)), np.eye(4), {}), r"ndarray \(2, 3, 4\), ndarray \(4, 4\), dict"),
        ((np.ones((2, 3, 4)),) * 3, "ndarray .*, ndarray .*, ndarray"),
        ([np.ones((2, 3, 4)), np.eye(4)], "list"),
        ((np.eye(4), np.ones((2, 3, 4))), r"ndarray \(4, 4\), ndarray \(2, 3, 4\)"),
        ((None, np.eye(4)), r"NoneType , ndarray \(4, 4\)"),
        (None, "NoneType"),
        (np.array(3.0), r"ndarray \(\)"),
        (np.ones((1, 1, 2, 3, 4)), r"ndarray \(1, 1, 2, 3, 4\)"),
        ({"image": np.ones((2, 3, 4))}, "dict"),
    ],
)
def test_answers_of_readers_that_are_no_volume(npy, answer, words):
    """The error names the reader, its answer and the expected answer."""

    def wrong(path):
        return answer

    with pytest.raises(
        BadHeader, match=rf"(?s)reader .wrong. of .*npy returned .*{words}.*Return \("
    ):
        Volume(npy, reader=wrong).probe()


@pytest.mark.parametrize("library", ["nibabel", "SimpleITK", "torchio"])
def test_a_reader_may_return_an_image(tmp_path, library):
    """Its voxels and its affine, in the conventions of its library."""
    affine = np.array([[-2.0, 0, 0, 9], [0, 3, 0, -5], [0, 0, 4, 1], [0, 0, 0, 1]])
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    nibabel.save(nibabel.Nifti1Image(array, affine), tmp_path / "a.nii")
    module = pytest.importorskip(library)
    names = {"nibabel": "load", "SimpleITK": "ReadImage", "torchio": "ScalarImage"}

    volume = Volume(tmp_path / "a.nii", reader=getattr(module, names[library]))

    np.testing.assert_allclose(volume.affine, affine)
    assert np.array_equal(volume.numpy()[0], array)


def test_a_reader_object_wins_over_what_is_registered(npy, registered):
    """The reader of one volume is more particular than a registration for all."""
    registered("npy", is_npy, make_npy)

    class Reader:
        def create_backend(self, request):
            assert request.reader is self
            return NpyBackend(request.path, affine=2 * torch.eye(4, dtype=torch.float64))

    assert Volume(npy, reader=Reader()).affine[0, 0] == 2


def test_another_reader_is_another_volume(npy):
    """Handles are not mixed up among readers of one file."""
    one = Volume(npy, reader=lambda path: (np.zeros((1, 2, 3)), None))
    two = Volume(npy, reader=lambda path: (np.zeros((4, 5, 6)), None))

    assert (one.shape, two.shape) == ((1, 1, 2, 3), (1, 4, 5, 6))


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.npy", "memory"])
def test_our_own_backends_fulfil_torchios_contract(tmp_path, name):
    """shape, affine, dtype, slices as 4-D tensors and the whole as one."""
    if name == "a.npy":
        np.save(tmp_path / name, ARRAY)
    else:
        write_nifti(tmp_path / "a.nii", ARRAY.transpose(1, 2, 3, 0))
        write_nifti(tmp_path / "a.nii.gz", ARRAY.transpose(1, 2, 3, 0))
    backend = resolve_backend(BackendRequest(path=tmp_path / name.replace("memory", "a.nii")))

    assert backend.shape == (2, 4, 5, 6)
    assert backend.affine.shape == (4, 4)
    assert backend.dtype == np.float32
    part = backend[0, ..., -1]
    assert part.shape == (1, 4, 5, 1)
    part[...] = 0  # a writable copy
    assert backend[1:, 2, ::2].tolist() == ARRAY[1:, 2:3, ::2].tolist()
    assert backend.to_tensor().tolist() == ARRAY.tolist()
    close_volumes()


def test_a_reader_behind_a_url_needs_a_copy():
    """Nibabel opens no URL, so passing it as ``reader=`` would not help."""
    with pytest.raises(UnknownFormat, match="Copy it to a local disk, where nibabel"):
        _ = Volume("memory://box/a.par").shape


class SingleChannel:
    """The backend of TorchIO's page on lazy loading: single-channel volumes, its own index."""

    def __init__(self, path):
        self._memmap = np.load(path, mmap_mode="r")

    @property
    def shape(self):
        i, j, k = self._memmap.shape
        return (1, i, j, k)

    @property
    def affine(self):
        return torch.eye(4, dtype=torch.float64)

    @property
    def dtype(self):
        return self._memmap.dtype

    def __getitem__(self, index):
        sc, si, sj, sk = index
        return torch.from_numpy(np.array(self._memmap[si, sj, sk]))[None][sc]

    def to_tensor(self):
        return torch.from_numpy(np.array(self._memmap))[None]


class LazyReader:
    """The lazy reader of TorchIO's page on readers, for one volume."""

    def __call__(self, path, **kwargs):
        backend = self.create_backend(BackendRequest(path=path))
        return backend.to_tensor(), backend.affine.numpy()

    def create_backend(self, request):
        return SingleChannel(request.path)


@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int16, np.uint16, np.float16, np.float64])
def test_npy_is_what_the_registry_example_makes_of_it(tmp_path, registered, dtype):
    """Our own ``.npy``, the example registered with lambdas, and its reader: one answer."""
    array = (numbered((4, 5, 6)) % 7).astype(dtype)
    np.save(tmp_path / "volume.npy", array)
    own = Volume(tmp_path / "volume.npy")
    found = [(own.shape, own.dtype, own.data, own[:, 1:3, 2].data)]

    one = Volume(tmp_path / "volume.npy", reader=LazyReader())
    found.append((one.shape, one.dtype, one.data, one[:, 1:3, 2].data))
    registered(
        "npy",
        lambda request: request.path is not None and request.path.suffix == ".npy",
        lambda request: SingleChannel(request.path),
    )
    image = Volume(tmp_path / "volume.npy")
    found.append((image.shape, image.dtype, image.data, image[:, 1:3, 2].data))

    expected = torch.from_numpy(array)[None]
    for shape, kind, data, part in found:
        assert (shape, kind, data.dtype) == ((1, 4, 5, 6), np.dtype(dtype), expected.dtype)
        assert data.tolist() == expected.tolist()
        assert part.tolist() == expected[:, 1:3, 2:3].tolist()


OTHERS = {
    "a.png": r"pictures\..*SimpleITK",
    "a.JPG": r"pictures\..*SimpleITK",
    "a.bmp": r"pictures\..*SimpleITK",
    "a.nii.bz2": r"bzip2 compression.*bunzip2 a\.nii\.bz2",
    "a.nii.xz": r"xz compression.*unxz a\.nii\.xz",
    "a.nii.zst": r"Zstandard compression.*unzstd a\.nii\.zst",
    "a.nrrd.gz": r"gzip compression.*gunzip a\.nrrd\.gz",
    "a.lsm": r"Zeiss LSM\..*bioformats2raw a\.lsm OUT\.zarr",
    "a.xlif": r"Leica LIF\..*bioformats2raw",
    "a.oib": r"Olympus FluoView\..*bioformats2raw",
    "a.svs": r"slide scanner\..*by openslide",
    "a.csv": r"cases\..*from_table",
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("root", ["{}/", "http://127.0.0.1:1/"])
def test_formats_of_others_are_named_instead_of_a_list(tmp_path, name, root):
    """With a command or a package that reads them; the list of suffixes is left out."""
    (tmp_path / name).write_bytes(b"none")

    with pytest.raises(UnknownFormat) as error:
        _ = Volume(root.format(tmp_path) + name).shape
    text = str(error.value).replace("\n", " ")
    assert re.search(OTHERS[name], text)
    assert "reader=" in text
    assert "installed: ." not in text


@pytest.mark.parametrize(
    ("name", "way"),
    [("a.ims", "ImageSizeZ"), ("a.nc", "xarray"), ("a.mrc", "angstrom"), ("a.n5", "N5 container")],
)
def test_formats_that_are_not_read_are_named_with_a_way_out(tmp_path, name, way):
    """Also an MRC that SimpleITK would read, in its wrong unit."""
    path = tmp_path / name
    if name == "a.n5":
        path.mkdir()
        (path / "attributes.json").write_text('{"n5": "2.5.1"}')
    elif name == "a.mrc":
        sitk = pytest.importorskip("SimpleITK")
        sitk.WriteImage(sitk.Image([4, 5, 6], sitk.sitkFloat32), str(path))
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["DataSet/Data"] = np.zeros((2, 3, 4))

    with pytest.raises(UnknownFormat, match=way) as error:
        _ = Volume(path).shape
    assert "reader=" in str(error.value)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3", "EOF in multi-line"),
        (b"{'descr': '<f4', 'fortran_order': False}", "the correct keys"),
        (b"\0", ": "),
    ],
)
def test_a_broken_header_of_npy(tmp_path, header, words):
    """One sentence with the file, and not the tuple of Python's tokenizer."""
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00v\x00" + header.ljust(117) + b"\n" + bytes(96))

    with pytest.raises(
        BadHeader, match=rf"a\.npy has no sound \.npy header.*{words}.*\.\n"
    ) as error:
        Volume(path).probe()
    assert "('" not in error.value.message
    assert "copy it again" in error.value.do


@pytest.mark.parametrize(
    ("url", "scheme", "way"),
    [
        ("htp://host/a.nii", "htp", "Did you mean 'http'?"),
        ("htps://host/a.zarr", "htps", "Did you mean 'https'?"),
        ("zzzz://host/a.npy", "zzzz", "s3://bucket"),
        ("simplecache::htp://host/a.nii", "htp", "'http'"),
    ],
)
def test_an_unknown_protocol(url, scheme, way):
    """The error names the protocol and the nearest known one."""
    with pytest.raises(VolumeReadError, match=f"has the unknown protocol {scheme!r}") as error:
        Volume(url).probe()
    assert url in error.value.message
    assert way in error.value.do


@pytest.mark.parametrize("path", ["", "\0", "a\0.nii"])
def test_a_text_that_is_no_path(path):
    """An empty cell of a table, for instance; it is not the working directory."""
    with pytest.raises(VolumeNotFound, match="is no path of a volume"):
        Volume(path)
