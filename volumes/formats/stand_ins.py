"""Files that stand where a volume should: what a download or a checkout left instead of it."""

from __future__ import annotations

# The first line that the specification of Git LFS demands; git-annex writes a path instead.
_LFS = b"version https://git-lfs"
_ANNEX = (b"/annex/objects/", b"../.git/annex/")
_PAGE = (b"<!doctype", b"<html", b"<?xml")


def what_to_do(head: bytes, otherwise: str) -> str:
    """Return the advice for a file that is no volume, from its first bytes.

    Examples
    --------
    >>> what_to_do(b"version https://git-lfs.github.com/spec/v1", "Check the file.")
    'It is a pointer of Git LFS: fetch the file itself with "git lfs pull".'
    >>> what_to_do(b"<html><body>404", "Check the file.")
    'It is a web page, an error or a log-in perhaps: download the file again.'
    >>> what_to_do(b"n+1", "Check the file.")
    'Check the file.'
    """
    if head.startswith(_LFS):
        return 'It is a pointer of Git LFS: fetch the file itself with "git lfs pull".'
    if head.startswith(_ANNEX):
        return 'It is a pointer of git-annex: fetch the file itself with "git annex get".'
    if head.lstrip().lower().startswith(_PAGE):
        return "It is a web page, an error or a log-in perhaps: download the file again."
    return otherwise
