"""Paths and URLs: their kind, their public names without secrets, and their file systems."""

from __future__ import annotations

import base64
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_to_bytes, urljoin, urlsplit

from ..core import errors
from ..core.redact import public_name, public_text, secrets_in, urls_in
from ..core.suggest import closest
from .remote_answers import (
    CompressedAnswer,
    FaultAdvice,
    advice_on,
    cause_of,
    connection_fault,
    is_of_no_bucket,
)

__all__ = ["absolute_place", "file_system", "is_url", "local_path", "public_name", "remote_errors"]

_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+(://|::)")
_LOCAL = re.compile(r"^(?:file|local):(?://(?:localhost(?=/))?|(?=/))", re.IGNORECASE)
_SCHEMES = re.compile(r"(?:^|(?<=::))[A-Za-z][A-Za-z0-9+.-]+(?=://|::)")
# pathlib.Path joins the slashes of a URL.
_CUT_URL = re.compile(r"^(https?|ftp|s3a?|gs|gcs|az|abfss?|hdfs|memory):/[^/]", re.IGNORECASE)


def readable_name(name: str, url: str) -> str:
    """Return a part of a URL for people: of http(s) without percent escapes, except of ``/``.

    Examples
    --------
    >>> readable_name("my%20case", "http://host/my%20case"), readable_name("a%20b", "s3://x/a%20b")
    ('my case', 'a%20b')
    """
    is_web = url.lower().startswith(("http://", "https://")) and "%2f" not in name.lower()
    return unquote(name) if is_web else name


def is_url(location: str) -> bool:
    """Whether ``location`` needs fsspec; ``SampleError`` for a URL whose slashes were joined."""
    if _CUT_URL.match(location):
        msg = "a location begins with a scheme and a single slash, as a URL in pathlib.Path does."
        raise errors.SampleError(msg, do="Give the URL as text.")
    return bool(_URL.match(location)) and not _LOCAL.match(location)


def lower_schemes(location: str) -> str:
    """Return a URL with its schemes in lower case, as they ignore case; a path unchanged."""
    return _SCHEMES.sub(lambda match: match[0].lower(), location)


def local_path(location: str) -> str:
    """Return a local path, without ``file://`` and its percent escapes, with ``~`` expanded.

    Raises
    ------
    SampleError
        A URL names two files: one with its escapes decoded, and one as it is written.
    """
    path = _LOCAL.sub("", location)
    if path != location and "%" in path:
        path = _without_escapes(path, location)
    return os.path.expanduser(path)


def _without_escapes(path: str, url: str) -> str:
    """Return the decoded path of a URL, or the path as it is if only that exists, as of fsspec."""
    plain = os.fsdecode(unquote_to_bytes(os.fsencode(path)))
    if "\0" in plain:  # which no file system has
        return path
    # The names after a wildcard are not compared.
    raw, place = (
        fixed_folder(text)[0] if WILDCARD.search(text) and not os.path.lexists(text) else text
        for text in (path, plain)
    )
    if place == raw or not os.path.lexists(raw):
        return plain
    if os.path.lexists(place):
        msg = f"{url} names two: {place} by the escapes of URLs, and {raw} without them."
        raise errors.SampleError(msg, do="Give the path, without file://.")
    return path


WILDCARD = re.compile(r"(?<!\[)[*?]|\[(?![*?[]\])(?<!\[\[)")
"""Start of the first wildcard of a pattern; ``[[]`` matches a bracket alone, and is none."""
_ESCAPE = re.compile(r"\[([*?[])\]")


def literal_name(pattern: str) -> str:
    """Return the name that a pattern without wildcards matches, undoing ``glob.escape``."""
    return _ESCAPE.sub(r"\1", pattern)


def fixed_folder(pattern: str) -> tuple[str, str]:
    """Return the folder before the first wildcard, with a slash at its end, and the rest.

    Examples
    --------
    >>> fixed_folder("scans/[[]2021]/p*/ct.nii"), fixed_folder("*.nii")
    (('scans/[2021]/', 'p*/ct.nii'), ('', '*.nii'))
    """
    before = "".join(WILDCARD.split(pattern, maxsplit=1)[0].rpartition("/")[:2])
    return literal_name(before), pattern[len(before) :]


def absolute_place(location: str | os.PathLike[str]) -> str:
    """Return a URL, and a local path as absolute, because workers may run elsewhere."""
    place = lower_schemes(os.fspath(location))
    return place if is_url(place) else os.path.abspath(local_path(place))


@contextmanager
def remote_errors(
    name: str, options: Mapping[str, Any] | None = None, doing: str = "reading", url: str = ""
) -> Iterator[None]:
    """Turn errors of a remote file system into voxpipe errors with ``name`` and no secret.

    Values of ``options``, and credentials in the ``url`` of the user, are cut out.
    """
    secrets = Secrets(options or {}, name, url)
    place, name = url or name, public_name(name)
    try:
        yield
    except (errors.VoxpipeError, MemoryError):
        raise
    except FileNotFoundError as error:
        if fault := connection_fault(error):
            msg = f"{doing} {name} failed: {fault}."
            raise errors.StoreUnavailable(msg, do="Check the URL and the server.") from None
        check_base(place, options or {})
        msg = f"there is nothing at {name}."
        raise errors.VolumeNotFound(msg, do="Check the URL and the ⟦storage_options⟧.") from None
    except Exception as error:
        # Not chained: the text of the original may hold a signed URL or a key.
        raise remote_error(error, doing, name, secrets.describe(error)) from None


_IN_ARCHIVES = {"zip": "archive", "tar": "archive", "libarchive": "archive"}
_IN_ARCHIVES |= {"reference": "file of references"}


def check_base(url: str, options: Mapping[str, Any]) -> None:
    """Raise an error if a URL names no archive or file of references, or a missing one."""
    import fsspec

    scheme, _, base = url.partition("::")
    noun = _IN_ARCHIVES.get(scheme.partition("://")[0].lower(), "")
    base, name = base or options.get("fo") or "", public_name(url)
    do = f"Write it after '::' ({scheme}::FILE), or as ⟦storage_options={{'fo': 'FILE'}}⟧."
    if noun and not base:
        raise errors.VolumeReadError(f"{name} names no {noun}.", do=do)
    if not noun or not isinstance(base, str):
        return
    is_lost = False
    with suppress(Exception):  # other errors are reported by their reader
        own = options.get("target_options") or {} if "fo" in options else options
        system, path = fsspec.core.url_to_fs(lower_schemes(base), **own)
        try:
            system.info(path)
        except FileNotFoundError as error:
            is_lost = not connection_fault(error)
    if is_lost:
        msg = f"the {noun} {public_name(base)} of {name} does not exist."
        raise errors.VolumeNotFound(msg, do=f"Check its path. {do}")


def remote_error(error: Exception, doing: str, place: str, message: str) -> errors.VoxpipeError:
    """Return the voxpipe error for an error at ``place``; ``message`` describes it publicly."""
    failure = advice_on(error)
    if isinstance(error, ImportError):
        msg = f"reaching {place} needs a package that is not installed: {message}."
        do = "Install the file system package that fsspec needs."
        return errors.MissingDependency(msg, do=do)
    if isinstance(error, CompressedAnswer):
        return errors.VolumeReadError(
            f"the server of {place} compresses its answers ({error}), so they are not the bytes "
            "of the file.",
            do="Switch the compression of the server or proxy off for this file, store the object "
            "without Content-Encoding, or copy the file to a local disk.",
        )
    if failure is FaultAdvice.NO_RANGES:
        msg = f"the server of {place} sends all of it instead of a part: it does not know ranges."
        do = "Copy the file to a local disk or to an object store."
        return errors.VolumeReadError(msg, do=do)
    if failure is FaultAdvice.REFUSAL:
        do = "Check the credentials in ⟦storage_options⟧ or in the environment."
        return errors.AccessDenied(f"{doing} {place} was refused: {message}.", do=do)
    if failure is FaultAdvice.BAD_CERTIFICATE:
        return errors.VolumeReadError(
            f"the certificate of the server of {place} is not trusted: {message}.",
            do="Check the URL. For your own certificate authority, set AWS_CA_BUNDLE to the file "
            'of its certificate, or client_kwargs={"verify": file} for S3.',
        )
    if isinstance(error, ValueError) and str(error).startswith("Protocol not known"):
        from fsspec import available_protocols

        scheme = str(error).rpartition(" ")[2]
        near = closest(scheme, available_protocols(), 0.7)
        do = f"Did you mean {near[0]!r}?" if near else "Check the URL, such as 's3://bucket/name'."
        return errors.VolumeReadError(f"{place} has the unknown protocol {scheme!r}.", do=do)
    if is_of_no_bucket(error):  # the answers of some clients are XML
        msg = f"{doing} {place} failed: the bucket does not exist."
        return errors.VolumeNotFound(msg, do="Check its name, and the ⟦storage_options⟧.")
    do = "Check the URL, the ⟦storage_options⟧ and the connection."
    return errors.VolumeReadError(f"{doing} {place} failed: {message}.", do=do)


def file_system(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the file system of a URL, which fsspec shares, and the path in it."""
    import fsspec

    url = lower_schemes(url)
    # Clients do not recognize a password with a slash, which ends the name of the server.
    for part in urls_in(url):
        if part.splits:
            raise errors.VolumeReadError(
                f"the password in {public_name(url)} holds a {part.splits}, which ends it for "
                "clients.",
                do="Write it with %2F for /, %3F for ?, %23 for # and %5C for a backslash, or give "
                "the password in storage_options.",
            )
    parts = url.split("::")  # an archive may be a local file
    url = "::".join(f"file://{local_path(x)}" if _LOCAL.match(x) else x for x in parts)
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_REDACTING_FILTER)  # repeated calls add it once
    if "::" not in url and "fo" not in options:
        check_base(url, options)
    with remote_errors(url, options):
        system, path = fsspec.core.url_to_fs(url, **options)
    # fsspec keeps each file system with its listings for the life of the process.
    system.invalidate_cache()
    return system, path


class _RedactingFilter(logging.Filter):
    """Filter that removes credentials of URLs from log records, which may be public."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        public = public_text(text)
        if public != text:
            record.msg, record.args = public, ()
        return True


# All loggers that show URLs, because a filter does not apply to child loggers.
_LOGGERS = (
    "fsspec",
    *("fsspec.asyn", "fsspec.cached", "fsspec.caching", "fsspec.generic", "fsspec.http"),
    *("fsspec.local", "fsspec.mapping", "fsspec.memoryfs", "fsspec.reference", "fsspec.sftp"),
    *("s3fs", "gcsfs", "adlfs", "tar", "webhdfs"),
)
_REDACTING_FILTER = _RedactingFilter()


def s3_address(url: str, options: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    """Return the web address of an object or folder of S3; empty for other stores."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("s3", "s3a"):
        return ""
    client = options.get("client_kwargs") or {}
    endpoints = [options.get("endpoint_url"), client.get("endpoint_url")]
    endpoints += map(environment.get, ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"))
    endpoint = next(filter(None, endpoints), "https://s3.amazonaws.com")
    return f"{str(endpoint).rstrip('/')}/{quote(rest)}"


def redirect_of(address: str) -> str:
    """Return the host to which an address redirects without credentials; empty for none."""
    if not address.startswith(("http://", "https://")):
        return ""
    import requests

    options: Any = {"timeout": 5.0, "allow_redirects": False, "stream": True}
    # Without ``auth``, requests would send the password of this host in a .netrc.
    options |= {"headers": {"Range": "bytes=0-0"}, "auth": lambda request: request}
    with suppress(OSError, ValueError), requests.get(address, **options) as reply:
        if 300 <= reply.status_code < 400:
            return urlsplit(urljoin(address, reply.headers.get("Location") or "")).hostname or ""
    return ""


# Options with public values, which texts need to stay readable.
_PUBLIC = {
    *("endpoint_url", "endpoint", "region", "region_name", "aws_region", "protocol", "mode"),
    *("target_protocol", "project", "account_name", "bucket", "addressing_style", "service_name"),
}
_VARIABLES = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"),
    *("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING"),
)
# Shorter values are no credentials, and occur in many words.
_SHORTEST = 4
# RFC 3986: gen-delims and sub-delims.
_SAFE = "/?:@!$&'()*+,;=-._~"
# After this, obstore repeats the error with its headers.
_APPENDIX = "\n\nDebug source:"


class Secrets:
    """Secrets of storage options and URLs, to be cut out of texts."""

    def __init__(self, options: Mapping[str, Any], *urls: str) -> None:
        self._secrets = {text for text in _texts(options) if len(text) >= _SHORTEST}
        self._urls = [url for url in urls if public_name(url) != url]

    def cut(self, text: str) -> str:
        """Return a text without secrets, users and queries of URLs."""
        text = text.partition(_APPENDIX)[0]
        for url in self._urls:
            for form in _forms(url):
                text = text.replace(form, public_name(url))
        text = public_text(text)
        values = set(self._secrets)
        parts = [part for url in self._urls for part in secrets_in(url)]
        values.update(form for part in parts for form in _forms(part))
        environment = (os.environ.get(name, "") for name in _VARIABLES)
        values.update(value for value in environment if len(value) >= _SHORTEST)
        # Longest first, because a value may contain another.
        for value in sorted(values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text

    def describe(self, error: BaseException) -> str:
        """Return class and message of an error, without secrets."""
        error, fault = cause_of(error), connection_fault(error)
        message = self.cut(str(error)).rstrip(".") + (f": {fault}" if fault else "")
        return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _forms(secret: str) -> set[str]:
    """Return the forms of a secret: plain, escaped for URLs and Python, and encoded for headers."""
    forms = {secret, repr(secret)[1:-1], secret.replace("'", "\\'"), secret.replace('"', '\\"')}
    # Clients differ in the characters of a query that they escape.
    forms |= {quote(secret, safe=safe) for safe in ("", "/", _SAFE, f"%{_SAFE}")}
    forms |= {quote_plus(secret), base64.b64encode(secret.encode()).decode()}
    return {form for form in forms if len(form) >= _SHORTEST}


def _texts(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _texts(inner, name)
    elif isinstance(value, str) and name not in _PUBLIC:
        yield value
    elif isinstance(value, str):
        yield from secrets_in(value)  # an endpoint: http://user:password@host
