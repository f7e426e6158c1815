"""The example that swaps a decoder of the graph for a remote one."""

import sys

import pytest
from checkout import ROOT

sys.path.insert(0, str(ROOT / "examples"))
import remote_decode
from remote_decode import Decode, DecodeRemotely, RemoteDecode

import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.graph import find
from voxpipe.testing import AdapterContract


@pytest.fixture(scope="module", autouse=True)
def server():
    with remote_decode.decoder() as url:
        TestRemoteDecode.url = url
        yield url


class TestRemoteDecode(AdapterContract):
    """Batches stay equal, the user's graph stays as it was, and a second time changes nothing."""

    url = ""

    def make(self):
        return RemoteDecode(self.url)

    def chain(self):
        return remote_decode.chain()


def test_the_server_decodes_each_item(server):
    """No decoder is left in the graph that runs, and the user's graph has the old one."""
    pipe = remote_decode.chain()

    swapped = RemoteDecode(server)(pipe)

    assert [type(one) for one in find(swapped, Decode)] == [DecodeRemotely]
    assert [type(one) for one in find(pipe, Decode)] == [Decode]
    assert [batch["image"][:, 0, 0].tolist() for batch in swapped] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]


def test_a_graph_without_a_decoder_is_refused(server):
    """When the loader is made; the error names the adapter and the missing pipe."""
    pipe = IterableWrapper([1])

    with pytest.raises(vp.errors.GraphError, match="RemoteDecode found no Decode"):
        vp.DataLoader2(pipe, [RemoteDecode(server)])


def test_a_codec_that_the_server_lacks_stays_here(server):
    """`explain()` shows the reason of the refusal."""
    pipe = Decode(IterableWrapper([{"image": b""}]), "image", codec="lz4")

    with vp.DataLoader2(pipe, [RemoteDecode(server)]) as loader:
        text = loader.explain()

    assert "refused" in text
    assert "the server cannot decode lz4" in text


def test_a_server_that_is_gone_is_named():
    """With the way out."""
    with remote_decode.decoder() as url:
        pass
    pipe = RemoteDecode(url)(remote_decode.chain())

    with pytest.raises(
        vp.errors.StoreUnavailable, match=r"does not answer(.|\n)*leave RemoteDecode out"
    ):
        list(pipe)


def test_it_runs_as_a_program(capsys):
    """And says that all batches are equal."""
    remote_decode.main()

    assert "4 of 4 batches are equal" in capsys.readouterr().out
