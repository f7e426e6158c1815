"""Pipes that refer to themselves or to later pipes, and the names that modules list."""

import importlib
import pickle

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import GraphError
from voxpipe.graph import clone, fingerprint, walk


class Twice(vp.DataPipe):
    """A pipe with a parent."""

    def __init__(self, parent):
        super().__init__(parent)

    def __iter__(self):
        yield from (2 * item for item in self.parent)


def circular(name, of):
    """Return a chain in which an attribute of a pipe is that pipe, or the one after it."""
    first = Twice(IterableWrapper(range(3)))
    last = Twice(first)
    vars(first)[name] = {"itself": first, "child": last, "children": [last]}[of]
    return last


@pytest.mark.parametrize("of", ["itself", "child", "children"])
def test_a_private_attribute_may_refer_back(of):
    """It is no edge of the graph: the chain runs, prints, copies and pickles."""
    pipe, plain = circular("_note", of), Twice(Twice(IterableWrapper(range(3))))

    assert len(list(walk(pipe))) == 3
    assert str(pipe) == str(plain)
    assert list(vp.DataLoader2(pipe)) == list(clone(pipe)) == [0, 4, 8]
    assert list(pickle.loads(pickle.dumps(pipe))) == [0, 4, 8]
    data = vp.chain_to_json(pipe)
    assert fingerprint(vp.chain_from_json(data, functions=[f"{__name__}:Twice"])) == fingerprint(
        plain
    )


@pytest.mark.parametrize("of", ["itself", "child", "children"])
@pytest.mark.parametrize("act", [str, vp.DataLoader2, vp.chain_to_json, clone])
def test_a_public_attribute_that_refers_back_is_refused(of, act):
    """It says that the pipe reads its own output; no walk is endless."""
    with pytest.raises(GraphError, match="is upstream of itself"):
        act(circular("note", of))


@pytest.mark.parametrize("name", ["datapipes.iter", "datapipes.map", "datapipes.utils"])
def test_modules_list_all_that_they_offer(name):
    """``dir()`` and a star import have torch's names and those that were not used yet."""
    module = importlib.import_module(f"voxpipe.{name}")
    names = {one for one in vars(module) if isinstance(vars(module)[one], type)}
    pipes = {n for n in names if issubclass(vars(module)[n], IterDataPipe) and n[0] != "_"}

    assert name == "datapipes.utils" or pipes <= {*dir(module)}
    assert {*module.__all__} <= {*dir(module)}
    for one in module.__all__:
        assert getattr(module, one) is vars(module)[one]
