"""Formats that name byte ranges and decode them: all else is voxpipe's."""

import numpy as np
import pytest
from range_formats import FORMATS, WRITERS, Exposures, Frames, Packed

import voxpipe as vp
from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import BadHeader, CorruptVolume, SampleError
from voxpipe.testing import DecoderCase, DecoderContract, RangeContract, StoreCase
from voxpipe.volumes import ByteRange, Header, RangeBackend, close_volumes, unregister_backend
from voxpipe.volumes.formats.stored_file import LocalStoredFile, common_store


@pytest.fixture(autouse=True)
def formats():
    """Register the four formats, as a package would by its entry point."""
    for name, item in FORMATS.items():
        vp.register_backend(name, item.recognises, item.backend)
    yield
    for name in FORMATS:
        unregister_backend(name)


@pytest.mark.parametrize("kind", FORMATS)
class TestRangeFormats(RangeContract):
    spawnable = False  # registered by this module's fixture

    @pytest.fixture
    def case(self, kind, tmp_path):
        path, array = WRITERS[kind](tmp_path)
        return StoreCase(path, array, np.eye(4))


@pytest.mark.parametrize("kind", FORMATS)
def test_from_a_bucket(kind, tmp_path, server, client):
    """Ranges of remote files, by both clients, with and without prefetch; in few requests."""
    path, array = WRITERS[kind](server.bucket)
    url = f"s3://bucket/{path.name}"
    options = server.storage_options
    volume = vp.Volume(url, storage_options=options)
    region = Region((0, 0, 0), (2, 2, 2))
    assert volume.shape == array.shape
    server.forget()

    ticket = volume.prefetch(region)
    part = volume.read(region).array
    if ticket is not None:
        ticket.close()

    assert (part == array[:, :2, :2, :2]).all()
    assert server.counts["requests"] <= 2
    assert (volume.numpy() == array).all()


@pytest.mark.parametrize("kind", FORMATS)
def test_batches_of_workers(kind, tmp_path):
    """The batches of workers are those of none."""
    path, array = WRITERS[kind](tmp_path)
    pipe = (
        vp.from_cases([{"image": path}])
        .open_volume()
        .lazy_patch((2, 2, 2), samples_per_volume=4)
        .augment(flip=0.5)
        .batch_patches(2)
    )
    alone = [batch["image"] for batch in vp.DataLoader2(pipe, seed=3)]
    service = vp.MultiProcessingReadingService(num_workers=2, multiprocessing_context="fork")
    with vp.DataLoader2(pipe, None, service, seed=3) as loader:
        others = [batch["image"] for batch in loader]

    assert all((a == b).all() for a, b in zip(alone, others, strict=True))
    assert set(np.unique(alone)) <= set(np.unique(array))


def test_tiles_are_kept_and_counted(tmp_path):
    """A region counts the bytes of its tiles once it decodes them."""
    path, _ = WRITERS["frames"](tmp_path)
    volume = vp.Volume(path)
    before = IO_COUNTERS.snapshot()

    volume.read(Region((0, 0, 1), (1, 1, 3)))

    counted = IO_COUNTERS.snapshot() - before
    assert (counted.reads, counted.bytes_decoded) == (1, 2 * 3 * 4 * 2)


def test_ranges_of_a_tile_add_up_again(tmp_path, server, client, monkeypatch):
    """A retry begins the tile anew: nothing is added twice."""
    path, array = WRITERS["exposures"](server.bucket)
    failures = iter([True])
    real = Exposures.decode

    def once(self, data, out, place, tile):
        real(self, data, out, place, tile)
        if place.fields == (100,) and next(failures, False):
            raise ValueError("damaged on its way")

    monkeypatch.setattr(Exposures, "decode", once)
    options = server.storage_options

    volume = vp.Volume(f"s3://bucket/{path.name}", storage_options=options)

    assert (volume.numpy() == array).all()
    assert next(failures, None) is None


