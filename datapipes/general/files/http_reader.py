"""Files of web servers as streams."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ....core.errors import NotOffered, placed
from ....core.hidden import Hidden
from ....core.origin import warn
from ....graph import Pipe, Traits
from ....volumes.stores.location import public_name
from ....volumes.stores.redaction import Secrets
from ...connection import Connected, options_of
from ...forms import offered
from .http_stream import http_stream
from .refused import NO_DRIVE, USE_A_BUCKET
from .streams import length_or_type_error

_DRIVE = re.compile(r"^https?://(drive|docs)[.]google[.]com(/|$)")


class _Reader(Connected):
    plain_arguments = frozenset({"timeout", "skip_on_error"})

    def __init__(
        self,
        parent: Pipe,
        timeout: float | None = None,
        skip_on_error: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        if timeout is not None and not timeout > 0:
            msg = f"timeout is a positive number of seconds, got {timeout!r}"
            raise ValueError(msg)
        self.parent = parent
        self.timeout = timeout
        self.skip_on_error = skip_on_error
        self.storage_options: Hidden = options_of(options)

    @property
    def traits(self) -> Traits:
        """Opens files; yields one for each URL unless some are left out."""
        return Traits(per_item=not self.skip_on_error, voxels=True)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield the streams; each is closed with its last reference."""
        for url in self.parent:
            try:
                stream = self._opened(url)
            except Exception as error:
                if self.skip_on_error:
                    told = Secrets(self.storage_options, url).describe(error)
                    what, *more = told.splitlines()
                    text = f"{what}: {public_name(url)} is left out, skipping to the next"
                    warn("\n".join([text, *more]), UserWarning, self.origin)
                    continue
                raise placed(error, self.origin)  # noqa: B904  the very same error
            yield url, StreamWrapper(stream, name=public_name(url))
            del stream

    def _opened(self, url: str) -> Any:
        if not url.startswith(("http://", "https://")):
            msg = f"a URL of http or https expected, got {public_name(url)!r}"
            raise ValueError(msg)
        return http_stream(url, self.storage_options, self.timeout)

    def __len__(self) -> int:
        """Return the length of the parent: the most, where URLs may be left out."""
        return length_or_type_error(self, self.parent)


@offered("read_from_http")
class HttpReader(_Reader):
    """Yield ``(URL, stream of bytes)`` for each URL of a web server.

    The file arrives as it is read. Where the connection breaks, the rest is asked for again from
    where it broke. Where the server knows ranges the stream can go back.

    Parameters
    ----------
    parent
        Yields URLs of http or https.
    timeout
        Seconds after which a server that does not answer, or keeps failing, is given up: at the
        beginning, and each time that more is read. By default 20 for one attempt, and 30 for
        all; see ``$VOXPIPE_REMOTE_DEADLINE``.
    skip_on_error
        Whether a URL that cannot be opened is left out, with a warning.
    storage_options, **options
        ``headers``, ``params``, ``cookies``, ``auth`` (a pair), ``verify``, ``proxies``,
        ``allow_redirects``, as of requests. They are never written anywhere.

    Raises
    ------
    VolumeNotFound
        There is nothing at a URL.
    StoreUnavailable
        The server kept failing for that long.
    VolumeReadError
        Any other answer.
    StreamError
        While reading: the file changed in between.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> urls = IterableWrapper(["https://host/a.nii.gz?token=secret"])
    >>> urls.read_from_http(timeout=60, auth=("me", "secret"))
    read_from_http(timeout=60, storage_options={…})
    """


@offered("read_from_remote")
class OnlineReader(_Reader):
    """Yield ``(URL, stream of bytes)`` for each URL of a web server, as ``read_from_http``.

    Links of Google Drive, which torchdata read here too, are refused.

    Parameters
    ----------
    parent
        Yields URLs of http or https.
    timeout
        Seconds after which a server that does not answer, or keeps failing, is given up: at the
        beginning, and each time that more is read. By default 20 for one attempt, and 30 for
        all; see ``$VOXPIPE_REMOTE_DEADLINE``.
    skip_on_error
        Whether a URL that cannot be opened is left out, with a warning.
    storage_options, **options
        As of ``read_from_http``.

    Raises
    ------
    NotOffered
        A link of Google Drive.
    VolumeReadError
        As of ``read_from_http``.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> IterableWrapper(["https://host/a.nii.gz"]).read_from_remote()
    read_from_remote()
    """

    def _opened(self, url: str) -> Any:
        if _DRIVE.match(url):
            raise NotOffered(NO_DRIVE, do=USE_A_BUCKET)
        return super()._opened(url)
