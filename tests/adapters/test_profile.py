"""Profile: what each pipe did, summed over processes."""

import json
import time

import pytest
from scenes import full_chain, write_cases
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


@pytest.mark.parametrize("workers", [0, 2])
def test_counts_per_pipe_are_those_of_the_epoch(cases, workers):
    """Items, reads and interpolations are counted where they happen, in every process."""
    profile = vp.Profile()
    service = vp.MultiProcessingReadingService(workers)
    with vp.DataLoader2(full_chain(cases), [profile], service, seed=7) as it:
        list(it)

    rows = {row["pipe"].split("(")[0]: row for row in profile.to_json()}
    assert [rows[name]["items"] for name in ("from_cases", "shuffle", "open_volume")] == [3, 3, 3]
    assert [rows[name]["items"] for name in ("lazy_patch", "augment", "normalize")] == [12, 12, 12]
    batch = rows["batch_patches"]
    assert (batch["items"], batch["reads"], batch["interpolations"]) == (3, 24, 24)
    assert batch["bytes_read"] > 0
    assert rows["lazy_patch"]["reads"] == 0
    assert all(row["seconds"] >= 0 for row in rows.values())


def test_time_is_counted_once(cases):
    """A pipe's seconds are its own: those of its parents are taken off, so the sum is the whole."""
    profile = vp.Profile()
    with vp.DataLoader2(full_chain(cases), [profile], seed=7) as it:
        started = time.perf_counter()
        list(it)
        elapsed = time.perf_counter() - started

    seconds = [row["seconds"] for row in profile.to_json()]
    assert all(own > 0 for own in seconds)
    assert sum(seconds) <= elapsed


def test_every_pipe_that_is_shown_is_counted_as_watched(cases):
    """The first one, which has no parents, too."""
    text = vp.DataLoader2(full_chain(cases), [vp.Profile()]).explain()

    (row,) = (line for line in text.splitlines() if line.startswith("watched"))
    shown = text.partition("\n\n")[0].splitlines()[1:]
    assert row == f"watched  {len(shown)} pipes   (time pipes)"


def test_the_table_shows_the_users_lines(cases):
    """The table names each pipe as written, with file and line, and json agrees."""
    profile = vp.Profile()
    with vp.DataLoader2(full_chain(cases), [profile], seed=7) as it:
        list(it)
        table = it.profile()

    assert "augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)   scenes.py:" in table
    assert table.splitlines()[0].split()[:3] == ["pipe", "items", "seconds"]
    assert len(json.dumps(profile.to_json())) > 100


def test_reset_forgets(cases):
    """After reset the counts begin again."""
    profile = vp.Profile()
    with vp.DataLoader2(full_chain(cases), [profile], seed=7) as it:
        list(it)
    profile.reset()

    assert {row["items"] for row in profile.to_json()} == {0}


def test_profiling_twice_is_profiling_once(cases):
    """A profiled graph comes back as the same object."""
    profile = vp.Profile()
    once = profile(full_chain(cases))

    assert profile(once) is once


def test_an_unprofiled_loader_says_so(cases):
    """profile() without the adapter names the adapter."""
    with pytest.raises(ValueError, match=r"Profile\(\)"):
        vp.DataLoader2(full_chain(cases)).profile()


def test_forks_can_be_profiled():
    """Between torch's fork and its children nothing is put; the rest is timed."""
    from torch.utils.data.datapipes.iter import IterableWrapper

    left, right = IterableWrapper(range(3)).fork(2)
    profile = vp.Profile()

    assert list(profile(left.zip(right))) == [(0, 0), (1, 1), (2, 2)]
    assert profile.to_json()[-1]["items"] == 3


def test_two_pipes_of_one_line_have_two_rows():
    """Pipes that were written alike on one line are counted apart."""
    profile = vp.Profile()
    chain = IterableWrapper(range(3)).shuffle().map(str).batch(2).shuffle()
    with vp.DataLoader2(chain, [profile], seed=7) as it:
        list(it)

    rows = [(row["pipe"].split("   ")[0], row["items"]) for row in profile.to_json()]
    assert rows[1:] == [("shuffle()", 3), ("map(str)", 3), ("batch(2)", 2), ("shuffle() #2", 2)]


def test_what_lint_looks_at_is_not_counted(cases):
    """Lint comes last and plans the first patches; a profile counts those of the epoch."""
    profile = vp.Profile()
    chain = vp.from_cases(cases).shuffle().open_volume().lazy_patch(4, samples_per_volume=2)
    with vp.DataLoader2(chain.shuffle().batch_patches(2), [profile, vp.Lint()], seed=7):
        pass

    assert {row["items"] for row in profile.to_json()} == {0}
