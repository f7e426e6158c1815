"""Every store of byte ranges keeps one contract."""

import shutil

import fsspec
import pytest
from range_store_contract import RANGE_OBJECTS, RangeStoreContract
from s3_server import S3Server

from voxpipe.core.errors import MissingDependency, VolumeReadError
from voxpipe.extensions.microscopy.zipped_zarr import store_at
from voxpipe.storage.file_reader import LocalRanges
from voxpipe.storage.fsspec_ranges import FsspecRanges
from voxpipe.storage.obstore_ranges import ObstoreRanges, settings_of
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.remote import open_remote
from voxpipe.storage.remote_ranges import RemoteRanges

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
        ranges.will_need([ReadRange("a/first"), ReadRange("a/none", 0, 4), ReadRange("empty")])

        assert ranges.get("a/first") == RANGE_OBJECTS["a/first"]

    def test_the_newest_change_is_that_of_all_threads(self, ranges, monkeypatch):
        """While one thread asks when an old file was changed, another has read a new one."""
        times = [5, 9]

        def change_time(status):
            if len(times) == 2:
                moment = times.pop(0)
                ranges.get_ranges([ReadRange("a/first", 0, 1)])
                return moment
            return times[0]

        monkeypatch.setattr("voxpipe.storage.file_reader.changed_at", change_time)
        ranges.get_ranges([ReadRange("empty", 0, 1)])

        assert ranges.newest == 9


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
    ("url", "options", "environment", "reason"),
    [
        ("s3://b/a", {**KEYS, "config_kwargs": {}}, {}, "config_kwargs"),
        ("s3://b/a", {**KEYS, "client_kwargs": {"use_ssl": False}}, {}, "use_ssl"),
        # With the token of other keys, which it would add by itself.
        ("s3://b/a", KEYS, {"AWS_SESSION_TOKEN": "t"}, "AWS_SESSION_TOKEN"),
        ("s3://arn:aws:s3:eu-west-1:1:accesspoint/a", KEYS, {}, "no plain one"),
        ("s3://b--use1--x-s3/a", KEYS, {}, "no plain one"),
        ("zip://x::s3://b/a", KEYS, {}, "not used"),
        ("sftp://h/a", {}, {}, "not used"),
        ("gs://b/a", {"token": "browser"}, {}, "token"),
        ("gs://b/a", {}, {"STORAGE_EMULATOR_HOST": "h"}, "STORAGE_EMULATOR_HOST"),
        ("az://b@n.dfs.core.windows.net/a", {}, {}, "no plain one"),
        ("az://b/a", {"account_name": "n", "anon": False}, {}, "other places"),
        ("az://b/a", {"connection_string": "c"}, {}, "connection_string"),
        ("https://h/a", {"auth": ("u", "p")}, {}, "auth"),
        ("https://h/a", {"client_kwargs": {"auth": ("u", "p")}}, {}, "auth"),
    ],
)
def test_what_obstore_is_not_chosen_for(url, options, environment, reason):
    """Options that cannot be said exactly as they were meant go to fsspec, with a reason."""
    assert reason in settings_of(url, options, environment)


