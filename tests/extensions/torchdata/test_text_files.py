"""Lines, rows, JSON, samples of archives, names of shards: what text and names become."""

import csv
import io
import itertools
import json
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from leftovers import open_files
from torch.utils.data.datapipes.iter import FileOpener, IterableWrapper
from torch.utils.data.datapipes.utils.common import StreamWrapper

import voxpipe as vp
from voxpipe.core.errors import SampleError, StreamError


def source(*items):
    return IterableWrapper(list(items), deepcopy=False)


def raw(text, encoding="utf-8"):
    return io.BytesIO(text.encode(encoding))


@pytest.fixture
def rows(tmp_path):
    """The files of torchdata's own test: one with rows, an empty one, one with an empty line."""
    for name, text in {"1": "key,item\na,1\nb,2", "2": "", "3": "\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    return IterableWrapper([str(tmp_path / f"{n}.csv") for n in (1, 2, 3)])


@pytest.mark.parametrize("mode", ["b", "r"])
def test_rows(rows, mode):
    """Of bytes and of text; from the first line or a later one; with paths or as tuples."""
    opened = FileOpener(rows, mode=mode)
    first, last = next(iter(rows)), list(rows)[2]

    assert list(opened.parse_csv()) == [["key", "item"], ["a", "1"], ["b", "2"], []]
    assert list(opened.parse_csv(skip_lines=1)) == [["a", "1"], ["b", "2"]]
    assert list(opened.parse_csv(as_tuple=True)) == [("key", "item"), ("a", "1"), ("b", "2"), ()]
    assert list(opened.parse_csv(return_path=True))[-2:] == [(first, ["b", "2"]), (last, [])]
    expected = [{"key": "a", "item": "1"}, {"key": "b", "item": "2"}]
    assert list(opened.parse_csv_as_dict()) == expected
    assert list(opened.parse_csv_as_dict(skip_lines=1)) == [{"a": "b", "1": "2"}]
    assert list(opened.parse_csv_as_dict(return_path=True)) == [(first, row) for row in expected]
    for pipe in (opened.parse_csv(), opened.parse_csv_as_dict(), opened.readlines()):
        with pytest.raises(TypeError, match="has no len"):
            len(pipe)


@given(
    st.lists(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"))), min_size=1)
)
def test_any_rows_come_back(table):
    """What the module csv wrote, in an encoding whose letters have two bytes each."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows(table)
    pipe = source(("x", raw(text.getvalue(), "utf-16"))).parse_csv(encoding="utf-16")

    assert list(pipe) == list(csv.reader(io.StringIO(text.getvalue(), newline="")))


def test_bytes_that_are_no_text():
    """Left out, as with torchdata, or told with the name of the file."""
    assert list(source(("x", io.BytesIO(b"a,\xff\xc3b"))).parse_csv()) == [["a", "b"]]
    for form in ("parse_csv", "parse_csv_as_dict", "readlines"):
        pipe = getattr(source(("x.csv", io.BytesIO(b"a\n\xff"))), form)(
            errors="strict", decode=True
        )
        with pytest.raises(StreamError, match=r"x\.csv cannot be read: .*0xff"):
            list(pipe)
    with pytest.raises(StreamError, match="field larger than field limit"):
        list(source(("x", raw("a" * 200_000))).parse_csv())
    with pytest.raises(ValueError, match="'skip_lines' is required to be"):
        source().readlines(skip_lines=-1)


def test_lines():
    """With their ends or without, as bytes or as text, of files or of any iterator."""
    text = "one\r\n\ntwo\rthree\n"

    def lines(stream, **options):
        return list(source(("x", stream)).readlines(return_path=False, **options))

    assert lines(raw(text)) == [b"one", b"", b"two\rthree"]
    assert lines(raw(text), decode=True) == ["one", "", "two\rthree"]
    assert lines(raw(text), strip_newline=False) == [b"one\r\n", b"\n", b"two\rthree\n"]
    assert lines(io.StringIO(text, newline="\n"), decode=True, skip_lines=2) == ["two\rthree"]
    assert lines([b"one\n", b"two"], decode=True) == ["one", "two"]
    assert list(source(("x", raw("a"))).readlines()) == [("x", b"a")]


def test_paragraphs():
    """Lines up to an empty one or the next file; none is made of nothing."""
    lines = [("a", "1"), ("a", "2"), ("a", ""), ("a", ""), ("a", "3"), ("b", "4"), ("c", "")]
    pipe = source(*lines).lines_to_paragraphs()

    assert list(pipe) == [("a", "1\n2"), ("a", "3"), ("b", "4")]
    items = iter(pipe)
    next(items)
    assert list(pipe) == [("a", "1\n2"), ("a", "3"), ("b", "4")]


def test_json_files():
    """Any encoding that JSON may have; what is none names its file and keeps its class."""
    made = {"a": [1, None, "ü"]}
    files = [(n, io.BytesIO(json.dumps(made).encode(n))) for n in ("utf-8", "utf-16", "utf-32")]

    assert list(source(*files).parse_json_files()) == [(n, made) for n, _ in files]
    assert list(source(("x", io.StringIO("1.5"))).parse_json_files(parse_float=str)) == [
        ("x", "1.5")
    ]
    assert len(source(*files).parse_json_files()) == 3
    stream = io.BytesIO(b"")
    with pytest.raises(json.JSONDecodeError, match="Expecting value") as caught:
        list(source(("empty.json", stream)).parse_json_files())
    assert "in case empty.json" in getattr(caught.value, "__notes__", ["in case empty.json"])
    assert stream.closed


@pytest.mark.parametrize(
    "form", ["readlines", "parse_csv", "parse_csv_as_dict", "parse_json_files"]
)
def test_files_are_closed(tmp_path, form):
    """At the end of a pass, in the middle of one, and where it fails."""
    (tmp_path / "a").write_text("[1]\n[2]\n" if form != "parse_json_files" else "[1]")
    pipe = getattr(FileOpener(IterableWrapper([str(tmp_path / "a")] * 3), mode="b"), form)()

    list(pipe)
    assert not open_below(tmp_path)
    items = iter(pipe)
    next(items)
    del items
    assert not open_below(tmp_path)
    with pytest.raises(ZeroDivisionError):
        for _ in pipe.map(lambda _: 1 / 0):
            pass
    assert not open_below(tmp_path)


def open_below(folder):
    return [name for _, name in open_files() if str(folder) in name]


def test_shards():
    """As a shell writes braces, and as torchdata does; the last ones change fastest."""
    assert list(source("a-{0..2}").shard_expand()) == ["a-0", "a-1", "a-2"]
    assert list(source("a-{8..11}").shard_expand()) == ["a-8", "a-9", "a-10", "a-11"]
    assert list(source("{08..10}", "x").shard_expand()) == ["08", "09", "10", "x"]
    assert list(source("{0..1}/{5..6}").shard_expand()) == ["0/5", "0/6", "1/5", "1/6"]
    assert list(source("a{7..7}b").shard_expand()) == ["a7b"]
    for wrong, told in {
        "{00..999}": "must not start with 0",
        "{10..5}": "bad range",
        "{5..3}": "bad range",
    }.items():
        with pytest.raises(ValueError, match=told):
            list(source(wrong).shard_expand())
    first = list(itertools.islice(source("{0..99999999999}").shard_expand(), 2))
    assert first == ["0", "1"]


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def test_samples_of_archives():
    """Members side by side with one name before the first dot; the rest is the key."""
    members = [
        ("s.tar/README", b"no suffix"),
        ("s.tar/v1.0/a.ct.npy", npy(np.arange(6).reshape(2, 3))),
        ("s.tar/v1.0/a.cls", b"7"),
        ("s.tar/v1.0/b.json", b'{"x": 1}'),
        ("s.tar/v1.0/b.txt", "ü".encode()),
        ("s.tar/v1.0/b.JPG", b"raw"),
    ]

    plain = list(source(*members).webdataset())
    a, b = source(*members).webdataset(decode=True)

    assert [sorted(sample) for sample in plain] == [
        [".cls", ".ct.npy", "__key__"],
        [".JPG", ".json", ".txt", "__key__"],
    ]
    assert plain[0][".cls"] == b"7"
    assert (a["__key__"], a[".cls"], a[".ct.npy"].tolist()) == (
        "s.tar/v1.0/a",
        7,
        [[0, 1, 2], [3, 4, 5]],
    )
    assert b == {"__key__": "s.tar/v1.0/b", ".json": {"x": 1}, ".txt": "ü", ".JPG": b"raw"}


class Bomb:
    """Pickled, it would write a file when it is opened."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("suffix", ["pyd", "pickle", "pkl", "pth", "pt", "PKL", "npy"])
def test_nothing_that_is_read_is_executed(tmp_path, suffix):
    """A pickle is refused by its name, an array of objects by NumPy."""
    import pickle

    evil = Bomb(tmp_path / "ran")
    content = pickle.dumps(evil) if suffix != "npy" else npy(np.array([evil], dtype=object))
    told = "runs whatever code" if suffix != "npy" else "is not what its suffix says"

    with pytest.raises(StreamError, match=told):
        list(source((f"a.{suffix}", content)).webdataset(decode=True))
    assert next(iter(source((f"a.{suffix}", content)).webdataset()))[f".{suffix}"] == content
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "content"), [("a.cls", b"x"), ("a.json", b"{"), ("a.txt", b"\xff"), ("a.npy", b"x")]
)
def test_members_that_are_not_what_they_say(name, content):
    """The message names the member, and the line of the pipe."""
    with pytest.raises(StreamError, match=r"a\..* is not what its suffix says") as caught:
        list(source((name, content)).webdataset(decode=True))
    assert "webdataset(decode=True)" in str(caught.value)


