"""What comes before sharding_round_robin_dispatch() runs once; what comes after, in the workers."""

import os
import signal
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

import voxpipe as vp
from voxpipe.core.errors import GraphError, NotPicklable, StateMismatch, WorkerDied
from voxpipe.graph import Traits, clone, cut, describe, dispatch_point, walk
from voxpipe.reading_services.replicated_epoch import MOST_WAITING, Dispatcher

pytestmark = pytest.mark.filterwarnings(
    # forking with threads of torch around is what these tests ask for
    "ignore:This process.*is multi-threaded:DeprecationWarning"
)


def as_is(pipe, info):
    return pipe


every_number = pytest.mark.parametrize("workers", [0, 1, 2, 3])
# A hook changes which pipes are dealt out one by one, the same for each number of workers.
numbers_and_hooks = pytest.mark.parametrize(
    ("workers", "hook"),
    [
        *(pytest.param(n, None, id=str(n)) for n in (0, 3)),
        *(pytest.param(n, None, marks=pytest.mark.slow, id=str(n)) for n in (1, 2)),
        pytest.param(2, as_is, id="2-hook"),
        *(pytest.param(n, as_is, marks=pytest.mark.slow, id=f"{n}-hook") for n in (0, 1, 3)),
    ],
)


class Source(IterDataPipe):
    """Numbers; each run leaves a line that says in which process."""

    def __init__(self, log, count=10):
        self.log = Path(log)
        self.count = count

    def __iter__(self):
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        yield from range(self.count)

    def __len__(self):
        return self.count


class Local(IterDataPipe):
    """Says in torchdata's way that it stays in the process of the loader."""

    def __init__(self, parent):
        self.parent = parent

    def is_replicable(self):
        return False

    def __iter__(self):
        for item in self.parent:
            yield (*item, os.getpid())


class Twice(IterDataPipe):
    """Nobody knows what it does."""

    def __init__(self, parent):
        self.parent = parent

    def __iter__(self):
        for item in self.parent:
            yield item
            yield item


@pytest.fixture
def log(tmp_path):
    return tmp_path / "runs"


def stamped(item):
    return item, os.getpid()


def some(pair):
    return pair[0] % 4 < 2


def repeated(pair):
    return [pair] * (pair[0] % 3)


def dealt(pipe):
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)


def service(workers, hook=None, **options):
    return vp.MultiProcessingReadingService(workers, "fork", worker_init_fn=hook, **options)


def run(pipe, workers, hook=None, epochs=1, **options):
    with vp.DataLoader2(pipe, None, service(workers, hook, **options), seed=3) as loader:
        return [list(loader) for _ in range(epochs)]


def runs_of(log):
    return [int(line) for line in log.read_text().split()]


def numbers_of(items):
    """Return the numbers in pairs of number and process, of which there may be lists."""
    return [item[0] if isinstance(item, tuple) else numbers_of(item) for item in items]


def processes_of(items):
    flat = (pair for item in items for pair in (item if isinstance(item, list) else [item]))
    return {pair[1] for pair in flat}


CHAINS = {
    "map": lambda log: dealt(Source(log)).map(stamped),
    "filter": lambda log: dealt(Source(log)).map(stamped).filter(some),
    "flatmap": lambda log: dealt(Source(log)).map(stamped).flatmap(repeated),
    "flatmap, filter": lambda log: dealt(Source(log)).map(stamped).flatmap(repeated).filter(some),
    "unknown": lambda log: Twice(dealt(Source(log)).map(stamped)),
    "batch": lambda log: dealt(Source(log)).map(stamped).batch(3),
    "shuffled after": lambda log: dealt(Source(log)).shuffle().map(stamped),
    "filter above": lambda log: dealt(Source(log).sharding_filter()).map(stamped),
    "filter below": lambda log: dealt(Source(log)).sharding_filter().map(stamped),
    "twice": lambda log: dealt(dealt(Source(log)).map(str).map(int)).map(stamped),
}
NOT_ONE_BY_ONE = ("filter", "flatmap", "flatmap, filter")


