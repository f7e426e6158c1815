"""Redaction of options and URLs that may hold credentials.

A URL is parsed once, by its structure: user, password, query, fragment and path parameters are
never shown, with any characters. Texts of other libraries have no structure: more than necessary
is removed from them.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

_MASK = "{…}"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
# ``pathlib.Path`` joins the slashes of a URL.
_CUT_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/(?!/)")
# Names of options whose value is a credential.
_OPTION = re.compile(r"secret|password|token|(^|_)key$", re.IGNORECASE)
# Between the members of a chain; no scheme follows a :: in a password.
_LINK = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.-]*(?:://|::|$))")
_QUERY = re.compile(r"[?#]")
# The first character of a query; a ? before another ? or a * is a wildcard.
_QUERY_WORD = re.compile(r"[\w%&=~+-]")
# Fewer characters at the end of a key are part of its name, as in cam?2.
_SHORTEST_QUERY = 3
# How file names end; ".v2" is no ending.
_ENDING = re.compile(r"\.(?!v\d)[A-Za-z][A-Za-z0-9]{0,5}(?=[/?#]|$)")
_FILE_END = re.compile(_ENDING.pattern + "$")
_NOWHERE = "…"
_SERVER = re.compile(r"[^/?#\\]*")
# Buckets have no port: a colon precedes a secret key.
_WITHOUT_PORT = frozenset({"s3", "s3a", "s3n", "gs", "gcs", "az", "r2", "oss", "cos", "b2", "hf"})
# The part before the @ is a container, not a secret.
_WITH_CONTAINER = frozenset({"abfs", "abfss", "wasb", "wasbs", "adl"})
# These schemes allow any key and have no password.
_WITHOUT_USER = frozenset({"memory", "file", "local", "zip", "tar", "libarchive"})
# These schemes precede a name in an archive, or a path of this machine.
_WITHOUT_SERVER = frozenset({"file", "local", "zip", "tar", "libarchive"})
_WITHOUT_PARAMETERS = _WITHOUT_PORT | _WITH_CONTAINER | _WITHOUT_USER
# In a text a URL ends at a blank; closing punctuation is not part of it.
_WORD = re.compile(r"\S*")
_CLOSING = re.compile(r"[^\w%=&+/~-]*$")
# A query in a text after a file name with blanks: a word follows the ?.
_LATE_QUERY = re.compile(r"\?(?=[\w%&=.~+-])\S*|[#;](?=[\w.~%+-]+=)\S*")
# In a server's path: ;name=value after a name, the form of sessions and signatures. At the end of
# the path also a word without a name, unless it is the end of a file name.
_PARAMETERS = re.compile(r";[^;/=?#]*=[^/]*|;(?!.*/)(?!.*\.[A-Za-z][A-Za-z0-9]{0,5}$).+")
# Controls, marks that reverse a text, line ends of Unicode, and bytes that are no text.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# About the number of files of a data set; each URL is used many times.
_MOST_CHARACTERS = 65536


class RedactedDict(dict[str, Any]):
    """A dictionary whose ``repr`` hides its contents, also from torch and debuggers.

    Examples
    --------
    >>> options = RedactedDict(key="AKIA", secret="s3cret")
    >>> options, f"{options}", options["secret"]
    ({…}, '{…}', 's3cret')
    """

    def __repr__(self) -> str:
        return _MASK if self else "{}"

    __str__ = __repr__


class Url(NamedTuple):
    """One parsed URL of a chain. Never shown: it holds the credentials."""

    scheme: str
    """Scheme with ``://`` and its prefix; for a chain member without a place all of it."""
    user: str  # user and password, as written; empty where there is none
    place: str  # server, or bucket, and path
    query: str  # query and fragment, with their first mark
    parameters: str  # parameters of the path, joined: ``;key=value``
    splits: str  # the mark inside the password at which clients end the server; empty for none

    def __repr__(self) -> str:
        return f"Url({self.scheme}{public_name(self.place)})"


@functools.lru_cache(maxsize=_MOST_CHARACTERS)
def urls_in(location: str) -> tuple[Url, ...]:
    """Return the URLs of a chain (``zip://a.nii::https://host/a.zip``), or of one URL."""
    return tuple(map(_parse, _LINK.split(location))) if "://" in location else ()


def _parse(text: str) -> Url:
    match = _SCHEME.search(text)
    if match is None:
        return Url(text, "", "", "", "", "")
    head, rest = text[: match.end()], text[match.end() :]
    scheme = text[match.start() : match.end() - 3].lower()
    has_user, splits = _has_user(scheme, rest)
    before, *query = _QUERY.split(rest, maxsplit=1)
    if has_user and rest.count("@") > 1 and any("@" in one for one in query):
        # Any of them may end the password.
        return Url(head, rest, _NOWHERE, "", "", splits)
    # The last @ before the query, else the last @ of the query.
    at = (before if "@" in before else rest).rindex("@") if has_user else -1
    user, place = rest[: max(0, at)], rest[at + 1 :]
    end = _path_end(scheme, place)
    path = place[:end]
    # In a bucket a ; is part of a key.
    parameters = "" if scheme in _WITHOUT_PARAMETERS else "".join(_PARAMETERS.findall(path))
    path = _PARAMETERS.sub("", path) if parameters else path
    return Url(head, user, path, place[end:], parameters, splits)


