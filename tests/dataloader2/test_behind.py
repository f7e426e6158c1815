"""What belongs into the process that trains runs there, behind the workers' batches."""

import os
import random
import threading

import numpy as np
import pytest
import torch

import voxpipe as vp
from voxpipe.datapipes.iter import IterableWrapper, PinMemory
from voxpipe.graph import describe, walk
from voxpipe.reading_services.main_process_tail import detach_tail


def chain(count=8):
    cases = [{"image": np.full((4, 4, 4), n, np.float32), "case": f"c{n}"} for n in range(count)]
    return vp.from_cases(cases).shuffle().open_volume().lazy_patch(2).batch_patches(2)


def where(batch):
    """Add the process and the thread that this runs in."""
    return {**batch, "pid": os.getpid(), "thread": threading.current_thread().name}


def drawn(batch):
    """Add numbers of the three global generators."""
    return {**batch, "drawn": (random.random(), np.random.rand(), torch.rand(()).item())}


@pytest.fixture(params=[0, 2], ids=["alone", "workers"])
def service(request):
    """With and without workers."""
    return vp.MultiProcessingReadingService(request.param) if request.param else None


def pinning(pipe, monkeypatch):
    """Return a ``pin_memory`` that works on any machine."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return PinMemory(pipe, pin_memory_fn=marked)


def marked(batch, device):
    return {**batch, "pinned": (os.getpid(), device)}


def test_batches_are_moved_in_this_process(service):
    """By the pipe that does it and by functions after it; the rest is split as ever."""
    pipe = chain().to_device("meta").map(where)

    with vp.DataLoader2(pipe, [vp.Timeout(item=60), vp.Profile()], service) as dl:
        seen = list(dl)
        assert len(dl) == 4
        text = dl.explain()

    assert {b["image"].device.type for b in seen} == {"meta"}
    assert {b["pid"] for b in seen} == {os.getpid()}
    assert "in this process, behind the batches\n  · to_device('meta')\n  · map(where" in text
    assert "realized in" in text


def test_batches_are_those_without_it(service, monkeypatch):
    """In every epoch; and a state counts what was handed over, not what was pinned ahead."""
    with vp.DataLoader2(chain(), seed=3) as loader:
        plain = [[b["meta"] for b in loader] for _ in range(2)]
    pipe = pinning(chain(), monkeypatch).to_device("cpu")
    with vp.DataLoader2(pipe, None, service, seed=3) as loader:
        seen = [list(loader) for _ in range(2)]
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        del batches
    with vp.DataLoader2(pipe, seed=9) as loader:
        loader.load_state_dict({**state, "epoch": 1})
        left = [b["meta"] for b in loader]

    assert [[b["meta"] for b in epoch] for epoch in seen] == plain
    assert {b["pinned"] for epoch in seen for b in epoch} == {(os.getpid(), 0)}
    assert state["next_batch"] == 1
    assert left == plain[1][1:]


def test_functions_behind_draw_from_the_loaders_seed(service):
    """What they draw is a function of seed, epoch and batch, and moves nobody else's numbers."""
    pipe = chain().to_device("cpu").map(drawn)
    with vp.DataLoader2(pipe, None, service, seed=3) as loader:
        torch.manual_seed(7)
        before = torch.get_rng_state()
        seen = [[b["drawn"] for b in loader] for _ in range(2)]
        assert torch.equal(before, torch.get_rng_state())
        batches = iter(loader)
        next(batches), next(batches)
        state = loader.state_dict()
    with vp.DataLoader2(pipe, seed=9) as loader:
        loader.load_state_dict({**state, "epoch": 1})
        left = [b["drawn"] for b in loader]

    assert len({n for epoch in seen for numbers in epoch for n in numbers}) == 24
    assert left == seen[1][2:]


def test_nothing_is_left_of_an_epoch_that_was_left(service, monkeypatch):
    """Its threads end; the next one begins anew."""
    with vp.DataLoader2(pinning(chain(), monkeypatch), None, service, seed=3) as loader:
        for _ in range(3):
            next(iter(loader))
            assert [t for t in threading.enumerate() if t.name == "pin_memory"] == []
        assert len(list(loader)) == 4


