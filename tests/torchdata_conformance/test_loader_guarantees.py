"""What torchdata 0.9's DataLoader2 guarantees, documented or not; and what it should have.

Reading services, caches and pipes have such tests of their own: test_worker_functions.py,
test_services_of_your_own.py, test_replaced_workers.py, test_caches_in_memory.py,
test_disk_cache.py, test_stack_contract.py.
"""

import json

import pytest
import torch
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.datapipes.map import SequenceWrapper

from voxpipe.core.errors import IteratorInvalidated, LoaderShutDown
from voxpipe.dataloader2 import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    PauseIteration,
)
from voxpipe.dataloader2.adapter import Shuffle


def plus_one(n):
    return n + 1


def increased(pipe):
    return pipe.map(plus_one)


def numbers(count=20):
    return IterableWrapper(range(count))


def shuffled(count=20):
    return numbers(count).shuffle().sharding_filter().map(plus_one)


SERVICES = [
    None,
    InProcessReadingService(),
    pytest.param(MultiProcessingReadingService(2, "fork"), id="two workers"),
]


class TestConstruction:
    def test_adapters_run_once_in_order(self):
        """At construction, before the service."""
        told = []

        def first(pipe):
            told.append("first")
            return pipe.map(plus_one)

        def second(pipe):
            told.append("second")
            return pipe.map(str)

        loader = DataLoader2(numbers(2), [first, second])
        assert told == ["first", "second"]
        assert list(loader) == list(loader) == ["1", "2"]
        assert told == ["first", "second"]

    def test_what_the_caller_holds_keeps_no_state(self):
        """Pipe and service can be used again, by two loaders at a time."""
        pipe, service = numbers(4), InProcessReadingService()
        one, two = DataLoader2(pipe, None, service), DataLoader2(pipe, None, service)

        assert list(zip(one, two, strict=True)) == [(n, n) for n in range(4)]
        assert list(pipe) == [0, 1, 2, 3]

    def test_a_map_style_pipe_is_iterated(self):
        """In the order of its indices."""
        assert list(DataLoader2(SequenceWrapper([5, 6]))) == [5, 6]


class TestIterators:
    def test_two_without_a_next_between_reset_nothing(self):
        """The second supersedes the first all the same."""
        loader = DataLoader2(numbers(3), seed=1)
        first = iter(loader)
        second = iter(loader)

        with pytest.raises(IteratorInvalidated):
            next(first)
        assert list(second) == [0, 1, 2]
        assert loader.state_dict()["epoch"] == 1

    def test_an_old_iterator_says_so(self):
        """A RuntimeError."""
        loader = DataLoader2(numbers(3))
        first = iter(loader)
        next(first)
        iter(loader)

        with pytest.raises(RuntimeError, match="newer iterator"):
            next(first)

    def test_pausing_ends_a_loop_and_no_epoch(self):
        """PauseIteration is a StopIteration."""
        assert issubclass(PauseIteration, StopIteration)
        loader = DataLoader2(numbers(5))
        items = iter(loader)
        items.limit(2)

        assert [list(items), list(items)] == [[0, 1], []]
        items.resume()
        assert list(items) == [2, 3]

    @pytest.mark.parametrize("service", SERVICES)
    def test_a_new_epoch_of_a_paused_loader_is_whole(self, service):
        """Torchdata 0.9: silently empty."""
        with DataLoader2(numbers(10).sharding_filter().map(plus_one), None, service) as loader:
            items = iter(loader)
            items.limit(3)
            assert list(items) == [1, 2, 3]

            assert list(loader) == list(range(1, 11))

    def test_there_is_a_length_where_it_is_known(self):
        """Torchdata 0.9: never."""
        assert len(DataLoader2(numbers(5).batch(2))) == 3
        with pytest.raises(TypeError, match="len"):
            len(DataLoader2(numbers(5).filter(bool)))


class TestSeeds:
    @pytest.mark.parametrize("seed", [-1, 2**64])
    def test_a_seed_is_64_bits(self, seed):
        """Negative ones are refused as well."""
        with pytest.raises(ValueError, match="seed"):
            DataLoader2(numbers()).seed(seed)

    @pytest.mark.parametrize("service", SERVICES)
    def test_a_seed_takes_effect_and_its_epochs_differ(self, service):
        """Torchdata 0.9: no effect without a service, the same order every epoch with workers."""
        runs = []
        for _ in range(2):
            with DataLoader2(shuffled(), None, service) as loader:
                loader.seed(7)
                runs.append((list(loader), list(loader)))

        assert runs[0] == runs[1]
        assert runs[0][0] != runs[0][1]
        assert sorted(runs[0][0]) == sorted(runs[0][1]) == list(range(1, 21))

    def test_the_order_is_that_of_any_number_of_workers(self):
        """Shuffled before it is shared out."""
        orders = []
        for workers in (0, 1, 2):
            service = MultiProcessingReadingService(workers, "fork")
            with DataLoader2(shuffled(), None, service, seed=3) as loader:
                orders.append(list(loader))

        assert orders[0] == orders[1] == orders[2]

    def test_epochs_without_a_seed_differ_and_torch_rules_them(self):
        """Torchdata 0.9: the same order in every epoch."""
        runs = []
        for _ in range(2):
            torch.manual_seed(123)
            loader = DataLoader2(shuffled())
            runs.append((list(loader), list(loader)))

        assert runs[0] == runs[1]
        assert runs[0][0] != runs[0][1]

    @pytest.mark.parametrize("draws", [0, 3])
    def test_seeding_torch_again_begins_the_run_again(self, draws):
        """Of the same loader, too; another seed begins another run."""
        loader, runs = DataLoader2(shuffled()), []
        for seed in (123, 123, 4, 123):
            torch.manual_seed(seed)
            torch.rand(draws)
            runs.append((list(loader), list(loader)))

        assert runs[0] == runs[1] == runs[3]
        assert runs[0] != runs[2]
        assert runs[0][0] != runs[0][1]

    def test_drawing_from_torch_does_not_begin_the_run_again(self):
        """Nor does seeding it, where a seed was given or an epoch was set."""
        torch.manual_seed(5)
        drawn, given, told = (DataLoader2(shuffled(), seed=s) for s in (None, 7, None))
        first = [list(loader) for loader in (drawn, given, told)]
        torch.rand(1000)
        assert list(drawn) != first[0]
        torch.manual_seed(5)
        told.set_epoch(3)

        assert list(given) != first[1]
        assert list(told)
        assert told.state_dict()["epoch"] == 4

    def test_shuffling_can_be_turned_off(self):
        """By the adapter, everywhere."""
        assert list(DataLoader2(shuffled(5), Shuffle(False))) == [1, 2, 3, 4, 5]