class TestOnce:
    @numbers_and_hooks
    @pytest.mark.parametrize("name", [n for n in CHAINS if n not in ("batch", "shuffled after")])
    def test_same_items_in_the_same_order(self, log, name, hook, workers):
        """Whatever the number of workers: what comes before runs once and here, the rest there."""
        expected = numbers_of(CHAINS[name](log))
        log.unlink()

        (items,) = run(CHAINS[name](log), workers, hook)

        if name == "unknown" or (hook is not None and name in NOT_ONE_BY_ONE):
            # Taken from the workers in turn: as in torchdata, the order depends on their number.
            assert sorted(numbers_of(items)) == sorted(expected)
        else:
            assert numbers_of(items) == expected
        assert runs_of(log) == [os.getpid()]
        assert (os.getpid() in processes_of(items)) == (workers == 0)
        assert len(processes_of(items)) <= max(1, workers)

    @every_number
    def test_groups_without_functions_of_workers_are_planned(self, log, workers):
        """Batches of single items, and a shuffle of them, do not depend on the workers."""
        for name in ("batch", "shuffled after"):
            (expected,) = run(CHAINS[name](log), 0)
            log.unlink()

            (items,) = run(CHAINS[name](log), workers)

            assert numbers_of(items) == numbers_of(expected)
            assert runs_of(log) == [os.getpid()]

    @every_number
    def test_what_gathers_sees_a_workers_share(self, log, workers):
        """As in torchdata; explain() says so."""
        pipe = dealt(Source(log, 8)).map(stamped).batch(2).batch(2)

        (items,) = run(pipe, workers)

        shares = [list(range(n, 8, max(1, workers))) for n in range(max(1, workers))]
        flat = sorted(n for group in items for batch in group for n in numbers_of(batch))
        assert flat == list(range(8))
        assert all(
            any(set(ns) <= set(share) for share in shares)
            for ns in ([n for batch in group for n in numbers_of(batch)] for group in items)
        )
        assert runs_of(log) == [os.getpid()]
        text = vp.DataLoader2(pipe, None, service(workers)).explain()
        assert "run once, in this process" in text
        assert ("pipes that gather or mix items see a worker's share" in text) == (workers > 1)

    @numbers_and_hooks
    def test_where_two_meet(self, log, workers, hook):
        """Two points that are joined are one: the pipe that joins them."""
        pipe = dealt(Source(log)).zip(dealt(Source(log))).map(stamped)

        (items,) = run(pipe, workers, hook)

        assert numbers_of(items) == [(n, n) for n in range(10)]
        assert runs_of(log) == [os.getpid()] * 2

    @every_number
    def test_beside_a_branch_that_is_sharded(self, log, tmp_path, workers):
        """The other branch runs in each worker, on its share, and meets the items that belong."""
        other = Source(tmp_path / "other").sharding_filter().map(stamped)
        pipe = dealt(Source(log)).map(stamped).zip(other).map(tuple)

        (items,) = run(pipe, workers)

        assert [(a[0], b[0]) for a, b in items] == [(n, n) for n in range(10)]
        assert all(a[1] == b[1] for a, b in items)
        assert runs_of(log) == [os.getpid()]
        assert len(runs_of(tmp_path / "other")) == max(1, workers)

    @pytest.mark.parametrize("workers", [1, 2])
    def test_a_pipe_that_cannot_be_replicated_stays_here(self, log, workers):
        """What comes after the point works in the workers, such a pipe here."""
        (items,) = run(Local(dealt(Source(log)).map(stamped)), workers)

        assert [item[0] for item in items] == list(range(10))
        assert {item[2] for item in items} == {os.getpid()}
        assert os.getpid() not in {item[1] for item in items}

    def test_every_epoch_runs_it_once(self, log):
        """Also where workers stay."""
        pipe = Twice(dealt(Source(log)).map(stamped))

        first, second = run(pipe, 2, epochs=2, persistent_workers=True)

        assert len(numbers_of(first)) == len(numbers_of(second)) == 20
        assert runs_of(log) == [os.getpid()] * 2

    def test_random_pipes_after_and_before(self, log):
        """They draw as in one process, and differ: each has its number of the whole graph."""
        pipe = Twice(dealt(Source(log).shuffle()).map(stamped)).shuffle()

        (alone,), (one,) = run(pipe, 0), run(pipe, 1)

        assert numbers_of(alone) == numbers_of(one)
        assert numbers_of(alone) != sorted(numbers_of(alone))

    @pytest.mark.skipif(sys.platform != "linux", reason="sends descriptors")
    def test_under_forkserver_with_tensors(self, log):
        """Pickles travel, tensors included."""
        pipe = Twice(dealt(Source(log, 4).map(torch.tensor)).map(torch.neg))
        loader = vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(2), seed=1)
        with loader:
            items = sorted(int(item) for item in loader)

        assert items == [-3, -3, -2, -2, -1, -1, 0, 0]


