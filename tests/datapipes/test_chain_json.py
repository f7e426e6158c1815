"""A chain as JSON and back: the same text, the same batches, and no code that the data name."""

import enum
import json
import math
import operator
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

import voxpipe as vp
from voxpipe.core.errors import BadChain, GraphError
from voxpipe.datapipes.iter import (
    SHARDING_PRIORITIES,
    CompressionType,
    FileLister,
    FSSpecFileLister,
    SampleMultiplexer,
)
from voxpipe.graph import fingerprint

HERE = __name__
AXIS_MAP = vp.AxisMap.missing("K", [2], "fill", fill=-1)


def is_even(x):
    return x % 2 == 0


def parity(x):
    return x % 2


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Setting:
    level: float


class OwnPipe(vp.DataPipe):
    """A pipe of a user, without a chained form."""

    def __init__(self, parent, setting, *, key="image", name=""):
        super().__init__(parent)
        self.setting = setting

    def __iter__(self):
        yield from self.parent


class Forgetful(IterDataPipe):
    """A torch pipe that does not remember its arguments."""

    def __init__(self, parent, times):
        self.parent, self.times = parent, times

    def __iter__(self):
        yield from self.parent


def numbers():
    return IterableWrapper(range(6))


def paths():
    return vp.list_cases("s3://scans/*/", image="ct.nii.zarr", seg="seg.nii", optional="seg")


def cases():
    image = {"image": "a/ct.nii", "label": "a/seg.nii", "age": 61}
    return vp.from_cases([image, {**image, "case": "b"}])


def diamond():
    one, two, three = numbers().fork(3, buffer_size=50)
    return one.zip(two.map(math.sqrt), three.batch(1)).concat(numbers())


def unlimited():
    with pytest.warns(UserWarning, match="Unlimited buffer"):
        one, two = numbers().fork(2, buffer_size=-1)
    return one.zip(two)


def deep_diamond():
    one, two = cases().open_volume().lazy_patch(4).fork(num_instances=2)
    return one.rotate((-5, 5)).zip(two.rotate((-5, 5)))


def named(pipe):
    return OwnPipe(pipe, Setting(0.5), key="label", name="me")


CHAINS = {
    "patterns": lambda: paths().shuffle().open_volume().lazy_patch((96, 96, 1)).batch_patches(4),
    "cases": lambda: cases().open_volume(labels=("label",)).lazy_patch(4, sampling="grid"),
    "files": lambda: FileLister("texts", "*.txt").open_files("r"),
    "options by key": lambda: (
        cases()
        .open_volume(io={"image": "pread"}, policies={"image": vp.Policy(padding="zeros")})
        .lazy_patch(4, mask="label", class_weights={0: 1, 2: 3.5, "other": 1})
        .augment(rotate=(-15, 15), mode={"image": "cubic"}, fill={"image": -1000.0})
        .spacing(1.5, dtype=np.float32)
    ),
    "ops": lambda: (
        cases()
        .open_volume()
        .one_of({vp.spatial.Rotate(90): 2, vp.spatial.Flip(axes=(0,)): 1}, p=0.5)
        .some_of([vp.intensity.Noise(0.1), vp.intensity.Gamma((0.5, 2))], count=1)
    ),
    "a key": lambda: cases().open_volume().foreground_crop(key="label"),
    "numpy": lambda: cases().open_volume().rotate(np.float64(15)).normalize(mean=np.float32(0.1)),
    "sections": lambda: cases().open_volume(axis_map={"image": AXIS_MAP}),
    "diamond": diamond,
    "deep diamond": deep_diamond,
    "demux": lambda: numbers().demux(2, parity)[1],
    "unlimited": unlimited,
    "map style": lambda: SequenceWrapper([3, 1]).map(is_even).shuffle(),
    "enums": lambda: (
        IterableWrapper([("a", 1)])
        .sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
        .decompress(file_type=CompressionType.GZIP)
    ),
    "own class": lambda: named(numbers()),
    "odd values": lambda: IterableWrapper(
        [
            *(None, True, -0.0, 2**70, "é$", {"$": 1}, {1: (2,)}, {"a": [{}]}, {3, 1}),
            *(frozenset("ab"), range(2, 9, 3), slice(None, 4), Path("a/b"), Colour.RED),
            *(np.float16(0.1), np.int64(-4), np.bool_(True), np.dtype(">i2"), np.uint8, len),
            *(math.inf, -math.inf, (), [], Setting(math.inf)),
        ]
    ),
}


