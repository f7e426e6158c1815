"""Manifests by columns: a Parquet file of which a million rows open in two seconds.

Rows are mappings as in a JSON manifest. Their numbers and texts stay in memory by columns; equal
texts of a row group are kept once. Statistics and documents stay in the file until a row is read.

Files of others are not believed: ``parquet_footer.py`` checks footer and pages before pyarrow reads
them. Texts in dictionaries stay there, so a file takes memory in proportion to its bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import islice
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import BadManifest, MissingDependency
from ...core.locks import ForkSafeLock
from ...core.lru_cache import LRUCache, cached_property
from ...core.sample import parse_json
from ...storage.ranges import MOST_DOCUMENT_BYTES, check_document
from .parquet_footer import Footer, checked_footer, read_footer

FORMAT, VERSION = "voxpipe manifest", 1
MOST_BYTES = 4 * 1024**3
"""Several million volumes; their statistics stay on the disk."""
ROWS = 2048
"""Rows of a row group. Statistics are read by row groups."""
_MOST_ROWS = 65_536
"""Rows of a row group by other programs."""
_LEAST_ROW_BYTES = 48
"""Bytes of a row in the columns without a dictionary."""
_RECENT = 8
"""Row groups whose statistics stay in memory."""
_TEXTS = ("case", "key", "kind", "shape", "affine", "layout", "stamp_how", "stamp_header")
_TYPES = {
    **dict.fromkeys(_TEXTS, "string"),
    "affine": "binary",  # 16 doubles, little-endian
    **dict.fromkeys(("location", "stamp_version"), "string"),
    **dict.fromkeys(("slope", "intercept"), "float64"),
    **dict.fromkeys(("stamp_size", "stamp_objects"), "int64"),
    "more": "binary",  # JSON of statistics and documents, by zlib
}
_IN_MEMORY = [name for name in _TYPES if name != "more"]
_MORE = ("statistics", "documents")
_OWN = {"location", "kind", "shape", "affine", "slope", "intercept", "stamp", *_MORE}
_DO = "Write the manifest again: voxpipe index URL."

_FORMATS = {"double": "d", "int64": "q", "int32": "i", "int16": "h", "int8": "b"}
"""Formats of ``memoryview`` by types of numbers."""
_FEW_TEXTS = 4
"""Texts of a column and row group that stay in memory as such."""

Row = tuple[str, str, Mapping[str, Any]]
"""Case, key and volume, as in a JSON manifest."""


def check_format(document: Any, name: str) -> None:
    """Refuse a document that is no manifest, or of another version."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BadManifest(f"{name} is no voxpipe manifest.", do="Write one: voxpipe index URL.")
    version = document.get("version")
    if version != VERSION:
        what = f"{name} has version {version!r}, and this voxpipe reads {VERSION}."
        raise BadManifest(what, do="Write it again (voxpipe index), or install a newer voxpipe.")


