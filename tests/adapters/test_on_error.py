"""Items that cannot be made: raised, left out or replaced, told and counted, alike everywhere."""

import functools
import json
import operator

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.batching.job import remaining
from voxpipe.core.errors import GraphError, TooManyFailures, VolumeNotFound

BAD = (2, 5)
ACTIONS = ("skip", "replace")


def cases(folder, bad=BAD, count=9):
    """Return cases of which some are missing files; the voxels of a case are its number."""
    return [
        {"image": str(folder / f"missing{n}.nii")}
        if n in bad
        else {"image": np.full((6, 6, 6), n, np.uint8)}
        for n in range(count)
    ]


def same(sample):
    return sample


def fail_at_four(sample):
    if int(sample["image"].max()) == 4:
        raise ZeroDivisionError("four")
    return sample


def chain(folder, *, function=None, batch=3, **kwargs):
    pipe = vp.from_cases(cases(folder, **kwargs)).open_volume().lazy_patch(4)
    if function is not None:
        pipe = pipe.realize().map(function)
    return pipe.batch_patches(batch)


def epoch(pipe, adapter, workers=0, state=None, **service):
    """Return what the batches hold, what failed, and the state after each batch."""
    reading = vp.MultiProcessingReadingService(workers, "fork", **service)
    held, states = [], []
    with vp.DataLoader2(pipe, adapter, reading, seed=3) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            held.append([int(image.max()) for image in batch["image"]])
            states.append(json.loads(json.dumps(loader.state_dict())))
        return held, loader.failures, states


@pytest.mark.parametrize("function", [None, same])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_bad_items_are_left_out_under_any_number_of_workers(tmp_path, workers, function):
    """The batches are those of the good items, and failures come with their batch."""
    held, failures, _ = epoch(chain(tmp_path, function=function), vp.OnError("skip"), workers)

    assert held == [[0, 1], [3, 4], [6, 7, 8]]
    assert [(f.batch, f.item, f.error) for f in failures] == [
        (0, 2, "VolumeNotFound"),
        (1, 2, "VolumeNotFound"),
    ]


def test_what_was_let_pass_is_in_the_figures_of_the_loader(tmp_path):
    """By class, for a person and for a program."""
    with vp.DataLoader2(chain(tmp_path), vp.OnError("skip"), seed=3) as loader:
        list(loader)

        assert loader.stats().to_json()["failures"] == {"VolumeNotFound": 2}
        assert "let pass by OnError: 2 VolumeNotFound" in str(loader.stats())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_good_item_of_the_batch_stands_in(tmp_path, workers):
    """The batch keeps its size, and the failure says who took the place."""
    held, failures, _ = epoch(chain(tmp_path), vp.OnError("replace"), workers)

    assert held == [[0, 1, 0], [3, 4, 3], [6, 7, 8]]
    assert [f.instead for f in failures] == ["0", "3"]


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_without_a_good_item_is_left_out(tmp_path, workers, action):
    """The epoch goes on with the next one; the state counts the one that was left out."""
    pipe = chain(tmp_path, bad=(3, 4, 5))

    held, failures, states = epoch(pipe, vp.OnError(action), workers)

    assert held == [[0, 1, 2], [6, 7, 8]]
    assert [f.batch for f in failures] == [1, 1, 1]
    assert [state["next_batch"] for state in states] == [1, 3]
    assert [state["failures"] for state in states] == [0, 3]


def test_failures_name_case_file_and_pipe(tmp_path):
    """What is told is enough to find the file and the line."""
    _, (first, _), _ = epoch(chain(tmp_path), vp.OnError("skip"), 1)

    assert "missing2.nii" in first.files
    assert first.pipe.startswith(".batch_patches(3)   test_on_error.py:")
    assert first.case == "missing2"
    assert "missing2.nii" in str(first)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_goes_on_alike(tmp_path, workers):
    """From every position, under another number of workers, with the count so far."""
    held, _, states = epoch(chain(tmp_path), vp.OnError("skip", budget=2), 0)

    for position, state in enumerate(states[:-1]):
        rest, _, later = epoch(chain(tmp_path), vp.OnError("skip", budget=2), workers, state)
        assert rest == held[position + 1 :]
        assert later[-1]["failures"] == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_the_budget_holds_for_the_epoch_and_over_a_resume(tmp_path, workers):
    """One failure more than the budget is an error that tells of it, wherever it was counted."""
    service = vp.MultiProcessingReadingService(workers, "fork")
    adapter = vp.OnError("skip", budget=1)
    with vp.DataLoader2(chain(tmp_path), adapter, service, seed=3) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        with pytest.raises(TooManyFailures, match=r"2 items failed.*1 may(.|\n)*missing5.nii"):
            next(batches)
    with vp.DataLoader2(chain(tmp_path), adapter, service, seed=3) as loader:
        loader.load_state_dict(state)
        with pytest.raises(TooManyFailures):
            list(loader)


def test_the_budget_begins_anew_with_each_epoch(tmp_path):
    """Two epochs of two failures are within a budget of two."""
    with vp.DataLoader2(chain(tmp_path), vp.OnError("skip", budget=2), seed=3) as loader:
        assert [len(list(loader)) for _ in range(2)] == [3, 3]
        assert len(loader.failures) == 4
        assert loader.stats().failures == {"VolumeNotFound": 4}


