"""CZI against its own writer, and the other formats of bioio by images of its interface."""

import sys
import types

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import BadHeader, MissingDependency, SampleError, UnknownFormat
from voxpipe.extensions.microscopy import bioio_reader

VOXELS = np.random.default_rng(0).integers(0, 60000, (2, 3, 4, 20, 30)).astype("u2")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Chunks:
    """An array with the members of dask's that are used; it notes what is computed."""

    def __init__(self, array, chunks):
        self.array, self.computed = array, []
        self.shape, self.dtype = array.shape, array.dtype
        pairs = zip(array.shape, chunks, strict=True)
        self.chunks = tuple(tuple(min(c, n - a) for a in range(0, n, c)) for n, c in pairs)
        self.numblocks = tuple(map(len, self.chunks))

    def __getitem__(self, item):
        self.computed.append(item)
        return types.SimpleNamespace(compute=lambda scheduler: self.array[item])


class Image:
    """A ``BioImage`` of two scenes: the second one has values one higher."""

    channel_names = ("DAPI", "GFP", "RFP")
    physical_pixel_sizes = types.SimpleNamespace(X=0.5, Y=0.5, Z=2.0)
    dimension_properties = types.SimpleNamespace(X=types.SimpleNamespace(unit=None))
    dims = types.SimpleNamespace(order="TCZYX")
    shape = VOXELS.shape
    scenes = ("first", "second")
    chunks = (1, 1, 1, 20, 30)

    def __init__(self, path, **options):
        self.options = options
        self.set_scene(0)

    def set_scene(self, scene):
        number = self.scenes.index(scene) if isinstance(scene, str) else scene
        self.dask_data = Chunks(VOXELS + np.uint16(number), self.chunks)


@pytest.fixture
def fake(monkeypatch):
    """Replace bioio by images of its interface."""

    class UnsupportedFileFormatError(Exception):
        pass

    bioio = types.ModuleType("bioio")
    bioio.BioImage = Image
    errors = types.ModuleType("bioio_base.exceptions")
    errors.UnsupportedFileFormatError = UnsupportedFileFormatError
    monkeypatch.setitem(sys.modules, "bioio", bioio)
    monkeypatch.setitem(sys.modules, "bioio_base", types.ModuleType("bioio_base"))
    monkeypatch.setitem(sys.modules, "bioio_base.exceptions", errors)
    return bioio


def stored(volume):
    """Return the voxels in stored order, (C, Z, Y, X)."""
    return volume.numpy().transpose(0, 3, 2, 1)


@pytest.mark.parametrize("suffix", bioio_reader.SUFFIXES)
def test_a_region_computes_its_planes_alone(fake, tmp_path, suffix):
    """Geometry, unit, and the part of the array that a region is."""
    place = tmp_path / f"a{suffix}"
    place.write_bytes(b"-")
    volume = vp.Volume(place, scene="second", time="channels")
    part = volume.read(Region((0, 0, 1), (5, 6, 2)))

    assert volume.shape == (6, 30, 20, 4)
    assert volume.chunks == (30, 20, 1)
    assert volume.access == "range"
    assert volume.lengths == "0.5 x 0.5 x 2 um"
    assert volume.channel_names == Image.channel_names * 2
    assert vp.Volume(place, scene=1, time=1).channel_names == Image.channel_names
    gfp = vp.Volume(place, scene="first", time=1, channels=["GFP"])
    np.testing.assert_array_equal(stored(gfp)[0], VOXELS[1, 1])
    expected = VOXELS[:, :, 1, :6, :5].reshape(6, 6, 5) + 1
    np.testing.assert_array_equal(part.array[..., 0].transpose(0, 2, 1), expected)
    (index,) = volume.probe()._array.computed
    assert index[2:] == (slice(1, 2), slice(0, 6), slice(0, 5))


def test_a_reader_of_whole_images_is_named_as_one(fake, tmp_path, monkeypatch):
    """The access says that every read decodes the whole image."""
    monkeypatch.setattr(Image, "chunks", VOXELS.shape)
    place = tmp_path / "a.nd2"
    place.write_bytes(b"-")
    volume = vp.Volume(place, scene=0, time="channels")

    assert volume.access == "stream"
    assert not volume.probe().is_lazy
    np.testing.assert_array_equal(stored(volume), VOXELS.reshape(6, 4, 20, 30))


