"""Pipes that parse open files and archives: lines, rows, JSON, members gathered to samples."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, ClassVar

import numpy as np

from ...core.errors import StreamError, add_location
from ...core.sample import parse_json
from ...datapipes.datapipe import DataPipe, PerItem, locate_errors
from ...graph import Pipe, Traits
from .streams import janitor, named_stream, pair_of


class _TextPipe(DataPipe):
    """A pipe that yields several things of each file, and closes the file."""

    # Its items hold no open file.
    traits: ClassVar[Any] = Traits(plain=True)

    def __init__(
        self,
        parent: Pipe,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        **fmtparams: Any,
    ) -> None:
        super().__init__(parent)
        if skip_lines < 0:
            raise ValueError(f"'skip_lines' is required to be a positive integer, got {skip_lines}")
        self.skip_lines, self.return_path, self.fmtparams = skip_lines, return_path, fmtparams
        self.decode, self.encoding, self.errors = decode, encoding, errors

    newline: ClassVar[str] = ""
    """Where lines end, as of ``open``: "" keeps the ends that a quoted field may hold, for csv."""

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for item in self.parent:
            path, stream = pair_of(self, item)
            del item
            try:
                lines = self._lines_of(stream)  # kept: it warns if it goes before the stream closes
                for each in self.of_lines(itertools.islice(lines, self.skip_lines, None)):
                    yield (path, each) if self.return_path else each
            except (UnicodeError, csv.Error) as error:
                do = "Check encoding= and errors=, and the form of the file."
                msg = f"{path} cannot be read: {error}."
                raise StreamError(msg, do=do).at(self.origin) from error
            finally:  # at the end, or when the pass is abandoned
                janitor(stream)
                if hasattr(stream, "close"):
                    stream.close()

    def _lines_of(self, stream: Any) -> Iterator[Any]:
        if not self.decode:
            return iter(stream)
        how = self.encoding, self.errors
        # A list of lines cannot be asked for bytes.
        if hasattr(stream, "readable") and isinstance(stream.read(0), bytes):
            # Split after it is decoded: half of a UTF-16 letter may look like the end of a line.
            return iter(io.TextIOWrapper(stream, *how, newline=self.newline))
        return (x.decode(*how) if isinstance(x, bytes) else x for x in stream)


class CSVParser(_TextPipe, form="parse_csv"):
    r"""Yield each row of each CSV file as a list of texts; files are closed.

    The parent yields ``(path, stream)``, of bytes or of text. A file that cannot be decoded, or is
    no CSV, is a ``StreamError``.

    - ``skip_lines``: lines left out at the beginning of each file.
    - ``decode``, ``encoding``, ``errors``: whether and how bytes become text; undecodable bytes are
      left out by default.
    - ``return_path``: whether each row comes with the path of its file.
    - ``as_tuple``: whether rows are tuples.
    - other keywords: of ``csv.reader``, such as ``delimiter`` and ``quotechar``.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> files = [("a.csv", io.BytesIO(b'key;item\na;"1\n2"\n'))]
    >>> list(IterableWrapper(files, deepcopy=False).parse_csv(delimiter=";"))
    [['key', 'item'], ['a', '1\n2']]
    """

    def __init__(
        self,
        parent: Pipe,
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        as_tuple: bool = False,
        **fmtparams: Any,
    ) -> None:
        super().__init__(parent, skip_lines, decode, encoding, errors, return_path, **fmtparams)
        self.as_tuple = as_tuple

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        rows = csv.reader(lines, **self.fmtparams)
        return map(tuple, rows) if self.as_tuple else rows


class CSVDictParser(_TextPipe, form="parse_csv_as_dict"):
    r"""Yield each row of each CSV file as a dict by the names in its first row; files are closed.

    Arguments are those of :class:`CSVParser`, and of ``csv.DictReader``. The lines that are left
    out come before the names.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> files = [("a.csv", io.StringIO("key,item\na,1\nb,2\n"))]
    >>> list(IterableWrapper(files, deepcopy=False).parse_csv_as_dict())
    [{'key': 'a', 'item': '1'}, {'key': 'b', 'item': '2'}]
    """

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        return iter(csv.DictReader(lines, **self.fmtparams))


class JsonParser(PerItem, form="parse_json_files"):
    """Yield ``(path, contents)`` for each ``(path, stream)`` of JSON; files are closed.

    Streams are of bytes or of text; keywords are of ``json.loads``. A file that is no JSON is a
    ``json.JSONDecodeError``, with a note that names it.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> files = [("a.json", io.BytesIO(b'{"spacing": [1, 1, 2.5]}'))]
    >>> list(IterableWrapper(files, deepcopy=False).parse_json_files())
    [('a.json', {'spacing': [1, 1, 2.5]})]
    """

    traits: ClassVar[Any] = Traits(per_item=True, plain=True)

    def __init__(self, parent: Pipe, **kwargs: Any) -> None:
        super().__init__(parent)
        self.kwargs = kwargs

    def apply(self, item: Any) -> tuple[str, Any]:
        name, stream = named_stream(self, item)
        with closing(stream):
            data = stream.read()
        try:
            return name, json.loads(data, **self.kwargs)
        except (ValueError, RecursionError) as error:
            raise add_location(error, self.origin, name)  # noqa: B904  the very same error


class LineReader(_TextPipe, form="readlines"):
    r"""Yield ``(path, line)`` for each line of each ``(path, stream)``; files are closed.

    Arguments are those of :class:`CSVParser`. By default bytes stay bytes, lines lose their ends
    (``strip_newline``), and each comes with the path of its file. Undecodable bytes are a
    ``StreamError`` with ``errors="strict"``.

    Examples
    --------
    >>> import io
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> files = [("a.txt", io.StringIO("one\ntwo\r\n")), ("b.txt", io.StringIO("three"))]
    >>> list(IterableWrapper(files, deepcopy=False).readlines())
    [('a.txt', 'one'), ('a.txt', 'two'), ('b.txt', 'three')]
    """

    def __init__(
        self,
        parent: Pipe,
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = True,
    ) -> None:
        super().__init__(parent, skip_lines, decode, encoding, errors, return_path)
        self.strip_newline = strip_newline

    newline: ClassVar[str] = "\n"

    def of_lines(self, lines: Iterator[Any]) -> Iterator[Any]:
        if not self.strip_newline:
            return lines
        return (x.strip("\r\n") if isinstance(x, str) else x.strip(b"\r\n") for x in lines)


def join_lines(lines: Sequence[str]) -> str:
    """Return lines as one text, with ends of lines in between."""
    return "\n".join(lines)


class ParagraphAggregator(DataPipe, form="lines_to_paragraphs"):
    """Yield ``(path, paragraph)``: lines of one file up to an empty one, joined.

    The parent yields ``(path, line)``. Paragraphs are made by ``joiner`` of a list of lines; by
    default ends of lines come in between.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> lines = [("a", "one"), ("a", "two"), ("a", ""), ("a", "three"), ("b", "four")]
    >>> list(IterableWrapper(lines).lines_to_paragraphs(" ".join))
    [('a', 'one two'), ('a', 'three'), ('b', 'four')]
    """

    @property
    def traits(self) -> Traits:
        return Traits(runs_user_code=self.joiner is not join_lines)

    def __init__(self, parent: Pipe, joiner: Callable[[list[Any]], Any] = join_lines) -> None:
        super().__init__(parent)
        self.joiner = joiner

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        pairs = (pair_of(self, item) for item in self.parent)
        for (path, is_text), lines in itertools.groupby(pairs, lambda p: (p[0], bool(p[1]))):
            if is_text:
                yield path, self.joiner([line for _, line in lines])


# The common name of a sample's members, and the suffix from the first dot on.
_PATH = re.compile(r"^((?:.*/)?[^/]*?)(\.[^/]*)$")
_TEXT = frozenset({"txt", "text", "transcript"})
_NUMBER = frozenset({"cls", "cls2", "class", "count", "index", "inx", "id"})
_JSON = frozenset({"json", "jsn"})
# Formats that are pickles, or hold some.
_CODE = frozenset({"pyd", "pickle", "pkl", "pck", "dill", "joblib", "pth", "pt", "ckpt"})


def value_of(path: str, data: Any) -> Any:
    """Return the value of a member: text, a number, JSON, an array; else its bytes.

    Examples
    --------
    >>> value_of("7.cls", b"3"), value_of("7.json", io.BytesIO(b"[1]")), value_of("7.jpg", b"...")
    (3, [1], b'...')
    """
    kind = path.rpartition(".")[2].lower()
    if kind in _CODE:
        msg = f"{path} is a pickle, and opening one runs whatever code it holds."
        do = "Store arrays as .npy and the rest as .json; or leave decode=False, and open it "
        raise StreamError(msg, do=f"{do}yourself if you trust everybody who could write it.")
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


class WebDataset(DataPipe, form="webdataset"):
    """Yield ``{"__key__": name, ".jpg": data, ".cls": data, ...}`` of adjacent members.

    The parent yields ``(path, data)``, e.g. of ``load_from_tar``. Members of one sample share their
    path up to the first dot of the name and follow each other; the rest of the name is the key.
    Those without a suffix are left out. Two members of one suffix are a ``StreamError``.

    With ``decode`` streams are read and become values: ``.txt`` text, ``.cls`` and the like a
    number, ``.json`` its contents, ``.npy`` an array, everything else bytes. Pickles (``.pyd``,
    ``.pth``, ...), and members that do not match their suffix, raise ``StreamError``. Without
    ``decode`` data pass as they are. If the archive arrives as a stream, read them (by ``map``)
    before this pipe, which takes members until the next sample.

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
        super().__init__(parent)
        self.decode = decode

    def __iter__(self) -> Iterator[dict[str, Any]]:
        sample: dict[str, Any] = {}
        try:
            for item in self.parent:
                path, data = pair_of(self, item)
                del item
                match = _PATH.match(path.replace("\\", "/"))
                if match is None:
                    janitor(data)
                    continue
                key, suffix = match.groups()
                if sample and key != sample["__key__"]:
                    complete, sample = sample, {}
                    yield complete
                    del complete
                self._add(sample, path, key, suffix, data)
                del data
            if sample:
                complete, sample = sample, {}
                yield complete
        finally:
            # A sample that was not yielded.
            janitor(sample)

    def _add(self, sample: dict[str, Any], path: str, key: str, suffix: str, data: Any) -> None:
        if suffix in sample:
            janitor(data)
            do = "Members of one sample must follow each other, and each name be there once."
            raise StreamError(f"sample {key} has two members {suffix}.", do=do).at(self.origin)
        sample.setdefault("__key__", key)
        if not self.decode:
            sample[suffix] = data
            return
        try:
            with locate_errors(self):
                sample[suffix] = value_of(path, data)
        finally:
            janitor(data)