def through_json(data):
    return json.loads(json.dumps(data, allow_nan=False))


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_returns_as_it_was(name):
    """Its text, its pipes and its identity in saved states."""
    pipe = CHAINS[name]()
    data = through_json(vp.chain_to_json(pipe))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as it was made
        again = vp.chain_from_json(data, functions=[f"{HERE}.*", "math.*", "builtins:len"])

    assert str(again) == str(pipe)
    assert vp.datapipes.explain(again) == vp.datapipes.explain(pipe) if name == "ops" else True
    assert fingerprint(again) == fingerprint(pipe)
    assert vp.chain_to_json(again) == data


def test_values_keep_their_classes():
    """NaN included, which equals nothing."""
    values = [math.nan, (1, [2]), {3, 1}, Path("a"), np.float16(0.1), np.dtype(">i2"), -0.0]
    data = through_json(vp.chain_to_json(IterableWrapper(values)))

    again = vp.chain_from_json(data).iterable

    assert math.isnan(again[0])
    assert again[1:] == values[1:]
    assert list(map(type, again)) == list(map(type, values))
    assert math.copysign(1, again[-1]) == -1


@pytest.mark.parametrize("make", [diamond, lambda: numbers().demux(2, parity)[1].batch(2)])
def test_a_graph_yields_the_same_items(make):
    """Branches meet as they did."""
    data = through_json(vp.chain_to_json(make()))

    assert list(vp.chain_from_json(data, functions=["math:sqrt", f"{HERE}:parity"])) == list(make())


def test_batches_are_the_same(tmp_path):
    """Of a chain that draws, in a loader of the same seed."""
    for name in "abc":
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "image.npy", np.random.default_rng(ord(name)).random((6, 6, 6)))
    pipe = vp.list_cases(f"{tmp_path}/*/", image="image.npy").shuffle().open_volume()
    pipe = pipe.lazy_patch(4, samples_per_volume=2).augment(rotate=(-15, 15), flip=0.5)
    pipe = pipe.shuffle().batch_patches(2)
    again = vp.chain_from_json(through_json(vp.chain_to_json(pipe)))

    with vp.DataLoader2(pipe, seed=3) as one, vp.DataLoader2(again, seed=3) as two:
        pairs = list(zip(one, two, strict=True))

    assert len(pairs) == 3
    assert all(torch.equal(a["image"], b["image"]) for a, b in pairs)


def test_a_manifest_is_read_where_the_chain_is_made(tmp_path):
    """The data hold its path, and none of its cases."""
    np.save(tmp_path / "image.npy", np.zeros((4, 4, 4)))
    vp.dataloader2.index(str(tmp_path), str(tmp_path / "manifest.json"))
    pipe = vp.from_manifest(str(tmp_path / "manifest.json")).open_volume()
    data = through_json(vp.chain_to_json(pipe))

    assert data["pipes"][0] == {
        "form": "from_manifest",
        "values": [str(tmp_path / "manifest.json")],
    }
    assert [sample.case for sample in vp.chain_from_json(data)] == [s.case for s in pipe]


def other_chain():
    mix = numbers()
    return SampleMultiplexer({mix: 1, numbers(): 2})