def _parquet() -> tuple[Any, Any, Any]:
    """Return pyarrow, its Parquet module, and the columns of a manifest."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        msg = "a manifest by columns (.parquet) needs pyarrow, which is not installed."
        raise MissingDependency(msg, do="pip install voxpipe[parquet]") from error
    fields = [arrow.field(name, getattr(arrow, of)(), False) for name, of in _TYPES.items()]
    return arrow, parquet, arrow.schema(fields)


def write_columns(file: IO[bytes], rows: Iterable[Row], made_of: Callable[[], list[str]]) -> None:
    """Write rows, grouped by case, as Parquet; ``made_of`` is called after the last row.

    Raises
    ------
    MissingDependency
        If pyarrow is not installed.
    BadManifest
        If a name is no UTF-8, or a number exceeds 64 bits.
    """
    arrow, parquet, schema = _parquet()
    rest, has_more = iter(rows), False
    how = {"write_statistics": False, "write_page_checksum": True, "store_schema": False}
    with parquet.ParquetWriter(
        file, schema, compression="NONE", use_dictionary=[*_TEXTS], **how
    ) as writer:
        while group := list(islice(rest, ROWS)):
            columns = [*zip(*map(_cells, group), strict=True)]
            has_more |= any(columns[-1])
            try:
                arrays = [arrow.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
            except (ValueError, OverflowError) as error:  # a name that is no UTF-8
                what = f"volumes from case {group[0][0]!r} on do not fit a Parquet file: {error}."
                raise BadManifest(what, do="Write a manifest with a name in .json.") from error
            writer.write_table(arrow.table(arrays, schema=schema))
        about = {"format": FORMAT, "version": VERSION, "made_of": made_of(), "more": has_more}
        writer.add_key_value_metadata({"voxpipe": json.dumps(about)})


def _cells(row: Row) -> tuple[Any, ...]:
    """Return the values of a row in the order of the columns."""
    case, key, volume = row
    stamp = volume["stamp"]
    more = {name: volume[name] for name in _MORE if volume.get(name)}
    layout = {name: value for name, value in volume.items() if name not in _OWN}
    cells = {
        **{name: volume[name] for name in ("location", "kind", "slope", "intercept")},
        **{f"stamp_{name}": value for name, value in stamp.items()},
        "case": case,
        "key": key,
        "shape": json.dumps(volume["shape"]),
        "affine": np.array(volume["affine"], "<f8").tobytes(),
        "layout": json.dumps(layout, sort_keys=True, allow_nan=False),
        "more": zlib.compress(json.dumps(more, allow_nan=False).encode()) if more else b"",
    }
    usual = stamp["header"] == header_stamp("", stamp["size"], stamp["version"])
    cells["stamp_header"] = "" if usual else json.dumps(stamp["header"])
    return tuple(cells[name] for name in _TYPES)


def header_stamp(text: str, size: int, version: str) -> Any:
    """Return the stamp in a header; that of a single file follows from size and version."""
    if text:
        return parse_json(text)
    return [size, int(version)] if version.isascii() and version.isdigit() else [size]


# Layouts and shapes of a data set are few.
_layout_of = lru_cache(maxsize=256)(parse_json)


class Columns(Sequence[Row]):
    """Rows of a Parquet file without statistics and documents, each made when it is asked for.

    Raises
    ------
    MissingDependency
        If pyarrow is not installed.
    BadManifest
        If the file is no manifest, is damaged, or claims more than its bytes hold.
    """

    def __init__(self, path: str, name: str) -> None:
        arrow, parquet, _ = _parquet()
        self._name, self._lock = name, ForkSafeLock()
        self._recent: LRUCache[Any] = LRUCache(_RECENT)
        self._errors = (arrow.ArrowException, OSError, ValueError, MemoryError, TypeError, KeyError)
        check_document(os.stat(path).st_size, name, MOST_BYTES)
        with self.reporting("is no voxpipe manifest"):
            # It reads at positions, so that forked children can share the descriptor.
            file = arrow.OSFile(path)
            footer = read_footer(file.read_at, size := file.size())
            document = parse_json(footer.documents.get(b"voxpipe", b"null"))
        check_format(document, name)
        with self.reporting("cannot be read"), _exact_memory(arrow):
            self.made_of, self.has_more = [*map(str, document["made_of"])], bool(document["more"])
            _check_rows(footer, size)
            bare = checked_footer(file.read_at, footer, _TYPES, _TEXTS)
            self._file = parquet.ParquetFile(
                file,
                metadata=parquet.read_metadata(arrow.BufferReader(bare)),
                read_dictionary=[*_TEXTS],
                page_checksum_verification=True,
            )
            groups = range(len(footer.groups))
            self._batches = [_with_short_codes(self._group(n, _IN_MEMORY)) for n in groups]
            self._readers: dict[int, list[Callable[[int], Any]]] = {}
            self._firsts = np.cumsum([0, *map(len, self._batches)]).tolist()
        with self.reporting("cannot be read"):
            self.first_rows: Any = self._first_rows(arrow).data
            # The table of all names, a quarter of the columns, goes back to the system.
            arrow.default_memory_pool().release_unused()

    @contextmanager
    def reporting(self, problem: str) -> Iterator[None]:
        """Raise BadManifest for any error of the reader."""
        try:
            yield
        except BadManifest:
            raise
        except self._errors as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise BadManifest(f"{self._name} {problem}: {text:.300}.", do=_DO) from error

    def _group(self, number: int, columns: list[str]) -> Any:
        """Read columns of a row group as one batch of checked values."""
        with self._lock:
            table = self._file.read_row_group(number, columns=columns, use_threads=False)
        (batch,) = table.combine_chunks().to_batches()
        batch.validate(full=True)
        return batch

    def _first_rows(self, arrow: Any) -> NDArray[np.int64]:
        """Return the first row of each case; refuse a case whose rows are apart."""
        starts, names, last = [np.zeros(0, np.int64)], [], None
        for first, batch in zip(self._firsts, self._batches, strict=False):
            column = batch.column("case")
            codes = column.indices.to_numpy()
            is_new = np.append(column[0].as_py() != last, codes[1:] != codes[:-1])
            starts.append(np.flatnonzero(is_new) + first)
            # take() of repeated codes would copy a long name many times.
            if len(new := codes[is_new]) != len(np.unique(new)):
                raise ValueError("the volumes of a case are not together")
            names.append(column.dictionary.take(arrow.array(new)))
            last = column[-1].as_py()
        rows = np.concatenate(starts)
        if len(rows) and len(arrow.chunked_array(names).unique()) != len(rows):
            raise ValueError("the volumes of a case are not together")
        return rows

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, number: Any) -> Any:
        number = range(len(self))[number]
        cells = dict(zip(_IN_MEMORY, self.cells(number), strict=True))
        with self.reporting(f"is damaged in row {number}"):
            stamp = {name: cells[f"stamp_{name}"] for name in ("how", "size", "objects", "version")}
            text = cells["stamp_header"]
            volume = {
                **_layout_of(cells["layout"]),
                **{name: cells[name] for name in ("location", "kind", "slope", "intercept")},
                "shape": _layout_of(cells["shape"]),
                "affine": np.frombuffer(cells["affine"], "<f8").tolist(),
                "stamp": {**stamp, "header": header_stamp(text, stamp["size"], stamp["version"])},
                "statistics": None,
            }
        return cells["case"], cells["key"], volume

    def cells(self, number: int) -> list[Any]:
        """Return the values of a row as they are stored, in the order of the columns."""
        readers, row = self._readers_of(number)
        return [read(row) for read in readers]

    def names(self, number: int) -> tuple[str, str, str]:
        """Return case, key and kind of a row."""
        (case_of, key_of, kind_of, *_), row = self._readers_of(number)
        return case_of(row), key_of(row), kind_of(row)

    def _readers_of(self, number: int) -> tuple[list[Callable[[int], Any]], int]:
        """Return the functions that read the columns of a row, and its number in its row group."""
        group = bisect_right(self._firsts, number) - 1
        if (readers := self._readers.get(group)) is None:
            readers = self._readers[group] = [*map(_reader_of, self._batches[group].columns)]
        return readers, number - self._firsts[group]

    def more(self, number: int) -> Any:
        """Return statistics and documents of a row, which are read with those of its row group."""
        group = bisect_right(self._firsts, number) - 1
        with self.reporting(f"is damaged in row {number}"):
            column = self._recent.get_or(group, lambda: self._group(group, ["more"]).column(0))
            return self._inflate(column[number - self._firsts[group]].as_py())

    @staticmethod
    def _inflate(data: bytes) -> Any:
        if not data:
            return {}
        inflate = zlib.decompressobj()
        try:
            text = inflate.decompress(data, MOST_DOCUMENT_BYTES)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if not inflate.eof:
            raise ValueError("its statistics and documents are cut off, or too long")
        return parse_json(text)

    def texts(self) -> Iterator[str]:
        """Yield a text for each row with all values but statistics and documents."""
        names = dict.fromkeys(["case", "key", "location", *_IN_MEMORY])
        for batch in self._batches:
            columns = [_values(batch.column(name)) for name in names]
            for case, key, location, *rest in zip(*columns, strict=True):
                yield f"{case} {key}={location} {rest}"

    @cached_property
    def digest(self) -> str:
        """Digest of all values but statistics and documents."""
        digest = hashlib.blake2b(digest_size=8)
        for column in (column for batch in self._batches for column in batch.columns):
            has_dictionary = hasattr(column, "dictionary")  # in the order of the rows, as written
            for array in (column.dictionary, column.indices) if has_dictionary else (column,):
                for piece in _bytes_of(array):
                    digest.update(piece)
        return digest.hexdigest()


_POOL = ForkSafeLock()


@contextmanager
def _exact_memory(arrow: Any) -> Iterator[None]:
    """Allocate exact buffers: the usual pool takes half as much again for small ones."""
    with _POOL:  # The pool is global: threads would restore that of each other.
        usual = arrow.default_memory_pool()
        arrow.set_memory_pool(arrow.system_memory_pool())
        try:
            yield
        finally:
            arrow.set_memory_pool(usual)


def _with_short_codes(batch: Any) -> Any:
    """Return a batch whose codes of texts have the fewest bytes; those of pyarrow have four."""
    columns = []
    for column in batch.columns:
        if hasattr(column, "dictionary"):
            few = "int8" if len(column.dictionary) < 2**7 else "int16"
            if len(column.dictionary) < 2**15:
                codes = column.indices.cast(few)
                column = type(column).from_arrays(codes, column.dictionary)
        columns.append(column)
    return type(batch).from_arrays(columns, names=batch.schema.names)


def _check_rows(footer: Footer, size: int) -> None:
    """Refuse numbers of rows that do not fit the file."""
    counts = [group[3] for group in footer.groups]
    most = min(size // _LEAST_ROW_BYTES, footer.row_count)
    if sum(counts) != most or not all(0 < count <= _MOST_ROWS for count in counts):
        raise ValueError(f"it claims {footer.row_count} rows in {len(counts)} groups")


def _values(column: Any) -> list[Any]:
    """Return the values of a column; rows share the texts of a dictionary."""
    if not hasattr(column, "dictionary"):
        return [*column.to_pylist()]
    texts = column.dictionary.to_pylist()
    return [texts[code] for code in column.indices.to_pylist()]


def _reader_of(column: Any) -> Callable[[int], Any]:
    """Return a function that reads the value of a row, in a tenth of the time of pyarrow's."""
    codes: Any = None
    if hasattr(column, "dictionary"):
        codes, column = _numbers_of(column.indices), column.dictionary
        if len(column) <= _FEW_TEXTS:
            few = column.to_pylist()
            return (lambda row: few[codes[row]]) if few[1:] else lambda row: few[0]
    kind, numbers = str(column.type), _numbers_of(column)
    if kind in _FORMATS:
        return lambda row: numbers[row]
    texts = memoryview(column.buffers()[2] or b"")  # between limits
    read = bytes if kind == "binary" else partial(str, encoding="utf-8")
    if codes is None:
        return lambda row: read(texts[numbers[row] : numbers[row + 1]])
    return lambda row: read(texts[numbers[code := codes[row]] : numbers[code + 1]])


def _numbers_of(column: Any) -> Any:
    """Return the numbers of a column, or the limits of its texts."""
    memory: Any = memoryview(column.buffers()[1]).cast("B")
    return memory.cast(_FORMATS.get(str(column.type), "i"))[column.offset :]


def _bytes_of(array: Any) -> Iterator[memoryview]:
    """Yield the bytes of an array without nulls: its lengths and texts, or its numbers."""
    _, first, *rest = array.buffers()
    if not rest:
        size = array.type.bit_width // 8
        yield memoryview(first)[size * array.offset : size * (array.offset + len(array))]
        return
    offsets = np.frombuffer(first, np.int32)[array.offset : array.offset + len(array) + 1]
    yield np.diff(offsets).data
    yield memoryview(rest[0] or b"")[offsets[0] : offsets[-1]]
