"""Places where a URL might be shown, and shapes of URLs: none shows a password or a signature."""

import json
import logging
import pickle
import re
import traceback
import warnings
from itertools import product
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from manifests import write_manifest
from torch.utils.data.datapipes._hook_iterator import _generate_iterdatapipe_msg
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.call_site import call_text
from voxpipe.core.errors import SampleError, VolumeReadError, VoxpipeError, add_location
from voxpipe.core.redact import public_name, public_text, urls_in, used_name
from voxpipe.storage.location import Secrets, file_system, remote_errors
from voxpipe.storage.remote import open_remote
from voxpipe.volumes import Manifest, Volume, read_manifest
from voxpipe.volumes.conversion.convert import ConversionResult
from voxpipe.volumes.conversion.destination import RemoteDestination

# Every part of a secret is one of these, so that half of one is found as well.
PARTS = ("PASSone", "PASStwo", "PASSsix", "SIGNone", "SIGNtwo")
USERS = {
    "no password": "",
    "plain": "me:PASSone@",
    "at": "me:PASSone@PASStwo@",
    "slash": "me:PASSone/PASStwo@",
    "both": "me:PASSone@PASStwo/PASSsix@",
    "both, slash first": "me:PASSone/PASStwo@PASSsix@",
    "colons": "me:PASSone::PASStwo:PASSsix@",
    "question": "me:PASSone?PASStwo@",
    "hash": "me:PASSone#PASStwo@",
    "digits, slash": "me:12/PASSone@",
    "backslash before": r"h\@me:PASSone@",
    "escaped": "me:PASSone%40PASStwo%2FPASSsix@",
}
FILES = {
    "plain": ("ct.nii", "?X-Signature=SIGNone%2BSIGNtwo"),
    "blanks": ("my ct scan.nii", "?X-Signature=SIGNone&Expires=9"),
    "parentheses": ("ct (1).nii", "?Expires=9&X-Signature=SIGNone"),
    "brackets": ("ct[1]{2}<3>.nii", "?sig=SIGNone;SIGNtwo"),
    "one quote": ("ct'1'.nii", "?sig=SIGNone'SIGNtwo"),
    "two quotes": ('ct "1".nii', '?sig=SIGNone"SIGNtwo'),
    "odd signature": ("ct.nii", "?sig=SIGNone)SIGNtwo(SIGNone]SIGNtwo,SIGNone"),
    "fragment": ("ct of me.nii", "#token=SIGNone@SIGNtwo"),
    "parameter": ("ct.nii", ";key=SIGNone;v=SIGNtwo,SIGNone"),
    "parameter and query": ("my ct (1).nii", ";key=SIGNone?sig=SIGNtwo"),
}
FRAMES = ("quoting://{0}host/{1}{2}", "zip://a b.nii::quoting://{0}host/{1}{2}")


def shapes():
    """Yield a name and a URL of each shape."""
    for frame, (user, who), (file, (name, query)) in product(FRAMES, USERS.items(), FILES.items()):
        yield f"{user}, {file}, {frame[:3]}", frame.format(who, name, query)


SHAPES = dict(shapes())


class Quoting(MemoryFileSystem):
    """Refuses everything, and quotes the URL in every form that clients are known to use."""

    protocol = "quoting"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path):
        return str(path)

    def _refuse(self, path, *_, **__):
        said = [path, quote(path), quote(path, safe=":/?=&'()"), unquote(path), repr(path)]
        said += [*urlsplit(path)[1:], path.partition("://")[2]]
        raise OSError(f"login failed: {said}")

    cat_file = pipe_file = info = exists = find = ls = glob = open = rm = _refuse


@pytest.fixture(autouse=True)
def quoting(monkeypatch):
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.01")
    fsspec.register_implementation("quoting", Quoting, clobber=True)


def told(error):
    """Return what is shown of an error: by itself, with those behind it, on another machine."""
    again = pickle.loads(pickle.dumps(error)) if isinstance(error, VoxpipeError) else error
    shown = "".join(traceback.format_exception(error, limit=0))
    return " ".join([str(error), repr(error), shown, repr(again)])


def failing(act):
    """Return what is shown of the error that ``act`` raises, and that it raises one of ours."""
    with pytest.raises(VoxpipeError) as caught:
        act()
    return told(caught.value)


def of_list_cases(url):
    folder, _, file = url.rpartition("/")
    return vp.list_cases(f"{folder}/*/", image=file)


