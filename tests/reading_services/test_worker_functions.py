"""torchdata's scheme: functions that prepare each worker's graph, shares, prefetch, any order."""

import functools
import os
import threading

import pytest
import torch
from scenes import full_chain, same, write_cases
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

import voxpipe as vp
from voxpipe.batching.job import Recipe
from voxpipe.core.errors import GraphError, NotPicklable, StateMismatch, WorkerDied
from voxpipe.datapipes import DataPipe
from voxpipe.reading_services import (
    InProcessReadingService,
    PrototypeMultiProcessingReadingService,
    SeedGenerator,
    WorkerInfo,
)
from voxpipe.reading_services.replica import apply_shares

RANKS, WORKERS = SHARDING_PRIORITIES.DISTRIBUTED, SHARDING_PRIORITIES.MULTIPROCESSING

pytestmark = pytest.mark.filterwarnings(
    # forking with threads of torch around is what these tests ask for
    "ignore:This process.*is multi-threaded:DeprecationWarning"
)


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    return write_cases(tmp_path_factory.mktemp("cases"))


def numbers(count=12):
    return IterableWrapper(range(count)).sharding_filter()


def init(datapipe, info):
    """Mark every item with the worker that made it."""
    return datapipe.map(functools.partial(marked, info))


def marked(info, number):
    return number, os.getpid(), info.worker_id, info.num_workers


def reset(datapipe, info, seed_generator):
    """Add what the generator gives for this epoch."""
    shared, own = seed_generator.generate_shared_seed(), seed_generator.generate_seed()
    return datapipe.map(functools.partial(seeded, (shared, own, info.worker_id)))


def seeded(seeds, number):
    return number, seeds


