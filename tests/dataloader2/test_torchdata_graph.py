"""torchdata's functions on graphs, under its names and with its meaning."""

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper, Mapper, Shuffler

from voxpipe.core.errors import GraphError, NotRemovable
from voxpipe.dataloader2.graph import (
    find_dps,
    list_dps,
    remove_dp,
    replace_dp,
    set_graph_random_seed,
    traverse_dps,
)
from voxpipe.dataloader2.linter import _check_shuffle_before_sharding
from voxpipe.dataloader2.random import SeedGenerator
from voxpipe.graph import node as node_module


def double(x):
    return 2 * x


def negative(x):
    return -x


def numbers():
    return IterableWrapper([1, 2, 3])


class TestTraversal:
    def test_a_diamond_holds_its_source_once(self):
        """Branches that meet share one dict."""
        source = numbers()
        sink = source.map(double).zip(source.map(negative))
        graph = traverse_dps(sink)

        (_, below) = graph[id(sink)]
        left, right = (inside for _, inside in below.values())

        assert left == right == {id(source): (source, {})}

    def test_a_ladder_of_diamonds_is_looked_at_once(self, monkeypatch):
        """Two to the power of sixty paths, 121 pipes."""
        sink = numbers()
        for _ in range(60):
            sink = sink.zip(sink.map(double))
        looked = []
        inside = node_module.pipes_in
        monkeypatch.setattr(node_module, "pipes_in", lambda v: looked.append(1) or inside(v))

        assert len(list_dps(traverse_dps(sink))) == 121
        assert len(looked) < 121 * 40

    def test_no_data_are_pickled(self):
        """A source that refuses to be pickled is walked all the same."""

        class Unpicklable:
            def __reduce_ex__(self, protocol):
                raise AssertionError("a traversal copied the data")

        source = IterableWrapper([Unpicklable()], deepcopy=False)

        assert list_dps(traverse_dps(source.map(double)))[-1] is source

    def test_pipes_are_listed_from_the_end(self):
        """Breadth first, each once."""
        source = numbers()
        left, right = source.map(double), source.map(negative)
        sink = left.zip(right)

        assert list_dps(traverse_dps(sink)) == [sink, left, right, source]

    def test_an_excluded_pipe_leaves_with_what_it_reads(self):
        """One pipe or several."""
        source, other = numbers(), numbers()
        left, right = source.map(double), other.map(negative)
        sink = left.zip(right)
        graph = traverse_dps(sink)

        assert list_dps(graph, exclude_dps=left) == [sink, right, other]
        assert list_dps(graph, exclude_dps=[left, right]) == [sink]

    def test_pipes_are_found_by_their_very_class(self):
        """Subclasses are others."""

        class Mine(Mapper):
            pass

        source = numbers()
        chain = Mine(source.map(double), negative)

        assert find_dps(traverse_dps(chain), Mapper) == [chain.datapipe]
        assert find_dps(traverse_dps(chain), Mine) == [chain]


class TestSurgery:
    def test_a_pipe_is_replaced_in_place(self):
        """The sink that the user holds reads the new one."""
        source = numbers()
        sink = source.map(double)
        graph = replace_dp(traverse_dps(sink), source, IterableWrapper([5]))

        assert list(sink) == [10]
        assert graph == traverse_dps(sink)

    def test_a_pipe_is_put_in_between(self):
        """The new pipe reads the old one."""
        source = numbers()
        sink = source.map(double)

        replace_dp(traverse_dps(sink), source, source.map(negative))

        assert list(sink) == [-2, -4, -6]

    def test_the_last_pipe_is_replaced_in_the_graph_that_is_returned(self):
        """Nothing reads it."""
        sink = numbers().map(double)
        new = sink.map(negative)

        graph = replace_dp(traverse_dps(sink), sink, new)

        assert graph == traverse_dps(new)

    def test_both_readers_of_a_diamond_are_changed(self):
        """And nothing else is."""
        source = numbers()
        sink = source.map(double).zip(source.map(negative))

        new = IterableWrapper([7])

        replace_dp(traverse_dps(sink), source, new)

        assert list_dps(traverse_dps(sink))[-1] is new
        assert find_dps(traverse_dps(sink), IterableWrapper) == [new]

    def test_a_pipe_is_removed(self):
        """Its reader reads what it read; a last one leaves its parent."""
        source = numbers()
        middle = source.map(double)
        sink = middle.map(negative)

        graph = remove_dp(traverse_dps(sink), middle)

        assert list(sink) == [-1, -2, -3]
        assert remove_dp(graph, sink) == traverse_dps(source)

    @pytest.mark.parametrize(
        ("make", "told"),
        [(numbers, "source"), (lambda: numbers().zip(numbers()), "receiving")],
    )
    def test_what_cannot_be_removed_is_told(self, make, told):
        """Torchdata raises a RuntimeError with these words."""
        pipe = make()

        with pytest.raises(RuntimeError, match=f"Cannot remove the {told} DataPipe") as e:
            remove_dp(traverse_dps(pipe.map(double)), pipe)
        assert isinstance(e.value, NotRemovable)

    @pytest.mark.parametrize(
        "act", [remove_dp, lambda g, p: replace_dp(g, p, numbers())], ids=["remove", "replace"]
    )
    def test_a_stranger_is_told(self, act):
        """Torchdata does nothing, and says nothing."""
        with pytest.raises(GraphError, match="is not in this graph"):
            act(traverse_dps(numbers()), numbers().map(double))


