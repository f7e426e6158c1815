"""Members of archives, gathered to samples by the part of their names before the dot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from ....core.errors import StreamError
from ....graph import Pipe, Traits
from ...datapipe import DataPipe
from ...forms import offered
from .streams import janitor, pair_of
from .webdataset_values import key_and_suffix, value_of


@offered("webdataset")
class WebDataset(DataPipe):
    """Yield ``{"__key__": name, ".jpg": data, ".cls": data, ...}`` of members side by side.

    Members of one sample share their path up to the first dot of the name and follow each other;
    the rest of the name is the key. Those without a suffix are left out.

    Parameters
    ----------
    parent
        Yields ``(path, data)``, e.g. of ``load_from_tar``.
    decode
        Whether streams are read and become values: ``.txt`` text, ``.cls`` and the like a
        number, ``.json`` its contents, ``.npy`` an array, everything else bytes. No pickle is
        opened. Without it data pass as they are; of an archive that arrives as a stream they
        must be read (by ``map``) before this pipe, which takes members until the next sample.

    Raises
    ------
    StreamError
        A sample has two members with one suffix; with ``decode``, a member is a pickle
        (``.pyd``, ``.pickle``, ``.pth``, ...) or not what its suffix says.
    SampleError
        The parent yields something else than pairs.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> members = [("a.tar/0.txt", b"ct"), ("a.tar/0.cls", b"3"), ("a.tar/1.txt", b"mr")]
    >>> for sample in IterableWrapper(members).webdataset(decode=True):
    ...     print(sample)
    {'__key__': 'a.tar/0', '.txt': 'ct', '.cls': 3}
    {'__key__': 'a.tar/1', '.txt': 'mr'}
    """

    traits: ClassVar[Any] = Traits(voxels=True)

    def __init__(self, parent: Pipe, *, decode: bool = False) -> None:
        super().__init__()
        self.parent = parent
        self.decode = decode

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the samples."""
        sample: dict[str, Any] = {}
        try:
            for item in self.parent:
                path, data = pair_of(self, item)
                del item
                key, suffix = key_and_suffix(path)
                if not suffix:
                    janitor(data)
                    continue
                if sample and key != sample["__key__"]:
                    done, sample = sample, {}
                    yield done
                    del done
                self._add(sample, path, key, suffix, data)
                del data
            if sample:
                done, sample = sample, {}
                yield done
        finally:
            # One that nobody was given.
            janitor(sample)

    def _add(self, sample: dict[str, Any], path: str, key: str, suffix: str, data: Any) -> None:
        """Put a member into the sample."""
        if suffix in sample:
            janitor(data)
            do = "Members of one sample must follow each other, and each name be there once."
            raise StreamError(f"sample {key} has two members {suffix}.", do=do).at(self.origin)
        sample.setdefault("__key__", key)
        if not self.decode:
            sample[suffix] = data
            return
        try:
            sample[suffix] = value_of(path, data)
        except StreamError as error:
            raise error.at(self.origin)  # noqa: B904  the very same error
        finally:
            janitor(data)
