import pytest
import torch
from scenes import full_chain, same

import voxpipe as vp


@pytest.fixture(scope="module")
def in_process(cases):
    with vp.DataLoader2(full_chain(cases), seed=7, fuse=False) as loader:
        return [list(loader), list(loader)]


def two_epochs(cases, service, adapters=None):
    with vp.DataLoader2(full_chain(cases), adapters, service, seed=7) as loader:
        return [list(loader), list(loader)]


# Every number of workers with every other way to start them is in test_matrix.py, on ranks.
WORKERS = [
    *((0, "forkserver"), (1, "fork"), (3, "forkserver")),
    pytest.param(2, "spawn", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("workers", "method"), WORKERS)
# forking with threads of torch around is what the user asked for here
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_batches_do_not_depend_on_workers(cases, in_process, workers, method):
    """Two epochs are bit-identical with 0 to 3 of them, however started, provenance included."""
    service = vp.MultiProcessingReadingService(workers, method)

    epochs = two_epochs(cases, service)

    assert same(epochs[0], in_process[0])
    assert same(epochs[1], in_process[1])


@pytest.mark.parametrize(
    "adapters",
    [None, [vp.FuseSpatial()], [vp.Profile(), vp.FuseSpatial()], [vp.Timeout(item=60)]],
    ids=["none", "fuse", "profile and fuse", "timeout"],
)
def test_batches_do_not_depend_on_adapters(cases, in_process, adapters):
    """No adapter changes a draw or a voxel."""
    epochs = two_epochs(cases, None, adapters)

    assert same(epochs[0], in_process[0])
    assert same(epochs[1], in_process[1])


def test_two_runs_with_one_seed_are_the_same(cases, in_process):
    """A second loader with the same seed gives the same epochs."""
    assert same(two_epochs(cases, None)[1], in_process[1])


def test_another_epoch_and_another_seed_differ(cases, in_process):
    """Epochs differ in order and in draws; so do seeds."""
    with vp.DataLoader2(full_chain(cases), seed=8) as loader:
        other = list(loader)

    assert not same(in_process[0], in_process[1])
    assert not same(in_process[0], other)
    assert draws(in_process[0]).isdisjoint(draws(in_process[1]))
    assert draws(in_process[0]).isdisjoint(draws(other))


def draws(batches):
    return {repr(meta["draws"]["augment"]) for batch in batches for meta in batch["meta"]}


def test_every_patch_comes_once(cases, in_process):
    """An epoch holds every (case, ordinal) exactly once, in a shuffled order of cases."""
    identities = [tuple(m["identity"]) for batch in in_process[0] for m in batch["meta"]]

    assert sorted(identities) == [(case, n) for case in range(3) for n in range(4)]


def test_as_ready_gives_the_same_batches_in_some_order(cases, in_process):
    """Order as_ready changes the order at most."""
    service = vp.MultiProcessingReadingService(2, order="as_ready")

    batches = two_epochs(cases, service)[0]

    by_name = {str([m["identity"] for m in b["meta"]]): b for b in batches}
    expected = {str([m["identity"] for m in b["meta"]]): b for b in in_process[0]}
    assert set(by_name) == set(expected)
    assert all(same([by_name[name]], [expected[name]]) for name in expected)


def test_without_a_seed_torch_decides(cases):
    """torch.manual_seed fixes an unseeded run, and its epochs differ."""
    runs = []
    for _ in range(2):
        torch.manual_seed(3)
        with vp.DataLoader2(full_chain(cases)) as loader:
            runs.append([list(loader), list(loader)])

    assert same(runs[0][0], runs[1][0])
    assert not same(runs[0][0], runs[0][1])


def noisy(batch):
    batch["image"] = batch["image"] + torch.randn(batch["image"].shape)
    return batch


@pytest.mark.parametrize(("workers", "method"), [(1, "fork"), (2, "forkserver")])
# as above
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_user_functions_draw_the_same_in_every_worker(cases, workers, method):
    """A function that draws from torch's global generator is reproducible too."""
    state = torch.get_rng_state()
    with vp.DataLoader2(full_chain(cases).map(noisy), seed=7) as loader:
        expected = list(loader)

    service = vp.MultiProcessingReadingService(workers, method)
    with vp.DataLoader2(full_chain(cases).map(noisy), None, service, seed=7) as loader:
        batches = list(loader)

    assert same(batches, expected)
    assert bool((torch.get_rng_state() == state).all())
