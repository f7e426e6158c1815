"""The length of a graph is asked of every pipe once, also where branches meet."""

import nibabel
import numpy as np
import pytest
from manifests import index_cases, write_manifest
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.dataloader2 import volumes_of
from voxpipe.datapipes import epoch
from voxpipe.datapipes.datapipe import length
from voxpipe.graph import clone


class Source(IterDataPipe):
    """Counts how often it is asked."""

    def __init__(self, count=4):
        self.count = count
        self.asked = 0

    def __len__(self):
        self.asked += 1
        if self.count is None:
            raise TypeError("unknown")
        return self.count

    def __iter__(self):
        yield from range(self.count)


def ours(pipe):
    return pipe.enumerate().zip_longest(pipe.enumerate())


def torchs(pipe):
    left, right = pipe.fork(2)
    return left.zip(right)


def both(pipe):
    return torchs(ours(pipe))


@pytest.mark.parametrize("diamond", [ours, torchs, both])
@pytest.mark.parametrize("count", [4, None])
def test_of_diamonds(diamond, count):
    """Forty of them have 2**40 paths; what is not known is asked for once, too."""
    source = pipe = Source(count)
    for _ in range(40):
        pipe = diamond(pipe)

    if count is None:
        with pytest.raises(TypeError):
            length(pipe)
    else:
        assert length(pipe) == count
    assert source.asked == 1


def test_of_a_loader_and_a_pipe_of_ours():
    """Both ask that way; nothing is remembered for the next time."""
    source = pipe = Source()
    for _ in range(40):
        pipe = both(pipe)
    last = pipe.enumerate()

    assert len(vp.DataLoader2(last)) == len(last) == 4
    source.count = 5
    assert len(last) == 5


def is_odd(n):
    return n % 2


CHAINS = {
    "batch": lambda p: p.batch(3),
    "concat": lambda p: p.concat(IterableWrapper(range(2))),
    "filter": lambda p: p.filter(is_odd),
    "shuffle": lambda p: p.shuffle(),
    "sharding": lambda p: p.sharding_filter(),
    "unbatch": lambda p: p.batch(2).unbatch(),
    "mux": lambda p: p.mux(IterableWrapper(range(9))),
    "demux": lambda p: p.demux(2, is_odd)[0],
    "fork": lambda p: p.fork(2)[1],
    "sampler": lambda p: p.map(str).zip(p.map(int)),
}


@pytest.mark.parametrize("name", CHAINS)
def test_is_that_of_the_pipe(name):
    """Whatever torch says."""
    pipe = CHAINS[name](IterableWrapper(range(7)))
    expected = told_by(len, pipe)

    assert told_by(length, pipe) == expected


def told_by(function, pipe):
    try:
        return function(pipe)
    except TypeError as error:
        return str(error)


def test_asking_leaves_a_running_pass_alone():
    """Also that of a shuffle, whose copies empty its buffer when they go."""
    pipe = IterableWrapper(range(10)).shuffle()
    items = iter(pipe.map(str))
    first = next(items)

    assert length(pipe.map(str)) == 10
    assert sorted([first, *items]) == [str(n) for n in range(10)]


def test_a_copy_of_a_chain_leaves_a_running_pass_alone():
    """A copy of a shuffle has a buffer of its own, which it empties when it goes."""
    pipe = IterableWrapper(range(10)).shuffle()
    items = iter(pipe)
    first = next(items)

    del_me = clone(pipe)
    del del_me

    assert sorted([first, *items]) == list(range(10))


SHAPES = [(8, 8, 8), (9, 8, 8), (8, 20, 4)]
"""Of which patches of 4 voxels make 8, 12 and 10."""


def grid_cases(folder):
    cases = []
    for number, shape in enumerate(SHAPES):
        path = folder / f"{number}.nii"
        nibabel.save(nibabel.Nifti1Image(np.zeros(shape, np.int16), np.eye(4)), path)
        cases.append({"image": str(path)})
    return cases


def in_a_grid(pipe, **options):
    return pipe.lazy_patch(4, sampling="grid", **options).batch_patches(4)


def spatial(name):
    return {
        "plain": lambda pipe: pipe,
        "spacing": lambda pipe: pipe.spacing(0.5),
        "turned": lambda pipe: pipe.shuffle().rotate((-30, 30)).flip(0, p=0.5),
        "cropped": lambda pipe: pipe.crop((0, 0, 0), (8, 8, 4)),
    }[name]


@pytest.mark.parametrize("name", ["plain", "spacing", "turned", "cropped"])
@pytest.mark.parametrize("manifest", [False, True])
def test_of_a_grid_comes_from_headers(tmp_path, name, manifest):
    """It is the number of batches that come, and no voxel is read to know it."""
    cases = grid_cases(tmp_path)
    if manifest:
        found = vp.from_cases(cases).open_volume()
        made, _ = index_cases(volumes_of(found))
        write_manifest(made, tmp_path / "manifest.json")
        pipe = vp.from_manifest(tmp_path / "manifest.json").open_volume()
    else:
        pipe = vp.from_cases(cases).open_volume()
    pipe = in_a_grid(spatial(name)(pipe))
    with vp.DataLoader2(pipe) as loader:
        before = IO_COUNTERS.snapshot()
        count = len(loader)
        spent = IO_COUNTERS.snapshot() - before

        assert spent.reads == 0
        assert count == len(pipe) == len(list(loader)) > 2


def test_of_a_grid_is_worked_out_once(tmp_path, monkeypatch):
    """A progress bar and a trainer ask again and again; workers are not asked."""
    opened = []
    monkeypatch.setattr(epoch, "_open_headers", opened.append)
    pipe = in_a_grid(vp.from_cases(grid_cases(tmp_path)).open_volume())

    with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2)) as loader:
        for _ in loader:  # which does not ask, as headers may be far away
            pass
        assert opened == []
        assert [len(loader), len(loader), len(loader)] == [8, 8, 8]
    assert len(opened) == 1


class Twice:
    """A function of the user's that says nothing of sizes."""

    def __call__(self, sample):
        return sample


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda pipe: pipe.zoom((0.5, 2.0), keep_size=False), "is drawn"),
        (lambda pipe: pipe.foreground_crop("image"), "from their voxels"),
        (lambda pipe: pipe.map(Twice()), "your functions"),
    ],
)
def test_of_a_grid_may_be_unknown(tmp_path, change, why):
    """As PyTorch has it, that is a TypeError, with the reason, and ``list()`` works."""
    pipe = change(vp.from_cases(grid_cases(tmp_path)).open_volume())
    grid = pipe.lazy_patch(4, sampling="grid")

    with pytest.raises(TypeError, match=why):
        len(grid)
    with vp.DataLoader2(grid.batch_patches(4)) as loader, pytest.raises(TypeError):
        len(loader)


def test_of_a_grid_with_a_file_that_is_gone_is_unknown(tmp_path):
    """The error itself comes in its turn, where it can be excused."""
    cases = [*grid_cases(tmp_path), {"image": str(tmp_path / "gone.nii")}]
    pipe = in_a_grid(vp.from_cases(cases).open_volume())

    with pytest.raises(TypeError, match=r"VolumeNotFound.*gone\.nii"):
        len(pipe.parent)
    with vp.DataLoader2(pipe, vp.OnError("skip")) as loader:
        assert len(list(loader)) == 8