def run(pipe, workers, epochs=1, seed=7, method="fork", **options):
    """Return the items of some epochs; a fork has torch, and needs no import of it."""
    service = vp.MultiProcessingReadingService(workers, method, **options)
    with vp.DataLoader2(pipe, None, service, seed=seed) as it:
        return [list(it) for _ in range(epochs)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_worker_init_fn_prepares_each_share(workers):
    """Every worker runs what the function returned, on its own share; items come in turn."""
    (items,) = run(numbers(), workers, method="forkserver", worker_init_fn=init)

    assert [number for number, *_ in items] == list(range(12))
    count = max(1, workers)
    assert [(worker, of) for _, _, worker, of in items] == [(n % count, count) for n in range(12)]
    assert len({process for _, process, *_ in items}) == count
    assert (os.getpid() in {process for _, process, *_ in items}) == (workers == 0)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stay", [False, True])
def test_worker_reset_fn_has_new_seeds_in_every_epoch(workers, stay):
    """Shared seeds are those of all workers, own ones nobody else's; both repeat with the seed."""
    options = {"worker_reset_fn": reset, "persistent_workers": stay}
    epochs = run(numbers(), workers, epochs=2, **options)

    assert epochs == run(numbers(), workers, epochs=2, **options)
    seeds = [[seeds for _, seeds in epoch] for epoch in epochs]
    for of_epoch in seeds:
        assert len({shared for shared, _, _ in of_epoch}) == 1
        assert len({own for _, own, _ in of_epoch}) == max(1, workers)
    assert {s for s, *_ in seeds[0]}.isdisjoint({s for s, *_ in seeds[1]})
    assert {o for _, o, _ in seeds[0]}.isdisjoint({o for _, o, _ in seeds[1]})


def count_calls(folder, datapipe, info, *seeds):
    with open(
        folder / f"{info.worker_id}{'reset' if seeds else 'init'}", "a", encoding="utf-8"
    ) as file:
        file.write("x")
    return datapipe


def test_init_runs_once_in_the_life_of_a_worker(tmp_path):
    """Workers that stay are initialised once and reset in every epoch; their processes stay."""
    hook = functools.partial(count_calls, tmp_path)
    run(numbers(), 2, epochs=3, persistent_workers=True, worker_init_fn=hook, worker_reset_fn=hook)

    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {"0init": "x", "1init": "x", "0reset": "xxx", "1reset": "xxx"}


class Level:
    value = 0

    def __call__(self, number):
        return self.value, os.getpid()


def test_init_runs_once_in_a_process_whose_graph_changes(tmp_path):
    """Workers of an earlier graph end: new ones see the object as it is, and are prepared once."""
    hook, level = functools.partial(note_process, tmp_path), Level()
    options = {"persistent_workers": True, "worker_init_fn": hook}
    service = vp.MultiProcessingReadingService(2, "fork", **options)
    processes = []
    with vp.DataLoader2(numbers().map(level), None, service, seed=7) as it:
        for level.value in (0, 0, 1, 1):
            values, own = map(set, zip(*it, strict=True))
            assert values == {level.value}
            processes.append(own)

    assert processes[0] == processes[1] != processes[2] == processes[3]
    prepared = {int(path.name): path.read_text() for path in tmp_path.iterdir()}
    assert prepared == dict.fromkeys(processes[0] | processes[2], "x")


def note_process(folder, datapipe, info):
    with open(folder / str(os.getpid()), "a", encoding="utf-8") as file:
        file.write("x")
    return datapipe


def test_a_split_graph_with_functions_is_run_whole(cases):
    """explain() says why; the items are those of the split graph, in the order of shares."""
    pipe = full_chain(cases, batch=1)
    service = vp.MultiProcessingReadingService(1, "fork", worker_init_fn=same_pipe)
    with vp.DataLoader2(pipe, None, service, seed=7) as it:
        text, batches = it.explain(), list(it)
    with vp.DataLoader2(pipe, seed=7) as it:
        assert same(batches, list(it))

    assert "not split: worker_init_fn=" in text
    assert "is handed the whole graph" in text


def same_pipe(datapipe, info):
    return datapipe


def fails(datapipe, *info):
    raise KeyError("a mistake in here")


def returns_nothing(datapipe, *info):
    return None


def interrupts(datapipe, *info):
    raise KeyboardInterrupt


def interrupted(number):
    if number == 5:
        raise KeyboardInterrupt
    return number


def exits(number):
    if number == 5:
        raise SystemExit(3)
    return number


@pytest.mark.parametrize("which", ["worker_init_fn", "worker_reset_fn"])
@pytest.mark.parametrize(
    ("function", "error", "text"),
    [
        (fails, KeyError, "a mistake in here"),
        (returns_nothing, GraphError, "returned None, and not the datapipe"),
        (interrupts, WorkerDied, "KeyboardInterrupt"),
    ],
)
def test_an_error_in_a_function_is_told(which, function, error, text):
    """It arrives as itself and says in which function of which worker; nobody waits for ever."""
    with pytest.raises(error, match=text) as e:
        run(numbers(), 2, **{which: function})

    if error is KeyError:
        assert f"in {which}=" in e.value.__notes__[0]
        assert "of worker 0" in e.value.__notes__[0]


@pytest.mark.parametrize("function", [interrupted, exits])
def test_what_would_end_a_process_is_told(function):
    """KeyboardInterrupt and SystemExit in a worker are an error here, not silence."""
    with pytest.raises(WorkerDied, match="a worker raised"):
        run(numbers().map(function), 2, worker_init_fn=same_pipe)


def test_a_function_that_cannot_travel_is_named():
    """At construction, by its argument."""
    with pytest.raises(NotPicklable, match=r"worker_init_fn=.* cannot travel"):
        run(numbers(), 1, worker_init_fn=lambda datapipe, info: datapipe)


def test_what_is_no_function_is_refused():
    """With the argument's name."""
    with pytest.raises(TypeError, match="worker_reset_fn is a function"):
        vp.MultiProcessingReadingService(1, worker_reset_fn=3)


def test_two_filters_of_one_level_are_refused():
    """A share of a share loses items silently; the message names both pipes."""
    with pytest.raises(GraphError, match="divides again the items"):
        run(numbers().sharding_filter(), 2, worker_init_fn=same_pipe)


def test_one_filter_for_each_level():
    """A branch may be divided among ranks first and among workers then."""
    pipe = IterableWrapper(range(8)).sharding_filter(RANKS).sharding_filter(WORKERS)

    assert run(pipe, 2, worker_init_fn=same_pipe) == [list(range(8))]


class OldFilter(DataPipe):
    """Knows one level, as filters of torch 1.x did."""

    def __init__(self, parent):
        super().__init__()
        self.parent = parent
        self.share = (1, 0)

    def apply_sharding(self, num_of_instances, instance_id):
        self.share = (num_of_instances, instance_id)

    def __iter__(self):
        count, number = self.share
        yield from (item for n, item in enumerate(self.parent) if n % count == number)


def test_a_filter_of_anybodys_divides():
    """Whatever has apply_sharding() is asked, with or without levels."""
    assert run(OldFilter(IterableWrapper(range(6))), 3, worker_init_fn=same_pipe) == [[*range(6)]]


def test_diamonds_are_seen_once():
    """Choosing shares takes time in proportion to the pipes, not to the ways through them."""
    source = pipe = numbers(4)
    for _ in range(100):
        one, other = pipe.fork(2)
        pipe = one.zip(other).map(first)

    apply_shares(pipe, workers=2, worker=1)

    assert list(source) == [1, 3]


def first(pair):
    return pair[0]


def is_even(number):
    return number % 2 == 0


def uneven(cases_or_count=13):
    return IterableWrapper(range(cases_or_count)).sharding_filter().filter(is_even)


def test_as_ready_gives_every_item_once_and_resumes(cases):
    """The order is free; a state says exactly which items of which share were handed over."""
    service = vp.MultiProcessingReadingService(
        3, "fork", order="as_ready", worker_init_fn=same_pipe
    )
    with vp.DataLoader2(uneven(), None, service, seed=7) as it:
        whole = list(it)
        it.set_epoch(0)
        batches = iter(it)
        begun = [next(batches) for _ in range(4)]
        state = it.state_dict()
    with vp.DataLoader2(uneven(), None, service, seed=7) as it:
        it.load_state_dict(state)
        rest = list(it)

    assert sorted(whole) == list(range(0, 13, 2))
    assert sorted(begun + rest) == sorted(whole)
    in_order = vp.MultiProcessingReadingService(3, "fork", worker_init_fn=same_pipe)
    with (
        vp.DataLoader2(uneven(), None, in_order, seed=7) as it,
        pytest.raises(StateMismatch, match="3 shares of the graph, as they are ready, this"),
    ):
        it.load_state_dict(state)


@pytest.mark.parametrize("counts", [(0, 0), (1, 8), (8, 0), (8, 8)])
@pytest.mark.parametrize("split", [True, False])
def test_prefetch_counts_change_no_batch(cases, counts, split):
    """How far ahead workers and this process are never shows."""
    pipe, hook = full_chain(cases, batch=1), None if split else same_pipe
    with vp.DataLoader2(pipe, seed=7) as it:
        expected = list(it)

    service = vp.MultiProcessingReadingService(1, None if split else "fork", *counts, hook)
    with vp.DataLoader2(pipe, None, service, seed=7) as it:
        assert same(list(it), expected)


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(("limit", "most"), [(0, 1), (3 * 2**21, 3), (None, 16)])
def test_prefetch_is_bounded_in_bytes(cases, monkeypatch, split, limit, most):
    """However many batches may be ahead, no more than prefetch_bytes of them are."""
    from voxpipe.reading_services.workers import pool

    pipe = full_chain(cases, samples=16, batch=1)  # a batch takes one step of 2 MiB in its slot
    hook = None if split else same_pipe
    service = vp.MultiProcessingReadingService(
        1,
        None if split else "fork",
        worker_prefetch_cnt=16,
        prefetch_bytes=limit,
        worker_init_fn=hook,
    )
    given, taken, ahead = [], [], []
    give = pool.WorkerPool.give

    def noted(self, *arguments):
        given.append(1)
        ahead.append(len(given) - len(taken))
        return give(self, *arguments)

    monkeypatch.setattr(pool.WorkerPool, "give", noted)
    with vp.DataLoader2(pipe, None, service, seed=7) as it:
        for _ in it:
            taken.append(1)

    assert len(taken) == 48
    # Two before anybody knows what one takes. Of a whole graph the next one is asked for as one is
    # handed over, which is not among those that were taken then.
    assert max(ahead) <= max(most, 2) + (not split)
    assert max(ahead[3:]) <= most + (not split)


def test_the_former_name_warns():
    """And is the same service."""
    with pytest.warns(FutureWarning, match="MultiProcessingReadingService"):
        service = PrototypeMultiProcessingReadingService(2)

    assert isinstance(service, vp.MultiProcessingReadingService)
    assert service.num_workers == 2


def test_worker_info_and_seeds_are_torchdatas():
    """What functions of torchdata's users rely on."""
    info = WorkerInfo(2, 1)
    seeds = SeedGenerator(5)
    spawned = seeds.spawn(3)

    assert (info.num_workers, info.worker_id) == (2, 1)
    assert seeds.spawn(3, inplace=True) is seeds
    assert seeds.generate_seed() == spawned.generate_seed()
    assert seeds.generate_seed() != seeds.generate_seed()
    seeds.seed(5)
    assert seeds.generate_shared_seed() == SeedGenerator(5).generate_shared_seed()
    with pytest.raises(ValueError, match="seed"):
        SeedGenerator(2**64)


def test_functions_run_in_this_process_too():
    """Torchdata's service of one process takes them and forgets reset_fn; this one does not."""
    service = InProcessReadingService(0, init, reset)
    with vp.DataLoader2(numbers(3), None, service, seed=7) as it:
        epochs = [list(it) for _ in range(2)]

    items = [item for epoch in epochs for (item, *_), _ in epoch]
    assert items == [0, 1, 2] * 2
    assert len({seeds for epoch in epochs for _, seeds in epoch}) == 2


@pytest.mark.parametrize("leaves", [True, False])
def test_one_process_prefetches_in_a_thread(cases, monkeypatch, leaves):
    """The batches are the same, so many are made ahead, and no thread stays."""
    made = []
    run_job = Recipe.run

    def noted(self, job, *arguments):
        made.append(job.index)
        return run_job(self, job, *arguments)

    with vp.DataLoader2(full_chain(cases), seed=7) as it:
        expected = list(it)
    monkeypatch.setattr(Recipe, "run", noted)
    threads = threading.active_count()
    with vp.DataLoader2(full_chain(cases), None, InProcessReadingService(2), seed=7) as it:
        batches = iter(it)
        first = next(batches)
        if not leaves:
            assert same([first, *batches], expected)
            assert made == [0, 1, 2]

    assert threading.active_count() == threads
    assert len(made) <= 3


def noisy(batch):
    return {**batch, "noise": torch.rand(1)}


def test_a_thread_never_draws_beside_the_loop(cases):
    """With a function of the user's nothing is made ahead: the loop's own draws stay its own."""
    pipe = full_chain(cases).map(noisy)
    drawn = []
    for service in (
        InProcessReadingService(),
        InProcessReadingService(2),
    ):
        torch.manual_seed(3)
        with vp.DataLoader2(pipe, None, service, seed=7) as it:
            drawn.append([(float(batch["noise"]), float(torch.rand(1))) for batch in it])

    assert drawn[0] == drawn[1]