def test_an_error_behind_arrives_as_itself(service):
    """And the loader can begin again."""
    pipe = chain().to_device("cpu").map(refuse_second)
    with vp.DataLoader2(pipe, None, service, seed=3) as loader:
        for _ in range(2):
            _refused.clear()
            batches = iter(loader)
            next(batches)
            with pytest.raises(LookupError, match="second"):
                next(batches)


_refused = []


def refuse_second(batch):
    _refused.append(1)
    if len(_refused) == 2:
        raise LookupError("second")
    return batch


def test_ranks_keep_one_group_for_all_epochs(tmp_path):
    """One rank passes everything on; the same pipe serves every epoch."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1
    )
    try:
        with vp.DataLoader2(chain().fullsync(), seed=3) as loader:
            assert [len(list(loader)) for _ in range(2)] == [4, 4]
    finally:
        torch.distributed.destroy_process_group()


def test_what_cannot_stay_here_is_refused_where_there_are_workers():
    """A pipe after it that gathers items would have to stay, too."""
    pipe = IterableWrapper(range(4)).to_device("cpu").batch(2)

    with pytest.raises(vp.errors.GraphError, match=r"to_device\('cpu'\) stays in the process") as e:
        vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2))
    assert os.path.basename(__file__) in str(e.value)
    with vp.DataLoader2(pipe) as loader:
        assert list(loader) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("follows", "what", "do"),
    [
        (
            lambda pipe: pipe.batch(2).map(where),
            "batch(2)",
            "Gather before it: .batch(2).fullsync()",
        ),
        (lambda pipe: pipe.map(where).unbatch(), "unbatch()", "Put it at the end of the chain"),
    ],
)
def test_the_pipe_that_bars_its_way_is_named_with_the_reason(follows, what, do):
    """It is not always the last one; and the order that works is told."""
    pipe = follows(IterableWrapper(range(4)).fullsync())

    with pytest.raises(vp.errors.GraphError) as e:
        vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2))

    told = str(e.value)
    assert f"and {what} after it does not take its items one by one; behind workers one" in told
    assert f"{do}, or give no workers." in told


def test_the_order_that_is_told_is_taken():
    """A batch and then what stays here."""
    pipe = IterableWrapper(range(4)).batch(2).fullsync()

    with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2)) as loader:
        assert len(loader) == 2


def test_a_graph_without_such_pipes_is_left_as_it_is():
    """The very same object; also where two read from the pipe."""
    service = vp.reading_services.InProcessReadingService()
    for pipe in (chain(), chain().map(where), chain().prefetch(2)):
        body, tail = detach_tail(pipe, service)
        assert body is pipe
        assert tail.pipes == ()
        assert tail.explain() == ""
    moved = IterableWrapper(range(3)).to_device("cpu")
    body, tail = detach_tail(moved.zip(moved.enumerate()), service)
    assert tail.pipes == ()
    assert "to_device('cpu')" in [describe(pipe) for pipe in walk(body)]


TAILS = {
    "device": lambda pipe: pipe.to_device("cpu"),
    "tensors of MONAI": lambda pipe: pipe.to_metatensor(),
    "subjects": lambda pipe: pipe.to_subject(),
    "prefetched": lambda pipe: pipe.to_device("cpu").map(where).prefetch(2),
}
SERVICES = {
    "alone": lambda: None,
    "threads": lambda: vp.ThreadReadingService(4),
    "workers": lambda: vp.MultiProcessingReadingService(2),
    "workers that stay": lambda: vp.MultiProcessingReadingService(2, persistent_workers=True),
}


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize("tail", TAILS.values(), ids=TAILS)
def test_the_end_of_a_plan_loses_no_batch(tail, service):
    """The thread that plans under ``Timeout`` ends while batches are still in flight."""
    pipe = tail(chain(24))
    with vp.DataLoader2(pipe, vp.Timeout(item=60), service(), seed=3) as loader:
        assert [len(list(loader)) for _ in range(3)] == [len(loader)] * 3 == [12] * 3
