"""Every store of byte ranges keeps one contract."""

import fsspec
import pytest

from voxpipe.core.errors import MissingDependency
from voxpipe.testing import RANGE_OBJECTS, RangeStoreContract
from voxpipe.volumes.stores.fsspec_ranges import FsspecRanges
from voxpipe.volumes.stores.obstore_ranges import ObstoreRanges, is_installed, settings_of
from voxpipe.volumes.stores.ranges import LocalRanges
from voxpipe.volumes.stores.remote import open_remote
from voxpipe.volumes.stores.remote_ranges import RemoteRanges

KEYS = {"key": "k", "secret": "s"}


def write(folder):
    for key, content in RANGE_OBJECTS.items():
        (folder / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / key).write_bytes(content)


class TestLocal(RangeStoreContract):
    @pytest.fixture
    def ranges(self, tmp_path):
        write(tmp_path)
        return LocalRanges(str(tmp_path))

    def test_advice_reads_nothing_and_never_fails(self, ranges):
        """Telling the system what comes changes nothing, even of a file that is not there."""
        from voxpipe.volumes.stores.ranges import ReadRange

        ranges.will_need([ReadRange("a/first"), ReadRange("a/none", 0, 4), ReadRange("empty")])

        assert ranges.get("a/first") == RANGE_OBJECTS["a/first"]


class TestMemory(RangeStoreContract):
    @pytest.fixture
    def ranges(self):
        system = fsspec.filesystem("memory")
        for key, content in RANGE_OBJECTS.items():
            system.pipe_file(f"/ranges/{key}", content)
        yield open_remote("memory://ranges", {})
        system.rm("/ranges", recursive=True)


class TestBucket(RangeStoreContract):
    @pytest.fixture
    def ranges(self, server, client):
        write(server.bucket / "root")
        store = open_remote("s3://bucket/root", server.storage_options)
        assert isinstance(store, ObstoreRanges) == (client == "obstore")
        assert isinstance(store, RemoteRanges)
        return store


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("s3://b/a", {}, "no credentials"),
        ("s3://b/a", KEYS, "region"),
        ("s3://b/a", {**KEYS, "config_kwargs": {}}, "config_kwargs"),
        ("s3://b/a", {**KEYS, "client_kwargs": {"verify": False}}, "verify"),
        ("zip://x::s3://b/a", KEYS, "not used"),
        ("https://h/a", {}, "not used"),
        ("az://b/a", {"account_name": "n"}, "no credentials"),
    ],
)
def test_what_obstore_is_not_chosen_for(url, options, reason, monkeypatch):
    """Options that cannot be said exactly as they were meant go to fsspec, with a reason."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)

    assert reason in settings_of(url, options)


def test_what_obstore_is_chosen_for():
    """Options of all three providers are translated."""
    aws = {**KEYS, "client_kwargs": {"region_name": "eu-west-1"}}

    assert settings_of("s3://b/a", aws)["region"] == "eu-west-1"
    assert settings_of("gs://b/a", {"token": "anon"}) == {"skip_signature": True}
    assert settings_of("az://b/a", {"account_name": "n", "account_key": "k"})["account_key"] == "k"


@pytest.mark.skipif(not is_installed(), reason="needs obstore")
@pytest.mark.parametrize(
    ("url", "wish", "kind"),
    [
        ("s3://b/a", "", FsspecRanges),
        ("s3a://b/a", "", FsspecRanges),
        ("s3://b/a", "obstore", ObstoreRanges),
        ("gs://b/a", "", ObstoreRanges),
    ],
)
def test_which_client_is_chosen(url, wish, kind, monkeypatch):
    """Of S3 what is sent here, because it costs less; elsewhere obstore, where it can."""
    monkeypatch.setenv("VOXPIPE_REMOTE", wish)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    options = KEYS if url.startswith("s3") else {"token": "anon"}

    assert type(open_remote(url, options)) is kind


def test_a_wish_that_cannot_be_fulfilled(monkeypatch):
    """Asking for obstore where its options do not reach says what is in the way."""
    monkeypatch.setenv("VOXPIPE_REMOTE", "obstore")
    with pytest.raises(MissingDependency, match="config_kwargs"):
        open_remote("s3://b/a", {**KEYS, "config_kwargs": {}})

    monkeypatch.setenv("VOXPIPE_REMOTE", "boto")
    with pytest.raises(ValueError, match="fsspec or obstore, got 'boto'"):
        open_remote("s3://b/a", KEYS)