@pytest.mark.parametrize(
    ("url", "options", "environment", "config"),
    [
        (
            "s3://b/a",
            {**KEYS, "token": "t", "client_kwargs": {"region_name": "eu-west-1"}},
            {},
            {
                "access_key_id": "k",
                "secret_access_key": "s",
                "session_token": "t",
                "region": "eu-west-1",
            },
        ),
        (
            "s3://b/a",
            {"anon": True, "endpoint_url": None, "default_block_size": 5},
            {"AWS_DEFAULT_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "k"},
            {"skip_signature": True, "region": "eu-west-1"},
        ),
        (
            "s3a://b/a",
            {"requester_pays": True},
            {"AWS_ACCESS_KEY_ID": "k", "AWS_ENDPOINT_URL": "http://h"},
            {"request_payer": True, "endpoint": "http://h", "region": "us-east-1"},
        ),
        ("gs://b/a", {"token": "anon"}, {}, {"skip_signature": True}),
        ("gs://b/a", {"token": "/key.json", "project": "p"}, {}, {"service_account": "/key.json"}),
        ("gcs://b/a", {}, {}, {}),
        ("az://b/a", {"account_name": "n"}, {}, {"account_name": "n", "skip_signature": True}),
        (
            "abfs://b/a",
            {"account_name": "n", "account_key": "k"},
            {},
            {"account_name": "n", "account_key": "k"},
        ),
        ("https://h/a", {"block_size": 5}, {}, {}),
    ],
)
def test_what_obstore_is_chosen_for(url, options, environment, config):
    """Options of every provider are translated, without a look at anything else."""
    found = settings_of(url, options, environment)

    assert (found.config, found.session) == (config, None)


@pytest.mark.parametrize(
    ("options", "environment", "session"),
    [
        ({}, {}, {"profile": None}),
        ({"anon": False}, {"AWS_PROFILE": "lab"}, {"profile": None}),
        ({"profile": "lab"}, {"AWS_ACCESS_KEY_ID": "k"}, {"profile": "lab"}),
        ({}, {"AWS_ACCESS_KEY_ID": "k"}, None),
    ],
)
def test_who_looks_for_credentials(options, environment, session):
    """Profiles, roles and single sign-on are botocore's; keys in the environment need nobody."""
    assert settings_of("s3://b/a", options, environment).session == session


@pytest.mark.parametrize(
    ("options", "environment", "verify"),
    [
        ({}, {"AWS_CA_BUNDLE": "/ca.pem"}, "/ca.pem"),
        ({"client_kwargs": {"verify": "/own.pem"}}, {"AWS_CA_BUNDLE": "/ca.pem"}, "/own.pem"),
        ({"client_kwargs": {"verify": False}}, {}, False),
        ({}, {}, None),
    ],
)
def test_which_certificates_are_believed(options, environment, verify):
    """Those of the options, then those of the environment, as botocore."""
    assert settings_of("s3://b/a", {**KEYS, **options}, environment).verify == verify


def test_headers_of_a_web_server():
    """As fsspec takes them."""
    found = settings_of("https://h/a", {"client_kwargs": {"headers": {"X-Who": "me"}}}, {})

    assert found.headers == {"X-Who": "me"}
    assert "me" not in repr(found)


@pytest.mark.parametrize(
    ("url", "wish", "kind"),
    [
        ("s3://b/a", "", ObstoreRanges),
        ("s3a://b/a", "", ObstoreRanges),
        ("s3://b/a", "fsspec", FsspecRanges),
        ("gs://b/a", "", ObstoreRanges),
        ("https://h/a.nii", "", ObstoreRanges),
        ("https://h/a.nii", "fsspec", FsspecRanges),
    ],
)
def test_which_client_is_chosen(url, wish, kind, monkeypatch):
    """What obstore can read it reads, unless fsspec is asked for."""
    monkeypatch.setenv("VOXPIPE_REMOTE", wish)
    options = {"s3": KEYS, "gs": {"token": "anon"}, "ht": {}}[url[:2]]

    assert type(open_remote(url, options)) is kind


def test_a_wish_that_cannot_be_fulfilled(monkeypatch):
    """Asking for obstore where its options do not reach says what is in the way."""
    monkeypatch.setenv("VOXPIPE_REMOTE", "obstore")
    with pytest.raises(MissingDependency, match="config_kwargs"):
        open_remote("s3://b/a", {**KEYS, "config_kwargs": {}})

    monkeypatch.setenv("VOXPIPE_REMOTE", "boto")
    with pytest.raises(ValueError, match="'boto', but must be fsspec or obstore"):
        open_remote("s3://b/a", KEYS)


@pytest.fixture
def sent(monkeypatch):
    """Return the paths that were asked for through obstore."""
    monkeypatch.delenv("VOXPIPE_REMOTE", raising=False)
    paths, get = [], ObstoreRanges._get
    monkeypatch.setattr(
        ObstoreRanges,
        "_get",
        lambda self, path, asked: paths.append(path) or get(self, path, asked),
    )
    return paths


def test_an_odd_key_is_the_only_one_that_goes_another_way(server, sent):
    """What obstore cannot say is asked for once through fsspec."""
    write(server.bucket / "root")
    store = open_remote("s3://bucket/root", server.storage_options)

    with pytest.raises(VolumeReadError, match="InvalidRequest"):
        store.get("./odd")
    assert store.get("a/first") == RANGE_OBJECTS["a/first"]
    assert sent == ["root/a/first"]


def test_a_listing_of_a_web_server_leaves_its_objects_to_obstore(server, sent):
    """The folder is fsspec's."""
    write(server.bucket)
    store = open_remote(f"{server.url}/bucket", {})
    list(store.list())

    assert store.get("a/first") == RANGE_OBJECTS["a/first"]
    assert sent == ["a/first"]


def test_a_proxy_that_knew_no_ranges_for_a_while(server, sent, monkeypatch):
    """Both clients had all of a file: from then on fsspec alone is asked, for any that it knows."""
    write(server.bucket)
    store = open_remote(f"{server.url}/bucket", {})
    wanted = [ReadRange("a/first", 1, 3)]
    with monkeypatch.context() as patch:
        patch.setattr("s3_http.Question.range", "")
        with pytest.raises(VolumeReadError, match="does not know ranges"):
            store.get_ranges(wanted)
    del sent[:]

    assert [*map(bytes, store.get_ranges(wanted))] == [RANGE_OBJECTS["a/first"][1:3]]
    assert sent == []


def test_a_bucket_of_another_region_is_left_to_fsspec(tmp_path, sent):
    """It is asked only once which region that is."""
    (tmp_path / "bucket").mkdir()
    write(tmp_path / "bucket")
    with S3Server(tmp_path, region="eu-west-7") as server:
        store = open_remote("s3://bucket", server.storage_options)
        for _ in range(3):
            assert store.get("a/first") == RANGE_OBJECTS["a/first"]
    assert sent == ["a/first"]


class TestZippedFolder(RangeStoreContract):
    """A folder of an archive is a store like others."""

    @pytest.fixture
    def ranges(self, tmp_path):
        write(tmp_path / "a" / "in")
        packed = shutil.make_archive(str(tmp_path / "a"), "zip", tmp_path / "a")
        return store_at(shutil.move(packed, f"{packed}.ozx"), {}, "in")
