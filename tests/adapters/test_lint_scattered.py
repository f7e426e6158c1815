"""A shuffle that has chunks decoded again and again is told; not where that does not matter."""

import numpy as np
import pytest
import zarr

import voxpipe as vp
from voxpipe.adapters import Lint, lint
from voxpipe.core.errors import LintWarning
from voxpipe.datapipes.shuffle_plans import ShuffleSpec

SIZE, CHUNK, PATCH, COUNT = 32, 8, 12, 6


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chunks")
    for n in range(COUNT):
        shape, chunks = (SIZE,) * 3, (CHUNK,) * 3
        zarr.create_array(folder / f"{n}.zarr", shape=shape, chunks=chunks, dtype="i2")[:] = 1
    return [{"case": str(n), "image": str(folder / f"{n}.zarr")} for n in range(COUNT)]


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """As if the volumes were large: memory keeps the chunks of two."""
    size = SIZE**3 * 2
    monkeypatch.setattr(lint, "MEMORY_BYTES", 2 * size)
    monkeypatch.setattr(lint, "usable_memory", lambda: 4 * 2 * size)


def chain(cases, shuffled, samples=40):
    pipe = vp.from_cases(cases).shuffle().open_volume()
    return shuffled(pipe.lazy_patch(PATCH, samples_per_volume=samples)).batch_patches(4)


def names(pipe):
    return [mistake.name for mistake in Lint().mistakes(pipe)]


GLOBAL = {
    "shuffle": lambda pipe: pipe.shuffle(),
    "plans": lambda pipe: pipe.shuffle_plans(),
    "window": lambda pipe: pipe.shuffle_plans(ShuffleSpec.window(1000)),
    "later": lambda pipe: pipe.rotate((-5, 5)).shuffle(),
}
QUIET = {
    "local": lambda pipe: pipe.shuffle_plans(ShuffleSpec.chunk_local(2**20)),
    "two at a time": lambda pipe: pipe.shuffle(buffer_size=80),
    "interleaved": lambda pipe: pipe.interleave(2),
}


@pytest.mark.parametrize("name", GLOBAL)
def test_over_more_than_memory_keeps(cases, name):
    """The pipe, how often a chunk is decoded, and what to write."""
    found = {m.name: m for m in Lint().mistakes(chain(cases, GLOBAL[name]))}
    mistake = found["scattered-chunks"]

    assert "more than memory keeps: each chunk is decoded about" in mistake.what
    assert ".shuffle_plans(ShuffleSpec.chunk_local(" in mistake.do
    assert "lazy_patch(12, samples_per_volume=40)" in mistake.do
    assert mistake.origin is None or mistake.origin.file == __file__


@pytest.mark.parametrize("name", QUIET)
def test_over_what_memory_keeps(cases, name):
    """Chunks are there when they are wanted again."""
    assert "scattered-chunks" not in names(chain(cases, QUIET[name]))


def test_what_the_sentence_says_is_clean(cases):
    """The mended chain has no mistake."""
    local = chain(cases, lambda pipe: pipe.shuffle_plans(ShuffleSpec.chunk_local(2**20)))

    assert names(local) == []


def test_few_patches_of_each(cases):
    """Chunks are hardly ever wanted again, whatever the order."""
    assert names(chain(cases, GLOBAL["plans"], samples=3)) == []


def test_volumes_without_chunks():
    """Arrays in memory are not decoded."""
    arrays = [{"image": np.zeros((SIZE,) * 3, "i2")} for _ in range(COUNT)]

    assert names(chain(arrays, GLOBAL["plans"])) == []


def test_enough_memory(cases, monkeypatch):
    """All volumes are kept."""
    monkeypatch.setattr(lint, "usable_memory", lambda: 2**40)

    assert names(chain(cases, GLOBAL["plans"])) == []


def test_by_name(cases):
    """The warning names it, and it can be ignored."""
    pipe = chain(cases, GLOBAL["plans"])
    with pytest.warns(LintWarning, match="scattered-chunks: shuffle_plans"):
        Lint()(pipe)

    assert Lint(ignore=["scattered-chunks"]).mistakes(pipe) == []


def test_the_figure_is_that_of_the_report(cases):
    """What is said of a global order, and saved by a local one, is what planning both tells."""
    kept = 2 * SIZE**3 * 2
    told = [
        vp.shuffle_report(chain(cases, order), cache_bytes=kept).bytes_per_sample
        for order in (GLOBAL["plans"], lambda p: p.shuffle_plans(ShuffleSpec.chunk_local(kept)))
    ]

    assert told[0] > 2 * told[1]