REFUSED = {
    "tensor": (lambda: vp.from_cases([{"image": torch.zeros(2)}]), "from_cases.* a Tensor"),
    "array": (lambda: IterableWrapper([np.zeros(3)]), "IterableWrapper.* a ndarray"),
    "lambda": (lambda: cases().map(lambda x: x), r"map\(<lambda>.*holds <lambda>"),
    "method": (lambda: numbers().map([].append), "append"),
    "getter": (lambda: numbers().map(operator.itemgetter(0)), "a itemgetter"),
    "iterator": (lambda: IterableWrapper(iter([1]), deepcopy=False), "list_iterator"),
    "file": (lambda: IterableWrapper([sys.stdout], deepcopy=False), "IterableWrapper"),
    "volume": (lambda: vp.from_cases([{"image": vp.Volume("a.nii")}]), "a Volume"),
    "volume as mask": (
        lambda: cases().open_volume().lazy_patch(4, mask=vp.Volume("m.nii")),
        "mask holds a Volume",
    ),
    "loop": (lambda: IterableWrapper([LOOP], deepcopy=False), "40 levels"),
    "own class": (lambda: Forgetful(numbers(), 2), "only a DataPipe keeps"),
    "collate": (lambda: numbers().collate(is_even), "collate"),
    "switched off": (lambda: numbers().shuffle().set_shuffle(False), "shuffle"),
    "several": (other_chain, "SampleMultiplexer"),
    "unzip": (lambda: IterableWrapper([(1, 2)]).unzip(2)[0], "unzip"),
    "part": (lambda: numbers().random_split({"a": 1, "b": 1}, 0)[0], "random_split"),
    "user in a URL": (lambda: vp.from_cases([{"image": "https://me:pw@host/a.nii"}]), "credential"),
    "query": (lambda: vp.list_cases("https://h/*/?X-Sig=1", image="a.nii"), "credential"),
    "token": (lambda: vp.from_cases([{"image": "a.nii", "token": "s3"}]), "credential"),
    "torch's": (lambda: IterableWrapper(["s3://me:pw@b/a.nii"]), "credential"),
    "fsspec": (lambda: FSSpecFileLister("s3://me:pw@b/x", masks="*.x"), "credential"),
}
LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize("name", REFUSED)
def test_a_chain_without_a_data_form_is_refused(name):
    """By pipe and argument; nothing is left out silently."""
    make, message = REFUSED[name]

    with pytest.raises((GraphError, TypeError), match=message) as caught:
        vp.chain_to_json(make())

    assert "pw" not in str(caught.value)


def test_a_function_of_a_script_is_refused(monkeypatch):
    """Another program has another script."""
    monkeypatch.setattr(is_even, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "is_even", is_even, raising=False)

    with pytest.raises(GraphError, match="is_even, which is no function or class of a module"):
        vp.chain_to_json(numbers().filter(is_even))


def test_storage_options_are_given_again():
    """They are not written; a chain that had some is not made without."""
    secret = {"key": "AKIA", "secret": "s3cret"}
    pipe = vp.list_cases("s3://b/*/", image="a.nii", storage_options=secret)
    pipe = pipe.open_volume(storage_options=secret)
    data = through_json(vp.chain_to_json(pipe))

    assert "s3cret" not in str(data)
    assert "AKIA" not in str(data)
    with pytest.raises(BadChain, match=r"storage_options=\) expected"):
        vp.chain_from_json(data)
    again = vp.chain_from_json(data, storage_options=secret)
    assert str(again) == str(pipe)
    assert again.source_datapipe.storage_options == secret


def options_in(*values, form="IterableWrapper", **options):
    node = {"form": form, "values": list(values), "options": options}
    return {"version": 1, "pipes": [node]}


SECRET_MARK = {"$": ["storage_options"]}


@pytest.mark.parametrize(
    "data",
    [
        options_in([SECRET_MARK]),
        options_in(SECRET_MARK),
        options_in(iterable=SECRET_MARK),
        options_in([], storage_options=SECRET_MARK),
        options_in([{"image": SECRET_MARK}], form="from_cases"),
        options_in("s3://b/*/", form="list_cases", image=SECRET_MARK),
        options_in("s3://b/*/", form="list_cases", storage_options={"a": SECRET_MARK}),
        options_in(SECRET_MARK, form="FSSpecFileLister", storage_options=SECRET_MARK),
        options_in("memory://", form="FSSpecFileLister", storage_options=SECRET_MARK),
    ],
)
def test_storage_options_go_to_their_argument_alone(data):
    """As items of a chain they would be printed by whoever lists it."""
    with pytest.raises(BadChain, match="storage_options only in an argument"):
        vp.chain_from_json(data, storage_options={"secret": "s3cret"})


def node(form, *values, parents=(0,), **options):
    return {"form": form, "parents": list(parents), "values": list(values), "options": options}


def document(*nodes):
    source = {"form": "IterableWrapper", "values": [[1, 2]]}
    return {"version": 1, "pipes": [source, *nodes]}