def of_stores(url):
    def act():
        with remote_errors(public_name(url), {}, url=url):
            Quoting()._refuse(url)

    return failing(act)


def of_warning(url):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(IterableWrapper([url]).read_from_http(skip_on_error=True))
    return " ".join(str(one.message) for one in caught)


def of_manifest(url):
    text = [failing(lambda: read_manifest(url)), failing(lambda: write_manifest(Manifest(()), url))]
    return " ".join(text)


def of_case(url):
    pipe = vp.from_cases([{"image": url}, {"image": url}])
    names = [sample.case for sample in pipe]
    # Messages redact the texts of the data.
    texts = [public_text(text) for text in pipe.data_texts()]
    return f"{names} {pipe!r} {pipe.settings()} {texts}"


def of_explain(url):
    pipes = vp.from_cases([{"image": url}]).open_volume(), of_list_cases(url).open_volume()
    return " ".join(map(vp.explain, pipes))


def of_pipes(url):
    pipe = IterableWrapper([url]).open_files_by_fsspec()
    return f"{pipe!r} {pipe.settings()} {failing(lambda: next(iter(pipe)))}"


def of_skipped(url):
    """Return what is told of an item that is left out."""
    pipe = vp.from_cases([{"image": url}]).open_volume().lazy_patch(2).batch_patches(1)
    loader = vp.DataLoader2(pipe, [vp.OnError("skip")])
    failed = []
    try:
        list(loader)
        failed = loader.failures
        state = json.dumps(loader.state_dict())
    finally:
        loader.shutdown()
    assert failed
    return f"{failed} {[str(one) for one in failed]} {state}"


def of_torch(url):
    """Return what torch adds to errors and profiles: the arguments of a pipe."""
    cases = vp.from_cases([{"image": url}])
    pipes = [cases, cases.cache(url), of_list_cases(url)]
    pipes += [IterableWrapper([url]).open_files_by_fsspec()]
    return " ".join(map(_generate_iterdatapipe_msg, pipes))


def of_kept(url):
    """Return what a chain that keeps volumes behind the URL shows."""
    pipe = vp.from_cases([{"image": np.zeros((4, 4, 4), np.int16)}]).open_volume()
    texts = []
    try:
        kept = pipe.cache(url)
        texts += [repr(kept), failing(lambda: kept.prepare(lambda done, total: None))]
    except VoxpipeError as error:
        texts.append(told(error))
    return " ".join(texts)


PLACES = {
    "name": public_name,
    "volume": lambda url: f"{Volume(url)} {Volume(url).name} {vars(Volume(url))}",
    "request": lambda url: repr(Volume(url)._source.options.request(uri=url, source=url)),
    "opening": lambda url: failing(lambda: Volume(url).shape),
    "reading": lambda url: failing(lambda: open_remote(url, {}).get("")),
    "file system": of_stores,
    "message": lambda url: told(VolumeReadError(f"no {url}, or so", do=f"See {url}.")),
    "place": lambda url: told(VolumeReadError("no").at(case=url)),
    "note": lambda url: " ".join(add_location(ValueError("no"), case=url).__notes__),
    "call": lambda url: call_text("f", ([url], {"a": (url,)}, Path("a")), {"b": {url: url}}),
    "cases": of_case,
    "list": lambda url: f"{of_list_cases(url)!r} {of_list_cases(url).settings()}",
    "listing": lambda url: failing(lambda: list(of_list_cases(url))),
    "pipes": of_pipes,
    "warning": of_warning,
    "manifest": of_manifest,
    "destination": lambda url: failing(lambda: RemoteDestination(url, {}, 9.0).record()),
    "converted": lambda url: repr(ConversionResult(url, (1, 1, 1), (1, 1, 1), 1, 0)),
    "kept": of_kept,
    "torch": of_torch,
    "secrets": lambda url: Secrets({"endpoint_url": url}, url).cut(f"{url} {quote(url)}"),
}


@pytest.mark.parametrize("place", PLACES)
def test_no_place_shows_a_secret(place, caplog):
    """Whatever characters it is made of; and what is shown says still which file it is."""
    caplog.set_level(logging.DEBUG)
    leaks = []
    for shape, url in SHAPES.items():
        shown = f"{PLACES[place](url)} {caplog.text}"
        caplog.clear()
        leaks += [(shape, part) for part in PARTS if part in shown]
    assert len(PLACES) * len(SHAPES) >= 320
    assert leaks == []