class TestStates:
    @pytest.mark.parametrize("service", SERVICES)
    def test_the_rest_of_an_epoch_comes(self, service):
        """Torchdata 0.9: the epoch begins again."""
        with DataLoader2(shuffled(), None, service, seed=7) as loader:
            every = list(loader)
            loader.set_epoch(0)
            items = iter(loader)
            seen = [next(items) for _ in range(6)]
            state = json.loads(json.dumps(loader.state_dict()))
        with DataLoader2(shuffled(), None, service) as resumed:
            resumed.load_state_dict(state)

            assert seen + list(resumed) == every

    def test_adapters_are_not_applied_twice(self):
        """Torchdata 0.9: once more with each loaded state."""
        state = DataLoader2(numbers(3), increased, seed=1).state_dict()
        loader = DataLoader2(numbers(3), increased)
        loader.load_state_dict(state)

        assert list(loader) == [1, 2, 3]

    def test_a_loaded_state_is_the_state(self):
        """Until something is asked for."""
        loader = DataLoader2(numbers(3), seed=1)
        next(iter(loader))
        state = loader.state_dict()
        other = DataLoader2(numbers(3))
        other.load_state_dict(state)

        assert other.state_dict() == state

    def test_a_state_can_be_loaded_at_any_time(self):
        """Torchdata 0.9: only before the first iterator."""
        loader = DataLoader2(numbers(4), seed=1)
        items = iter(loader)
        next(items)
        state = loader.state_dict()
        next(items)
        loader.load_state_dict(state)

        assert list(loader) == [1, 2, 3]

    def test_the_protocol_of_stateful_things_holds(self):
        """Checkpointers of torch look for it."""
        from torchdata.stateful_dataloader import Stateful

        assert isinstance(DataLoader2(numbers(3)), Stateful)


class Particular(Exception):
    """Wants two arguments."""

    def __init__(self, what, where):
        super().__init__(what, where)
        self.what, self.where = what, where


def fail_at_three(n):
    if n == 3:
        raise Particular("three", "here")
    return n


def miss_a_file(n):
    raise FileNotFoundError(2, "No such file or directory", "missing.nii")


class TestErrors:
    @pytest.mark.parametrize("service", SERVICES)
    def test_an_error_arrives_as_itself(self, service):
        """Torchdata 0.9: RuntimeError if its class wants two arguments."""
        pipe = numbers().sharding_filter().map(fail_at_three)
        with DataLoader2(pipe, None, service) as loader, pytest.raises(Particular) as raised:
            list(loader)

        assert (raised.value.what, raised.value.where) == ("three", "here")

    @pytest.mark.parametrize("service", SERVICES)
    def test_a_missing_file_keeps_its_name(self, service):
        """Torchdata 0.9: neither errno nor filename."""
        pipe = numbers().sharding_filter().map(miss_a_file)
        with DataLoader2(pipe, None, service) as loader, pytest.raises(FileNotFoundError) as raised:
            list(loader)

        assert (raised.value.errno, raised.value.filename) == (2, "missing.nii")

    @pytest.mark.parametrize("service", SERVICES)
    def test_a_loader_can_be_used_after_an_error(self, service):
        """Torchdata 0.9: it is shut down."""
        pipe = numbers().sharding_filter().map(fail_at_three)
        with DataLoader2(pipe, None, service) as loader:
            for _ in range(2):
                items = iter(loader)
                assert [next(items) for _ in range(3)] == [0, 1, 2]
                with pytest.raises(Particular):
                    next(items)


class TestShutdown:
    def test_any_number_of_times(self):
        """Then there are no more iterators."""
        loader = DataLoader2(numbers())
        next(iter(loader))
        loader.shutdown()
        loader.shutdown()

        with pytest.raises(LoaderShutDown):
            iter(loader)
        assert issubclass(LoaderShutDown, RuntimeError)

    def test_in_the_middle_of_an_epoch_nothing_is_left(self):
        """Torchdata 0.9 hangs in some runs; the fixture of all tests looks for what is left."""
        service = MultiProcessingReadingService(2, "fork")
        with DataLoader2(numbers(1000).sharding_filter().map(plus_one), None, service) as loader:
            items = iter(loader)
            assert [next(items), next(items)] == [1, 2]
            del items
