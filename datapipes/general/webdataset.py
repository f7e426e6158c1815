"""Names of shards in braces, and members of archives gathered to samples."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from ...core.errors import StreamError
from ...core.sample import parse_json
from ...graph import Pipe, Traits
from ..datapipe import DataPipe, located
from ..forms import offered
from .streams import janitor, pair_of

_PATH = re.compile(r"^(.*?)(\.[^/]*)$")
_TEXT = frozenset({"txt", "text", "transcript"})
_NUMBER = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_JSON = frozenset({"json", "jsn"})
# Formats that are pickles, or hold some.
_CODE = frozenset({"pyd", "pickle", "pkl", "pck", "dill", "joblib", "pth", "pt", "ckpt"})


def key_and_suffix(path: str) -> tuple[str, str]:
    """Return what the members of a sample share, and what tells this one, from the first dot on."""
    plain = path.replace("\\", "/")
    folder, slash, name = plain.rpartition("/")
    found = _PATH.match(name)
    return (f"{folder}{slash}{found[1]}", found[2]) if found else (plain, "")


def value_of(path: str, data: Any) -> Any:
    """Return what a member holds: text, a number, JSON, an array; else its bytes.

    Examples
    --------
    >>> value_of("7.cls", b"3"), value_of("7.json", io.BytesIO(b"[1]")), value_of("7.jpg", b"...")
    (3, [1], b'...')
    """
    kind = path.rpartition(".")[2].lower()
    if kind in _CODE:
        raise StreamError(
            f"{path} is a pickle, and opening one runs whatever code it holds.",
            do="Store arrays as .npy and the rest as .json; or leave decode=False, and open it "
            "yourself if you trust everybody who could write it.",
        )
    content = data.read() if hasattr(data, "read") else data
    try:
        if kind in _TEXT or kind in _NUMBER:
            text = content if isinstance(content, str) else bytes(content).decode("utf-8")
            return text if kind in _TEXT else int(text)
        if kind in _JSON:
            return parse_json(content)
        if kind == "npy":
            return np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as error:
        raise StreamError(f"{path} is not what its suffix says: {error}.") from error
    return content


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
            with located(self):
                sample[suffix] = value_of(path, data)
        finally:
            janitor(data)


_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def shards(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for, the last braces fastest.

    Examples
    --------
    >>> list(shards("{a}-{08..10}.tar")), list(shards("x-{8..10}"))
    (['{a}-08.tar', '{a}-09.tar', '{a}-10.tar'], ['x-8', 'x-9', 'x-10'])
    >>> list(shards("{0..1}{0..1}"))
    ['00', '01', '10', '11']
    """
    found = _RANGE.search(pattern)
    if found is None:
        yield pattern
        return
    low, high = found.groups()
    if len(low) < len(high) and low.startswith("0") and low != "0":
        msg = f"shard_expand: low bound must not start with 0 if it is shorter, got {found[0]}"
        raise ValueError(msg)
    if len(low) > len(high):
        raise ValueError(f"shard_expand: low bound must be shorter than high bound, got {found[0]}")
    if int(low) > int(high):
        raise ValueError(f"shard_expand: bad range in shard spec {pattern}")
    # As many digits as both bounds have, if the lower one shows its zeros.
    digits = len(low) if len(low) == len(high) and low.startswith("0") else 1
    for number in range(int(low), int(high) + 1):
        for rest in shards(pattern[found.end() :]):
            yield f"{pattern[: found.start()]}{number:0{digits}d}{rest}"


@offered("shard_expand")
class ShardExpander(DataPipe):
    """Yield the names of shards that patterns like ``"ct-{000..127}.tar"`` stand for.

    No storage is asked.

    Parameters
    ----------
    parent
        Yields patterns; a name without braces stands for itself.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(["ct-{09..11}.tar", "extra.tar"]).shard_expand())
    ['ct-09.tar', 'ct-10.tar', 'ct-11.tar', 'extra.tar']
    """

    def __init__(self, parent: Pipe) -> None:
        super().__init__()
        self.parent = parent

    def __iter__(self) -> Iterator[str]:
        for pattern in self.parent:
            yield from shards(pattern)