@pytest.mark.parametrize("place", [of_explain, of_skipped])
def test_no_chain_shows_a_secret(place):
    """What ``explain()`` says; failures of an epoch and the state of the loader."""
    leaks = []
    # Each takes a tenth of a second: all users, and all files, but not each with each.
    for shape, url in [*SHAPES.items()][::9]:
        shown = place(url)
        leaks += [(shape, part) for part in PARTS if part in shown]
    assert leaks == []


def fail_with(sample):
    """Raise what a reader of somebody else would, and ours."""
    raise VolumeReadError(f"cannot read {sample['url']}, or so", do=f"See {sample['url']}.")


def fail_otherwise(sample):
    """Raise an error of the user's own."""
    raise ValueError(f"cannot read {sample['url']}, or so")


@pytest.mark.slow
def test_no_worker_tells_a_secret():
    """Neither the errors that it is told to skip nor the one that ends the epoch."""
    pipe = vp.from_cases([{"url": url} for url in SHAPES.values()]).map(fail_with)
    service = vp.MultiProcessingReadingService(num_workers=1)
    texts = []
    for adapters in ([vp.OnError("skip", budget=len(SHAPES))], []):
        loader = vp.DataLoader2(pipe.batch(1), adapters, service)
        try:
            texts.append("".join(map(str, loader)))
        except VoxpipeError as error:
            texts.append(told(error))
        texts += [f"{one} {one!r}" for one in loader.failures]
        loader.shutdown()
    assert len(texts) == len(SHAPES) + 2
    url = SHAPES["both, two quotes, quo"]
    loader = vp.DataLoader2(vp.from_cases([{"url": url}]).map(fail_otherwise), [], service)
    # The user's own error comes as it was raised, with what we tell of it as its cause.
    with pytest.raises(ValueError, match="or so") as caught:
        list(loader)
    loader.shutdown()
    assert "cannot read quoting://host/ct" in str(caught.value.__cause__)
    texts += [str(caught.value.__cause__), " ".join(caught.value.__notes__)]
    assert [part for part in PARTS for text in texts if part in text] == []


@pytest.mark.parametrize("wish", ["", "fsspec"])
@pytest.mark.parametrize("frame", ["{}", "simplecache::{}", "zip://a.nii::{}"])
def test_no_log_of_a_client_shows_a_secret(caplog, monkeypatch, started_clients, frame, wish):
    """At DEBUG of everything, also where a location is one of a chain."""
    # A store that failed a moment ago is not asked.
    monkeypatch.setattr("voxpipe.storage.remote_ranges._HEALTH", {})
    monkeypatch.setenv("VOXPIPE_REMOTE", wish)
    caplog.set_level(logging.DEBUG)
    for user, (name, query) in product(("me:PASSone@", "me:PASSone%40PASStwo@"), FILES.values()):
        # Nobody listens there.
        url = frame.format(f"http://{user}127.0.0.1:9/{name}{query}")
        failing(lambda url=url: open_remote(url, {}).get("", 10))

    if "::" in frame:
        assert "127.0.0.1:9" in caplog.text
    assert [part for part in PARTS if part in caplog.text] == []


def test_a_name_keeps_server_and_file():
    """What is hidden is the user and the query, no more, unless an @ is in both."""
    for user, (file, (name, _)) in product(USERS, FILES.items()):
        hides = user != "no password" and file == "fragment"
        shown = "quoting://…" if hides else f"quoting://host/{name}"
        assert public_name(SHAPES[f"{user}, {file}, quo"]) == shown


def test_what_is_no_credential_stays():
    """Ports, containers, an @ in a path, local files."""
    for name in (
        *("http://minio:9000/bucket/a.nii", "abfs://scans@me.dfs.core.windows.net/a.nii"),
        *("https://[::1]:80/a.nii", "s3://bucket/a@b.nii", "/data/what?.nii", "a@b:c/d.nii"),
        *("memory://a:b/c@d.nii", "s3://bucket/one two (3).nii"),
    ):
        assert public_name(name) == used_name(name) == name
        assert public_text(f"there is no '{name}'.") == f"there is no '{name}'."


def test_a_parameter_of_a_folder_is_no_part_of_its_name():
    """Of a web server; in a bucket, and on a disk, a ; is a letter as any other."""
    url = "https://me:PASSone@host;v=SIGNone/a;key=SIGNtwo/b;c/ct.nii?x=1"
    assert public_name(url) == used_name(url) == "https://host/a/b;c/ct.nii"
    assert public_text(f"no {url}, or so") == "no https://host/a/b;c/ct.nii, or so"
    for name in ("s3://bucket/a;key=1/b.nii", "/data/a;key=1.nii", "memory://a;k=1"):
        assert public_name(name) == used_name(name) == name


