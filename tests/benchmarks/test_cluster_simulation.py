"""The simulation of a cluster has the rates that its times allow."""

import sys

import pytest
from checkout import ROOT

PACE, BATCHES = 0.1, 200


@pytest.fixture(scope="module")
def simulation():
    """Return the module, whose folder is on the path for its import only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import cluster_simulation

        yield cluster_simulation
    del sys.modules["cluster_simulation"]


@pytest.mark.parametrize("workers", [1, 2, 4, 16])
def test_workers_make_batches_side_by_side(simulation, workers):
    """The rate is that of all workers; none is made again."""
    outcome = simulation.simulate(simulation.Cluster(workers, PACE, receive=0.0), BATCHES)

    assert outcome.rate() == pytest.approx(workers / PACE, rel=0.05)
    assert (len(outcome.ends), outcome.made_again) == (BATCHES, 0)
    assert outcome.ends == sorted(outcome.ends)


@pytest.mark.parametrize(("factor", "least"), [(2.0, 0.9), (10.0, 0.7)])
def test_one_slow_worker_costs_little_more_than_its_part(simulation, factor, least):
    """The epoch has most of the ideal rate, and late batches are made again."""
    cluster = simulation.Cluster(4, PACE, receive=0.0, slow={0: factor})

    outcome = simulation.simulate(cluster, BATCHES)

    ideal = (3 + 1 / factor) / PACE
    assert least * ideal <= BATCHES / outcome.ends[-1] <= ideal
    assert outcome.made_again > 0


@pytest.mark.parametrize("notice", [0.0, 2.0])
def test_the_living_make_the_batches_of_a_dead_worker(simulation, notice):
    """The epoch ends with three workers; the fourth is back only afterwards."""
    deaths = {0: 1.05}
    cluster = simulation.Cluster(4, PACE, receive=0.0, deaths=deaths, restart=100.0, notice=notice)

    outcome = simulation.simulate(cluster, BATCHES)

    assert len(outcome.ends) == BATCHES
    assert outcome.made_again > 0
    assert BATCHES * PACE / 4 < outcome.ends[-1] < BATCHES * PACE / 3 + notice


def test_the_trainer_limits_the_rate(simulation):
    """More workers do not help if its cores or its main thread are full."""
    receiving = simulation.Cluster(16, PACE, receive=0.02, cores=2)
    planning = simulation.Cluster(16, PACE, ranks=8, plan=0.001, take=0.002, receive=0.0)

    for cluster in (receiving, planning):
        assert simulation.simulate(cluster, 5 * BATCHES).rate() == pytest.approx(100, rel=0.05)


def test_ranks_wait_for_each_other(simulation):
    """Ranks whose times vary are slower together than alone."""
    alone = simulation.Cluster(2, PACE, receive=0.0, plan=0.0, spread=0.9)
    together = simulation.Cluster(2, PACE, ranks=8, receive=0.0, plan=0.0, spread=0.9)

    assert (
        simulation.simulate(together, BATCHES).rate() < simulation.simulate(alone, BATCHES).rate()
    )


def test_the_least_workers_for_a_rate(simulation):
    """A rate has the workers that make it, and no number of workers passes the trainer's limit."""
    cluster = simulation.Cluster(1, PACE)

    assert 20 <= simulation.workers_for(200, cluster) <= 23
    assert simulation.workers_for(2000, cluster) is None


def test_a_slow_node_among_many_costs_its_part(simulation):
    """Its workers rest while all others would wait for them."""
    slow = dict.fromkeys(range(4), 10.0)
    cluster = simulation.Cluster(64, PACE, plan=0.0, take=0.0, receive=0.0, slow=slow)

    outcome = simulation.simulate(cluster, 60 * 40)

    assert outcome.rate() >= 0.9 * 60 / PACE
    assert outcome.made_again < 30
