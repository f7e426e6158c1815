"""Options of an HTTP request, as users of requests and of fsspec write them, for aiohttp."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_SAME = frozenset({"headers", "params", "cookies", "allow_redirects", "max_redirects", "ssl"})
_TRANSLATED = frozenset({"auth", "verify", "proxies", "proxy", "client_kwargs"})


@dataclass(frozen=True)
class HttpSettings:
    """What goes to the session and to each request."""

    session: Mapping[str, Any]
    request: Mapping[str, Any]


def http_settings(url: str, options: Mapping[str, Any]) -> HttpSettings:
    """Return the options for aiohttp.

    Parameters
    ----------
    url
        Where they are for: a proxy is chosen by its protocol.
    options
        ``headers``, ``params``, ``cookies``, ``allow_redirects``, ``auth`` (a pair),
        ``verify`` (False, or the path of certificates), ``proxies`` (by protocol), and fsspec's
        ``client_kwargs``.

    Raises
    ------
    TypeError
        An option is not known; its value is not shown.

    Examples
    --------
    >>> http_settings("https://h/a", {"verify": False, "proxies": {"https": "http://p"}}).request
    {'proxy': 'http://p', 'ssl': False}
    """
    unknown = sorted(set(options) - _SAME - _TRANSLATED)
    if unknown:
        known = ", ".join(sorted(_SAME | _TRANSLATED))
        msg = f"HTTP has no option {unknown[0]!r}; it has {known}"
        raise TypeError(msg)
    request = {key: value for key, value in options.items() if key in _SAME}
    auth = options.get("auth")
    if isinstance(auth, tuple):
        # A header, because aiohttp has given up its own class; it stays behind on the way to
        # another host, too.
        request["headers"] = {"Authorization": _basic(*auth), **(request.get("headers") or {})}
    elif auth is not None:
        request["auth"] = auth
    proxies = options.get("proxies") or {}
    proxy = options.get("proxy") or proxies.get(url.partition("://")[0])
    if proxy:
        request["proxy"] = proxy
    verify = options.get("verify", True)
    if verify is False:
        request["ssl"] = False
    elif isinstance(verify, str):
        import ssl

        request["ssl"] = ssl.create_default_context(cafile=verify)
    return HttpSettings(dict(options.get("client_kwargs") or {}), request)


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