def test_a_location_to_be_used_keeps_its_path():
    """A manifest names what a client reaches, and no credentials."""
    assert used_name("https://me:PASSone@host/a@b/c.nii?sig=SIGNone") == "https://host/a@b/c.nii"


def test_a_port_may_be_the_beginning_of_a_password():
    """Nobody can tell; less is shown, and the client asks the port."""
    url = "http://minio:9000/bucket/mail@work/a.nii"
    assert public_name(url) == "http://work/a.nii"
    assert used_name(url) == url
    assert not any(one.splits for one in urls_in(url))


@pytest.mark.parametrize("mark", "/?#\\")
def test_a_password_that_no_client_understands_is_told(mark):
    """Every client ends the name of the server there, and would ask somebody else."""
    with pytest.raises(VolumeReadError, match=rf"holds a \{mark}.*(?s:.)*%2F.*%5C"):
        file_system(f"https://me:PASSone{mark}PASStwo@host/a.nii", {})


@pytest.mark.parametrize("scheme", ["s3", "S3", "gs", "az", "hf", "memory"])
@pytest.mark.parametrize("mark", ["?", "#", "?v&", "?&"])
def test_a_query_without_a_name_is_no_part_of_a_key(scheme, mark):
    """After a file, a folder or a bucket; a ? or # inside of a key stays."""
    for place in ("bucket/ct.nii", "bucket/ct.zarr/", "bucket/scans", "bucket/*/", "k.zip"):
        url = f"{scheme}://{place}"
        for query in ("SIGNone", "SIGNone/SIGNtwo", "SIG%2Fone"):
            if "/" not in query or place in ("bucket/ct.nii", "k.zip"):
                assert public_name(f"{url}{mark}{query}") == url
                assert used_name(f"{url}{mark}{query}") == url
                assert public_text(f"no '{url}{mark}{query}'.") == f"no '{url}'."
    for key in (
        "what?.nii",
        "cam#1/ct.nii",
        "v.v2#1/ct.nii",
        "p?/ct.zarr",
        "c.one#1/a.nii",
        "p?1/",
    ):
        name = f"{scheme}://bucket/{key}"
        assert public_name(name) == used_name(name) == name
        assert used_name(f"{scheme}://me:PASSone@bucket/{key}") == name or scheme == "memory"


def test_a_word_after_a_server_s_file_is_no_part_of_its_name():
    """A parameter, a query or a fragment without a name; a ; in a file name stays."""
    for end in (";SIGNone", "?SIGNone", "#SIGNone", ";SIG.none.SIGNone", ";a;SIGNone?SIGNtwo"):
        assert public_name(f"HTTPS://me:PASSone@host/ct.nii{end}") == "HTTPS://host/ct.nii"
    assert public_name("https://host/a;b.nii") == "https://host/a;b.nii"


@pytest.mark.parametrize(
    "file", ["ct.nii?SIGNone", "ct.nii?v&SIGNone", "ct.nii#SIGNone", "?SIGNone"]
)
def test_a_query_without_a_name_is_shown_nowhere(file):
    """Of volumes and listings: not in their texts, and not in errors."""
    volume = vp.Volume(f"memory://bucket/{file}")
    listing = vp.list_cases("memory://bucket/*/", image=file)
    texts = [repr(volume), repr(listing), vp.explain(listing), str(listing.settings())]
    texts += [failing(lambda: volume.shape), failing(lambda: list(listing))]

    assert not any("SIGN" in text for text in texts)


@pytest.mark.parametrize("begin", [vp.Volume, lambda at: vp.predict(abs, at, patch=4)])
def test_a_url_in_a_path_is_refused_without_its_password(begin):
    """``pathlib`` joins the slashes of a URL: no local file is meant, and no secret is shown."""
    with pytest.raises(SampleError, match="Give the URL as text") as caught:
        begin(Path("https://user:PASSWORD@127.0.0.1:9/x.npy"))

    assert "PASSWORD" not in str(caught.value)


def test_options_in_the_place_of_a_volume_are_not_shown():
    """The error shows their names."""
    with pytest.raises(SampleError, match="no volume to open among image=") as caught:
        list(vp.from_cases([{"image": {"key": "AKIA", "secret": "PASSWORD"}}]).open_volume())

    assert not {"AKIA", "PASSWORD"} & set(re.findall(r"\w+", str(caught.value)))