class TestSeeds:
    def test_before_sharding_all_workers_draw_alike(self):
        """And after it, apart."""
        chain = IterableWrapper(range(20)).shuffle().sharding_filter().shuffle()
        seeds = []
        for worker in range(2):
            set_graph_random_seed(chain, SeedGenerator(3).spawn(worker))
            seeds.append([pipe._seed for pipe in find_dps(traverse_dps(chain), Shuffler)])

        (after0, before0), (after1, before1) = seeds
        assert before0 == before1
        assert after0 != after1

    def test_without_sharding_every_worker_draws_its_own(self):
        """Nothing has to agree."""
        chain = numbers().shuffle()
        drawn = set()
        for worker in range(3):
            set_graph_random_seed(chain, SeedGenerator(3).spawn(worker))
            drawn.add(chain._seed)

        assert len(drawn) == 3


class TestSeedGenerator:
    def test_the_same_seed_gives_the_same_numbers(self):
        """Both sequences, again after seed()."""
        a, b = SeedGenerator(5), SeedGenerator()
        b.seed(5)

        first = [a.generate_seed(), a.generate_seed(), a.generate_shared_seed()]
        assert first == [b.generate_seed(), b.generate_seed(), b.generate_shared_seed()]
        assert len(set(first)) == 3
        a.seed(5)
        assert a.generate_seed() == first[0]

    def test_workers_go_on_sharing_what_the_spawning_one_shared(self):
        """A spawned generator is where its parent was."""
        parent = SeedGenerator(5)
        parent.generate_shared_seed()
        children = [parent.spawn(i) for i in range(3)]

        assert len({c.generate_shared_seed() for c in children}) == 1
        assert len({c.generate_seed() for c in children}) == 3
        assert len({c.spawn(0).generate_seed() for c in children}) == 3

    def test_spawned_in_place_it_is_the_same_object(self):
        """As a rank does with its own."""
        seeds = SeedGenerator(5)

        assert seeds.spawn(2, inplace=True) is seeds
        assert seeds.generate_seed() == SeedGenerator(5).spawn(2).generate_seed()

    def test_it_travels(self):
        """To a worker, by pickle, at its place in the sequences."""
        import pickle

        seeds = SeedGenerator(5).spawn(1)
        seeds.generate_seed()
        twin = pickle.loads(pickle.dumps(seeds))

        assert twin.generate_seed() == seeds.generate_seed()

    def test_what_makes_no_sense_is_told(self):
        """No seed, a negative worker, a seed out of range."""
        with pytest.raises(ValueError, match="without a seed"):
            SeedGenerator().generate_seed()
        with pytest.raises(ValueError, match="worker_id"):
            SeedGenerator(1).spawn(-1)
        for seed in (-1, 2**64):
            with pytest.raises(ValueError, match="seed"):
                SeedGenerator(seed)


@pytest.mark.parametrize(
    ("chain", "fine"),
    [
        (lambda p: p.map(double), True),
        (lambda p: p.sharding_filter(), False),
        (lambda p: p.shuffle().map(double).sharding_filter(), True),
        (lambda p: p.sharding_filter().shuffle(), False),
        (lambda p: p.shuffle().zip(numbers()).sharding_filter(), False),
        (lambda p: p.shuffle().zip(numbers().shuffle()).sharding_filter(), True),
        (lambda p: p.shuffle().zip(numbers().sharding_filter()), False),
    ],
    ids=["no-sharding", "none", "before", "after", "one-of-two", "both", "beside"],
)
def test_shuffling_is_looked_for_on_every_path(chain, fine):
    """False where one path reaches a sharding_filter unshuffled."""
    assert _check_shuffle_before_sharding(chain(numbers())) is fine