_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def _shards(pattern: str) -> Iterator[str]:
    match = _RANGE.search(pattern)
    if match is None:
        yield pattern
        return
    low, high = match.groups()
    if len(low) < len(high) and low.startswith("0") and low != "0":
        msg = f"shard_expand: low bound must not start with 0 if it is shorter, got {match[0]}"
        raise ValueError(msg)
    if len(low) > len(high) or int(low) > int(high):
        raise ValueError(f"shard_expand: bad range in shard spec {pattern}")
    # As many digits as both bounds have, if the lower one shows its zeros.
    digits = len(low) if len(low) == len(high) and low.startswith("0") else 1
    for number in range(int(low), int(high) + 1):
        for rest in _shards(pattern[match.end() :]):
            yield f"{pattern[: match.start()]}{number:0{digits}d}{rest}"


class ShardExpander(DataPipe, form="shard_expand"):
    """Yield the names of shards that patterns like ``"ct-{000..127}.tar"`` stand for.

    The last of several ranges is the fastest. A name without one stands for itself. No storage is
    read.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(["ct-{09..11}.tar", "extra.tar"]).shard_expand())
    ['ct-09.tar', 'ct-10.tar', 'ct-11.tar', 'extra.tar']
    >>> list(IterableWrapper(["{a}-{8..10}", "{0..1}{0..1}"]).shard_expand())
    ['{a}-8', '{a}-9', '{a}-10', '00', '01', '10', '11']
    """

    def __init__(self, parent: Pipe) -> None:
        super().__init__(parent)

    def __iter__(self) -> Iterator[str]:
        for pattern in self.parent:
            yield from _shards(pattern)
