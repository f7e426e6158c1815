"""Ranges of objects in buckets and on web servers through obstore, the default client.

obstore is used if it can express all options that the user gives for fsspec (:func:`settings_of`).
The fallback to fsspec covers odd keys, buckets in another region, servers without ranges, and
folders of web servers.

Coroutines of obstore end in its own threads, which then enter Python; a process that exits at that
moment is aborted (8 of 20 runs). So its blocking calls run in threads of :data:`.THREADS`. Its
threads do not survive a fork: a forked child uses fsspec, or is refused.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..core.errors import ForkUnsafe
from .content import content_key
from .fsspec_ranges import CONNECTING, open_fsspec
from .in_flight import MOST_REQUESTS, THREADS
from .remote_answers import (
    Answer,
    FaultAdvice,
    Head,
    NoRanges,
    RangeRequest,
    WrongAnswer,
    advice_on,
    check_encoding,
    has_expired,
    is_of_page,
)
from .remote_ranges import ObjectEntry, ObjectFacts, RemoteRanges
from .retry import LEAST_ATTEMPT, TRIES, Retry

T = TypeVar("T")

# Options of fsspec and the matching ones of obstore, by provider.
_S3 = {
    **dict.fromkeys(("key", "username"), "access_key_id"),
    **dict.fromkeys(("secret", "password"), "secret_access_key"),
    "token": "session_token",
    "endpoint_url": "endpoint",
    "requester_pays": "request_payer",
    "profile": "profile",
}
_S3_CLIENT = {
    **{f"aws_{n}": n for n in ("access_key_id", "secret_access_key", "session_token")},
    "endpoint_url": "endpoint",
    "region_name": "region",
    "verify": "verify",
}
_CLIENTS = {"s3": _S3_CLIENT, "http": {"headers": "headers"}}
_AZURE_SECRETS = ("account_key", "sas_token", "client_secret")
_AZURE = {n: n for n in (*_AZURE_SECRETS, "account_name", "tenant_id", "client_id")}
_NAMES: dict[str, dict[str, str]] = {"s3": _S3, "gs": {}, "az": _AZURE, "http": {}}
# Options for caches, buffers and writes of fsspec, which change no GET.
_OF_FSSPEC = {
    *("asynchronous", "batch_size", "block_size", "cache_options", "cache_regions", "cache_type"),
    *("default_block_size", "default_cache_type", "default_fill_cache", "dircache"),
    *("listings_expiry_time", "max_concurrency", "max_paths", "project", "access", "simple_links"),
    *("same_scheme", "size_policy", "skip_instance_cache", "use_listings_cache"),
}
_SCHEMES = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "abfs"), "az"),
    **dict.fromkeys(("http", "https"), "http"),
}
# Variables with addresses that only other clients know.
_ELSEWHERE = {"gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_CONNECTION_STRING"}
# Variables of botocore.
_CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_AZURE_VARIABLES = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET")
# The default of botocore for custom endpoints. S3 reports a wrong region.
_USUAL_REGION = "us-east-1"
# Neither an ARN nor a directory bucket, which need other requests.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?<!--x-s3)")
# Parts of a key that obstore refuses, or that some servers remove.
_ODD_KEY = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)|[\x00-\x1f\x7f]|[\ud800-\udfff]")
# S3 knows the bucket in another region, which s3fs finds.
_OTHER_REGION = re.compile(r"redirect without LOCATION|AuthorizationHeaderMalformed")


def is_bucket(url: str) -> bool:
    """Whether a URL names a bucket, which lists the objects of all folders together."""
    return "::" not in url and _SCHEMES.get(url.partition("://")[0], "http") != "http"


class StoreSettings(NamedTuple):
    """Settings of an obstore store."""

    config: dict[str, Any]  # arguments of the store
    session: dict[str, Any] | None = None  # arguments of botocore's session for other credentials
    headers: dict[str, str] | None = None  # sent with each request
    verify: bool | str | None = None  # whether to verify certificates, or the file of trusted ones

    def __repr__(self) -> str:
        return f"Settings({', '.join(sorted(self.config))})"


def settings_of(
    url: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> StoreSettings | str:
    """Return obstore's settings for a URL and fsspec's options, or the reason for none."""
    scheme, _, rest = url.partition("://")
    provider = _SCHEMES.get(scheme)
    if provider is None or "::" in url:
        return f"it is not used for {scheme}://"
    bucket = rest.partition("/")[0]
    if provider != "http" and not _BUCKET.fullmatch(bucket):
        return "the bucket is no plain one"
    elsewhere = _ELSEWHERE.get(provider, "")
    if environment.get(elsewhere):
        return f"it does not know the variable {elsewhere}"
    config = _map_options(provider, options)
    if isinstance(config, str):
        return config
    if provider == "s3":
        return _of_s3(config, environment)
    if provider == "az":
        return _of_azure(config, environment)
    return StoreSettings({}, headers=config) if provider == "http" else StoreSettings(config)


def _map_options(provider: str, options: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return options under obstore's names (for web servers: headers), or why that fails."""
    names, config = _NAMES[provider], dict[str, Any]()
    for name, value in options.items():
        if name == "anon" and provider in ("s3", "az"):
            config["skip_signature"] = bool(value)
        elif provider == "gs" and name == "token":
            token = _google(value)
            if isinstance(token, str):
                return token
            config |= token
        elif provider == "http" and name == "headers" and isinstance(value, Mapping):
            config |= value
        elif name == "client_kwargs" and provider in _CLIENTS and isinstance(value, Mapping):
            unknown = set(value) - set(_CLIENTS[provider])
            if unknown:
                return f"it has no option {min(unknown)}"
            if provider == "http":
                config |= value.get("headers") or {}
            else:
                config |= {_S3_CLIENT[key]: v for key, v in value.items() if v is not None}
        elif value is None or name in _OF_FSSPEC or (name, value) == ("requester_pays", False):
            continue
        elif name in names:
            config[names[name]] = value
        else:
            return f"it has no option {name}"
    return config


