"""Objects in buckets, in ranges, through obstore: a third of the processor time of s3fs.

Used for what its options can say exactly as the user said it to fsspec; everything else goes
the other way. Its threads do not survive a fork, and nothing in a child can start them again:
so a child of a process that used it is refused, where it would wait for ever.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...core.errors import ForkUnsafe
from ..content import content_key
from .in_flight import MOST_REQUESTS
from .remote_objects import Entry, ObjectFacts
from .remote_ranges import RemoteRanges
from .retry import Retry, default_retry

# fsspec's word and obstore's, by provider.
_S3 = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
}
_S3_CLIENT = {
    "endpoint_url": "endpoint",
    "region_name": "region",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_AZURE = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_token",
}
_SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "az": "az", "abfs": "az"}
_VARIABLES = {
    "s3": ("AWS_ACCESS_KEY_ID",),
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS",),
    "az": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN"),
}
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CREDENTIALS = ("access_key_id", "skip_signature", "account_key", "sas_token", "service_account")


def is_installed() -> bool:
    """Whether obstore can be imported."""
    try:
        import obstore  # noqa: F401
    except ImportError:
        return False
    return True


def settings_of(url: str, options: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return obstore's settings for a URL and fsspec's options, or why there are none.

    Examples
    --------
    >>> settings_of("s3://b/a", {"key": "k", "secret": "s", "endpoint_url": "https://h"})
    {'access_key_id': 'k', 'secret_access_key': 's', 'endpoint': 'https://h', 'region': 'us-east-1'}
    >>> settings_of("s3://b/a", {"anon": True, "requester_pays": True})
    'it has no option requester_pays'
    >>> settings_of("https://h/a", {})
    'it is not used for https://'
    """
    scheme = url.partition("://")[0]
    provider = _SCHEMES.get(scheme)
    if provider is None or "::" in url:
        return f"it is not used for {scheme}://"
    found = _mapped(provider, options)
    if isinstance(found, str):
        return found
    if not any(found.get(name) for name in _CREDENTIALS) and not any(
        os.environ.get(name) for name in _VARIABLES[provider]
    ):
        # Profiles, single sign-on and roles: each client looks for them elsewhere.
        return "no credentials are given"
    return _with_region(found) if provider == "s3" else found


def _mapped(provider: str, options: Mapping[str, Any]) -> dict[str, Any] | str:
    names = {"s3": _S3, "gs": {}, "az": _AZURE}[provider]
    found: dict[str, Any] = {}
    for name, value in options.items():
        if value is None or (name, value) == ("anon", False):
            continue
        if name == "anon" or (provider, name, value) == ("gs", "token", "anon"):
            found["skip_signature"] = True
        elif name in names:
            found[names[name]] = value
        elif provider == "gs" and name == "token" and isinstance(value, str):
            found["service_account"] = value
        elif provider == "s3" and name == "client_kwargs":
            unknown = set(value) - set(_S3_CLIENT)
            if unknown:
                return f"it has no option {min(unknown)}"
            found.update((_S3_CLIENT[inner], given) for inner, given in value.items())
        else:
            return f"it has no option {name}"
    return found


def _with_region(found: dict[str, Any]) -> dict[str, Any] | str:
    endpoint = found.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL")
    region = found.get("region") or next(filter(None, map(os.environ.get, _REGIONS)), None)
    if region is None and not endpoint:
        # botocore follows to the bucket's region; this client does not.
        return "the region is not given"
    settings = {**found, "region": region or "us-east-1"}
    if endpoint:
        settings["endpoint"] = endpoint
    return settings