def _path_end(scheme: str, place: str) -> int:
    """Return the index of a place's query; in a bucket, ? and # may be parts of a key."""
    for mark in _QUERY.finditer(place):
        before, after = place[: mark.start()], place[mark.end() :]
        segment, slash, _ = after.partition("/")
        if scheme not in _WITHOUT_PARAMETERS or "=" in segment:
            return mark.start()
        is_server = "/" not in before and scheme not in _WITHOUT_USER
        file_follows = _ENDING.search(after) is not None
        is_complete = _FILE_END.search(before) and not (slash and file_follows)
        is_last = not slash and not file_follows and len(after) >= _SHORTEST_QUERY
        if _QUERY_WORD.match(after) and (is_server or is_complete or is_last):
            return mark.start()
    return len(place)


def _has_user(scheme: str, rest: str) -> tuple[bool, str]:
    """Return whether a user precedes an @, and the mark that splits its password, if any."""
    # A / in a password ends the server too early: in doubt, hide everything up to the last @.
    server, _ = _server_of(rest)
    before, _, name = server.rpartition("@")
    port = "" if name.endswith("]") else name.rpartition(":")[2] if ":" in name else ""
    follows = rest[len(server) :]
    if "@" in follows and scheme not in _WITHOUT_USER:
        is_port = port.isdecimal() and scheme not in _WITHOUT_PORT
        if follows[0] == "\\" or (port and not is_port):
            return True, follows[0]
        # Clients read a port here, but it may be the beginning of a password.
        if is_port and "@" in _QUERY.split(follows, maxsplit=1)[0]:
            return True, ""
    if scheme in _WITH_CONTAINER and ":" not in before:
        return False, ""
    return "@" in server, ""


def server_of(location: str) -> str:
    """Return the scheme and server or bucket of each URL of a chain.

    Clients send locations with equal results to the same servers. Without a ``/`` after the
    server, clients disagree about its end: such a URL is returned whole.

    Examples
    --------
    >>> server_of("https://me:secret@Host:80/a.nii"), server_of("zip://a.nii::s3://scans/a.zip")
    ('https://host:80', 'zip://::s3://scans')
    >>> server_of("https://a?@b/c.nii"), server_of("/data/a.nii")
    ('https://a?@b/c.nii', '')
    """
    if "://" not in location:
        return ""
    return "::".join(map(_origin_of, _LINK.split(location)))


def _origin_of(text: str) -> str:
    match = _SCHEME.search(text)
    if match is None:
        return text.lower()
    head, rest = text[: match.end()].lower(), text[match.end() :]
    scheme = head[match.start() : -3]
    if scheme in _WITHOUT_SERVER:
        return head
    server, ends = _server_of(rest)
    if ends not in ("", "/"):
        return text
    before, _, name = server.rpartition("@")
    is_container = scheme in _WITH_CONTAINER and ":" not in before
    return head + (server if is_container else name).lower()


def _server_of(rest: str) -> tuple[str, str]:
    """Return the server of a URL without scheme, with user and port, and the next character."""
    server: Any = _SERVER.match(rest)  # always matches, possibly nothing
    return server[0], rest[server.end() : server.end() + 1]


@functools.lru_cache(maxsize=_MOST_CHARACTERS)
def public_name(location: str) -> str:
    """Return a location without user, password and query.

    Examples
    --------
    >>> public_name("https://me:secret@host/a.nii?X-Signature=abc")
    'https://host/a.nii'
    >>> public_name("https://me:sec/r@t@host/two parts (1).nii?X-Signature=abc")
    'https://host/two parts (1).nii'
    >>> public_name("https://host/scans;token=abc/a.nii;key=def"), public_name("s3://b/a;k=1.nii")
    ('https://host/scans/a.nii', 's3://b/a;k=1.nii')
    >>> public_name("s3://b/cam#1/what?.nii"), public_name("s3://b/cam#1/a.nii?X-Signature=abc")
    ('s3://b/cam#1/what?.nii', 's3://b/cam#1/a.nii')
    >>> public_name("s3://b/k.nii?token&sig=abc"), public_name("s3://b/k.nii?&X-Amz-Signature=abc")
    ('s3://b/k.nii', 's3://b/k.nii')
    >>> public_name("s3://b/k.nii?token"), public_name("s3://b/scans/?token")
    ('s3://b/k.nii', 's3://b/scans/')
    >>> public_name("/data/what?.nii")
    '/data/what?.nii'
    """
    if "://" not in location:
        return location
    redaction = "::".join(url.scheme + public_name(url.place) for url in urls_in(location))
    # The rest may look like a URL again; it gets shorter each time.
    return redaction if redaction == location else public_name(redaction)