class TestThePoint:
    def test_is_where_all_paths_meet(self):
        """Of several that are dealt out; without one there is none."""
        numbers = IterableWrapper(range(3))
        left, right = dealt(numbers), dealt(IterableWrapper(range(3)))
        joined = left.zip(right)

        assert dispatch_point(numbers.map(stamped)) is None
        assert dispatch_point(left.map(stamped)) is left
        assert dispatch_point(joined.map(stamped)) is joined
        assert dispatch_point(dealt(left)) is not left

    def test_of_a_fork_is_where_it_meets_again(self):
        """One branch is dealt out and the other is not: both run once, with the fork."""
        left, right = IterableWrapper(range(3)).fork(2)
        joined = dealt(left).zip(right)
        pipe = joined.map(stamped)

        assert dispatch_point(pipe) is joined
        assert numbers_of(run(pipe, 2, as_is)[0]) == [(0, 0), (1, 1), (2, 2)]

    def test_is_found_in_linear_time(self):
        """Thirty diamonds have a billion paths and 91 pipes."""
        pipe = dealt(IterableWrapper(range(3)))
        first = pipe
        for _ in range(30):
            left, right = pipe.fork(2)
            pipe = left.zip(right)

        assert dispatch_point(pipe) is first
        assert len(list(walk(pipe))) == 2 + 4 * 30

    def test_the_cut_is_after_it(self):
        """What works before it stays, what works after it is for the workers."""
        split = cut(dealt(IterableWrapper(range(3)).map(stamped)).map(stamped).filter(some))

        assert [describe(p).split("(")[0] for p in split.realizing] == ["map", "filter"]
        assert split.filters
        assert isinstance(split.planner.traits, Traits)


def fail_at_seven(item):
    if item == 7:
        raise FileNotFoundError(2, "gone", "seven.nii")
    return item


def two_of(item):
    return [item, item]


def lock_at_seven(item):
    return (lambda: 0) if item == 7 else item


class TestErrors:
    @numbers_and_hooks
    def test_before_it(self, log, workers, hook):
        """It comes as itself, after the items that were made before it."""
        pipe = dealt(Source(log).map(fail_at_seven)).map(stamped)
        got = []
        with (
            vp.DataLoader2(pipe, None, service(workers, hook)) as loader,
            pytest.raises(FileNotFoundError, match="gone") as caught,
        ):
            got.extend(loader)

        assert numbers_of(got) == list(range(7))
        assert caught.value.filename == "seven.nii"

    @every_number
    def test_after_it(self, log, workers):
        """It comes as itself, in its turn."""
        pipe = dealt(Source(log)).map(fail_at_seven).flatmap(two_of)
        got = []
        with (
            vp.DataLoader2(pipe, None, service(workers)) as loader,
            pytest.raises(FileNotFoundError, match="gone"),
        ):
            got.extend(loader)

        assert got == [n for n in range(7) for _ in range(2)]

    def test_an_item_that_cannot_travel(self, log):
        """It is named."""
        pipe = Twice(dealt(Source(log).map(lock_at_seven)).map(str))
        with (
            vp.DataLoader2(pipe, None, service(2)) as loader,
            pytest.raises(NotPicklable, match="cannot travel to a worker"),
        ):
            list(loader)

    @every_number
    def test_a_second_pass(self, log, workers):
        """What is dealt out comes once in an epoch."""
        pipe = Twice(dealt(Source(log)).map(stamped).cycle(2))
        with (
            vp.DataLoader2(pipe, None, service(workers)) as loader,
            pytest.raises(GraphError, match="begins a second pass"),
        ):
            list(loader)

    @pytest.mark.skipif(sys.platform != "linux", reason="kills processes")
    def test_a_dead_worker_of_a_share(self, log):
        """Its items are not made twice: it is told, and not replaced."""
        pipe = Twice(dealt(Source(log)).map(kill_at_four))
        with (
            vp.DataLoader2(pipe, None, service(2)) as loader,
            pytest.raises(WorkerDied, match="dealt out to it are not made twice"),
        ):
            list(loader)

    @pytest.mark.skipif(sys.platform != "linux", reason="kills processes")
    def test_a_dead_worker_of_a_plan(self, log):
        """Another one makes its items: the plan still has them."""
        pipe = dealt(Source(log)).map(OnceKilled(log.with_name("killed")))
        with pytest.warns(vp.errors.WorkerReplaced):
            (items,) = run(pipe, 2)

        assert items == list(range(10))
        assert runs_of(log) == [os.getpid()]

    def test_what_would_not_be_known_to_other_ranks(self):
        """A filter after the point leaves some ranks with more; ranks refuse it, by name."""
        from voxpipe.reading_services.work import batch_count, work_of

        work = work_of(dealt(IterableWrapper(range(3))).map(stamped).filter(some))

        with pytest.raises(TypeError, match="not known"):
            batch_count(work)

    def test_twice_divided(self, log):
        """Two filters on one branch are refused whatever lies between them."""
        pipe = Twice(dealt(Source(log).sharding_filter()).sharding_filter().map(stamped))
        for workers in (0, 2):
            with (
                vp.DataLoader2(pipe, None, service(workers)) as loader,
                pytest.raises(GraphError, match="divides again"),
            ):
                list(loader)