def test_a_sample_with_two_members_of_one_name():
    """Torchdata keeps the last, without a word."""
    stream = StreamWrapper(io.BytesIO(b"1"))
    with pytest.raises(StreamError, match=r"sample a has two members \.cls"):
        list(source(("a.cls", stream), ("a.cls", b"2")).webdataset())
    assert stream.closed
    with pytest.raises(SampleError, match="a pair of a name and data"):
        list(source("a.cls").webdataset())


def archive(folder, number):
    with tarfile.open(folder / f"{number}.tar", "w") as tar:
        for sample in range(4):
            for suffix, content in (
                (".cls", str(sample).encode()),
                (".npy", npy(np.full(3, sample))),
            ):
                info = tarfile.TarInfo(f"{number}{sample}{suffix}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return str(folder / f"{number}.tar")


def label_and_sum(sample):
    return sample[".cls"], int(sample[".npy"].sum())


@pytest.mark.parametrize("service", [None, vp.MultiProcessingReadingService(2, "fork")])
def test_in_the_loader(tmp_path, service):
    """Archives cannot be cut into jobs: each worker takes its share of them."""
    paths = [archive(tmp_path, number) for number in range(4)]
    shards = IterableWrapper(paths).sharding_filter().open_files_by_fsspec("rb")
    pipe = shards.load_from_tar().webdataset(decode=True).map(label_and_sum)

    with vp.DataLoader2(pipe, [], service) as loader:
        assert sorted(loader) == sorted((n, 3 * n) for n in range(4) for _ in range(4))
    assert not open_below(tmp_path)


def fails_late(sample):
    if sample[".cls"] == 2:
        raise LookupError
    return sample[".cls"]


def test_a_loader_that_fails_or_is_left_closes_files(tmp_path):
    """In the middle of an archive, while the error and the loader are still there."""
    shards = IterableWrapper([archive(tmp_path, 0)]).open_files(mode="b")
    samples = shards.load_from_tar().webdataset(decode=True)

    loader = vp.DataLoader2(samples.map(fails_late))
    with pytest.raises(LookupError) as caught:
        list(loader)
    assert not open_below(tmp_path)
    left = vp.DataLoader2(samples)
    items = iter(left)
    next(items)
    assert open_below(tmp_path)
    left.shutdown()
    assert not open_below(tmp_path)
    assert caught.value is not None
    loader.shutdown()


def test_a_loader_continues_in_the_middle_of_an_archive(tmp_path):
    """A state counts batches, so the first ones are read again and passed over."""
    shards = IterableWrapper([archive(tmp_path, n) for n in range(2)]).open_files(mode="b")
    samples = shards.load_from_tar().webdataset(decode=True).map(label_and_sum)

    with vp.DataLoader2(samples) as loader:
        whole = list(loader)
    with vp.DataLoader2(samples, seed=3) as loader:
        items = iter(loader)
        first = [next(items) for _ in range(5)]
        state = json.loads(json.dumps(loader.state_dict()))
    with vp.DataLoader2(samples, seed=3) as loader:
        loader.load_state_dict(state)
        assert first + list(loader) == whole


def parsed(item):
    return item[1]


def test_files_travel_by_name(tmp_path):
    """Workers open them; the planner hands over paths."""
    for number in range(4):
        (tmp_path / f"{number}.json").write_text(str(number))
    paths = IterableWrapper([str(tmp_path / f"{n}.json") for n in range(4)])
    for opened in (paths.open_files(mode="b"), paths.open_files_by_fsspec("rb")):
        pipe = opened.parse_json_files().map(parsed).batch(2)
        with vp.DataLoader2(pipe, [], vp.MultiProcessingReadingService(2, "fork")) as loader:
            assert "realized in each of 2 workers" in loader.explain()
            assert list(loader) == [[0, 1], [2, 3]]
