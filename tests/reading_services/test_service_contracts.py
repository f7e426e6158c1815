"""The contract of reading services, for those of voxpipe and one in torchdata's form."""

import pytest

import voxpipe as vp
from voxpipe.reading_services import ReadingServiceInterface
from voxpipe.testing import PoolContract, ServiceContract

pytestmark = pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")


class TestInProcess(ServiceContract):
    def make(self):
        return vp.reading_services.InProcessReadingService()


class TestInProcessAhead(ServiceContract):
    def make(self):
        return vp.reading_services.InProcessReadingService(prefetch_cnt=2)


class TestThreads(ServiceContract):
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


class TestTorchdataForm(ServiceContract):
    splits = False

    def make(self):
        return Unchanged()
