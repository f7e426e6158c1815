"""Codecs from outside: found by name, given the memory that a read returns, sent to workers."""

import doctest
import json
import zlib
from typing import ClassVar

import numpy as np
import pytest
from checkout import ROOT

import voxpipe as vp
from voxpipe.testing import DecoderCase, DecoderContract
from voxpipe.volumes import Volume, close_volumes, register_decoder, unregister_decoder
from voxpipe.volumes.chunks.ranged_chunks import decoder_factory

zarr = pytest.importorskip("zarr")
NAME = "voxpipe-test-xor"


class Xor:
    """Each byte combined with a key, then deflated: nothing that anybody else decodes."""

    strided = False
    where: ClassVar[list] = []

    def __init__(self, configuration):
        self.key = np.uint8(configuration.get("key", 0))

    def decode_into(self, data, out):
        decoded = np.frombuffer(zlib.decompress(data), np.uint8) ^ self.key
        self.where.append(out)
        out[...] = decoded.view(out.dtype).reshape(out.shape)


class StridedXor(Xor):
    strided = True


def encoded(array, key):
    return zlib.compress((np.frombuffer(array.tobytes(), np.uint8) ^ np.uint8(key)).tobytes())


@pytest.fixture(params=[Xor, StridedXor])
def kind(request, monkeypatch):
    monkeypatch.setattr(Xor, "where", [])
    return request.param


class TestXor(DecoderContract):
    """The contract itself, on a decoder that keeps it."""

    @pytest.fixture
    def case(self, kind):
        array = np.arange(4 * 5 * 6, dtype="<i2").reshape(4, 5, 6)
        return DecoderCase(NAME, kind, encoded(array, 9), array, {"key": 9})


@pytest.mark.parametrize("wrong", ["beside", "not all", "half"])
def test_the_contract_notices(wrong):
    """A decoder that writes beside its slice, not everywhere, or takes half a chunk."""
    array = np.arange(4 * 5 * 6, dtype="<i2").reshape(4, 5, 6)

    class Wrong(Xor):
        def decode_into(self, data, out):
            if wrong == "half":
                data = encoded(array, 9)
            super().decode_into(data, out)
            if wrong == "beside":
                room = out if out.base is None else out.base
                room[0] = 0
            if wrong == "not all":
                out[0, 0, 0] = 50

    case = DecoderCase(NAME, Wrong, encoded(array, 9), array, {"key": 9})
    contract = DecoderContract()
    failing = {
        "beside": contract.test_nothing_beside_the_slice_is_written,
        "not all": contract.test_every_voxel_is_written,
        "half": contract.test_half_a_chunk_is_refused,
    }[wrong]

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        failing(case)


@pytest.fixture
def written(tmp_path, kind):
    """Four chunks of (4, 8, 8) in a zarr v3 array of (8, 16, 8), and its values."""
    array = np.random.default_rng(0).integers(-99, 99, (8, 16, 8)).astype("<i2")
    path = tmp_path / "a.zarr"
    zarr.create_array(
        path, shape=array.shape, chunks=(4, 8, 8), dtype="int16", compressors=None, fill_value=0
    )
    metadata = path / "zarr.json"
    document = json.loads(metadata.read_text())
    document["codecs"].append({"name": NAME, "configuration": {"key": 3}})
    metadata.write_text(json.dumps(document))
    for i in range(2):
        for j in range(2):
            chunk = path / "c" / str(i) / str(j) / "0"
            chunk.parent.mkdir(parents=True, exist_ok=True)
            part = array[4 * i : 4 * i + 4, 8 * j : 8 * j + 8]
            chunk.write_bytes(encoded(part, 3))
    register_decoder(NAME, kind)
    yield path, array
    unregister_decoder(NAME)


def test_whole_chunks_are_decoded_into_the_result(written, kind):
    """With strides where the decoder takes them; else where a chunk lies in one piece."""
    path, array = written
    whole = Volume(path).read(vp.Region((0, 0, 0), (8, 16, 8))).array
    inside = [out for out in kind.where if np.shares_memory(out, whole)]
    kind.where.clear()
    half = Volume(path).read(vp.Region((0, 8, 0), (8, 16, 8))).array
    contiguous = [out for out in kind.where if np.shares_memory(out, half)]

    np.testing.assert_array_equal(whole[0], array)
    np.testing.assert_array_equal(half[0], array[:, 8:])
    assert len(inside) == (4 if kind.strided else 0)
    assert len(contiguous) == 2


def test_workers_are_sent_it(written):
    """Batches are the same in workers that inherit nothing."""
    path, _ = written
    pipe = vp.from_cases([{"image": str(path)}]).open_volume()
    pipe = pipe.lazy_patch(6, samples_per_volume=4).batch_patches(2)
    found = []
    for workers in (0, 1):
        service = vp.MultiProcessingReadingService(workers)
        with vp.DataLoader2(pipe, reading_service=service, seed=1) as loader:
            found.append([batch["image"].numpy().tobytes() for batch in loader])

    assert found[0] == found[1]


def test_installed_packages_are_asked(monkeypatch):
    """By an entry point of that name in our group, and only for what is not known here."""
    asked = []

    class Entry:
        def load(self):
            return Xor

    def extensions(group):
        asked.append(group)
        return {"theirs": Entry()}

    monkeypatch.setattr("voxpipe.volumes.chunks.ranged_chunks.extensions", extensions)

    assert decoder_factory("theirs") is Xor
    assert decoder_factory("nobodys") is None
    assert asked == ["decoders", "decoders"]


def test_a_decoder_that_is_registered_later_is_used(written, kind):
    """And after it was unregistered the array is nobody's again."""
    path, array = written
    unregister_decoder(NAME)
    with pytest.raises(vp.VoxpipeError):
        Volume(path).numpy()
    register_decoder(NAME, kind)
    np.testing.assert_array_equal(Volume(path).numpy()[0], array)
    close_volumes()


def test_one_of_ours_can_be_replaced(tmp_path):
    """A registered name comes before voxpipe's own decoder of that name."""
    array = np.arange(512, dtype="<i2").reshape(8, 8, 8)
    gzip = zarr.codecs.GzipCodec()
    zarr.create_array(tmp_path / "a.zarr", data=array, chunks=(8, 8, 8), compressors=gzip)

    class Minus:
        def __init__(self, configuration):
            pass

        def decode_into(self, data, out):
            out[...] = -1

    register_decoder("gzip", Minus)
    try:
        assert (Volume(tmp_path / "a.zarr").numpy() == -1).all()
    finally:
        unregister_decoder("gzip")
    np.testing.assert_array_equal(Volume(tmp_path / "a.zarr").numpy()[0], array)
    close_volumes()


def test_the_page_about_decoders():
    """What the documentation shows is what happens."""
    page = (ROOT / "docs" / "formats.md").read_text("utf-8")
    example = page.partition("## A decoder of your own")[2].partition("```python")[2]
    test = doctest.DocTestParser().get_doctest(
        example.partition("```")[0], {}, "formats.md", None, 0
    )

    assert len(test.examples) > 5
    assert doctest.DocTestRunner().run(test).failed == 0
