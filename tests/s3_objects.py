"""Folders as buckets: what the S3 test server answers to each request."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import gmtime, strftime
from urllib.parse import quote
from xml.sax.saxutils import escape, unescape

from s3_http import Answer, Question

_MOST_KEYS = 1000  # as S3
_MOST_DIGITS = 9  # that are read of a number that is too large anyway


class Buckets:
    """The folders in ``root``. Nothing outside of it is read, written or listed."""

    def __init__(self, root: Path) -> None:
        # Links that lead to the root are the caller's; those below it are not followed out.
        self._root = Path(os.path.realpath(root))

    def answer(self, question: Question) -> Answer:
        """Return what a request gets, and do what it asks; 400 for what cannot be done."""
        try:
            return self._answer(question)
        except (OSError, ValueError, OverflowError) as error:  # names that no file can have
            return Answer.of_error(400, "InvalidRequest", type(error).__name__)

    def _answer(self, question: Question) -> Answer:
        bucket, _, key = question.path.removeprefix("/").partition("/")
        if not bucket or not self._is_inside(question.path.removeprefix("/").removesuffix("/")):
            return Answer.of_error(400, "InvalidRequest")
        if key and question.method == "GET":
            # Without any path made of its parts: this is what a benchmark asks for.
            found = _read(os.path.join(self._root, bucket, key), question)
            if found is not None:
                return found
        folder = self._root / bucket
        if not key and question.method == "PUT":
            folder.mkdir(exist_ok=True, parents=True)
            return Answer()
        if not folder.is_dir():
            return Answer.of_error(404, "NoSuchBucket", "The specified bucket does not exist")
        if key:
            return _of_object(folder / key, question)
        if question.method == "POST" and "delete" in question.query:
            listed = map(unescape, re.findall(r"<Key>(.*?)</Key>", question.body.decode()))
            return _deleted(folder, [k for k in listed if self._is_inside(f"{bucket}/{k}")])
        if question.method == "GET":
            below = question.query.get("prefix", "").rpartition("/")[0]
            if below and not self._is_inside(f"{bucket}/{below}"):
                return Answer.of_error(400, "InvalidRequest")
            return _listing(folder, bucket, question.query)
        return Answer() if question.method == "HEAD" else Answer.of_error(501, "NotImplemented")

    def _is_inside(self, path: str) -> bool:
        """Whether a path below the root names a place there, also where it leads through links."""
        if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
            return False
        place = os.path.join(self._root, path)
        return os.path.realpath(place).startswith(f"{self._root}{os.sep}")


def _read(file: str, question: Question) -> Answer | None:
    """Return what was asked for of an object; None if there is none."""
    try:
        status = os.stat(file)
    except OSError:  # none, or of a name that no file can have
        return None
    if not stat.S_ISREG(status.st_mode):  # nobody waits for who writes a FIFO
        return None
    etag = _etag(status)
    if question.headers.get("if-match", "*") not in ("*", f'"{etag}"'):
        return Answer.of_error(412, "PreconditionFailed", "It is another version.")
    return Answer.of_file(file, status.st_size, etag, status.st_mtime, question.range)


def _of_object(file: Path, question: Question) -> Answer:
    if question.method in ("GET", "HEAD"):
        missing = Answer.of_error(404, "NoSuchKey", "The specified key does not exist.")
        return _read(str(file), question) or missing
    if question.method == "PUT" and not question.query:
        if question.headers.get("if-none-match") == "*" and file.exists():
            return Answer.of_error(412, "PreconditionFailed", "It is there already.")
        if file.exists() and not file.is_file():
            return Answer.of_error(400, "InvalidRequest", "There is something else of this name.")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(question.body)
        digest = hashlib.md5(question.body, usedforsecurity=False).hexdigest()
        return Answer(headers={"ETag": f'"{digest}"'})
    if question.method == "DELETE":
        if file.is_file():
            file.unlink()
        return Answer(204)
    return Answer.of_error(501, "NotImplemented")


def _deleted(folder: Path, keys: Sequence[str]) -> Answer:
    """Remove objects; one that is not there is no error."""
    for key in keys:
        if (folder / key).is_file():
            (folder / key).unlink()
    return Answer.of_text('<?xml version="1.0" encoding="UTF-8"?><DeleteResult></DeleteResult>')


def _etag(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns:x}-{status.st_size:x}"


def _listing(folder: Path, bucket: str, query: dict[str, str]) -> Answer:
    """Return one page of ListObjectsV2."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after = query.get("continuation-token") or query.get("start-after") or ""
    said = query.get("max-keys", str(_MOST_KEYS))
    if not (said.isascii() and said.isdecimal()) or "\0" in after:
        wrong = "continuation-token" if "\0" in after else "max-keys"
        return Answer.of_error(400, "InvalidArgument", f"{wrong} is not valid")
    most = min(int(said[:_MOST_DIGITS]), _MOST_KEYS)
    shown = quote if query.get("encoding-type") == "url" else escape
    entries: list[str] = []
    last, truncated, common = after, False, ""
    for key in sorted(_keys(folder, prefix)):
        if key <= after or (common and key.startswith(common)):
            continue
        if len(entries) == most:
            truncated = True
            break
        rest = key[len(prefix) :]
        if delimiter and delimiter in rest:
            common = prefix + rest.split(delimiter, 1)[0] + delimiter
            # A page ends behind everything that the common prefix stands for.
            last = common + chr(0x10FFFF)
            if last > after:
                entries.append(f"<CommonPrefixes><Prefix>{shown(common)}</Prefix></CommonPrefixes>")
            continue
        status, last = os.stat(folder / key), key
        when = strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(status.st_mtime))
        entries.append(
            f"<Contents><Key>{shown(key)}</Key><LastModified>{when}</LastModified>"
            f"<ETag>&quot;{_etag(status)}&quot;</ETag><Size>{status.st_size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    coded = "<EncodingType>url</EncodingType>" if shown is quote else ""
    more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if truncated else ""
    return Answer.of_text(
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><Prefix>{shown(prefix)}</Prefix><KeyCount>{len(entries)}</KeyCount>"
        f"<MaxKeys>{most}</MaxKeys><IsTruncated>{str(truncated).lower()}</IsTruncated>"
        f"{coded}{more}{''.join(entries)}</ListBucketResult>"
    )


def _keys(folder: Path, prefix: str) -> Iterator[str]:
    """Yield the keys that begin with ``prefix``, looking only where they can be."""
    below = prefix.rpartition("/")[0]
    for place, _, files in os.walk(folder / below):
        inside = os.path.relpath(place, folder)
        for name in files:
            key = name if inside == "." else f"{inside}/{name}"
            if key.startswith(prefix) and os.path.isfile(os.path.join(place, name)):
                yield key