def _google(token: Any) -> dict[str, Any] | str:
    if token in (None, "google_default", "cloud"):
        return {}  # obstore finds the default credentials
    if token == "anon":
        return {"skip_signature": True}
    if isinstance(token, Mapping) and token.get("type") == "service_account":
        return {"service_account_key": json.dumps(dict(token))}
    if isinstance(token, str) and token.endswith(".json"):
        return {"service_account": token}
    return "it does not know this kind of token"


def _of_s3(config: dict[str, Any], environment: Mapping[str, str]) -> StoreSettings | str:
    profile = config.pop("profile", None)
    session: dict[str, Any] | None = None
    if config.pop("skip_signature", False):
        config["skip_signature"] = True
    elif "access_key_id" in config:
        if "session_token" not in config and environment.get("AWS_SESSION_TOKEN"):
            return "AWS_SESSION_TOKEN is of other credentials"  # which obstore would send
    elif profile or not environment.get("AWS_ACCESS_KEY_ID"):
        session = {"profile": profile}
    verify = config.pop("verify", None)
    if verify in (None, True):
        verify = _first(environment, _CERTIFICATES) or None
    endpoint = config.get("endpoint") or _first(environment, _ENDPOINTS)
    region = config.get("region") or _first(environment, _REGIONS)
    if endpoint:
        config["endpoint"] = endpoint
    if session is None or region:
        # A session has no default here, because its profile may set the region.
        config["region"] = region or _USUAL_REGION
    return StoreSettings(config, session, verify=verify)


def _of_azure(config: dict[str, Any], environment: Mapping[str, str]) -> StoreSettings | str:
    secret = any(name in config for name in _AZURE_SECRETS) or _first(environment, _AZURE_VARIABLES)
    anonymous = config.pop("skip_signature", None)
    if anonymous or (anonymous is None and not secret):
        return StoreSettings({**config, "skip_signature": True})  # like adlfs
    return StoreSettings(config) if secret else "it looks for credentials in other places"


