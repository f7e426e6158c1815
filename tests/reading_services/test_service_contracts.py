"""The contract of reading services, for those of voxpipe and one in torchdata's form."""

import pytest

import voxpipe as vp
from voxpipe.reading_services import ReadingServiceInterface
from voxpipe.testing import PoolContract, ServiceContract, service_contract

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


class InThisProcess(ServiceContract):
    """A service that starts no process, so a hang may end at once."""

    @pytest.fixture(autouse=True)
    def short_limits(self, monkeypatch):
        for limit in ("_LIMIT", "_START"):
            monkeypatch.setattr(service_contract, limit, 0.2)


class TestInProcess(InThisProcess):
    def make(self):
        return vp.reading_services.InProcessReadingService()


class TestInProcessAhead(InThisProcess):
    def make(self):
        return vp.reading_services.InProcessReadingService(prefetch_cnt=2)


class TestThreads(InThisProcess):
    def make(self):
        return vp.ThreadReadingService(2)


class TestMultiProcessing(PoolContract):
    def make(self):
        return vp.MultiProcessingReadingService(2)


class TestForked(ServiceContract):
    def make(self):
        return vp.MultiProcessingReadingService(2, "fork", persistent_workers=True)


class TestSequence(ServiceContract):
    def make(self):
        return vp.reading_services.SequentialReadingService(vp.MultiProcessingReadingService(1))


class Unchanged(ReadingServiceInterface):
    def initialize(self, datapipe):
        return datapipe


class TestTorchdataForm(InThisProcess):
    splits = False

    def make(self):
        return Unchanged()
