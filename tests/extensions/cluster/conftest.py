"""A cluster of three nodes on this machine."""

import leftovers
import pytest

STORE = 80 * 1024**2
IGNORED = [
    "ignore:This process.*is multi-threaded:DeprecationWarning",
    "ignore::ResourceWarning",  # of Ray's own files
    "ignore::voxpipe.core.errors.IdleWorkers",  # on a busy machine
]


def pytest_collection_modifyitems(items):
    """Let tests with a cluster ignore warnings of Ray."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            for text in IGNORED:
                # First, so that filters of the test itself prevail.
                item.add_marker(pytest.mark.filterwarnings(text), append=False)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Fail a test that leaves a process, a thread or an epoch; Ray keeps sockets to its actors."""
    before = leftovers.alive()
    yield
    left = {pair for pair in leftovers.left_behind(before) if not is_of_ray(*pair)}
    assert left == set()


def is_of_ray(kind, name):
    """Return whether Ray keeps it until it is shut down."""
    return kind == "file" and any(part in name for part in ("socket:", "anon_inode:", "pipe:"))


@pytest.fixture(scope="session")
def cluster():
    """Start a head without room, for the trainer, and two nodes with room for three workers."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN", "0" * 32)
        nodes = Cluster()
        options = {"object_store_memory": STORE, "include_dashboard": False}
        nodes.add_node(num_cpus=0, node_ip_address="127.0.0.2", **options)
        for number in (3, 4):
            nodes.add_node(num_cpus=3, node_ip_address=f"127.0.0.{number}", **options)
        ray.init(
            nodes.address,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address="127.0.0.2",
        )
        try:
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()
