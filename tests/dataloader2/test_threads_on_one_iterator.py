"""Threads that share an iterator take turns: each batch goes to one of them."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from voxpipe.dataloader2 import DataLoader2, MultiProcessingReadingService

THREADS, ITEMS = 4, 200
WAIT = 60.0


@pytest.fixture(autouse=True)
def many_switches():
    """Let threads take turns at every chance."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(
    "service", [None, MultiProcessingReadingService(1, "fork", worker_prefetch_cnt=8)]
)
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_each_batch_goes_to_one_thread(service):
    """No error, none twice, and none left out; what was delivered is counted once."""
    with DataLoader2(IterableWrapper(range(ITEMS)).map(str), None, service, seed=7) as loader:
        batches = iter(loader)
        with ThreadPoolExecutor(THREADS) as threads:
            taken = [threads.submit(list, batches) for _ in range(THREADS)]
            seen = [item for taking in taken for item in taking.result(timeout=WAIT)]

        assert sorted(seen, key=int) == [str(n) for n in range(ITEMS)]
        assert loader.state_dict()["epoch"] == 1
