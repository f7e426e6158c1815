"""Chains of torch's pipes alone are told as well as ours: pipe, line, item, and how they run."""

import os
from pathlib import Path

import pytest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import FileLister, IterableWrapper, Mapper

import voxpipe as vp
from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService

FILE = os.path.basename(__file__)
pytestmark = pytest.mark.filterwarnings(
    # forking with threads of torch around is what some of these tests ask for
    "ignore:This process.*is multi-threaded:DeprecationWarning"
)


class Seven(ValueError):
    """What nobody else raises."""


def boom(number):
    if number == 7:
        raise Seven("seven")
    return number


def same(graph, info):
    return graph


def text(pair):
    return pair[1].read()


def mapped():
    return IterableWrapper(range(20)).map(boom)


class Own(IterDataPipe):
    """A pipe of the user's own, which knows no line."""

    def __init__(self, parent):
        self.parent = parent

    def __iter__(self):
        for item in self.parent:
            yield boom(item)


def line_of(text):
    """Return the first line of this file that holds a text."""
    return 1 + next(
        n
        for n, line in enumerate(Path(__file__).read_text(encoding="utf-8").split("\n"))
        if text in line
    )


def noted(pipe, service=None):
    """Return what is noted on the error of an epoch."""
    with DataLoader2(pipe, None, service, seed=1) as loader, pytest.raises(Seven) as e:
        list(loader)
    assert e.value.args == ("seven",)
    return e.value.__notes__


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_the_pipe_the_line_and_the_item(workers):
    """An item without a name is told by its place in its batch."""
    found = noted(mapped().batch(2), MultiProcessingReadingService(workers, "fork"))

    where = f"at .map(boom)   {FILE}:{line_of('.map(boom)')}"
    assert found == ["in item 1 of batch 3", where]


def test_single_items_are_told_by_the_number_of_their_batch():
    """A chain that gathers nothing has batches of one."""
    assert "in batch 7" in noted(mapped())


@pytest.mark.parametrize("workers", [0, 2])
def test_a_function_before_a_shuffle_is_named(workers):
    """It runs where the order is planned; the item is told by its number before the shuffle."""
    found = noted(mapped().shuffle().batch(2), MultiProcessingReadingService(workers, "fork"))

    where = f"at .map(boom)   {FILE}:{line_of('.map(boom)')}"
    assert found == ["in item 7 of IterableWrapper(range(0, 20))", where]


def test_a_function_in_a_whole_graph_is_named():
    """As worker_init_fn has it: each worker runs everything."""
    service = MultiProcessingReadingService(2, "fork", worker_init_fn=same)
    found = noted(IterableWrapper(range(20)).sharding_filter().map(boom), service)

    assert found[0] == "in item 3 of share 1"
    assert found[1].startswith("at .map(boom)")


@pytest.mark.parametrize("make", [lambda p: Mapper(p, boom), Own], ids=["class form", "own pipe"])
def test_a_pipe_that_knows_no_line_is_named(make):
    """By what it is: the class form, and pipes of one's own."""
    names = {"Mapper": f"at map(boom {FILE}:{line_of('def boom')})", "Own": "at Own()"}
    pipe = make(IterableWrapper(range(20)))

    assert names[type(pipe).__name__.removesuffix("IterDataPipe")] in noted(pipe)


@pytest.fixture
def files(tmp_path):
    for name in "abcd":
        (tmp_path / f"{name}.txt").write_text(name)
    return FileLister(str(tmp_path), "*.txt")


def test_explain_shows_what_torchs_pipes_were_given(files):
    """Settings other than the default; of data only the kind and number."""
    pipe = files.shuffle(buffer_size=3).open_files("r", encoding="utf-8").map(text)
    shown = DataLoader2(pipe.batch(2, drop_last=True)).explain()

    assert "list_files(masks='*.txt')" in shown
    assert "shuffle(buffer_size=3)" in shown
    assert "open_files(encoding='utf-8')" in shown
    assert "batch(2, drop_last=True)" in shown
    assert "IterableWrapper(list of 2)" in DataLoader2(IterableWrapper([1, 2])).explain()


def test_explain_shows_forks_by_the_name_that_was_written():
    """Of the hidden pipe that the children share."""
    first, second = IterableWrapper(range(4)).fork(2)

    assert "1 fork(2)\n" in DataLoader2(first.zip(second)).explain()


def test_explain_says_what_a_whole_graph_costs_and_how_it_can_be_split(files):
    """Of files, no word of voxels; and nothing about reading where no volume is read."""
    pipe = files.sharding_filter().open_files().map(text).shuffle().batch(2)
    shown = DataLoader2(pipe).explain()

    assert "not split: open_files() reads or opens files, and shuffle() after it" in shown
    assert "write it before that pipe to split the graph" in shown
    assert "this process runs the whole graph; batches depend on the number of workers" in shown
    assert "each worker" not in shown
    assert "voxels" not in shown
    # The advice holds.
    better = DataLoader2(files.shuffle().open_files().map(text).batch(2))
    assert "not split" not in better.explain()


def test_a_profile_has_the_lines_of_torchs_pipes():
    """Two of one name are told apart by them."""
    profile = vp.Profile()
    pipe = IterableWrapper(range(4)).batch(2).unbatch()
    list(DataLoader2(pipe.batch(2), [profile]))

    shown = [row["pipe"] for row in profile.to_json()]
    assert f"unbatch()   {FILE}:{line_of('.unbatch()')}" in shown
    assert sum(name.startswith("batch(2)   ") for name in shown) == 2