def test_damage_is_named(tmp_path, monkeypatch):
    """A decoder's error names the tile and the file; a file that is too short does, too."""
    path, _ = WRITERS["packed"](tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Packed, "decode", lambda *args: 1 / 0)
        with pytest.raises(CorruptVolume, match=r"a\.packed cannot be decoded.*a\.packed: ZeroDiv"):
            vp.Volume(path).numpy()
    close_volumes()
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(
        CorruptVolume, match=r"takes bytes 8\d to 90 of .*a\.packed, which holds 86"
    ):
        vp.Volume(path).numpy()


class Wrong(RangeBackend):
    """A backend whose ranges a test chooses."""

    def __init__(self, path, ranges, **options):
        header = Header.of((1, 2, 2, 2), "u1", **{"chunks": (2, 2, 1), **options})
        super().__init__([LocalStoredFile(str(path))], header, "it")
        self.ranges = ranges

    def read_ranges(self, tiles):
        """Return anything."""
        return self.ranges


@pytest.mark.parametrize(
    ("ranges", "error", "text"),
    [
        ([[(0, 0, 4)]], BadHeader, "1 lists for 2 tiles"),
        ([[(1, 0, 4)], []], BadHeader, "of 1 files"),
        ([[(0, 4, 4)], []], BadHeader, "start < stop"),
        ([[(0, -4, 4)], []], BadHeader, "start < stop"),
        ([[(0, 0, 99)], []], CorruptVolume, "which holds 8"),
    ],
)
def test_wrong_ranges(tmp_path, ranges, error, text):
    """Each is refused with the backend's name, and nothing is read."""
    (tmp_path / "a").write_bytes(bytes(8))
    with pytest.raises(error, match=text):
        Wrong(tmp_path / "a", ranges).to_tensor()


def test_what_a_backend_needs(tmp_path):
    """Tiles, a decoder, and files of one place."""
    (tmp_path / "a").write_bytes(bytes(8))
    file = LocalStoredFile(str(tmp_path / "a"))
    with pytest.raises(BadHeader, match="tiles of a RangeBackend"):
        Wrong(tmp_path / "a", [], chunks=None)
    with pytest.raises(NotImplementedError, match="give a decoder"):
        Wrong(tmp_path / "a", [[(0, 0, 4)], []]).decode(memoryview(b""), None, None, (0,))
    with pytest.raises(SampleError, match="one folder"):
        common_store([file, object()])


class Adds:
    """A decoder that adds to memory, as one of a file whose ranges add up."""

    clears = True
    strided = True

    def __init__(self, configuration):
        pass

    def decode_into(self, data, out):
        """Add bytes."""
        out += np.frombuffer(data, out.dtype).reshape(out.shape)


class TestAddingDecoder(DecoderContract):
    """An accumulating decoder of a zarr codec gets zeros."""

    @pytest.fixture
    def case(self):
        array = np.arange(5 * 6 * 7, dtype="<i2").reshape(5, 6, 7)
        return DecoderCase("adds", Adds, array.tobytes(), array)


def test_a_decoder_for_an_own_format(tmp_path):
    """The decoder of a codec serves the ranges of a format, and is called for each in turn."""

    class Sums(Frames):
        def __init__(self, path):
            header = Header.of((1, 2, 3, 1), "<i2", chunks=(2, 3, 1))
            RangeBackend.__init__(self, [LocalStoredFile(path)], header, decoder=Adds({}))

        def read_ranges(self, tiles):
            return [[ByteRange(0, 0, 12), ByteRange(0, 12, 24)] for _ in tiles]

        decode = RangeBackend.decode

    array = np.arange(12, dtype="<i2")
    (tmp_path / "a").write_bytes(array.tobytes())

    backend = Sums(str(tmp_path / "a"))

    for _ in range(12):
        values = backend[...].numpy().ravel()
        assert values.tolist() == (array[:6] + array[6:]).tolist()