BAD = {
    "text": ("{}", "mapping of JSON expected, got '{}'"),
    "version": ({"version": 2, "pipes": [{}]}, "'version': 1"),
    "a true version": ({"version": True, "pipes": [{}]}, "'version': 1"),
    "more": ({**document(), "more": 1}, "and .pipes. expected"),
    "no pipes": ({"version": 1, "pipes": []}, "list of pipes expected"),
    "form": (document(node("batchs", 2)), "'batchs' is no form; did you mean 'batch'"),
    "source": (document(node("from_case", [], parents=())), "did you mean 'from_cases'"),
    "argument": (document(node("batch", 2, drop_lost=True)), "did you mean 'drop_last'"),
    "argument of an op": (document(node("rotate", degres=3)), "did you mean 'degrees'"),
    "field": (
        document({**node("batch", 2), "option": {}}),
        "a field out of branch, form.* got .option.$",
    ),
    "no function": (document(node("map", {"$": ["os:system"]})), r"functions=\['os:system'\]"),
    "builtin": (document(node("map", {"$": ["eval"]})), "a known value expected, got 'eval'"),
    "method": (document(node("explain")), "'explain' is no form"),
    "private": (document(node("__init__")), "'__init__' is no form$"),
    "function as form": (document(node("os:system", "ls", parents=())), "functions="),
    "later": (document(node("batch", 2, parents=[1])), "number of an earlier pipe"),
    "negative": (document(node("batch", 2, parents=[-1])), "number of an earlier pipe"),
    "all branches": (document(node("fork", 2)), "pipe without branches expected, got 1"),
    "no branch": (document(node("fork", 2), {"branch": 2, "parents": [1]}), "pipe 2"),
    "branch of one": (
        document({"branch": 0, "parents": [0]}),
        "pipe with branches expected, got 0",
    ),
    "many branches": (document(node("fork", 10**12)), "at most 1000 branches"),
    "arguments of torch": (document(node("shuffle", 3, 4)), "too many positional arguments"),
    "class of branches": (document(node("Forker", 10**12)), "at most 1000 branches"),
    "columns": (document(node("unzip", sequence_length=10**12)), "at most 1000 branches"),
    "named branches": (document(node("fork", num_instances=10**12)), "at most 1000 branches"),
    "value": (document(node("batch", {"$": ["Popen", "ls"]})), "a known value"),
    "class": (document(node("batch", {"$": ["DataLoader2", []]})), "a known value"),
    "two tags": (document(node("batch", {"$": ["tuple"], "a": 1})), "one list under"),
    "constructor": (document(node("batch", 0)), "pipe 1: Batch size"),
    "not JSON": (document(node("batch", (1, 2))), "mapping of JSON expected, got tuple"),
    "deep": (document(node("batch", LOOP)), "40 levels at most"),
    "many pipes": (
        document(*(node("rotate", 90, parents=[n]) for n in range(200))),
        "at most 200 pipes expected, got 201",
    ),
    "program": (document(node("map", {"$": ["__main__:f"]})), "a module, not a program"),
}


@pytest.mark.parametrize("name", BAD)
def test_data_that_are_no_chain_are_refused(name):
    """With the number of the pipe, and the nearest name."""
    data, message = BAD[name]

    with pytest.raises(BadChain, match=message):
        vp.chain_from_json(data)


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        ([f"{HERE}:is_even"], True),
        ([f"{HERE}.is_even"], True),
        ([f"{HERE}.*"], True),
        ([f"{HERE}:is_odd", "os.*"], False),
        ([], False),
    ],
)
def test_functions_are_allowed_by_path_or_pattern(patterns, allowed):
    """Nothing else of the module or of another."""
    data = vp.chain_to_json(numbers().filter(is_even))
    if allowed:
        assert list(vp.chain_from_json(data, functions=patterns)) == [0, 2, 4]
        return
    with pytest.raises(BadChain, match=f"functions=\\['{HERE}:is_even'\\]"):
        vp.chain_from_json(data, functions=patterns)


@pytest.mark.parametrize(
    "name", ["os", "os.system", "vp", "absent", "OwnPipe.__init__.__globals__"]
)
def test_a_pattern_allows_only_names_that_a_module_defines(name):
    """A module that was imported there is another one's."""
    data = document(node("map", {"$": [f"{HERE}:{name}"]}))

    with pytest.raises(BadChain, match="where it is defined"):
        vp.chain_from_json(data, functions=[f"{HERE}.*"])


