"""Check that files are those that were expected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ...core.errors import HashMismatch, SampleError
from ...graph import Pipe, Traits
from ..datapipe import PerItem
from ..forms import offered
from .saver import Hashes, pieces_of
from .streams import janitor, length_or_type_error, pair_of


@offered("check_hash")
class HashChecker(PerItem):
    """Pass ``(name, data)`` on if the data have the hash that the name must have.

    Parameters
    ----------
    parent
        Yields ``(name, data)``: bytes, text, or an open file.
    hash_dict
        Hash in hexadecimal digits, by name.
    hash_type
        ``"sha256"`` or ``"md5"``.
    rewind
        Whether an open file is put back to its beginning. One that cannot go back (a download)
        must not be: it is read to its end here.

    Raises
    ------
    ValueError
        At construction: another kind of hash.
    HashMismatch
        The hash is another one, or ``hash_dict`` has none for this name.
    SampleError
        The parent yields something else than pairs, or the file cannot go back.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper([("a.txt", b"hello")])
    >>> list(source.check_hash({"a.txt": "5d41402abc4b2a76b9719d911017c592"}, "md5"))
    [('a.txt', b'hello')]
    """

    traits: ClassVar[Any] = Traits(per_item=True, voxels=True)

    def __init__(
        self,
        parent: Pipe,
        hash_dict: Mapping[str, str],
        hash_type: str = "sha256",
        rewind: bool = True,
    ) -> None:
        super().__init__(parent)
        self.hashes = Hashes(hash_dict, hash_type)
        self.rewind = rewind

    def apply(self, item: Any) -> Any:
        """Return the item if it is the expected one."""
        name, data = pair_of(self, item)
        try:
            self._check(name, data)
        except BaseException:
            janitor(data)
            raise
        return name, data

    def _check(self, name: Any, data: Any) -> None:
        is_stream = hasattr(data, "read")
        if is_stream and self.rewind and not data.seekable():
            msg = f"{name} arrives as a stream that cannot go back"
            do = "Write it to disk first (on_disk_cache takes hash_dict), or give rewind=False."
            raise SampleError(msg, do=do).at(self.origin)
        digest = self.hashes.begun()
        for piece in pieces_of(data):
            digest.update(piece)
        try:
            self.hashes.check(name, digest)
        except HashMismatch as error:
            raise error.at(self.origin)  # noqa: B904  the very same error
        if is_stream and self.rewind:
            data.seek(0)

    def __len__(self) -> int:
        """Return the length of the parent."""
        return length_or_type_error(self, self.parent)