def _first(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next(filter(None, map(environment.get, names)), None) or ""


class ObstoreRanges(RemoteRanges):
    """Prefix of a bucket or of a web server, read through obstore."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        settings: StoreSettings,
        retry: Retry | None = None,
        *,
        only: bool = False,
    ) -> None:
        super().__init__(url, options, retry)
        scheme, _, rest = url.partition("://")
        self._kind = _SCHEMES[scheme]
        # Whether fsspec reports the same versions: all clients of S3 report its ETag.
        self.versions_as_fsspec = self._kind == "s3"
        self._has_ranges = self._kind != "http"
        bucket, _, prefix = rest.partition("/")
        self._prefix = "" if self._kind == "http" else prefix.strip("/")
        self._bucket = url if self._kind == "http" else bucket
        self._only = only
        self._settings = settings
        self._fallback: RemoteRanges | None = None
        # Whether all requests use the fallback, not only those that obstore cannot send.
        self._always_fsspec = False
        # Process, current credentials, and the store made with them.
        self._client: tuple[int, dict[str, Any] | None, Any] = (0, None, None)
        # Each page of a bucket has its own timeout, and a listing may have a thousand pages.
        self.limits_listing = self._kind == "http"
        self._refuse_after_fork()

    def _refuse_after_fork(self) -> None:
        if self._only and not is_usable():
            raise ForkUnsafe(
                f"{self.name} cannot be read in this forked process, because its parent has used "
                "obstore, whose threads do not survive a fork.",
                do='Start workers with "forkserver" or "spawn", or set VOXPIPE_REMOTE=fsspec.',
            )

    def enter_process(self, *, is_child: bool) -> None:
        """Switch to fsspec in a forked child of a process that has used obstore, or refuse."""
        if is_child:
            self._refuse_after_fork()
            self._always_fsspec |= not is_usable()
            if self._fallback is not None:
                self._fallback.enter_process(is_child=True)
        if not self._always_fsspec:
            _USERS.add(os.getpid())

    async def ask(self, request: RangeRequest) -> Answer:
        path = self._plain_path(request.key)
        call = None if path is None else partial(self._get, path, request)
        return await self._either(call, lambda other: other.ask(request))

    async def ask_facts(self, key: str) -> ObjectFacts:
        path = self._plain_path(key)
        call = None if path is None else partial(self._facts, path)
        return await self._either(call, lambda other: other.ask_facts(key))

    async def ask_entries(self, prefix: str, most: int | None) -> list[ObjectEntry]:
        """List everything below, or at least one more than ``most``."""
        here = partial(self._listed_below, prefix.rstrip("/"), most)
        there = None if self._kind == "http" else here
        return await self._either(there, lambda other: other.ask_entries(prefix, most))

    async def _either(
        self, here: Callable[[], T] | None, there: Callable[[RemoteRanges], Awaitable[T]]
    ) -> T:
        """Return the result of ``here``, or of ``there`` with fsspec if obstore cannot help."""
        sends_all = False
        if here is not None and not self._always_fsspec:
            try:
                return await THREADS.run(here)
            except Exception as error:
                sends_all = advice_on(error) is FaultAdvice.NO_RANGES and not self._has_ranges
                if self._kind != "http" and _OTHER_REGION.search(str(error)):
                    # s3fs finds the region; obstore would send each request in vain first.
                    self._always_fsspec = True
                elif self._kind != "http" and is_of_page(error):
                    raise WrongAnswer("it sent a web page") from None
                elif not self._is_for_others(error):
                    session = self._settings.session
                    if session is None or not has_expired(error):
                        raise
                    # Files, roles or services have newer credentials.
                    _SESSIONS.pop((os.getpid(), _session_name(session)), None)
                    return await THREADS.run(here)
        if self._fallback is None:
            self._fallback = open_fsspec(self._url, self._options, self._retry)
        try:
            answer = await there(self._fallback)
        except NoRanges:
            self._always_fsspec |= sends_all
            raise
        head = answer.head if isinstance(answer, Answer) else None
        if head is not None and (head.start, head.stop) == (0, head.total):
            self._always_fsspec |= sends_all  # or each range would be requested twice
        return answer

    def _is_for_others(self, error: Exception) -> bool:
        """Whether fsspec can send this one request; one bad answer proves no more than that."""
        if self._kind == "http":
            return advice_on(error) is FaultAdvice.NO_RANGES
        return "InvalidPathError" in {kind.__name__ for kind in type(error).__mro__}

    # The following methods block, and run in THREADS.

    def _get(self, path: str, request: RangeRequest) -> Answer:
        import obstore

        options: Any = {}
        start = request.start
        if request.stop is not None:
            options["range"] = (start, request.stop)
        elif start or self._kind != "http":  # only the answer to a range reports its end
            options["range"] = {"suffix": -start} if start < 0 else {"offset": start}
        if request.condition:
            options["if_match"] = request.condition
        reply: Any = obstore.get(self._store(), path, options=options)
        if encoding := reply.attributes.get("Content-Encoding"):
            check_encoding(encoding, path or self._bucket)
        meta, (first, last) = reply.meta, reply.range
        mtime = meta["last_modified"].timestamp()
        head = Head(first, last, int(meta["size"]), meta["e_tag"] or "", mtime)
        request.check(head)
        size, pieces, length = last - first, list[bytes](), 0
        for piece in reply.stream(min_chunk_size=max(1, min(size, _PIECE_BYTES))):
            pieces.append(piece)
            length += len(piece)
            if length > size:
                break
        return Answer(pieces[0] if len(pieces) == 1 else b"".join(pieces), head)

    def _facts(self, path: str) -> ObjectFacts:
        import obstore

        store = self._store()
        ways: tuple[Callable[[], Any], ...] = (
            partial(obstore.head, store, path),
            lambda: obstore.get(store, path, options={"range": (0, 1)}).meta,
        )
        # Web servers get a GET first: signed URLs allow only GET, and its answer proves support of
        # ranges; empty files need the HEAD. Buckets get a HEAD first; if it is refused, the refusal
        # of the GET has a body with the reason.
        is_web = self._kind == "http"
        first, second = reversed(ways) if is_web else ways
        try:
            meta = first()
        except Exception as error:
            if advice_on(error) is not (FaultAdvice.BEYOND if is_web else FaultAdvice.REFUSAL):
                raise
            meta = second()
        etag, date = meta["e_tag"] or "", meta["last_modified"]
        # 1970 means that a web server reports no time.
        mtime = date.timestamp()
        version = etag or (str(date) if mtime else "")
        return ObjectFacts(int(meta["size"]), version, etag, mtime)

    def _listed_below(self, prefix: str, most: int | None) -> list[ObjectEntry]:
        import obstore

        entries: list[ObjectEntry] = []
        for page in obstore.list(
            self._store(), "/".join(filter(None, (self._prefix, prefix))) or None, chunk_size=1000
        ):
            for meta in page:
                key = meta["path"][len(self._prefix) + 1 if self._prefix else 0 :]
                version = meta["e_tag"] or str(meta["last_modified"])
                entries.append(ObjectEntry(key, int(meta["size"]), version))
            if most is not None and len(entries) > most:
                break
        return entries

    def _store(self) -> Any:
        """Return the store, with credentials that have not expired."""
        session = self._settings.session
        secrets = None if session is None else _credentials(session)
        if self._client[:2] != (os.getpid(), secrets):
            config = {**self._settings.config, **(secrets or {})}
            store = _store(self._kind, self._bucket, config, self._settings, self._retry)
            self._client = (os.getpid(), secrets, store)
        return self._client[2]

    def _plain_path(self, key: str) -> str | None:
        """Return the path of an object, or of the web server itself; None if obstore refuses it."""
        path = f"{self._prefix}/{key}" if self._prefix and key else self._prefix or key
        return None if (path or self._kind != "http") and _ODD_KEY.search(path) else path


# Larger answers come in pieces, so that a wrong length takes no memory.
_PIECE_BYTES = 16 * 1024**2


def _session_name(options: Mapping[str, Any]) -> str:
    return content_key("", tuple(sorted(options.items())))


def _credentials(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return botocore's credentials of profiles, roles or services, renewed before they expire."""
    name = _session_name(options)
    entry = _SESSIONS.get((os.getpid(), name))
    if entry is None:
        from botocore.session import Session

        session = Session(**options)
        profile = session.get_scoped_config()
        region = session.get_config_variable("region") or _USUAL_REGION
        config = {"region": region}
        if profile.get("endpoint_url"):
            config["endpoint"] = profile["endpoint_url"]
        entry = _SESSIONS[os.getpid(), name] = session.get_credentials(), config
    holder, config = entry
    if holder is None:
        raise PermissionError("no credentials were found in the environment, profiles or roles")
    now = holder.get_frozen_credentials()
    secrets = {
        "access_key_id": now.access_key,
        "secret_access_key": now.secret_key,
        "session_token": now.token,
    }
    return {**config, **{key: value for key, value in secrets.items() if value}}


_SESSIONS: dict[tuple[int, str], tuple[Any, dict[str, Any]]] = {}
"""botocore's credentials and the region and endpoint, by process and session."""
_USERS: set[int] = set()
"""This process and its parents that have used obstore."""
_STORES: dict[str, Any] = {}  # by bucket and settings, so that volumes share connections


def is_usable() -> bool:
    """Whether no parent of this process used obstore before the fork."""
    return {os.getpid()} >= _USERS


def _store(
    kind: str, bucket: str, config: Mapping[str, Any], settings: StoreSettings, retry: Retry
) -> Any:
    from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

    limit = min(retry.attempt, max(retry.deadline, LEAST_ATTEMPT))
    # A digest, because the settings hold credentials.
    parts = (os.getpid(), kind, sorted(config.items()), settings.headers, settings.verify, limit)
    key = content_key(bucket, parts)
    if key not in _STORES:
        client: dict[str, Any] = {
            "timeout": f"{limit:g}s",
            "connect_timeout": f"{min(CONNECTING, max(retry.deadline / TRIES, LEAST_ATTEMPT)):g}s",
            "pool_max_idle_per_host": str(MOST_REQUESTS),
        }
        if str(config.get("endpoint", bucket)).startswith("http://"):
            client["allow_http"] = True
        elif isinstance(settings.verify, str):
            client["root_certificate"] = Path(settings.verify).read_bytes()
        elif settings.verify is False:
            client["allow_invalid_certificates"] = True
        if settings.headers:
            client["default_headers"] = dict(settings.headers)
        factory: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore, "http": HTTPStore}[kind]
        _STORES[key] = factory(
            bucket, client_options=client, retry_config={"max_retries": 0}, **config
        )
    return _STORES[key]
