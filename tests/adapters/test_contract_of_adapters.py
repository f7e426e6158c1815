"""Every adapter of ours keeps the contract that adapters of others can be tested with."""

from eager_chains import Eager

import voxpipe as vp
from voxpipe.testing import AdapterContract


class TestFuseSpatial(AdapterContract):
    def make(self):
        return vp.FuseSpatial()


class TestFuseSpatialOfEagerPipes(AdapterContract):
    same_batches = False

    def make(self):
        return vp.FuseSpatial(lazy=False)


class TestProfile(AdapterContract):
    def make(self):
        return vp.Profile()


class TestTimeout(AdapterContract):
    def make(self):
        return vp.Timeout(item=60)


class TestTimeoutOfOnePipe(AdapterContract):
    def make(self):
        return vp.Timeout(60, at="rotate")


class TestCacheTimeout(AdapterContract):
    acts = False  # the chain has no cache

    def make(self):
        return vp.adapters.CacheTimeout(600)


class TestOnError(AdapterContract):
    def make(self):
        return vp.OnError("skip")


class TestLint(AdapterContract):
    acts = False  # it warns

    def make(self):
        return vp.Lint()


class TestEager(AdapterContract):
    same_batches = False

    def make(self):
        return Eager()


class TestShuffle(AdapterContract):
    same_batches = False

    def make(self):
        return vp.adapters.Shuffle(False)