class ObstoreRanges(RemoteRanges):
    """A prefix of a bucket, through obstore."""

    def __init__(
        self,
        url: str,
        options: Mapping[str, Any],
        settings: Mapping[str, Any],
        retry: Retry | None = None,
    ) -> None:
        super().__init__(url, options, retry)
        scheme, _, rest = url.partition("://")
        bucket, _, prefix = rest.partition("/")
        self._prefix = prefix.strip("/")
        self._refuse_after_fork()
        policy = retry or default_retry()
        self._store = _store(_SCHEMES[scheme], bucket, dict(settings), policy.attempt)

    def after_fork(self) -> None:
        """Refuse, if the parent has used any store of this kind."""
        self._refuse_after_fork()

    def _refuse_after_fork(self) -> None:
        if not is_usable():
            raise ForkUnsafe(
                f"{self.name} was to be read in a forked process, and its parent has used "
                "obstore, whose threads do not survive a fork.",
                do='Start workers with "forkserver" or "spawn", or set VOXPIPE_REMOTE=fsspec.',
            )

    def _check_owner(self) -> None:
        super()._check_owner()
        _mark_used()

    async def ask(self, key: str, start: int, stop: int | None) -> Any:
        """Send one request."""
        import obstore

        path = self._path(key)
        etag = self._expected.get(key)
        if stop is not None and start >= 0:
            if start == stop:
                return b""
            if etag is not None:
                only: Any = {"range": (start, stop), "if_match": etag}
                answer = await obstore.get_async(self._store, path, options=only)
                return memoryview(await answer.bytes_async())
            found = await obstore.get_range_async(self._store, path, start=start, end=stop)
            return memoryview(found)
        options: Any = {}
        if start:
            options = {"range": {"suffix": -start} if start < 0 else {"offset": start}}
        if etag is not None:
            options["if_match"] = etag
        answer = await obstore.get_async(self._store, path, options=options)
        return bytes(await answer.bytes_async())

    async def ask_facts(self, key: str) -> ObjectFacts:
        """Ask for size and version."""
        import obstore

        meta = await obstore.head_async(self._store, self._path(key))
        etag = meta["e_tag"] or ""
        return ObjectFacts(int(meta["size"]), f"{etag or meta['last_modified']}", etag)

    async def ask_keys(self, prefix: str) -> list[str]:
        """List everything below."""
        import obstore

        found = await obstore.list(self._store, self._path(prefix.rstrip("/"))).collect_async()
        return [self._key(each) for each in found]

    async def ask_entries(self, most: int | None) -> list[Entry]:
        """List everything."""
        import obstore

        found = await obstore.list(self._store, self._prefix or None).collect_async()
        return [
            Entry(self._key(each), int(each["size"]), each["e_tag"] or str(each["last_modified"]))
            for each in found
        ]

    def _key(self, meta: Mapping[str, Any]) -> str:
        key: str = meta["path"]
        return key[len(self._prefix) + 1 :] if self._prefix else key

    def _path(self, key: str) -> str:
        return "/".join(part for part in (self._prefix, key) if part)


_used_by: int | None = None
"""The process that first sent a request through obstore, as this process knows."""
_STORES: dict[str, Any] = {}
"""One client per bucket and settings, so that volumes share its connections."""


def is_usable() -> bool:
    """Whether no parent of this process has used obstore before it forked."""
    return _used_by in (None, os.getpid())


def _mark_used() -> None:
    global _used_by
    _used_by = os.getpid()


def _store(provider: str, bucket: str, settings: dict[str, Any], limit: float) -> Any:
    from obstore.store import AzureStore, GCSStore, S3Store

    # Digested: the settings hold credentials.
    key = content_key(bucket, (os.getpid(), provider, sorted(settings.items()), limit))
    if key not in _STORES:
        kind: Any = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[provider]
        plain = str(settings.get("endpoint", "")).startswith("http://")
        client = {
            "timeout": f"{limit:g}s",
            "connect_timeout": f"{limit:g}s",
            "pool_max_idle_per_host": str(MOST_REQUESTS),
            **({"allow_http": True} if plain else {}),
        }
        _STORES[key] = kind(
            bucket, client_options=client, retry_config={"max_retries": 0}, **settings
        )
    return _STORES[key]