def kill_at_four(item):
    if item == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


class OnceKilled:
    """Kills the first process that comes to item 4."""

    def __init__(self, mark):
        self.mark = mark

    def __call__(self, item):
        if item == 4 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item


class TestState:
    @pytest.mark.parametrize(
        ("name", "after"),
        [
            *(("map", after) for after in (0, 1, 4, 9)),
            *((name, 4) for name in ("filter", "flatmap")),
            *(
                pytest.param(name, after, marks=pytest.mark.slow)
                for name in ("filter", "flatmap")
                for after in (0, 1, 9)
            ),
        ],
    )
    def test_resuming(self, log, name, after):
        """The rest comes, of a plan also under another number of workers."""
        pipe = CHAINS[name](log)
        expected = numbers_of(run(pipe, 2)[0])
        after = min(after, len(expected))
        with vp.DataLoader2(pipe, None, service(2), seed=3) as loader:
            items = iter(loader)
            for _ in range(after):
                next(items)
            state = loader.state_dict()

        for workers in (2,) if name == "flatmap" else (0, 1, 2, 3):
            with vp.DataLoader2(pipe, None, service(workers), seed=3) as loader:
                loader.load_state_dict(state)
                assert numbers_of(list(loader)) == expected[after:]

    def test_another_number_of_workers_is_refused_where_it_matters(self, log):
        """By name."""
        pipe = CHAINS["flatmap"](log)
        with vp.DataLoader2(pipe, None, service(2), seed=3) as loader:
            next(iter(loader))
            state = loader.state_dict()

        with (
            vp.DataLoader2(pipe, None, service(3), seed=3) as loader,
            pytest.raises(StateMismatch, match="2 shares of the graph, this loader has 3 shares"),
        ):
            loader.load_state_dict(state)

    def test_leaving_leaves_nothing(self, log):
        """Neither workers nor a source that goes on; the next epoch is whole."""
        pipe = Twice(dealt(Source(log, 1000)).map(stamped))
        with vp.DataLoader2(pipe, None, service(2, persistent_workers=True), seed=3) as loader:
            for _ in range(3):
                assert next(iter(loader))[0] == 0
            assert len(list(loader)) == 2000

        assert runs_of(log) == [os.getpid()] * 4


class TestDealer:
    def test_bytes_are_bounded(self):
        """One item may always lie at a worker; more only as far as the bytes go."""
        made = []

        def items():
            for n in range(20):
                made.append(n)
                yield bytes(1000)

        dealer = Dispatcher(items(), workers=2, most_bytes=100)
        first = [len(list(dealer.for_worker(n))) for n in (0, 1)]
        dealer.took(0)

        assert first == [1, 1]
        assert len(list(dealer.for_worker(0))) == 1
        assert len(made) <= 6

    def test_a_worker_that_waits_has_more_ahead(self):
        """Two at first, up to sixteen."""
        dealer = Dispatcher(iter(range(1000)), workers=1, most_bytes=10**6)
        lying = []
        for _ in range(6):
            count = len(list(dealer.for_worker(0)))
            lying.append(count)
            for _ in range(count):
                dealer.took(0)

        assert lying == [2, 4, 8, 16, 16, 16]

    def test_what_waits_for_another_is_bounded(self):
        """One that takes far more than another is told, not waited for without end."""
        dealer = Dispatcher(iter(range(10**6)), workers=2, most_bytes=10**9)

        def serve():
            for _ in range(2 * MOST_WAITING):
                for _deal in dealer.for_worker(0):
                    dealer.took(0)

        with pytest.raises(BufferError, match="wait for worker 1, and worker 0 needs more"):
            serve()

    def test_a_long_drought_of_one_worker_is_no_error(self, log):
        """A filter that leaves out all that one worker has: the other's come in their order."""
        pipe = dealt(Source(log, 5000)).flatmap(odd_ones)

        assert run(pipe, 2)[0] == list(range(1, 5000, 2))


def odd_ones(n):
    return [n] if n % 2 else []


def test_a_copy_of_the_graph_is_dealt_out_too(log):
    """The trait travels with the pipe."""
    pipe = CHAINS["map"](log)

    assert describe(dispatch_point(clone(pipe))) == describe(dispatch_point(pipe))