def test_a_refused_module_is_not_imported(tmp_path, monkeypatch):
    """Its code runs only if it is allowed."""
    mark = tmp_path / "mark"
    (tmp_path / "evil_module.py").write_text(f"open({str(mark)!r}, 'w').close()\ndef f(x): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    data = document(node("map", {"$": ["evil_module:f"]}))

    with pytest.raises(BadChain, match="evil_module"):
        vp.chain_from_json(data, functions=["evil_module2.*", "evil"])
    assert not os.path.exists(mark)
    vp.chain_from_json(data, functions=["evil_module:f"])
    assert os.path.exists(mark)


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """Make a package whose files note that they run; return the notes."""
    mark = tmp_path / "mark"
    (tmp_path / "evilpkg").mkdir()
    for name in ("__init__", "__main__", "sub"):
        text = f"with open({str(mark)!r}, 'a') as file:\n    file.write({name + ' '!r})\n"
        text += "def f(x): ...\n"
        (tmp_path / "evilpkg" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: mark.read_text() if mark.exists() else ""
    for name in [name for name in sys.modules if name.partition(".")[0] == "evilpkg"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("evilpkg.__main__:f", "evilpkg.*"),
        ("evilpkg.__main__:f", "evilpkg.__main__:f"),
        ("evilpkg.__main__.sub:f", "evilpkg.*"),
        ("evilpkg:f", "evil*"),
        ("evilpkg:f", "*"),
        ("evilpkg.sub:f", "evilpkg.s*"),
        ("evilpkg.sub:f", "*.f"),
    ],
)
@pytest.mark.parametrize("is_form", [True, False])
def test_no_program_runs_and_no_wildcard_chooses_a_module(evil, name, pattern, is_form):
    """Refused before the import, also as a form."""
    data = document(node(name) if is_form else node("map", {"$": [name]}))

    with pytest.raises(BadChain, match="evilpkg"):
        vp.chain_from_json(data, functions=[pattern])

    assert evil() == ""


@pytest.mark.parametrize(
    "pattern", ["evilpkg.sub:f", "evilpkg.sub:*", "evilpkg.sub.?", "evilpkg.*"]
)
def test_a_pattern_imports_the_module_that_it_names(evil, pattern):
    """Exactly, or by its package; once it is loaded, any pattern allows its functions."""
    data = document(node("map", {"$": ["evilpkg.sub:f"]}))

    vp.chain_from_json(data, functions=[pattern])
    vp.chain_from_json(data, functions=["evil*"])

    assert evil() == "__init__ sub "


def test_an_allowed_function_is_no_form():
    """Its path is right, and the thing at its end is no pipe."""
    for data in (document(node(f"{HERE}:is_even")), options_in(form=f"{HERE}:is_even")):
        with pytest.raises(BadChain, match=r"is_even., allowed by functions=, is no class"):
            vp.chain_from_json(data, functions=[f"{HERE}.*"])


def test_a_longer_chain_has_no_data_form():
    """What was written can be read: 200 pipes."""
    pipe = numbers()
    for _ in range(199):
        pipe = pipe.batch(1)
    assert len(vp.chain_from_json(vp.chain_to_json(pipe))) == 6

    with pytest.raises(GraphError, match="at most 200 pipes, and the chain has 201"):
        vp.chain_to_json(pipe.batch(1))


def test_one_text_of_functions_is_a_list_of_letters():
    """A likely slip."""
    with pytest.raises(TypeError, match="a list of import paths"):
        vp.chain_from_json(document(), functions="os.*")


def test_the_text_of_a_chain_names_its_key():
    """It is no credential, unlike the key of a store."""
    assert "key='label'" in str(cases().open_volume().foreground_crop(key="label"))


class Swapped(vp.DataPipe):
    """A pipe that keeps its parents in another order than it takes them."""

    def __init__(self, first, second):
        super().__init__()
        self.second, self.first = second, first

    def __iter__(self):
        yield from zip(self.first, self.second, strict=True)


def test_parents_in_another_order_are_refused():
    """The data would name the wrong one first."""
    with pytest.raises(GraphError, match="do not make the same pipe again"):
        vp.chain_to_json(Swapped(numbers(), numbers().batch(1)))


def test_nested_choices_and_orders_are_own_values():
    """Choices within choices, ops on some keys, and orders need no ``functions``."""
    pipe = vp.from_cases([{"image": "a.nii"}]).open_volume().lazy_patch((8, 8, 8))
    turns = [vp.spatial.Rotate((-5, 5)), vp.spatial.SomeOf([vp.spatial.Flip(0)], (0, 1))]
    pipe = pipe.one_of(turns).shuffle_plans(vp.ShuffleSpec())

    data = json.loads(json.dumps(vp.chain_to_json(pipe)))

    assert str(vp.chain_from_json(data)) == str(pipe)