@pytest.mark.parametrize("workers", [0, 1])
def test_errors_of_programs_are_raised_unless_asked_for(tmp_path, workers):
    """A function that fails is no broken file."""
    pipe = chain(tmp_path, function=fail_at_four)
    with pytest.raises(ZeroDivisionError):
        epoch(pipe, vp.OnError("skip"), workers)

    asked = vp.OnError("skip", errors=(VolumeNotFound, ZeroDivisionError))
    held, failures, _ = epoch(pipe, asked, workers)

    assert held == [[0, 1], [3], [6, 7, 8]]
    assert [f.error for f in failures if f.batch == 1] == ["ZeroDivisionError", "VolumeNotFound"]
    assert "map(fail_at_four)" in next(f.pipe for f in failures if f.error == "ZeroDivisionError")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("bad", [(0,), (3, 4), (8,), (7, 8)])
def test_cases_that_cannot_be_planned_are_left_out(tmp_path, workers, bad):
    """A grid needs the header: such a case is told, also where it is the last one."""
    pipe = vp.from_cases(cases(tmp_path, bad)).open_volume()
    pipe = pipe.lazy_patch(6, sampling="grid").batch_patches(3)
    good = [n for n in range(9) if n not in bad]

    held, failures, _ = epoch(pipe, vp.OnError("skip"), workers)

    assert functools.reduce(operator.iadd, held, []) == good
    assert [f"missing{n}.nii" in f.files for f, n in zip(failures, bad, strict=True)]
    assert [f.item for f in failures] == [-1] * len(bad)
    assert all("lazy_patch" in f.pipe for f in failures)


def test_the_state_at_the_end_knows_of_what_came_last(tmp_path):
    """A case that fails after the last batch is counted once, also after a resume."""
    pipe = vp.from_cases(cases(tmp_path, (8,))).open_volume()
    pipe = pipe.lazy_patch(6, sampling="grid").batch_patches(4)
    _, failures, states = epoch(pipe, vp.OnError("skip"), 0)

    rest, later, _ = epoch(pipe, vp.OnError("skip"), 2, states[-1])

    assert (rest, len(failures), len(later)) == ([], 1, 1)


def test_errors_without_the_adapter_are_errors(tmp_path):
    """Nothing is left out unless the user asked for it."""
    for adapter in (None, vp.OnError("raise")):
        with pytest.raises(VolumeNotFound):
            epoch(chain(tmp_path), adapter)


@pytest.mark.parametrize("workers", [0, 2])
def test_pipes_behind_the_workers_see_no_failures(tmp_path, workers):
    """What stays here gets batches; those without an item pass it by, in their turn."""
    pipe = chain(tmp_path, bad=(2, 3, 4, 5)).to_device("cpu")

    held, failures, states = epoch(pipe, vp.OnError("skip"), workers)

    assert held == [[0, 1], [6, 7, 8]]
    assert [f.batch for f in failures] == [0, 1, 1, 1]
    assert [state["next_batch"] for state in states] == [1, 3]
    last = epoch(chain(tmp_path, bad=(6, 7, 8)).to_device("cpu"), vp.OnError("skip"), workers)
    assert last[0] == [[0, 1, 2], [3, 4, 5]]
    assert [f.batch for f in last[1]] == [2, 2, 2]


def test_credentials_are_not_told(tmp_path):
    """Neither the user of a URL nor its query is in what is kept of a failure."""

    def leak(sample):
        raise VolumeNotFound("https://me:secret@host/a.nii?sig=abc is not there")

    pipe = vp.from_cases(cases(tmp_path, ())).open_volume().lazy_patch(4).realize().map(leak)

    _, failures, _ = epoch(pipe.batch_patches(3), vp.OnError("skip"))

    assert len(failures) == 9
    assert "host/a.nii" in failures[0].message
    assert "secret" not in failures[0].message
    assert "sig" not in failures[0].message


def test_a_graph_that_cannot_be_split_is_refused(tmp_path):
    """There is no batch that could be made again."""
    pipe = chain(tmp_path).filter(bool).shuffle()

    with pytest.raises(GraphError, match="cannot leave anything out"):
        vp.DataLoader2(pipe, vp.OnError("skip"))


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"action": "ignore"}, ValueError, "action is one of"),
        ({"budget": -1}, ValueError, "budget"),
        ({"errors": (int,)}, TypeError, "classes of exceptions"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, told):
    """Where they are written."""
    with pytest.raises(error, match=told):
        vp.OnError(**arguments)


def test_what_remains_is_a_function_of_the_positions():
    """For every set of bad items of a batch: good ones only, in order, or each in its place."""
    items = tuple("abcd")
    for mask in range(16):
        bad = {n for n in range(4) if mask >> n & 1}
        good = [item for n, item in enumerate(items) if n not in bad]
        assert list(remaining(items, bad, "skip")) == good
        replaced = remaining(items, bad, "replace")
        assert len(replaced) == (4 if good else 0)
        assert all(replaced[n] == items[n] for n in range(4) if n not in bad)
        assert set(replaced) == set(good)