def test_scenes_and_times_are_cases(fake, tmp_path):
    """Names have the scene and the time; without a scene the volume is refused."""
    place = tmp_path / "a.lif"
    place.write_bytes(b"-")

    samples = list(vp.from_ome(place))

    names = [f"a/{scene} t{time}" for scene in ("first", "second") for time in (0, 1)]
    assert [sample.case for sample in samples] == names
    np.testing.assert_array_equal(stored(samples[3]["image"]), VOXELS[1] + 1)
    for options in {}, {"scene": "third"}, {"scene": 2}, {"scene": True}, {"scene": 0, "time": 2}:
        with pytest.raises(SampleError) as error:
            vp.Volume(place, **options).probe()
        assert error.value.do


def test_urls_are_refused():
    """The readers open files of a disk."""
    import fsspec

    fsspec.filesystem("memory").pipe_file("/bioio/a.czi", b"-")
    with pytest.raises(UnknownFormat, match="open files of a disk"):
        vp.Volume("memory://bioio/a.czi").probe()


def test_without_bioio_one_line_installs_it(tmp_path, monkeypatch):
    """The error names the reader and the extra."""
    place = tmp_path / "a.nd2"
    place.write_bytes(b"-")
    monkeypatch.setitem(sys.modules, "bioio", None)

    with pytest.raises(MissingDependency, match="needs bioio and bioio-nd2") as error:
        vp.Volume(place).probe()
    assert error.value.do == "pip install 'voxpipe[bio]'"


def write_czi(path):
    """Write a CZI by the library of its format."""
    czi = pytest.importorskip("pylibCZIrw.czi")
    with czi.create_czi(str(path)) as file:
        for t, c, z in np.ndindex(VOXELS.shape[:3]):
            file.write(VOXELS[t, c, z][..., None], plane={"T": t, "C": c, "Z": z})
        names = dict(enumerate(("DAPI", "GFP", "RFP")))
        file.write_metadata("a", channel_names=names, scale_x=5e-7, scale_y=5e-7, scale_z=2e-6)


def test_a_czi_is_read_by_planes(tmp_path):
    """Voxels, unit and time points, against the writer of the format and bioio itself."""
    bioio = pytest.importorskip("bioio")
    pytest.importorskip("bioio_czi")
    place = tmp_path / "a.czi"
    write_czi(place)
    volume = vp.Volume(place, time=1)

    assert (volume.shape, volume.chunks, volume.access) == ((3, 30, 20, 4), (30, 20, 1), "range")
    assert volume.lengths == "0.5 x 0.5 x 2 um"
    np.testing.assert_array_equal(stored(volume), VOXELS[1])
    reference = bioio.BioImage(place).get_image_data("CZYX", T=1)
    np.testing.assert_array_equal(stored(volume), reference)


def test_a_damaged_czi_is_a_bad_header(tmp_path):
    """Its reader is installed and refuses the file."""
    pytest.importorskip("bioio_czi")
    place = tmp_path / "a.czi"
    place.write_bytes(b"no image" * 100)

    with pytest.raises(BadHeader, match="bioio-czi does not open"):
        vp.Volume(place).probe()


def test_time_is_slowest_among_channels_in_any_order_of_a_file(tmp_path, fake, monkeypatch):
    """Also where the reader's channels are slower than its time points."""
    (tmp_path / "a.nd2").touch()
    dims = types.SimpleNamespace(order="CTZYX")
    monkeypatch.setattr(Image, "dims", dims)
    monkeypatch.setattr(
        Image,
        "set_scene",
        lambda self, _: setattr(self, "dask_data", Chunks(VOXELS.swapaxes(0, 1), self.chunks)),
    )
    volume = vp.Volume(tmp_path / "a.nd2", scene=0, time="channels")
    folded = VOXELS.reshape(6, 4, 20, 30).transpose(0, 3, 2, 1)
    np.testing.assert_array_equal(volume.numpy(), folded)
    assert volume.channel_names == Image.channel_names * 2