def used_name(location: str) -> str:
    """Return a location without credentials that a client can still open.

    It parses a URL as clients do, while :func:`public_name` also hides a possible password: the
    beginning of a path with an ``@`` after a user.

    Examples
    --------
    >>> used_name("https://me:secret@host/mail@work/a.nii"), public_name("https://m@h/a@b/c.nii")
    ('https://host/mail@work/a.nii', 'https://b/c.nii')
    """
    return "::".join(map(_readable, _LINK.split(location))) if "://" in location else location


def _readable(text: str) -> str:
    url = _parse(text)
    if url.splits or not url.user:
        return url.scheme + used_name(url.place)
    whole = text[len(url.scheme) :]
    server, _ = _server_of(whole)
    rest = server.rpartition("@")[2] + whole[len(server) :]
    path = rest[: _path_end(url.scheme.lower().removesuffix("://"), rest)]
    return url.scheme + used_name(_PARAMETERS.sub("", path) if url.parameters else path)


def public_value(value: Any, levels: int = 40, losses: list[str] | None = None) -> Any:
    """Return a value whose locations, up to ``levels`` deep, have no credentials.

    ``losses`` gets the name of each location and option that had some.
    """
    if isinstance(value, str):
        name = public_name(value)
        if losses is not None and name != value:
            losses.append(name)
        return name
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        url = _CUT_URL.sub(r"\1://", path) if isinstance(path, str) else ""
        return public_value(url, levels, losses) if "://" in url else value
    if type(value) in (list, tuple, set, frozenset):
        if not levels:
            return type(value)()
        return type(value)(public_value(one, levels - 1, losses) for one in value)
    if type(value) is dict:
        public = {}
        for key, one in value.items() if levels else ():
            is_secret = isinstance(key, str) and isinstance(one, str) and _OPTION.search(key)
            if is_secret and losses is not None:
                losses.append(key)
            name = public_value(key, levels, losses)
            public[name] = _MASK if is_secret else public_value(one, levels - 1, losses)
        return public
    return value


def has_secrets(value: Any) -> bool:
    """Whether a location in a value, a list or a mapping has credentials."""
    if isinstance(value, str):
        return public_name(value) != value
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(has_secrets, value))
    if isinstance(value, Mapping):
        return any(has_secrets(key) or has_secrets(one) for key, one in value.items())
    return False


def public_text(text: str) -> str:
    """Return a text without the user, password and query of its URLs."""
    # A URL in a text ends at the next blank. The search is quadratic in the length of a word, so
    # texts without a URL skip it.
    starts = [match.start() for match in _SCHEME.finditer(text)] if "://" in text else []
    if not starts:
        return text
    pieces = [text[: starts[0]]]
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        piece = text[start:stop]
        scheme: Any = _SCHEME.match(piece)
        word: Any = _WORD.match(piece, scheme.end())
        closing: Any = _CLOSING.search(word[0])
        end = word.start() + closing.start()
        pieces += (public_name(piece[:end]), _LATE_QUERY.sub("", piece[end:]))
    redaction = "".join(pieces)
    return redaction if redaction == text else public_text(redaction)


def escape_controls(text: str, *, lines: bool = True) -> str:
    r"""Return a text that a terminal shows as characters: control characters have escapes.

    Names of files may hold any byte. ``lines`` keeps line ends, and without it they have escapes.

    Examples
    --------
    >>> print(escape_controls("a\x1b[31m\nb\udcff"), escape_controls("a\nb", lines=False))
    a\x1b[31m
    b\xff a\nb
    """
    return _UNPRINTABLE.sub(lambda match: _escape_of(match[0], lines), text)


def _escape_of(character: str, lines: bool) -> str:
    if lines and character in "\n\t":
        return character
    if "\udc80" <= character <= "\udcff":  # a byte of a name that is no UTF-8
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode()


def secrets_in(location: str) -> Iterator[str]:
    """Yield the secrets of a location: as written, in parts, and without escapes.

    Examples
    --------
    >>> sorted(set(secrets_in("https://me:p%40ss@host/a.nii?sig=abc")))
    ['?sig=abc', 'abc', 'me', 'me:p%40ss', 'me:p@ss', 'p%40ss', 'p@ss', 'sig=abc']
    """
    for url in urls_in(location):
        user, _, password = url.user.partition(":")
        secrets = [url.user, user, password, *(re.split(r"[/?#@:]", password) if password else ())]
        secrets += [url.query, url.query[1:], url.parameters, url.parameters[1:]]
        for pair in re.split(r"[&;#?]", url.query + url.parameters):
            name, mark, value = pair.partition("=")
            secrets.append(value if mark else name)
        for secret in secrets:
            yield from dict.fromkeys(one for one in (secret, unquote(secret)) if one)
